"""
Dispatches on their way: sent, awaited, settled.

# Note [In flight]

Slots are counted from the rows, so that neither a restart nor a second drainer doubles the caps. To
them come dispatches whose answer is still due although their row is finished: the executor is busy
until it has answered. A dispatch leaves ``outstanding`` only when its row has been settled; while
the database is away, settling is tried again, so that a slot is neither lost nor given twice.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, evolve, field
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger, LogLevel

from crq import crashpoints, executions, policy
from crq.backoff import BackOff
from crq.database import is_outage
from crq.gatememory import GateMemory
from crq.gathering import Gathering
from crq.instants import Instant
from crq.interfaces import ITransport
from crq.messages import Answered, DispatchResult, Lost, Settlement
from crq.meters import Meters
from crq.model import Claimed, ErrorCode, InFlight, Status
from crq.outages import Outage
from crq.pool import Pool
from crq.pulse import Pulse

SETTLE_AGAIN = 1.0  # s until settling is tried again while the database is away


@define(eq=False)
class Dispatcher:
    """
    Carries claimed rows to the executor and settles them.

    :ivar freed: called whenever a slot may have become free.
    """

    pool: Pool
    gates: GateMemory
    transport: ITransport
    pulse: Pulse
    clock: IReactorTime
    wall: Callable[[], Instant]
    meters: Meters = field(factory=Meters)
    freed: Callable[[], None] = field(init=False)
    back_off: BackOff = field(init=False, factory=BackOff)
    outstanding: dict[int, Claimed] = field(init=False, factory=dict)
    _answers: dict[int, Deferred[None]] = field(init=False, factory=dict)
    _idle: Deferred[None] | None = field(init=False, default=None)
    _hung_up: bool = field(init=False, default=False)
    _executor: Outage = field(init=False)
    _tried: set[int] = field(init=False, factory=set)
    _rows: Gathering = field(init=False)
    _any_freed: bool = field(init=False, default=False)

    _log = Logger()

    def __attrs_post_init__(self) -> None:
        self._executor = Outage(
            "the executor", self.clock.seconds, self._log, "backing off", "executor back"
        )
        self._rows = Gathering(
            read=lambda ids: self.pool.read(executions.row_states, ids),
            clock=self.clock,
            in_flight=lambda: len(self.outstanding),
            told=self._told,
        )

    def in_flight(self) -> dict[int, InFlight]:
        """
        What is on its way, as it counts against the caps.
        """
        return {
            execution_id: InFlight(execution_id, claimed.lane, Status.RUNNING)
            for execution_id, claimed in self.outstanding.items()
        }

    def dispatch(self, claimed: Claimed) -> None:
        """
        Send a claimed row on its way; returns at once.
        """
        self.outstanding[claimed.execution_id] = claimed
        self.pulse.starts += 1
        self._log.emit(
            # While the executor takes nothing, a line for a row, and not for each try with it.
            LogLevel.debug if claimed.execution_id in self._tried else LogLevel.info,
            "execution {execution_id} dispatched",
            action="dispatched",
            execution_id=claimed.execution_id,
            job_id=claimed.job_id,
        )
        answer = Deferred.fromCoroutine(self._carry(claimed))
        if claimed.execution_id in self.outstanding:
            self._answers[claimed.execution_id] = answer

    async def drain(self, limit: float) -> None:
        """
        Wait for all answers, at most ``limit`` seconds; then hang up.

        What is unanswered goes on in the executor; its row says how it ended.
        """
        if self.outstanding and not self._hung_up:
            self._log.info(
                "waiting for {count} answers", action="draining", count=len(self.outstanding)
            )
            self._idle = Deferred()
            self._idle.addTimeout(limit, self.clock, onTimeoutCancel=lambda *_: None)
            await self._idle
        for execution_id, answer in list(self._answers.items()):
            self._log.warn(
                "execution {execution_id} goes on in the executor",
                action="left running",
                execution_id=execution_id,
            )
            answer.cancel()
        await self.transport.close()

    def hang_up(self) -> None:
        """
        Wait for no answer any more, on a stop that has begun or is about to.
        """
        if not self._hung_up:
            self._hung_up = True
            self._log.warn(
                "not waiting any more; {count} answers are due",
                action="hung up",
                count=len(self.outstanding),
            )
            self._let_go()

    def _let_go(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.callback(None)

    async def _carry(self, claimed: Claimed) -> None:
        try:
            try:
                result = await self.transport.dispatch(claimed)
            except Exception as error:  # noqa: BLE001 - a slot is never lost to a fault of ours
                self._log.failure("dispatch failed", action="dispatch failed")
                result = Lost(f"{type(error).__name__}: {error}")
            await self._settle(claimed, result)
            crashpoints.reached("settled")
        except CancelledError:
            pass  # the daemon stops
        finally:
            # Not another dispatch of the same row: what was put back may be claimed anew by now.
            if self.outstanding.get(claimed.execution_id) is claimed:
                del self.outstanding[claimed.execution_id]
                self._answers.pop(claimed.execution_id, None)
            if not self.outstanding:
                self._let_go()
            if self._rows.telling:
                self._any_freed = True  # others may follow: one tick for all of them
            else:
                self.freed()

    def _told(self) -> None:
        if self._any_freed:
            self._any_freed = False
            self.freed()

    async def _settle(self, claimed: Claimed, result: DispatchResult) -> None:
        while True:
            try:
                await self._settle_once(claimed, result)
            except Exception as error:  # noqa: BLE001 - see note [In flight]
                if not is_outage(error):
                    self._log.failure("settling failed", action="settle failed")
                    return
            else:
                return
            await deferLater(self.clock, SETTLE_AGAIN)

    async def _settle_once(self, claimed: Claimed, result: DispatchResult) -> None:
        execution_id = claimed.execution_id
        row = await self._rows.state(execution_id)
        what = policy.settle(result, claimed.claim_epoch, row)
        crashpoints.reached("settling")
        detail = result.detail
        if isinstance(result, Answered):
            detail = f"HTTP {result.http_status} {detail}".rstrip()
        if what is Settlement.FINISH and isinstance(result, Answered) and result.outcome:
            now, outcome = self.wall(), result.outcome
            written = await self.pool.transact(executions.finish, execution_id, outcome, now)
            if written and row is not None:
                row = evolve(
                    row, status=outcome.status.value, error_code=outcome.error_code, finished_at=now
                )
        elif what is Settlement.FAIL:
            await self.pool.transact(
                executions.fail_dispatch, execution_id, claimed.claim_epoch, detail, self.wall()
            )
        elif what is Settlement.RELEASE_AND_BACK_OFF:
            await self.pool.transact(executions.release, execution_id, claimed.claim_epoch)
            self._not_taken(claimed, detail, policy.pause_asked(result, self.wall()))
        elif what is Settlement.ASK_LIVENESS:
            self._log.warn(
                "execution {execution_id} began and gave no answer: {detail}",
                action="no answer",
                execution_id=execution_id,
                detail=detail,
            )
        if what in (Settlement.NOTHING, Settlement.FINISH, Settlement.FAIL):
            self.taken(claimed)
            if what is Settlement.FAIL:
                self.meters.ended("failed", ErrorCode.DISPATCH_FAILED, None, None, None)
            elif row is not None:
                self.meters.ended(
                    row.status, row.error_code, row.queued_at, row.started_at, row.finished_at
                )
            if claimed.lane.apikey_hash is not None and what is not Settlement.FAIL:
                self.gates.ended(claimed.lane.apikey_hash)
        self._log.debug(
            "execution {execution_id} settled: {what}",
            action="settled",
            execution_id=execution_id,
            what=what.value,
        )

    def _not_taken(self, claimed: Claimed, detail: str, asked: float | None) -> None:
        pause = self.back_off.failed(claimed.lane, self.clock.seconds(), asked)
        self._tried.add(claimed.execution_id)
        self._executor.failed(f"it took no work, trying again in {pause:g} s: {detail}")
        self.pulse.alarm = detail

    def taken(self, claimed: Claimed) -> None:
        """
        Note that the executor has taken this row.
        """
        self.pulse.unstarted_since = None
        self._executor.went_well()
        self._tried.clear()
        if self.back_off.succeeded(claimed.lane):
            self.pulse.alarm = None
            self.pulse.backing_off_until = None
            self.freed()
