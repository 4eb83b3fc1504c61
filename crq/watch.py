"""
The watch: every ten seconds it looks at the queue as a whole, and says what has changed.

It writes this drainer's beat, logs the verdict when it changes and only then, and once a minute
stores a sample for the series and takes away what is too old.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger, LogLevel

from crq import audit, heartbeat, series, status
from crq.config import HistoryOptions
from crq.database import Cursor, is_outage
from crq.gatememory import GateMemory
from crq.instants import Instant
from crq.model import Limits
from crq.pool import Pool
from crq.presence import Presence
from crq.pulse import Beat, Pulse
from crq.series import Ended, Sample
from crq.statusreport import StatusReport
from crq.verdict import Verdict

DAY = 86_400  # s
BATCH = 1000  # rows taken away in one transaction
BUSY_EVERY = 0.25  # s between two looks, on a stop, whether answers are still due

_LEVELS = {Verdict.STALLED: LogLevel.error, Verdict.DEGRADED: LogLevel.warn}


@define(eq=False)
class Watch(Service):
    """
    Watches one daemon's queue.

    :ivar limits: tells the configured caps.
    :ivar tick: seconds between ticks of the drainer.
    :ivar busy: whether answers are due that a stop waits for.
    :ivar also: asked in each round: something that others want to be done about as often.
    :ivar presence: told of our beats and of those of others.
    """

    pool: Pool
    gates: GateMemory
    pulse: Pulse
    limits: Callable[[], Limits]
    drainer_id: str
    options: HistoryOptions
    clock: IReactorTime
    wall: Callable[[], Instant]
    tick: float = 1.0
    busy: Callable[[], bool] = lambda: False
    also: Callable[[], Awaitable[None]] | None = None
    presence: Presence | None = None
    _loop: LoopingCall = field(init=False)
    _first: IDelayedCall | None = field(init=False, default=None)
    _round: Deferred[None] | None = field(init=False, default=None)
    _verdict: Verdict | None = field(init=False, default=None)
    _sampled: Instant = field(init=False, default=0.0)
    _told: str | None = field(init=False, default=None)

    _log = Logger()

    def __attrs_post_init__(self) -> None:
        self._loop = LoopingCall(self._timed)
        self._loop.clock = self.clock

    def startService(self) -> None:
        """
        Begin to watch; the first look is due when the first ticks have been.
        """
        super().startService()
        self._loop.start(heartbeat.EVERY, now=False)
        self._first = self.clock.callLater(min(2 * self.tick, heartbeat.EVERY), self._timed)

    def stopService(self) -> Deferred[None]:
        """
        Say that the daemon stops; take its beat away once no answer is due any more.
        """
        super().stopService()
        if self._loop.running:
            self._loop.stop()
        if self._first is not None and self._first.active():
            self._first.cancel()
        return Deferred.fromCoroutine(self._farewell())

    async def _farewell(self) -> None:
        if self._round is not None:
            await self._round
        try:
            if self.busy():
                beat = self.pulse.beat(self.drainer_id, self.wall(), self.clock.seconds())
                await self.pool.transact(heartbeat.write, beat)
            while self.busy():
                await deferLater(self.clock, BUSY_EVERY)
            own = self.drainer_id, self.pulse.origin.incarnation
            await self.pool.transact(heartbeat.remove, *own)
        except Exception as error:
            if not is_outage(error):  # a beat that stays says that the daemon is gone
                raise

    def _timed(self) -> None:
        if self._round is None and self.running:
            self._round = Deferred()
            Deferred.fromCoroutine(self._go_round())

    async def _go_round(self) -> None:
        try:
            await self.run_once()
        except Exception as error:  # noqa: BLE001 - the watch survives any fault
            text = f"{type(error).__name__}: {error}"
            # Of an outage the drainer has told already.
            if text != self._told and not is_outage(error):
                self._log.failure("watching failed: {error}", action="watch failed", error=text)
            self._told = text
        else:
            self._told = None
        done, self._round = self._round, None
        if done is not None:
            done.callback(None)

    async def run_once(self) -> StatusReport:
        """
        Look once, and tell what is to be told.
        """
        report = await self.report()
        self._tell(report)
        now = self.wall()
        beat = self.pulse.beat(self.drainer_id, now, self.clock.seconds())
        minute = series.minute_of(now) - series.MINUTE
        # Not the one before the start: in that, nobody here has seen anything.
        if minute != self._sampled and minute + series.MINUTE > self.pulse.started_at:
            other = await self.pool.transact(_store, beat, _sample(report, minute))
            self._sampled = minute
            await self._tidy(now)
        else:
            other = await self.pool.transact(heartbeat.write, beat)
        if self.presence is not None:
            self.presence.said(other)
        if self.also is not None:
            await self.also()
        return report

    async def report(self) -> StatusReport:
        """
        Report how the queue is now, without the names of accounts.
        """
        reading = await self.pool.read(status.read, False)
        now = self.wall()
        if self.presence is not None:
            self.presence.looked(reading.beats)
        report = status.report(
            reading,
            self.gates.reading(now),
            self.limits(),
            now,
            half_open=self.gates.half_open,
            pulse=self.pulse,
            drainer_id=self.drainer_id,
            monotonic=self.clock.seconds(),
            tick=self.tick,
            gates_reachable=self.gates.reachable,
        )
        if report.verdict is Verdict.STALLED:
            report = await self.pool.read(status.prove, report)
        return report

    def _tell(self, report: StatusReport) -> None:
        before, self._verdict = self._verdict, report.verdict
        if before is report.verdict:
            return
        quiet = {before, report.verdict} <= {None, Verdict.IDLE, Verdict.FLOWING}
        self._log.emit(
            LogLevel.debug if quiet else _LEVELS.get(report.verdict, LogLevel.info),
            "verdict {verdict}: {because}",
            action="verdict",
            verdict=report.verdict.value,
            before=None if before is None else before.value,
            because=report.because,
            proof=[f"{proof.kind} {proof.name}" for proof in report.proof],
        )

    async def _tidy(self, now: Instant) -> None:
        await self.pool.transact(heartbeat.forget, now)
        for prune, days in (
            (series.prune, self.options.series_days),
            (audit.prune, self.options.audit_days),
        ):
            # The next minute goes on where this one ends.
            await self.pool.transact(prune, now - days * DAY, BATCH)


def _sample(report: StatusReport, minute: Instant) -> Sample:
    return Sample(
        minute=minute,
        verdict=report.verdict.value,
        depth=report.depth,
        oldest_age=report.oldest_queued_age,
        in_flight=report.in_flight,
        gates_closed=len(report.gates),
        ended=Ended(),
    )


def _store(txn: Cursor, beat: Beat, sample: Sample) -> Beat | None:
    series.sample(txn, sample)
    return heartbeat.write(txn, beat)
