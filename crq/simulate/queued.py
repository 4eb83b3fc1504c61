"""
A load through the queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from attrs import evolve, field, frozen
from twisted.internet.defer import Deferred

from crq import executions, gatehistory
from crq.config import ReaperOptions
from crq.gatememory import FORGET_AFTER, GateMemory
from crq.inmemory import MemoryDatabase
from crq.instants import Instant
from crq.invariants import ENDED, Change
from crq.messages import Admitted, Rejected, SealedSubmission
from crq.model import Limits
from crq.pulse import Ended
from crq.reaper import Reaper
from crq.replay.trace import Arrival
from crq.sealing import sha256_hex
from crq.simulate.api import Api, Quota
from crq.simulate.executor import ModelledExecutor
from crq.simulate.measures import HOUR, Measures, Result
from crq.simulate.scripts import Ladder, Runner, Work
from crq.simulate.variants import NeverHalfOpen, RoundRobin
from crq.simulate.watch import MOST, Watch
from crq.timeline import Timeline
from crq.workbench import Workbench


class _Enough(Exception):
    """
    So much is wrong that it need not be told on.
    """


@frozen
class Policy:
    """
    The rules of one simulation.

    :ivar half_open: ruling 8; off: a gate opens for all that wait behind it.
    :ivar order: ``fifo`` (the ruling) or ``round-robin`` over accounts.
    :ivar poked: an admission wakes the drainer, as the daemon's own does; else rows wait for the
        next tick, as those do that others insert by SQL.
    """

    limits: Limits = field(factory=Limits)
    half_open: bool = True
    order: str = "fifo"
    poked: bool = True

    def as_json(self) -> dict[str, object]:
        """
        The policy for a machine.
        """
        return {
            "perAccount": self.limits.per_account,
            "global": self.limits.in_flight,
            "halfOpen": self.half_open,
            "order": self.order,
            "poked": self.poked,
        }


@frozen
class Model:
    """
    What a simulation assumes of the world.

    :ivar begins: the wall instant at which the load begins.
    :ivar tick: seconds between ticks (brief §4).
    """

    begins: Instant
    quota: Quota
    work: Work
    ladder: Ladder = field(factory=Ladder)
    tick: float = 1.0


class Queued:
    """
    One simulation of the queue.
    """

    def __init__(self, load: Sequence[Arrival], policy: Policy, model: Model) -> None:
        """
        Set everything up; nothing has arrived yet.

        :param load: what arrives, oldest first.
        """
        self.load, self.policy, self.model = load, policy, model
        self.database = MemoryDatabase()
        self.clocks = Timeline(model.begins)
        self.api = Api(model.quota)
        self.executor = ModelledExecutor(self.database, self.clocks)
        self.executor.runner = Runner(
            self.clocks, self.api, model.work, model.ladder, self._gate_closes
        )
        self.bench = Workbench(
            self.executor,
            limits=policy.limits,
            memory=GateMemory if policy.half_open else NeverHalfOpen,
            every=model.tick,
        )
        self.bench.drainer.ticked = self._ticked
        self.turns = RoundRobin() if policy.order == "round-robin" else None
        if self.turns is not None:
            self.bench.drainer.plan = self.turns.plan
        self.measures = Measures()
        self.watch = Watch(self.bench, policy.limits, self._told)
        self.clocks.moving = self._moving
        self.reaper = Reaper(self.bench.pool, ReaperOptions(), self.clocks, self.clocks.wall)
        self._next = 0
        self._accepted = 0
        self._sealed: dict[tuple[str, str], SealedSubmission] = {}
        self._closed: dict[str, tuple[Instant, int]] = {}
        self._closings: list[float] = []
        self._asked: dict[str, Instant] = {}
        self._quiet = False
        self._written = 0

    def run(self) -> Result:
        """
        Let everything arrive and come to its end.
        """
        if self.load:
            self.clocks.callLater(self.load[0].offset, self._arrive)
            self.clocks.callLater(HOUR, self._janitor)
        self.bench.drainer.startService()
        with suppress(_Enough):
            self.clocks.run(math.inf, self._matters)
        self.database.read(self.bench.pool.connection, self.watch.ended, self._accepted)
        result = self._result(self.measures.last)
        self.bench.kill()
        self.database.end()
        return result

    def _moving(self, seconds: float) -> None:
        self.watch.moving(seconds)
        if len(self.watch.problems()) >= MOST:
            raise _Enough

    # -- what happens

    def _arrive(self) -> None:
        arrival = self.load[self._next]
        self._next += 1
        if self._next < len(self.load):
            later = max(0.0, self.load[self._next].offset - self.clocks.seconds())
            self.clocks.callLater(later, self._arrive)
        sealed = evolve(self._seal(arrival), idempotency_key=f"arrival {self._next}")
        answer = self.database.transact(
            self.bench.pool.connection,
            executions.admit,
            sealed,
            self.policy.limits,
            self.clocks.wall(),
        )
        if isinstance(answer, Admitted):
            self._accepted += 1
            self.executor.expected[answer.execution_id] = arrival
            self.measures.arrived(answer.execution_id, arrival.account, self.clocks.seconds())
        elif isinstance(answer, Rejected):
            self.measures.refused[answer.depth] += 1
        if self.policy.poked:
            self.bench.drainer.wake()

    def _seal(self, arrival: Arrival) -> SealedSubmission:
        lane = (arrival.account, arrival.key)
        if lane not in self._sealed:
            self._sealed[lane] = SealedSubmission(
                subdomain=arrival.account,
                subdomain_hash=sha256_hex(f"account {arrival.account}"),
                apikey_hash=_key(arrival.key),
                sealed_apikey="sealed",
                source_code="",
                identifier=None,
                payload=None,
                debug=False,
                idempotency_key="",
                named=False,
            )
        return self._sealed[lane]

    def _gate_closes(self, apikey: str, until: Instant) -> None:
        """
        Write a gate and its history, as the executor does.
        """
        key, now = _key(apikey), self.clocks.wall()
        standing = self.bench.store.close(key, until, now)
        self.database.transact(
            self.bench.pool.connection, gatehistory.record, key, standing, now, "429"
        )
        until, place = self._closed.get(key, (0.0, -1))
        if until <= now:
            until, place = now, len(self._closings)
            self._closings.append(0.0)
        self._closings[place] += standing - until
        self._closed[key] = (standing, place)

    def _janitor(self) -> None:
        # Each hour instead of each minute: nothing it does decides what starts when.
        Deferred.fromCoroutine(self.reaper.run_once())
        if self._next < len(self.load) or self.watch.open():
            self.clocks.callLater(HOUR, self._janitor)

    def _told(self, change: Change, error_code: int | None) -> None:
        now = self.clocks.seconds()
        if change.new == "running":
            self.measures.started(change.execution_id, now)
        elif change.new in ENDED:
            self.measures.ended(error_code, now)
        self.measures.depth.set(self.watch.states["queued"], now)
        self.measures.busy.set(self.watch.states["running"], now)

    # -- ticks: see note [Ticks that are left out] in crq.timeline

    def _ticked(self, ended: Ended) -> None:
        self.watch.ticked()
        pulse, dispatcher = self.bench.pulse, self.bench.dispatcher
        plan, now = pulse.plan, self.clocks.wall()
        for lane in (*(take.lane for take in plan.takes), *(hold.lane for hold in plan.holds)):
            self._asked[lane.apikey_hash or ""] = now
        self._quiet = (
            ended is Ended.WELL
            and pulse.gates_reachable
            and not dispatcher.back_off.failures
            and all(flight.execution_id in dispatcher.outstanding for flight in pulse.in_flight)
        )
        self._written = self.bench.pool.connection.total_changes
        if self.turns is not None and self.turns.more:
            self.bench.drainer.wake()

    def _matters(self) -> float:
        now = self.clocks.seconds()
        if not self._quiet or self.bench.pool.connection.total_changes != self._written:
            return now
        holds = self.bench.pulse.plan.holds
        if not holds:
            return math.inf
        waiting = {hold.lane.apikey_hash for hold in holds}
        instants = [hold.until for hold in holds if hold.until is not None]
        # The first tick after this forgets a key that nobody has asked for meanwhile.
        forgotten = FORGET_AFTER + self.model.tick
        instants += [
            asked + forgotten
            for key, asked in self._asked.items()
            if key not in waiting and asked + forgotten >= self.clocks.wall()
        ]
        return min(instants, default=math.inf) - self.clocks.step

    # -- what came of it

    def _result(self, now: float) -> Result:
        measures, watch = self.measures, self.watch
        measures.depth.end(now)
        measures.busy.end(now)
        limits = self.policy.limits
        return Result(
            policy=self.policy.as_json(),
            executions=len(self.load),
            seconds=now,
            outcomes=dict(sorted(measures.outcomes.items())),
            accounts=measures.waits(),
            everybody=measures.everybody(),
            slots=limits.in_flight,
            slots_most=measures.busy.most,
            slots_mean=measures.busy.mean(),
            full_seconds=measures.busy.spent.get(limits.in_flight, 0.0),
            calls=self.api.calls,
            api_refused=dict(self.api.refused),
            refused=dict(measures.refused),
            gates={
                "closings": len(self._closings),
                "seconds": sum(self._closings),
                "longest": max(self._closings, default=0.0),
            },
            depth_most=measures.depth.most,
            depth=measures.depth.curve(now),
            busy=measures.busy.curve(now),
            ticks=self.bench.pulse.ticks,
            events=self.clocks.events,
            checks=watch.checks,
            problems=tuple(watch.problems()),
        )


@cache
def _key(apikey: str) -> str:
    return sha256_hex(f"key {apikey}")
