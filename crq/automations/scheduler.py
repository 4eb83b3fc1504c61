"""
The tick of each minute: Phase A makes due automations into runs, Phase B takes open runs forward.

# Note [Minutes]

A timer looks at the wall clock once a second, and a tick begins when the minute is another than the
last tick's. So ticks begin with the minute, one a minute, also after the machine slept or the clock
was set. A tick that takes longer than its minute is followed by the next one at once.

Phase A always comes first. It reaches every due tenant before any tenant's second hundred, and a
tenant that somebody else is at just now waits until the others are served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from crq.automations import limits, runs
from crq.automations.rounds import Rounds, Ticked, is_away
from crq.database import is_outage
from crq.instants import Instant
from crq.pool import Pool

LOOK = 1.0  # s between looks at the wall clock
MINUTE = 60.0  # s
DAY = 86_400.0  # s


@define(eq=False)
class Scheduler(Service):
    """
    The scheduler.

    :ivar wall: the wall clock: occurrences, leases, what is stored.
    :ivar clock: the monotonic clock: the timer, deadlines.
    :ivar keep_days: so long ended runs are kept.
    """

    pool: Pool
    rounds: Rounds
    clock: IReactorTime
    wall: Callable[[], Instant]
    keep_days: int = 92
    last_good_tick: Instant | None = None
    last_error: str | None = None

    _loop: LoopingCall = field(init=False)
    _ticking: Deferred[None] | None = field(init=False, default=None)
    _minute: float | None = field(init=False, default=None)
    _ahead: float | None = field(init=False, default=None)  # of the wall clock

    _log = Logger()

    def __attrs_post_init__(self) -> None:
        self._loop = LoopingCall(self._look)
        self._loop.clock = self.clock

    def startService(self) -> None:
        """
        Begin to look at the clock; the first tick begins at once: something may be due.
        """
        super().startService()
        self._loop.start(LOOK)

    def stopService(self) -> Deferred[None]:
        """
        Begin no new chunk, and wait for those that run. What is unfinished goes on after a start.
        """
        super().stopService()
        if self._loop.running:
            self._loop.stop()
        return Deferred.fromCoroutine(self._finish())

    async def _finish(self) -> None:
        if self._ticking is not None:
            await self._ticking

    # -- see note [Minutes]

    def _look(self) -> None:
        minute = self.wall() // MINUTE
        if minute != self._minute and self._ticking is None:
            self._minute = minute
            self._ticking = Deferred()
            Deferred.fromCoroutine(self._go_tick())

    async def _go_tick(self) -> None:
        await self.tick()
        done, self._ticking = self._ticking, None
        if done is not None:
            done.callback(None)

    async def tick(self) -> None:
        """
        Do one tick; whatever goes wrong in it is logged and left to the next one.
        """
        try:
            ticked = await self.run_once()
        except Exception as error:  # noqa: BLE001 - a timer that raises once never runs again
            text = f"{type(error).__name__}: {error}"
            # An outage is told by the pool, for all who meet it; the rest once, not each minute.
            if self.last_error != text and not is_outage(error):
                self._log.failure(
                    "automations: tick failed: {error}", action="tick failed", error=text
                )
            self.last_error = text
            return
        if self.last_error is not None:
            self._log.info("automations: ticks end well again", action="recovered")
        self.last_error = None
        self.last_good_tick = self.wall()
        if ticked.claimed or ticked.taken_over or ticked.purged:
            self._log.info(
                "automations: claimed {claimed}, took over {taken_over}, {chunks} chunks,"
                " purged {purged}",
                action="ticked",
                claimed=ticked.claimed,
                taken_over=ticked.taken_over,
                chunks=ticked.chunks,
                purged=ticked.purged,
            )

    async def run_once(self) -> Ticked:
        """
        Do one tick: Phase A to its end, then Phase B, then old runs.
        """
        ticked = Ticked()
        begun = self.clock.seconds()
        await self._look_at_the_clock()
        await self._claim(ticked, begun + limits.PHASE_A_SECONDS)
        await self.rounds.take_over(ticked)
        await self.rounds.advance(ticked, begun + limits.PHASE_B_SECONDS, self._going_on)
        await self._purge(ticked)
        return ticked

    async def _look_at_the_clock(self) -> None:
        """
        Aim all pointers anew when the wall clock was set back since the last tick.
        """
        ahead = self.wall() - self.clock.seconds()
        last, self._ahead = self._ahead, ahead
        if last is None or ahead > last - limits.STEP_NOTICED:
            return
        moved = 0
        for tenant in await self.pool.read(runs.every_tenant):
            moved += await self.pool.transact(runs.reaim, tenant, self.wall())
        self._log.warn(
            "automations: the clock was set back by {seconds} s; {moved} pointers aimed anew",
            action="clock set back",
            seconds=round(last - ahead),
            moved=moved,
        )

    # -- Phase A

    async def _claim(self, ticked: Ticked, deadline: float) -> None:
        now = self.wall()
        line = deque((tenant, False) for tenant in await self.pool.read(runs.due_tenants, now))
        while line and self._going_on() and self.clock.seconds() < deadline:
            tenant, wait = line.popleft()
            claimed = await self._claim_of(tenant, now, wait)
            if claimed is None:
                if not wait:
                    line.append((tenant, True))
                continue
            ticked.claimed += claimed
            if claimed >= limits.CLAIMS_PER_ROUND:
                line.append((tenant, wait))
        if line:
            self._log.warn(
                "automations: {tenants} tenants are still due; they are claimed next minute",
                action="claims cut",
                tenants=len(line),
            )

    async def _claim_of(self, tenant: str, now: Instant, wait: bool) -> int | None:
        """
        Claim for one tenant; None: somebody else is at it.
        """
        try:
            claimed = await self.pool.transact(
                runs.claim_due, tenant, now, limits.CLAIMS_PER_ROUND, wait
            )
        except Exception as error:
            # The boundary between tenants.
            if is_away(error):
                raise
            self._log.failure(
                "automations of {tenant}: not claimed: {error}",
                action="claim failed",
                tenant=tenant,
                error=f"{type(error).__name__}: {error}",
            )
            return 0
        return None if claimed is None else len(claimed)

    async def _purge(self, ticked: Ticked) -> None:
        before = self.wall() - self.keep_days * DAY
        for _ in range(limits.PURGE_ROUNDS):
            deleted: int = await self.pool.transact(
                runs.purge, before, limits.PURGE_RUNS, limits.PURGE_ITEMS
            )
            ticked.purged += deleted
            if not deleted or not self._going_on():
                return

    def _going_on(self) -> bool:
        """
        Whether to go on: the service runs, or somebody calls `run_once` without it.
        """
        return bool(self.running) or self._ticking is None
