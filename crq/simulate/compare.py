"""
One load under several policies, side by side.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from attrs import evolve, frozen

from crq.model import Limits
from crq.replay.trace import Arrival, Trace
from crq.simulate.inline import Inline
from crq.simulate.measures import Result
from crq.simulate.queued import Model, Policy, Queued

NEAR = 60.0  # s; so far from the real arrival an additional one may be


@frozen
class Without:
    """
    No queue at all.

    :ivar workers: of the shared pool.
    """

    workers: int


@frozen
class Question:
    """
    What is asked: a load, under what conditions, with which rules.
    """

    load: tuple[Arrival, ...]
    model: Model
    rules: Policy | Without

    def answer(self) -> Result:
        """
        Simulate it.
        """
        if isinstance(self.rules, Without):
            return Inline(self.load, self.model, self.rules.workers).run()
        return Queued(self.load, self.rules, self.model).run()


def policies(
    limits: Limits,
    per_account: Iterable[int],
    in_flight: Iterable[int],
    half_open: Iterable[bool],
    orders: Iterable[str],
    poked: bool,
) -> Iterator[Policy]:
    """
    Every combination, except caps of an account that the cap over all would never let it reach.

    :param limits: gives the caps on depth.
    """
    for total, mine, half, order in itertools.product(in_flight, per_account, half_open, orders):
        if mine <= total:
            caps = evolve(limits, in_flight=total, per_account=mine)
            yield Policy(caps, half, order, poked)


def ask(
    questions: Sequence[Question], jobs: int, done: Callable[[int], None] = lambda _: None
) -> list[Result]:
    """
    Answer all questions, in order; so many at once, each in a process of its own.

    :param done: called with how many have been answered.
    """
    found: list[Result] = []
    if min(jobs, len(questions)) <= 1:
        for question in questions:
            found.append(question.answer())
            done(len(found))
        return found
    # Not forked: whoever asks may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(questions)), context) as processes:
        for result in processes.map(Question.answer, questions):
            found.append(result)
            done(len(found))
    return found


def scaled(trace: Trace, factor: float, seed: int) -> Trace:
    """
    So many times the arrivals of a trace; what is added arrives near what was there.
    """
    dice = random.Random(seed)
    arrivals = []
    for arrival in trace.arrivals:
        count = int(factor) + (dice.random() < factor % 1)
        for number in range(count):
            shift = dice.uniform(-NEAR, NEAR) if number else 0.0
            arrivals.append(evolve(arrival, offset=max(0.0, round(arrival.offset + shift, 3))))
    return evolve(trace, arrivals=tuple(sorted(arrivals, key=lambda one: one.offset)))
