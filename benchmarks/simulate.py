"""
What `crq simulate` costs for the 14 days of the brief, and what it finds: the pool that melts
without a queue, and what the cap of an account and half-open do to the second account.
"""

from __future__ import annotations

import time

from benchmarks.report import Figure, Measured, Stage, median
from crq.model import Limits
from crq.simulate import brief
from crq.simulate.inline import Inline
from crq.simulate.measures import Result
from crq.simulate.queued import Model, Policy, Queued
from crq.simulate.scripts import Work

CAPS = (1, 2, 3, 4)  # of an account; the last is the one over all: no cap of an account
MODEL = Model(brief.BEGINS, brief.QUOTA, Work(calls=brief.OTHER_CALLS, calls_of=dict(brief.CALLS)))


def run(stage: Stage, rounds: int = 3, seed: int = 1) -> Measured:
    """
    Simulate.

    :param rounds: that the median is taken of.
    :param seed: of the load.
    """
    load = brief.load(seed)
    seconds: list[float] = []
    spent: list[float] = []
    queued: dict[tuple[int, bool], Result] = {}
    for number in range(rounds):
        stage("the 14 days", number, rounds)
        begun, used = time.perf_counter(), time.process_time()
        queued[2, True] = Queued(load, Policy(), MODEL).run()
        seconds.append(time.perf_counter() - begun)
        spent.append(time.process_time() - used)
    stage("without a queue")
    inline = Inline(load, MODEL).run()
    for cap in CAPS:
        for half_open in (True, False):
            stage(f"{cap} of an account", CAPS.index(cap), len(CAPS))
            if (cap, half_open) not in queued:
                policy = Policy(Limits(per_account=cap), half_open)
                queued[cap, half_open] = Queued(load, policy, MODEL).run()
    result = queued[2, True]
    figures = {
        "seconds_for_14_days": Figure(median(seconds), "s"),
        "cpu_seconds_for_14_days": Figure(median(spent), "s"),
        "executions": Figure(len(load), "rows"),
        "ticks": Figure(result.ticks, "ticks"),
        "checks": Figure(result.checks, "checks"),
        "violations": Figure(sum(len(each.problems) for each in queued.values()), "violations"),
        "caps_fired": Figure(sum(result.refused.values()), "rows"),
        "waiting_most": Figure(result.depth_most, "rows"),
        "died_at_the_wall": Figure(result.outcomes.get("303", 0), "rows"),
        "failed": Figure(result.outcomes.get("301", 0), "rows"),
        "inline_died_at_the_wall": Figure(inline.outcomes.get("303", 0), "rows"),
        "inline_failed": Figure(inline.outcomes.get("301", 0), "rows"),
        "inline_pool_full_seconds": Figure(inline.full_seconds, "s"),
        "inline_health_p95_worst_hour": Figure((inline.health or {})["p95"], "s"),
        "inline_second_p95_worst_hour": Figure(_second(inline), "s"),
    }
    for (cap, half_open), found in sorted(
        queued.items(), key=lambda each: (each[0][0], -each[0][1])
    ):
        name = f"cap_{cap}" if half_open else f"cap_{cap}_not_half_open"
        figures[f"second_p95_{name}"] = Figure(found.accounts[brief.SECOND].p95, "s")
        figures[f"second_p95_worst_hour_{name}"] = Figure(_second(found), "s")
    return Measured(figures, {})


def _second(result: Result) -> float:
    return result.accounts[brief.SECOND].p95_worst_hour
