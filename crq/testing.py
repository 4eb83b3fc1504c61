"""
The whole queue in one process, for the tests of those who use crqueue.

    with Queue(script=Script(seconds=2)) as queue:
        first, second, third = (queue.admit("acme") for _ in range(3))
        queue.advance(1)
        assert queue.look(third).status == "queued"
        queue.advance(1)
        assert queue.look(third).status == "running"

Rows, rules, claim and loop are those of production, on SQLite in memory; time passes when `advance`
lets it, and scripts do what a `Script` says. No thread, no socket, no file, no sleep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from cryptography.fernet import Fernet

from crq import admission, executions, records
from crq.database import Cursor
from crq.inmemory import MemoryDatabase
from crq.instants import Instant, instant_of
from crq.messages import Admitted, DispatchResult
from crq.model import Claimed, Limits, Reason
from crq.policy import gate_until
from crq.recordvalues import Record
from crq.scripted import Execution, Script, ScriptedExecutor
from crq.sealing import Sealer
from crq.timeline import Timeline
from crq.workbench import Workbench

T = TypeVar("T")
P = ParamSpec("P")

__all__ = ["Execution", "NotAdmitted", "Queue", "Script"]

BEGINS = instant_of("2026-03-02 12:00:00.000")
LIMITS = Limits()
AT_ONCE = Script()


class NotAdmitted(Exception):
    """
    The queue did not take it.

    :ivar answer: what it said instead: `crq.messages.Rejected`, `Invalid` or `Mismatch`.
    """

    def __init__(self, answer: admission.Answer) -> None:
        super().__init__(admission.as_json(answer))
        self.answer = answer


class Queue:
    """
    One queue, alone in its process.

    :ivar clocks: the clocks; `advance` is the way to move them.
    :ivar executor: what has been started, in ``order``, and how many ran at ``most``.
    """

    def __init__(
        self,
        *,
        limits: Limits = LIMITS,
        script: Script | Callable[[Execution], Script] = AT_ONCE,
        begins: Instant = BEGINS,
        language: Literal["starlark", "opaque"] = "opaque",
    ) -> None:
        """
        Start an empty queue and its drainer.

        :param limits: the four caps.
        :param script: what executions do, all alike or each by itself.
        :param begins: the wall instant at the beginning, in POSIX seconds.
        :param language: ``starlark``: what does not parse is refused, as in production; ``opaque``:
            any text is taken. Source code is never run here.
        """
        self.limits = limits
        self.script = script
        self.language: Literal["starlark", "opaque"] = language
        self.clocks = Timeline(begins)
        self.database = MemoryDatabase()
        self.executor = ScriptedExecutor(self.database, self.clocks)
        self.executor.begun = self._begun
        self._sealer = Sealer("salt", (Fernet.generate_key().decode("ascii"),))
        self._connection: Any = self.database.connect()
        self._bench = self._opened()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """
        End it all; the rows are gone.
        """
        self._bench.kill()
        self.database.end()

    # -- what goes in

    def submit(
        self,
        account: str = "acme",
        apikey: str = "key",
        source_code: str = "script",
        *,
        payload: object = None,
        identifier: str | None = None,
        idempotency_key: str | None = None,
    ) -> admission.Answer:
        """
        Submit an execution now and return the queue's answer, whatever it is.

        :param payload: a JSON value.
        :raise crq.submissions.Refusal: a field is not as it must be.
        """
        given = {"subdomain": account, "apikey": apikey, "source_code": source_code}
        wanted = admission.submission(
            {**given, "identifier": identifier, "payload": payload}, idempotency_key
        )
        answer = admission.admit(
            self.database,
            self._connection,
            wanted,
            self._sealer,
            self.limits,
            self.now,
            self.language,
        )
        self._bench.drainer.wake()
        self._raise()
        return answer

    def admit(self, account: str = "acme", apikey: str = "key", **more: Any) -> int:
        """
        Submit an execution as `submit` does, and return its number.

        :raise NotAdmitted: the queue did not take it.
        """
        answer = self.submit(account, apikey, **more)
        if not isinstance(answer, Admitted):
            raise NotAdmitted(answer)
        return answer.execution_id

    def cancel(self, execution_id: int) -> bool:
        """
        Cancel an execution that still waits; says whether it did.
        """
        return self.database.transact(self._connection, executions.cancel, execution_id, self.now)

    def close_gate(self, apikey: str, seconds: float) -> None:
        """
        Close the gate of an API key, as another program does that shares it.
        """
        self._bench.store.close(self._sealer.key(apikey), self.now + seconds, self.now)

    def open_gate(self, apikey: str) -> None:
        """
        Open the gate of an API key.
        """
        self._bench.store.open(self._sealer.key(apikey))

    # -- time and faults

    @property
    def now(self) -> Instant:
        """
        The wall clock.
        """
        return self.clocks.wall()

    def advance(self, seconds: float) -> None:
        """
        Let time pass; everything that is due happens at its own instant.

        What a script raises is raised here.
        """
        until = self.clocks.seconds() + seconds
        self.clocks.run(until, self.clocks.seconds)
        self._raise()

    def drain(self, limit: float = 86_400.0) -> float:
        """
        Let time pass until nothing waits or runs; returns how many whole seconds that took.

        :raise TimeoutError: after ``limit`` seconds something still does.
        """
        begun = self.clocks.seconds()
        while any(self.states()[status] for status in ("queued", "claimed", "running")):
            if self.clocks.seconds() - begun >= limit:
                raise TimeoutError(f"not drained after {limit:g} s: {dict(self.states())}")
            self.advance(1.0)
        return self.clocks.seconds() - begun

    def refuse(self, result: DispatchResult | None) -> None:
        """
        Let the executor take no work: every dispatch has this result; None: it takes work again.
        """
        self.executor.refuse = result

    def kill(self) -> None:
        """
        Kill the drainer as SIGKILL does; scripts go on in the executor.
        """
        self._bench.kill()

    def restart(self) -> None:
        """
        Kill the drainer and start another.
        """
        self.kill()
        self._bench = self._opened()

    # -- what can be seen

    def look(self, execution_id: int) -> Record:
        """
        One row as the log shows it.

        :raise KeyError: there is none of that number.
        """
        found = self.read(records.execution, execution_id)
        if found is None:
            raise KeyError(execution_id)
        return found.record

    def states(self) -> Counter[str]:
        """
        How many rows are in each state.
        """
        return self.read(_states)

    def why(self, execution_id: int) -> Reason | None:
        """
        Why an execution waits, by the last tick; None: it does not wait, or that tick started the
        one before it.
        """
        record = self.look(execution_id)
        if record.status != "queued":
            return None
        if self._bench.pulse.backing_off_until is not None:
            return Reason.BACKING_OFF
        wanted = (record.subdomain_hash, record.apikey_hash)
        holds: dict[tuple[str | None, str | None], Reason] = {
            (hold.lane.subdomain_hash, hold.lane.apikey_hash): hold.reason
            for hold in self._bench.pulse.plan.holds
        }
        return holds.get(wanted)

    def read(
        self, function: Callable[Concatenate[Cursor, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """
        Run a reading function on a cursor.
        """
        return self.database.read(self._connection, function, *args, **kwargs)

    # -- inside

    def _opened(self) -> Workbench:
        bench = Workbench(self.executor, limits=self.limits)
        bench.drainer.startService()
        return bench

    def _begun(self, claimed: Claimed) -> Script:
        if isinstance(self.script, Script):
            script = self.script
        else:
            row = self.read(executions.startable, claimed.job_id)
            assert row is not None
            script = self.script(
                Execution(
                    row.execution_id,
                    row.subdomain,
                    self._sealer.unseal(row.sealed_apikey),
                    row.source_code or "",
                    row.payload,
                )
            )
        if script.retry_after is not None and claimed.lane.apikey_hash is not None:
            until = gate_until(script.retry_after, self.now)
            self._bench.store.close(claimed.lane.apikey_hash, until, self.now)
        return script

    def _raise(self) -> None:
        if self.executor.failures:
            self.executor.failures.pop(0).raiseException()


def _states(txn: Cursor) -> Counter[str]:
    sql = "SELECT status, COUNT(*) FROM codeRunner_executions GROUP BY status"
    return Counter(dict(txn.execute(sql).all()))
