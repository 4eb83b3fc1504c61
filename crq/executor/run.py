"""
The way of one execution: read, unseal, lock, start, run, finish, answer.

# Note [What an answer promises]

A refusal promises that nothing was started by this request. An outcome promises that the script
ran, once, and how it ended; it is in the answer even when the database was lost before it could be
written, and the drainer writes it then. A worker that dies in between gives no answer: its lock is
free, its row still running, and the drainer closes that.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from attrs import define, frozen

from crq import crashpoints, executions, gatehistory
from crq.config import Config
from crq.database import CommitUnknown, Cursor, is_outage
from crq.executor.api import Access, Refusal
from crq.executor.clock import Clock
from crq.executor.connection import Connection
from crq.executor.interpret import KEPT_BACK, Ended, Work, clean, interpret
from crq.instants import Instant
from crq.interfaces import IGateStore
from crq.liveness import Liveness, LockBusy
from crq.messages import Outcome, Started, Submission
from crq.model import ErrorCode, Status
from crq.sealing import Sealer, Unsealable

PAUSES = (0.1, 0.5, 2.0, 5.0)  # s between attempts while the database is away, as for a restart

_log = logging.getLogger("crq.executor")


@frozen
class Refused:
    """
    Nothing was started (see note [What an answer promises]).

    :ivar field: what it is about.
    """

    http_status: int
    field: str
    problem: str
    remedy: str
    error_code: ErrorCode | None = None


@frozen
class Finished:
    """
    An execution was started and has ended.
    """

    execution_id: int
    outcome: Outcome


NOT_OURS = Refused(
    409,
    "asyncNonce",
    "it starts no execution of this job: used, replaced, expired or never given out",
    "claim the execution again and send its new nonce",
    ErrorCode.NONCE_INVALID,
)
AWAY = Refused(503, "database", "does not answer", "send it again; nothing was started")
BUSY = Refused(
    503, "jobId", "another worker holds this execution's lock", "send it again; nothing was started"
)


@define(eq=False)
class Executor:
    """
    What a worker process executes with; made before the fork, connected after it.

    :ivar liveness: None where locks are not to be trusted (``liveness = "wall"``).
    """

    config: Config
    connection: Connection
    sealer: Sealer
    gates: IGateStore
    liveness: Liveness | None
    clock: Clock

    @classmethod
    def of(cls, config: Config, gates: IGateStore, clock: Clock) -> Executor:
        """
        The executor that a configuration describes.

        :raise ValueError: the secrets cannot be read.
        """
        database = config.open_database()
        locks = Liveness(database, Path(config.executor.lock_dir))
        return cls(
            config,
            Connection(database),
            config.sealer(),
            gates,
            locks if config.executor.liveness == "lock" else None,
            clock,
        )

    def trial(self, submission: Submission) -> Ended:
        """
        Run a script for somebody who waits; the queue knows nothing of it.

        :raise ValueError: the account or the key cannot be used.
        """
        begun = self.clock.monotonic()
        key_hash = self.sealer.key(submission.apikey)
        access = Access.of(self.config.api, submission.subdomain, submission.apikey, key_hash)
        work = Work(submission.source_code, submission.payload, access)
        return interpret(work, self.config, self.gates, self.clock, begun, self._note)

    def execute(self, job_id: int, nonce: str) -> Finished | Refused:
        """
        Start the execution of a job, run it and write how it ended.
        """
        try:
            return self._execute(job_id, nonce, self.clock.monotonic())
        except Exception as error:
            # After a start nothing raises; before it, a database that is away is said so.
            if is_outage(error):
                _log.error("database away before a start: %s", type(error).__name__)
                return AWAY
            raise

    def _execute(self, job_id: int, nonce: str, begun: float) -> Finished | Refused:
        row, status = self.connection.read(_look, job_id)
        if row is None or status != Status.CLAIMED.value:
            return NOT_OURS
        try:
            work = self._work(row)
        except ValueError as error:
            return Refused(422, "jobId", str(error), "submit it again")
        with ExitStack() as held:
            if self.liveness is not None:
                try:
                    held.enter_context(self.liveness.hold(row.execution_id))
                except LockBusy:
                    status = self.connection.read(_look, job_id)[1]
                    return BUSY if status == Status.CLAIMED.value else NOT_OURS
            crashpoints.reached("lock held")
            started_at = self.clock.wall()
            started = self.clock.monotonic()
            if not self._start(row.execution_id, nonce, started_at, begun):
                return NOT_OURS
            outcome = self._run(row, work, begun)
            elapsed = self.clock.monotonic() - started
            self._finish(row.execution_id, outcome, started_at + elapsed, begun)
        crashpoints.reached("lock given back")
        code = outcome.error_code or ""
        text = "execution %d ended: %s %s, %.3f s"
        _log.info(text, row.execution_id, outcome.status.value, code, elapsed)
        return Finished(row.execution_id, outcome)

    def _work(self, row: Started) -> Work:
        if row.source_code is None:
            raise ValueError("the execution has no source code")
        try:
            apikey = self.sealer.unseal(row.sealed_apikey)
        except Unsealable as error:
            raise ValueError(str(error)) from None
        access = Access.of(self.config.api, row.subdomain, apikey, row.apikey_hash)
        return Work(row.source_code, row.payload, access)

    def _start(self, execution_id: int, nonce: str, now: Instant, begun: float) -> bool:
        # Unique for each attempt: an unanswered COMMIT is settled by looking for it.
        worker_id = f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(8)}"
        try:
            return self.connection.transact(executions.start, execution_id, nonce, worker_id, now)
        except CommitUnknown as unknown:
            for _ in self._attempts(begun):
                try:
                    found = self.connection.read(executions.worker_of, execution_id)
                except Exception as error:
                    if not is_outage(error):
                        raise
                    continue
                if found == (Status.RUNNING.value, worker_id):
                    return True
                break
            raise unknown

    def _run(self, row: Started, work: Work, begun: float) -> Outcome:
        def refused(refusal: Refusal) -> None:
            self._note(refusal, row.execution_id)

        ended = interpret(work, self.config, self.gates, self.clock, begun, refused)
        if row.debug and ended.output:
            _log.info("execution %d printed: %r", row.execution_id, ended.output)
        return ended.outcome

    def _note(self, refusal: Refusal, execution_id: int | None = None) -> None:
        """
        Put a refusal into the history of gates. It is for people: a script does not fail for it.
        """
        said = "without Retry-After" if refusal.said is None else f"Retry-After: {refusal.said}"
        cause = clean(f"429, {said}")
        key, until, now = refusal.key_hash, refusal.until, refusal.now
        try:
            self.connection.transact(gatehistory.record, key, until, now, cause, execution_id)
        except Exception as error:  # noqa: BLE001 - see above
            _log.error("history of gates not written: %s", type(error).__name__)

    def _finish(self, execution_id: int, outcome: Outcome, now: Instant, begun: float) -> None:
        for first in self._attempts(begun):
            try:
                # Repeating it is safe: it names the state it leaves.
                written = self.connection.transact(executions.finish, execution_id, outcome, now)
            except Exception as error:  # noqa: BLE001 - the answer carries the outcome as well
                _log.error(
                    "execution %d: outcome not written: %s", execution_id, type(error).__name__
                )
                if not is_outage(error):
                    break
                continue
            if first and not written:
                _log.warning("execution %d: its row does not wait for an outcome", execution_id)
            return

    def _attempts(self, begun: float) -> Iterator[bool]:
        """
        Wait before each attempt to reach a database that is away, until the wall is near.

        :return: whether it is the first.
        """
        ends = begun + self.config.executor.wall * (1 - KEPT_BACK / 2)
        yield True
        for pause in PAUSES:
            if self.clock.monotonic() + pause > ends:
                return
            self.clock.sleep(pause)
            yield False


def _look(txn: Cursor, job_id: int) -> tuple[Started | None, str | None]:
    row = executions.startable(txn, job_id)
    found = None if row is None else executions.worker_of(txn, row.execution_id)
    return row, None if found is None else found[0]
