"""
Simulations: the real code over some hours, checked at every step, and what its rules are worth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from crq import policy
from crq.model import Limits, Plan
from crq.replay.trace import Arrival, Trace
from crq.simulate import brief, compare
from crq.simulate.api import Quota, Window
from crq.simulate.inline import Inline
from crq.simulate.measures import Result
from crq.simulate.queued import Model, Policy, Queued
from crq.simulate.scripts import Ladder, Work

HOUR, INCIDENT = 3600.0, 12 * 86_400.0  # s; 2026-08-24
BURST = (14.3, 14.6)  # hours; the peak minute and not much else
WORK = Work(calls=brief.OTHER_CALLS, calls_of=brief.CALLS)


def model(quota: Quota = brief.QUOTA, work: Work = WORK) -> Model:
    return Model(brief.BEGINS, quota, work)


@cache
def incident(first: float = 11.5, last: float = 15.0, seed: int = 1) -> tuple[Arrival, ...]:
    """
    Some hours of the day on which the box went down.
    """
    day = Trace(tuple(brief.load(seed)))
    return day.between(INCIDENT + first * HOUR, INCIDENT + last * HOUR).arrivals


def flood(account: str, count: int, at: float = 0.0, service: float = 10.0) -> list[Arrival]:
    """
    Executions that arrive all at once.
    """
    return [Arrival(at, account, f"key-{account}", service, "success") for _ in range(count)]


def run(
    load: Sequence[Arrival],
    given: Model | None = None,
    per_account: int = 2,
    in_flight: int = 4,
    **rules: Any,
) -> Result:
    limits = Limits(in_flight=in_flight, per_account=per_account)
    return Queued(load, Policy(limits=limits, **rules), given or model()).run()


FREE = model(Quota(), Work(calls=0))


class QueueTests(SynchronousTestCase):
    """
    `crq.simulate.queued`.
    """

    def test_hours_of_the_incident(self) -> None:
        """
        Through the queue the hours of the incident break no invariant at any step, fire no cap,
        kill no worker and delay no well-behaved account by more than one service time.
        """
        load = incident()
        result = run(load)
        self.assertEqual(result.problems, ())
        self.assertGreater(result.checks, 4 * len(load))
        self.assertEqual(sum(result.outcomes.values()), len(load))
        self.assertNotIn("303", result.outcomes)
        self.assertEqual(result.refused, {})
        self.assertLessEqual(result.slots_most, 4)
        self.assertLess(result.accounts[brief.SECOND].max, 5.0)
        self.assertGreater(result.accounts[brief.SLEEPER].p95, 1000.0)  # its quota, not the queue

    def test_the_same_twice(self) -> None:
        """
        The same load finds the same, to the last figure; a load of another seed finds another.
        """
        first, second = (json.dumps(run(incident(*BURST)).as_json()) for _ in range(2))
        self.assertEqual(first, second)
        other = incident(*BURST, seed=2)
        self.assertNotEqual(first, json.dumps(run(other).as_json()))

    def test_ticks_that_are_left_out(self) -> None:
        """
        With every single tick of every second the very same comes out.
        """
        tight = model(Quota((Window(40, 60.0), Window(700, 900.0))))
        variants: tuple[dict[str, Any], ...] = ({}, {"poked": False}, {"half_open": False})
        for rules in variants:
            short, whole = (Queued(incident(12.0, 12.3), Policy(**rules), tight) for _ in range(2))

            def always(simulation: Queued = whole) -> float:
                going = simulation.watch.open() or simulation._next < len(simulation.load)
                return simulation.clocks.seconds() if going else math.inf

            whole._matters = always  # type: ignore[method-assign]
            found, wanted = short.run(), whole.run()
            self.assertGreater(wanted.ticks, 3 * found.ticks)
            found, wanted = (evolve(one, ticks=0, events=0, checks=0) for one in (found, wanted))
            self.assertEqual(found, wanted, rules)

    def test_a_worker_that_is_killed(self) -> None:
        """
        An execution that is still at it at the wall is closed as 303 as soon as its lock has been
        seen free for long enough, although nothing else happens that would cause a tick.
        """
        result = run(flood("acme", 1, service=400.0), model(Quota(), Work(calls=0, seconds=None)))
        self.assertEqual((result.problems, result.outcomes), ((), {"303": 1}))
        self.assertEqual(result.seconds, 303.0)

    def test_a_key_that_is_forgotten(self) -> None:
        """
        A key that nobody asks for is forgotten after ten minutes, in the second in which a daemon
        with other waiting work forgets it: from then on it is not half-open any more.
        """
        load = [
            *flood("acme", 2, service=1.0),  # the second one is refused: the gate is closed
            *flood("gated", 3, service=1.0),  # and this one stays so for long
            *flood("acme", 1, at=2.0, service=1500.0),  # goes first when the gate opens
            *flood("acme", 1, at=800.0, service=1.0),
        ]
        keys = {"key-acme": (Window(1, 60.0),), "key-gated": (Window(0, 3000.0),)}
        given = model(Quota(keys=keys), Work(calls=1, wall=5000.0, seconds=None))
        simulation = Queued(load, Policy(), given)
        result = simulation.run()
        self.assertEqual(result.problems, ())
        self.assertEqual(result.accounts["acme"].p50, 0.0)
        self.assertLess(result.accounts["acme"].max, 70.0)  # the first one's; the last one's is 0

    def test_who_inserts(self) -> None:
        """
        An admission of the daemon starts at once; a row that SQL inserts waits for the next tick,
        half a second in the mean.
        """
        load = [Arrival(n * 7.1 + 0.05, "acme", "k", 0.1, "success") for n in range(100)]
        self.assertEqual(run(load, FREE).everybody.max, 0.0)
        polled = run(load, FREE, poked=False)
        self.assertEqual(polled.problems, ())
        self.assertApproximates(polled.everybody.p50, 0.45, 0.001)
        self.assertApproximates(polled.everybody.max, 0.95, 0.001)

    def test_a_cap_fires(self) -> None:
        """
        What is too deep is refused and told by the cap; all the rest ends.
        """
        result = run([*flood("acme", 520), *flood("bravo", 10, at=1.0)], FREE)
        self.assertEqual(result.problems, ())
        self.assertEqual(result.refused, {"account": 18})  # two had begun by then
        self.assertEqual(result.outcomes, {"success": 512})

    def test_one_account_does_not_delay_another(self) -> None:
        """
        500 from one account keep two slots, never more, and the other account waits for nothing
        (brief §16); with the cap of all it would wait for a service time.
        """
        load = [*flood("acme", 500), *flood("bravo", 1, at=5.0)]
        self.assertEqual(run(load, FREE).accounts["bravo"].max, 0.0)
        self.assertEqual(run(load, FREE, per_account=4).accounts["bravo"].max, 1245.0)

    def test_round_robin(self) -> None:
        """
        Where an account may take all slots, turns give the other one every second slot that is
        freed; the invariants hold, and no slot is left free for it.
        """
        load = [*flood("acme", 100), *flood("bravo", 3, at=5.0)]
        fifo = run(load, FREE, per_account=4)
        turns = run(load, FREE, per_account=4, order="round-robin")
        self.assertEqual(turns.problems, ())
        self.assertEqual((fifo.accounts["bravo"].max, turns.accounts["bravo"].max), (245.0, 15.0))
        self.assertEqual(fifo.seconds, turns.seconds)
        # Several slots are there at once when a gate opens.
        gated = evolve(model(Quota((Window(8, 60.0),)), Work(calls=2)), ladder=Ladder(attempts=1))
        opened = run(flood("acme", 20), gated, order="round-robin", half_open=False)
        self.assertEqual(opened.problems, ())
        self.assertGreater(opened.gates["closings"], 1)

    def test_half_open(self) -> None:
        """
        When a gate opens, one execution goes first and finds a whole quota; without that, as many
        as an account may run share it, and all of them fail.
        """
        scarce = model(Quota((Window(2, 3600.0),)), Work(calls=2))
        load = flood("acme", 40, service=1.0)
        careful, rash = (run(load, scarce, half_open=half_open) for half_open in (True, False))
        self.assertEqual((careful.problems, rash.problems), ((), ()))
        self.assertEqual(rash.outcomes, {"301": 40})
        self.assertGreater(careful.outcomes["success"], 10)

    def test_nothing_at_all(self) -> None:
        """
        An empty load ends at once.
        """
        self.assertEqual(run([], FREE).executions, 0)


class InlineTests(SynchronousTestCase):
    """
    `crq.simulate.inline`: as it was before the queue.
    """

    def test_the_pool_melts(self) -> None:
        """
        The hours of the incident without a queue take all 40 workers, kill executions at the wall
        and let health checks wait for minutes; with it nobody dies.
        """
        result = Inline(incident(), model()).run()
        self.assertEqual(result.slots_most, 40)
        self.assertGreater(result.full_seconds, 600.0)
        self.assertGreater(result.outcomes["303"], 100)
        self.assertGreater((result.health or {})["p95"], 100.0)
        self.assertGreater(result.accounts[brief.SECOND].p95, 60.0)
        self.assertGreater(result.lost, 0)
        self.assertEqual(sum(result.outcomes.values()) + result.lost, len(incident()))

    def test_a_quiet_pool(self) -> None:
        """
        While workers are free nobody waits, no health check either.
        """
        result = Inline(flood("acme", 40), FREE).run()
        self.assertEqual((result.everybody.max, result.health), (0.0, {"p95": 0.0, "max": 0.0}))
        self.assertEqual((result.outcomes, result.lost), ({"success": 40}, 0))

    def test_who_waits_too_long_is_lost(self) -> None:
        """
        A request that no worker has taken within 310 s is given up by the web server.
        """
        load = [*flood("acme", 2, service=200.0), *flood("bravo", 4, at=1.0, service=200.0)]
        result = Inline(load, FREE, workers=2).run()
        self.assertEqual((result.lost, result.outcomes), (2, {"success": 4}))
        self.assertEqual(result.accounts["bravo"].max, 199.0)


class WhatIfTests(SynchronousTestCase):
    """
    What the brief asks of the caps, on its own figures.
    """

    def test_the_cap_of_an_account(self) -> None:
        """
        With two slots of four an account, one that fires two at a time waits for nothing beside
        one that is throttled; with one slot it waits for itself, with all four for the other.
        """
        load = sorted(
            [Arrival(float(n), brief.SLEEPER, "key-s", 1.0, "success") for n in range(60)]
            + [Arrival(n // 2 * 12.0, brief.SECOND, "key-b", 1.5, "success") for n in range(80)],
            key=lambda arrival: arrival.offset,
        )
        p95 = {cap: run(load, per_account=cap).accounts[brief.SECOND].p95 for cap in (1, 2, 4)}
        self.assertEqual((p95[1], p95[2]), (1.5, 0.0))
        self.assertGreater(p95[4], 10.0)

    def test_several_at_once(self) -> None:
        """
        Questions are answered in their order, also by several processes, and alike.
        """
        rules: list[Policy | compare.Without] = [
            *(Policy(), compare.Without(40), Policy(Limits(2, 1))),
        ]
        questions = [compare.Question(incident(14.38, 14.385), model(), each) for each in rules]
        told: list[int] = []
        alone = compare.ask(questions, 1, told.append)
        self.assertEqual(told, [1, 2, 3])
        self.assertEqual([each.slots for each in alone], [4, 40, 2])
        self.assertEqual(compare.ask(questions, 2), alone)


class WrongPlanTests(SynchronousTestCase):
    """
    A queue that breaks its rules is told so.
    """

    def problems(self, plan: Any, quota: Quota | None = None) -> str:
        given = evolve(model(quota or Quota(), Work(calls=2)), ladder=Ladder(attempts=1))
        simulation = Queued(flood("acme", 12, service=2.0), Policy(), given)
        simulation.bench.drainer.plan = plan
        return " ".join(simulation.run().problems)

    def test_a_closed_gate(self) -> None:
        """
        A plan that does not look at the gates breaks I5.
        """

        def blind(snapshot: Any, gates: Any, *rest: Any, **more: Any) -> Plan:
            return policy.plan(snapshot, {}, *rest, **more)

        self.assertIn("I5", self.problems(blind, Quota((Window(6, 60.0),))))

    def test_a_slot_left_free(self) -> None:
        """
        A plan that leaves a slot free breaks I6, and what never starts breaks I3.
        """

        def lazy(snapshot: Any, gates: Any, limits: Limits, *rest: Any, **more: Any) -> Plan:
            return policy.plan(snapshot, gates, evolve(limits, in_flight=1), *rest, **more)

        self.assertIn("I6", self.problems(lazy))
        self.assertIn("I3: 12 accepted, 0 ended", self.problems(lambda *_args, **_more: Plan()))

    def test_a_tick_that_fails(self) -> None:
        """
        A tick that raises is a problem, not a silence.
        """

        def broken(*_args: Any, **_more: Any) -> Plan:
            raise RuntimeError("no plan")

        self.assertIn("a tick failed: RuntimeError: no plan", self.problems(broken))
        self.flushLoggedErrors(RuntimeError)
