"""
The loop: snapshot, gates, plan, claim, dispatch, settle.

Each tick reads everything anew; what is kept here is only what a restart may forget.

# Note [Ticks]

A LoopingCall asks for a tick each second. `wake` asks for one at once: after an admission in this
process, a freed slot, an opened gate. Ticks never overlap: whoever asks while one runs gets exactly
one more after it. A tick never raises, and it never waits for an executor: `crq.dispatcher` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, evolve, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from crq import crashpoints, executions, policy, schema
from crq.database import CommitUnknown
from crq.dispatcher import Dispatcher
from crq.gatememory import GateMemory
from crq.instants import Instant
from crq.liveness import Liveness
from crq.model import InFlight, Limits, Plan, Snapshot, Status
from crq.pool import Pool
from crq.pulse import Pulse
from crq.sealing import NONCE_TTL
from crq.suspects import Suspects


@define(eq=False)
class Drainer(Service):
    """
    One drainer.

    :ivar wall: the wall clock: stored instants and gates.
    :ivar clock: the monotonic clock: timers, ages, back-off.
    :ivar mint: makes nonces.
    :ivar every: seconds between ticks.
    :ivar drain_limit: seconds to wait for answers on stop.
    """

    pool: Pool
    gates: GateMemory
    dispatcher: Dispatcher
    liveness: Liveness
    suspects: Suspects
    limits: Limits
    drainer_id: str
    pulse: Pulse
    clock: IReactorTime
    wall: Callable[[], Instant]
    mint: Callable[[], str]
    every: float = 1.0
    drain_limit: float = 60.0

    _loop: LoopingCall = field(init=False)
    _ticking: Deferred[None] | None = field(init=False, default=None)
    _again: bool = field(init=False, default=False)
    _timer: IDelayedCall | None = field(init=False, default=None)
    _recovered: bool = field(init=False, default=False)

    _log = Logger()

    def __attrs_post_init__(self) -> None:
        self._loop = LoopingCall.withCount(self._timed)
        self._loop.clock = self.clock
        self.dispatcher.freed = self.wake

    def startService(self) -> None:
        """
        Begin to tick.
        """
        super().startService()
        self._loop.start(self.every)

    def stopService(self) -> Deferred[None]:
        """
        Claim nothing more; wait for the answers that are due, up to the drain limit.

        What is still unanswered then goes on in the executor; its row says how it ended.
        """
        super().stopService()
        self.pulse.draining = True
        if self._loop.running:
            self._loop.stop()
        self._set_timer(None)
        return Deferred.fromCoroutine(self._drain())

    async def _drain(self) -> None:
        if self._ticking is not None:
            await self._ticking
        await self.dispatcher.drain(self.drain_limit)

    # -- see note [Ticks]

    def wake(self) -> None:
        """
        Ask for a tick now.
        """
        self._again = True
        if self.running and self._ticking is None:
            self._ticking = Deferred()
            Deferred.fromCoroutine(self._tick_on())

    def _timed(self, count: int) -> None:
        # The timer makes up for a stall with one call; what it left out is counted.
        self.pulse.skipped_ticks += count - (self._ticking is None)
        self.wake()

    async def _tick_on(self) -> None:
        while self._again and self.running:
            self._again = False
            await self.tick()
        done, self._ticking = self._ticking, None
        if done is not None:
            done.callback(None)

    async def tick(self) -> None:
        """
        Do one tick; whatever goes wrong in it is logged and left to the next one.
        """
        self.pulse.ticks += 1
        try:
            await self._tick()
        except Exception as error:  # noqa: BLE001 - a timer that raises once never runs again
            text = f"{type(error).__name__}: {error}"
            if self.pulse.last_error != text:  # one report an outage, not a tick
                self._log.failure("tick failed: {error}", action="tick failed", error=text)
            self.pulse.last_error = text
            self.pulse.last_error_at = self.wall()
            return
        if self.pulse.last_error is not None:
            self._log.info("ticks end well again", action="recovered")
        self.pulse.last_error = None
        self.pulse.last_good_tick = self.wall()
        self.pulse.last_good_monotonic = self.clock.seconds()

    async def _tick(self) -> None:
        if not self._recovered:
            await self._recover()
        back_off = self.dispatcher.back_off
        left = back_off.left(self.clock.seconds())
        slots = 0 if left else self.limits.in_flight
        snapshot = await self.pool.read(executions.snapshot, slots)
        flights = await self._tend(snapshot.in_flight)
        now = self.wall()
        lanes = frozenset(head.lane for head in snapshot.heads)
        keys = sorted({lane.apikey_hash for lane in lanes if lane.apikey_hash is not None})
        if keys:
            await self.gates.read(keys, now)
            self.pulse.gates_reachable = self.gates.reachable
        plan = policy.plan(
            Snapshot(snapshot.heads, flights),
            self.gates.closed(now),
            self._limits(len(flights)),
            now,
            half_open=self.gates.half_open,
            backing_off=back_off.lanes(self.clock.seconds(), now, lanes) if lanes else {},
        )
        self.pulse.plan, self.pulse.in_flight = plan, flights
        self.pulse.backing_off_until = now + left if left else None
        if plan.takes and self.running:
            await self._claim(plan, now)
        opening = min((hold.until for hold in plan.holds if hold.until is not None), default=None)
        self._set_timer(left or (None if opening is None else opening - now))

    def _limits(self, in_flight: int) -> Limits:
        """
        The caps; while the executor is being tried again, room for one dispatch alone.
        """
        if not self.dispatcher.back_off.failures:
            return self.limits
        trying = 0 if self.dispatcher.outstanding else 1
        return evolve(self.limits, in_flight=min(self.limits.in_flight, in_flight + trying))

    async def _recover(self) -> None:
        """
        On start: make sure of the schema, and put back what was claimed and not dispatched.
        """
        await self.pool.read(schema.check)
        for flight in await self.pool.read(executions.in_flight):
            if flight.status is Status.CLAIMED and flight.drainer_id == self.drainer_id:
                await self._release(flight, "was claimed before the restart")
        self._recovered = True

    async def _tend(self, rows: tuple[InFlight, ...]) -> tuple[InFlight, ...]:
        """
        Look after rows that hold a slot and that no answer will come for; returns what is left.
        """
        outstanding = self.dispatcher.outstanding
        for row in rows:
            if row.status is Status.RUNNING and row.execution_id in outstanding:
                self.dispatcher.taken(outstanding[row.execution_id])
        orphans = [row for row in rows if row.execution_id not in outstanding]
        flights = self.dispatcher.in_flight() | {row.execution_id: row for row in rows}
        overdue = self.wall() - NONCE_TTL
        for row in orphans:
            if row.status is Status.CLAIMED and (
                row.drainer_id == self.drainer_id or (row.claimed_at or 0.0) < overdue
            ):
                await self._release(row, "was claimed and not dispatched")
                del flights[row.execution_id]
        running = [row for row in orphans if row.status is Status.RUNNING]
        held: frozenset[int] = frozenset()
        if running and self.suspects.wall_limit is None:
            ids = [row.execution_id for row in running]
            held = await self.pool.read(self._held, ids)
        for row in self.suspects.dead(running, held, self.clock.seconds(), self.wall()):
            if await self.pool.transact(executions.died, row.execution_id, self.wall()):
                self._log.error(
                    "execution {execution_id}: its worker died, outcome unknown",
                    action="died",
                    execution_id=row.execution_id,
                )
            if row.lane.apikey_hash is not None:
                self.gates.ended(row.lane.apikey_hash)
            del flights[row.execution_id]
        return tuple(flights.values())

    def _held(self, txn: Any, execution_ids: list[int]) -> frozenset[int]:
        return self.liveness.held(txn, execution_ids)

    async def _release(self, row: InFlight, why: str) -> None:
        if await self.pool.transact(executions.release, row.execution_id, row.claim_epoch):
            self._again = True  # this tick's snapshot does not have it as queued
            self._log.warn(
                "execution {execution_id} {why}: back to the queue",
                action="released",
                execution_id=row.execution_id,
                why=why,
            )

    async def _claim(self, plan: Plan, now: Instant) -> None:
        try:
            claimed = await self.pool.transact(
                executions.claim,
                plan,
                self._limits(len(self.pulse.in_flight)),
                self.drainer_id,
                now,
                self.mint,
                tuple(self.dispatcher.in_flight().values()),
            )
        except CommitUnknown:
            # If it did commit, the next tick finds rows of ours that were not dispatched.
            self._log.warn("no answer to the claim's COMMIT", action="commit unknown")
            self._again = True
            return
        for row in claimed:
            crashpoints.reached("dispatching")
            self.dispatcher.dispatch(row)

    def _set_timer(self, delay: float | None) -> None:
        """
        Wake up when the first gate opens or the pause is over, if that is before the next tick.
        """
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        if delay is not None and delay < self.every and self.running:
            self._timer = self.clock.callLater(max(delay, 0.001), self.wake)
