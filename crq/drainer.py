"""
The loop: snapshot, gates, plan, claim, dispatch, settle.

Each tick reads everything anew; what is kept here is only what a restart may forget.

# Note [Ticks]

A LoopingCall asks for a tick each second. `wake` asks for one at once: after an admission in this
process, a freed slot, an opened gate. Ticks never overlap: whoever asks while one runs gets exactly
one more after it. A tick never raises, and it never waits for an executor: `crq.dispatcher` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from attrs import define, evolve, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from crq import crashpoints, executions, gatehistory, policy, schema
from crq.clockwatch import ClockWatch
from crq.database import CommitUnknown, is_outage
from crq.dispatcher import Dispatcher
from crq.executions.running import DIED
from crq.gatememory import GateMemory
from crq.instants import Instant
from crq.lanes import Lanes
from crq.liveness import Liveness
from crq.meters import Meters
from crq.model import (
    Claimed,
    Controls,
    ErrorCode,
    InFlight,
    Lane,
    Limits,
    Plan,
    Reason,
    Snapshot,
    Status,
)
from crq.outages import Outage, one_line
from crq.pool import Pool
from crq.presence import Alone, NameTaken, Presence
from crq.pulse import Ended, Pulse
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
    :ivar begun_by: mark of this process on what it POSTs to a plain endpoint (`crq.plain`); None:
        an executor starts what is dispatched.
    :ivar plan: decides; the simulator compares other rules.
    :ivar ticked: called after each tick with how it ended; must not raise.
    :ivar capped: called with the caps in force when they have changed; must not raise.
    :ivar presence: its place among the other drainers of its database.
    :ivar slots: how many executions may be in flight through this drainer; None: as many as may be
        at all.
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
    begun_by: str | None = None
    plan: Callable[..., Plan] = policy.plan
    ticked: Callable[[Ended], None] = lambda _: None
    capped: Callable[[Limits], None] = lambda _: None
    meters: Meters = field(factory=Meters)
    lanes: Lanes = field(init=False, factory=Lanes)
    presence: Presence | Alone = field(factory=Alone)
    slots: int | None = None

    _loop: LoopingCall = field(init=False)
    _ticking: Deferred[None] | None = field(init=False, default=None)
    _again: bool = field(init=False, default=False)
    _timer: IDelayedCall | None = field(init=False, default=None)
    _recovered: bool = field(init=False, default=False)
    _caps: tuple[Limits, Limits] | None = field(init=False, default=None)
    _empty: set[Lane] = field(init=False, factory=set)
    _quiet: bool = field(init=False, default=False)
    _watch: ClockWatch = field(init=False, factory=ClockWatch)
    _faults: Outage = field(init=False)

    _log = Logger()

    def __attrs_post_init__(self) -> None:
        self._loop = LoopingCall.withCount(self._timed)
        self._loop.clock = self.clock
        self._faults = Outage("the tick", self.clock.seconds, self._log, "tick failed", "recovered")
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
        self._quiet = False
        self._ask()

    def _ask(self) -> None:
        self._again = True
        if self.running and self._ticking is None:
            self._ticking = Deferred()
            Deferred.fromCoroutine(self._tick_on())

    def _timed(self, count: int) -> None:
        # The timer makes up for a stall with one call; what it left out is counted.
        self.pulse.skipped_ticks += count - (self._ticking is None)
        self._ask()

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
        begun = self.clock.seconds()
        try:
            await self._tick()
        except Exception as error:  # noqa: BLE001 - a timer that raises once never runs again
            if isinstance(error, (schema.SchemaMismatch, NameTaken)):
                self._faults.failed(str(error))
            elif not is_outage(error):  # which the pool tells, once for all who meet it
                self._faults.failed(error)
            self.pulse.last_error = one_line(error)
            self.pulse.last_error_at = self.wall()
            self.meters.ticks_failed.inc()
            self.ticked(Ended.OUTAGE if is_outage(error) else Ended.BADLY)
            return
        self._faults.went_well()
        self.pulse.last_error = None
        self.pulse.last_good_tick = self.wall()
        self.pulse.last_good_monotonic = self.clock.seconds()
        self.meters.tick.observe(self.pulse.last_good_monotonic - begun)
        self.ticked(Ended.WELL)

    async def _tick(self) -> None:
        self._look_at_the_clock()
        if not (self._recovered and self.presence.held):
            await self._recover()
        back_off = self.dispatcher.back_off
        left = back_off.left(self.clock.seconds())
        slots = 0 if left else self.limits.in_flight
        snapshot = await self._read(slots)
        flights = await self._tend(snapshot.in_flight)
        now = self.wall()
        # A row asked for by hand waits too, though its lane may be none that is looked at.
        waits = bool(snapshot.heads) or (self.lanes.many and bool(slots))
        snapshot = self._narrow(evolve(snapshot, in_flight=flights), now)
        lanes = frozenset(head.lane for head in snapshot.heads)
        asked = {request.lane for request in snapshot.controls.run_one} if waits else set()
        keys = sorted({lane.apikey_hash for lane in lanes | asked if lane.apikey_hash is not None})
        known = self.gates.closed(now)
        if self.lanes.many:
            keys = sorted({*keys, *self.lanes.turn(known)})
        if keys:
            await self.gates.read(keys, now)
            self.pulse.gates_reachable = self.gates.reachable
            await self._note_gates(now)
        plan = self._decide(snapshot, now)
        if self.lanes.many and any(hold.reason is Reason.GATED for hold in plan.holds):
            self._again = True  # others may start in the place of those whose gates have closed
        self.pulse.plan, self.pulse.in_flight = plan, flights
        self.pulse.backing_off_until = now + left if left else None
        refusing = left > 0 or (bool(lanes) and back_off.failures > 0)
        self.pulse.note(bool(plan.takes or plan.picks), refusing, self.clock.seconds())
        if (plan.takes or plan.picks) and self.running:
            await self._claim(plan, now)
        opening = min((hold.until for hold in plan.holds if hold.until is not None), default=None)
        if self.lanes.many and (gate := self.gates.next_opening(now)) is not None:
            opening = gate if opening is None else min(gate, opening)
        self._set_timer(left or (None if opening is None else opening - now))

    async def _read(self, slots: int) -> Snapshot:
        """
        Read what is in flight, what is set and the lanes: all of them where they are few.
        """
        on_their_way = len(self.dispatcher.outstanding)
        if not slots or on_their_way >= slots:  # the lanes matter if there is room all the same
            return await self.pool.read(executions.snapshot, slots, on_their_way)
        question = evolve(self.lanes.question(self.clock.seconds()), idle=self._quiet)
        snapshot, news = await self.pool.read(executions.news, question)
        self.lanes.learn(question, news, self.clock.seconds())
        # Most likely the timer's next tick finds nothing either; who wakes us knows better.
        self._quiet = not (snapshot.in_flight or news.heads or self.lanes.many)
        cap = snapshot.controls.over(self.limits).in_flight
        if self.lanes.many or len(snapshot.in_flight) >= cap:
            return snapshot
        return evolve(snapshot, heads=self.lanes.heads())

    def _narrow(self, snapshot: Snapshot, now: Instant) -> Snapshot:
        """
        Where lanes are many, leave out those that a rule holds (`crq.lanes`).
        """
        self.lanes.note_flights({row.execution_id: row.lane for row in snapshot.in_flight})
        if not self.lanes.many:
            return snapshot
        caps = self._in_force(snapshot.controls)
        heads = self.lanes.narrowed(
            snapshot,
            self._narrowed(caps, snapshot.in_flight),
            self.gates.closed(now),
            self.gates.half_open,
            self.dispatcher.back_off.failed_lanes,
        )
        return evolve(snapshot, heads=heads)

    def _look_at_the_clock(self) -> None:
        now = self.wall()
        step = self._watch.stepped(now, self.clock.seconds())
        if step:
            early = len(self.gates.closed(now - step)) - len(self.gates.closed(now))
            self.meters.clock_steps.inc()
            self.meters.gates_early.inc(max(0, early))
            self._log.warn(
                "the wall clock was stepped by {step:+.1f} s; {early} gates opened early by it",
                action="clock stepped",
                step=step,
                early=max(0, early),
            )

    @property
    def caps(self) -> Limits:
        """
        The caps in force, as far as the last tick knew.
        """
        return self.limits if self._caps is None else self._caps[1]

    async def preview(self) -> Plan:
        """
        What a tick would decide now, by the gates as they are remembered; nothing is done.
        """
        snapshot = await self.pool.read(executions.snapshot, self.limits.in_flight)
        rows = {row.execution_id: row for row in snapshot.in_flight}
        flights = tuple((self.dispatcher.in_flight() | rows).values())
        return self._decide(evolve(snapshot, in_flight=flights), self.wall())

    def _decide(self, snapshot: Snapshot, now: Instant) -> Plan:
        lanes = frozenset(head.lane for head in snapshot.heads)
        back_off = self.dispatcher.back_off
        return self.plan(
            snapshot,
            self.gates.closed(now),
            self._narrowed(self._in_force(snapshot.controls), snapshot.in_flight),
            now,
            half_open=self.gates.half_open,
            backing_off=back_off.lanes(self.clock.seconds(), now, lanes) if lanes else {},
        )

    def _in_force(self, controls: Controls) -> Limits:
        """
        The caps of the configuration with what operators have set.
        """
        caps = controls.over(self.limits)
        if self._caps != (self.limits, caps):
            self._caps = (self.limits, caps)
            self.capped(caps)
        return caps

    def _narrowed(self, caps: Limits, flights: Collection[InFlight]) -> Limits:
        """
        The caps; no more than this drainer's own slots; while the executor is being tried again,
        room for one dispatch alone.
        """
        if self.slots is not None:
            own = self.drainer_id, self.dispatcher.outstanding
            caps = policy.own_share(caps, flights, self.slots, *own)
        if not self.dispatcher.back_off.failures:
            return caps
        trying = 0 if self.dispatcher.outstanding else 1
        return evolve(caps, in_flight=min(caps.in_flight, len(flights) + trying))

    async def _recover(self) -> None:
        """
        On start: make sure of the schema and of our name, and put back what was claimed under it
        and not dispatched; again when the name was lost meanwhile.

        What the process before this one had POSTed to a plain endpoint is unknown from now on,
        unless it is to keep its slot until the wall.
        """
        await self.pool.read(schema.check)
        await self.presence.arrive()
        for flight in await self.pool.read(executions.in_flight):
            if (
                flight.status is Status.CLAIMED
                and flight.drainer_id == self.drainer_id
                and flight.execution_id not in self.dispatcher.outstanding
            ):
                await self._release(flight, "was claimed before the restart")
            elif (
                flight.begun_by not in (None, self.begun_by)
                and flight.drainer_id == self.drainer_id
                and self.suspects.wall_limit is None
            ):
                await self._died(flight, "its daemon was restarted")
        # What has opened since, and what this process will see open, begins with one execution.
        self.gates.remember(await self.pool.read(gatehistory.unfinished), self.wall())
        self._recovered = True

    async def _tend(self, rows: tuple[InFlight, ...]) -> tuple[InFlight, ...]:
        """
        Look after rows that hold a slot and that no answer will come for; returns what is left.
        """
        outstanding = self.dispatcher.outstanding
        for row in rows:
            # (A plain endpoint's rows run from the claim on: that says nothing of the endpoint.)
            if (
                row.status is Status.RUNNING
                and row.begun_by is None
                and row.execution_id in outstanding
            ):
                self.dispatcher.taken(outstanding[row.execution_id])
        orphans = [row for row in rows if row.execution_id not in outstanding]
        flights = self.dispatcher.in_flight() | {row.execution_id: row for row in rows}
        overdue = self.wall() - NONCE_TTL
        for row in orphans:
            if row.status is not Status.CLAIMED:
                continue
            if row.drainer_id == self.drainer_id or (row.claimed_at or 0.0) < overdue:
                await self._release(row, "was claimed and not dispatched")
                del flights[row.execution_id]
            elif row.drainer_id is not None and self.presence.gone(row.drainer_id):
                await self._release(row, f"was claimed by {row.drainer_id}, which is dead,")
                del flights[row.execution_id]
        running = [row for row in orphans if row.status is Status.RUNNING]
        for row in running:
            # See note [What leaves `outstanding`] in `crq.plaindispatcher`.
            if row.begun_by is not None and row.begun_by == self.begun_by:
                await self._release(row, "was claimed and not dispatched")
                del flights[row.execution_id]
        running = [row for row in running if row.execution_id in flights]
        held: frozenset[int] = frozenset()
        if self.suspects.wall_limit is None:
            # Only an executor's workers have locks; who POSTs to an endpoint lives or not.
            for row in running:
                name = row.drainer_id
                if row.begun_by is not None and name is not None and self.presence.gone(name):
                    await self._died(row, f"its daemon {name} is silent")
                    del flights[row.execution_id]
            running = [row for row in running if row.begun_by is None]
            if running:
                held = await self.pool.read(
                    self.liveness.held, [row.execution_id for row in running]
                )
        for row in self.suspects.dead(running, held, self.clock.seconds(), self.wall()):
            await self._died(row, "its worker died")
            del flights[row.execution_id]
        return tuple(flights.values())

    async def _note_gates(self, now: Instant) -> None:
        """
        Keep the history of gates, before a row that waited behind one is claimed.
        """
        found, passed = self.gates.news()
        if not found and not passed:
            return
        try:
            await self.pool.transact(gatehistory.noted, found, now)
        except Exception as error:  # noqa: BLE001 - it is for people: no fault of it stops the queue
            if is_outage(error):
                return
            self._log.failure(
                "history of gates not written: {error}",
                action="gate_history_not_written",
                error=str(error),
            )

    async def _died(self, row: InFlight, why: str) -> None:
        message = DIED if row.begun_by is None else f"{why}, outcome unknown"
        if await self.pool.transact(executions.died, row.execution_id, self.wall(), message):
            self._log.error(
                "execution {execution_id}: {why}, outcome unknown",
                action="died",
                execution_id=row.execution_id,
                why=why,
            )
            self.meters.ended("failed", ErrorCode.OUTCOME_UNKNOWN, None, row.started_at, None)
        if row.lane.apikey_hash is not None:
            self.gates.ended(row.lane.apikey_hash)

    async def _release(self, row: InFlight | Claimed, why: str) -> None:
        number, epoch = row.execution_id, row.claim_epoch
        if self.begun_by is not None and not _is_claimed(row):
            back = await self.pool.transact(executions.put_back, number, epoch, self.begun_by)
        else:
            back = await self.pool.transact(executions.release, number, epoch)
        if back:
            self._again = True  # this tick's snapshot does not have it as queued
            self.lanes.touch([row.lane])
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
                self.limits,
                self.drainer_id,
                now,
                self.mint,
                tuple(self.dispatcher.in_flight().values()),
                self.begun_by,
                self.slots,
            )
        except CommitUnknown:
            self.lanes.forget()
            # If it did commit, the next tick finds rows of ours that were not dispatched.
            self._again = True
            return
        self.lanes.touch(take.lane for take in plan.takes)
        self.lanes.touch(request.lane for request in plan.picks)
        empty = {take.lane for take in plan.takes} - {row.lane for row in claimed}
        if self.lanes.many and empty - self._empty:
            self._again = True  # they were not what they seemed: others may start instead
        self._empty = empty
        for row in claimed:
            if not self.running:  # the stop began while COMMIT was under way
                await self._release(row, "was claimed while the daemon stops")
                continue
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


def _is_claimed(row: InFlight | Claimed) -> bool:
    return isinstance(row, InFlight) and row.status is Status.CLAIMED
