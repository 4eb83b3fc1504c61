"""
Dispatches to a plain endpoint: its answers are the outcomes, and they are written together.

# Note [What leaves `outstanding`]

A row is taken out only when what came of it has been written (or when the daemon stops, and claims
nothing more). The drainer relies on it: a running row of this process that is not among them was
claimed and never sent, so it may go back (an unanswered COMMIT). For the same reason settling is
tried until it succeeds, whatever the fault: a slot that is held is seen, a second start is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field, frozen
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from crq import crashpoints, executions, gatehistory, plain, policy
from crq.answers import shown
from crq.batch import Batch
from crq.database import Cursor, is_outage
from crq.dispatcher import SETTLE_AGAIN, Dispatcher
from crq.executions import Ending
from crq.instants import Instant
from crq.messages import Answered, Conclusion, DispatchResult, Fate, RowState
from crq.model import Claimed, ErrorCode

WRITE_AT_ONCE = 500  # outcomes of one transaction; SQLite takes some more values in one statement
WRITE_WITHIN = 5.0  # s, on a stop, for what was given up to be written


@frozen
class _Closing:
    """
    A gate that a refusal has closed.
    """

    key: str
    until: Instant
    at: Instant
    cause: str
    execution_id: int


@frozen
class _Result:
    ending: Ending
    closing: _Closing | None


def settle(
    txn: Cursor, results: Sequence[_Result], mark: str, now: Instant
) -> Mapping[int, RowState]:
    """
    Write what came of some rows, and why gates were closed; one transaction.
    """
    for closing in (result.closing for result in results):
        if closing is not None:
            gatehistory.record(
                txn,
                closing.key,
                closing.until,
                closing.at,
                closing.cause,
                closing.execution_id,
            )
    return executions.end(txn, [result.ending for result in results], mark, now)


@define(eq=False)
class PlainDispatcher(Dispatcher):
    """
    Carries running rows to a plain endpoint and writes how they ended.

    :ivar mark: of this process (`crq.plain.mark`).
    :ivar shortest_wait: seconds that a refusal closes a gate for at least.
    :ivar margin: seconds added to each wait.
    """

    mark: str = field(kw_only=True)
    shortest_wait: int = field(default=policy.RETRY_AFTER_MINIMUM, kw_only=True)
    margin: float = field(default=policy.GATE_MARGIN, kw_only=True)
    _results: Batch[_Result, RowState | None] = field(init=False)

    _log = Logger()

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._results = Batch(self._write, self.clock, WRITE_AT_ONCE)

    def sent(self, claimed: Claimed) -> None:
        """
        Take note that an execution is on its way: something starts.
        """
        self.pulse.unstarted_since = None

    async def drain(self, limit: float) -> None:
        """
        As any dispatcher; and see that what was given up is written as unknown.
        """
        await super().drain(limit)
        if self.outstanding:
            self._idle = Deferred()
            self._idle.addTimeout(WRITE_WITHIN, self.clock, onTimeoutCancel=lambda *_: None)
            await self._idle

    async def _settle(self, claimed: Claimed, result: DispatchResult) -> None:
        conclusion = plain.conclude(result)
        crashpoints.reached("concluding")
        # Before the row is back: a tick in between must not send it again.
        closing = await self._close_gate(claimed, result, conclusion)
        ails = conclusion.endpoint_ails or conclusion.fate is Fate.RELEASED
        if ails or (conclusion.fate is Fate.GATED and closing is None):
            # A refusal without a key has no gate to close: it asks for a pause of everything.
            asked = policy.pause_asked(result, self.wall())
            self._not_taken(claimed, conclusion.detail, asked)
        elif conclusion.fate is not Fate.UNSENDABLE:
            self.taken(claimed)
        ending = Ending(
            claimed.execution_id,
            claimed.claim_epoch,
            conclusion.fate,
            conclusion.outcome,
            conclusion.detail,
        )
        row = await self._written(_Result(ending, closing))
        if conclusion.fate is Fate.ENDED and claimed.lane.apikey_hash is not None:
            self.gates.ended(claimed.lane.apikey_hash)
        if conclusion.fate is Fate.UNSENDABLE:
            self.meters.ended("failed", ErrorCode.DISPATCH_FAILED, None, None, None)
        elif conclusion.fate is Fate.ENDED and row is not None:
            self.meters.ended(
                row.status, row.error_code, row.queued_at, row.started_at, row.finished_at
            )
        self._log.debug(
            "execution {execution_id} settled: {what}: {detail}",
            action="settled",
            execution_id=claimed.execution_id,
            what=conclusion.fate.value,
            detail=conclusion.detail,
        )

    async def _close_gate(
        self, claimed: Claimed, result: DispatchResult, conclusion: Conclusion
    ) -> _Closing | None:
        key = claimed.lane.apikey_hash
        if conclusion.fate is not Fate.GATED or key is None or not isinstance(result, Answered):
            return None
        now = self.wall()
        wait = policy.retry_after(result.retry_after, now, self.shortest_wait)
        until = await self.gates.close(key, policy.gate_until(wait, now, self.margin), now)
        cause = f"{result.http_status}, Retry-After: {shown(result.retry_after or '')}"
        return _Closing(key, until, now, cause, claimed.execution_id)

    async def _written(self, result: _Result) -> RowState | None:
        failures = 0
        while True:
            try:
                return await self._results.ask(result)
            except Exception as error:  # noqa: BLE001 - see note [What leaves `outstanding`]
                failures += not is_outage(error)
                if failures == 1 and not is_outage(error):
                    self._log.failure("outcome not written", action="outcome_not_written")
            await deferLater(self.clock, SETTLE_AGAIN)

    async def _write(self, results: Sequence[_Result]) -> Sequence[RowState | None]:
        found = await self.pool.transact(settle, results, self.mark, self.wall())
        return [found.get(result.ending.execution_id) for result in results]
