"""
The same load without a queue: each execution goes at once into a shared pool of workers, as it did
before (brief §1), with ladders that have no end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from attrs import evolve, frozen
from twisted.internet.defer import Deferred

from crq.messages import Outcome
from crq.model import ErrorCode
from crq.replay.trace import Arrival
from crq.simulate.api import Api
from crq.simulate.measures import HOUR, Measures, Result, percentile
from crq.simulate.queued import Model
from crq.simulate.scripts import UNCAPPED, Killed, Runner
from crq.timeline import Timeline

WORKERS = 40  # of the shared pool (brief §1)
ABANDONED = 310.0  # s after which the web server gives a waiting request up (brief §2)
CHECK_EVERY = 10.0  # s between two health checks
CHECK_TAKES = 0.05  # s


@frozen
class _Check:
    """
    A health check that waits for a worker.
    """

    arrived: float


class Inline:
    """
    One simulation without a queue.
    """

    def __init__(self, load: Sequence[Arrival], model: Model, workers: int = WORKERS) -> None:
        """
        Set everything up; nothing has arrived yet.
        """
        self.load, self.workers = load, workers
        self.clocks = Timeline(model.begins)
        self.api = Api(model.quota)
        work = evolve(model.work, seconds=None)
        self.runner = Runner(self.clocks, self.api, work, UNCAPPED)
        self.measures = Measures()
        self._next = 0
        self._busy = 0
        self._lost = 0
        self._waiting: deque[int | _Check] = deque()
        self._checks: list[tuple[float, float]] = []
        self._checking = False

    def run(self) -> Result:
        """
        Let everything arrive and come to its end.
        """
        if self.load:
            self.clocks.callLater(self.load[0].offset, self._arrive)
        self.clocks.run(math.inf)
        now = self.measures.last
        self.measures.busy.end(now)
        self.measures.depth.end(now)
        return Result(
            policy={"inline": True, "workers": self.workers},
            executions=len(self.load),
            seconds=now,
            outcomes=dict(sorted(self.measures.outcomes.items())),
            accounts=self.measures.waits(),
            everybody=self.measures.everybody(),
            slots=self.workers,
            slots_most=self.measures.busy.most,
            slots_mean=self.measures.busy.mean(),
            full_seconds=self.measures.busy.spent.get(self.workers, 0.0),
            calls=self.api.calls,
            api_refused=dict(self.api.refused),
            lost=self._lost,
            health=self._health(),
            depth_most=self.measures.depth.most,
            depth=self.measures.depth.curve(now),
            busy=self.measures.busy.curve(now),
            events=self.clocks.events,
        )

    def _arrive(self) -> None:
        number = self._next
        arrival = self.load[number]
        self._next += 1
        if self._next < len(self.load):
            later = max(0.0, self.load[self._next].offset - self.clocks.seconds())
            self.clocks.callLater(later, self._arrive)
        self.measures.arrived(number, arrival.account, self.clocks.seconds())
        self._waiting.append(number)
        self._serve()

    def _serve(self) -> None:
        """
        Give free workers to who waits, oldest first.
        """
        now = self.clocks.seconds()
        while self._waiting and self._busy < self.workers:
            one = self._waiting.popleft()
            if isinstance(one, _Check):
                self._checks.append((one.arrived, now - one.arrived))
                self._busy += 1
                self.clocks.callLater(CHECK_TAKES, self._free)
            elif now - self.load[one].offset > ABANDONED:
                self._lost += 1
            else:
                self.measures.started(one, now)
                self._busy += 1
                Deferred.fromCoroutine(self._work(one))
        self._count(now)

    async def _work(self, number: int) -> None:
        try:
            outcome: Outcome | None = await self.runner.run(self.load[number])
        except Killed:
            outcome = None
        code = ErrorCode.OUTCOME_UNKNOWN if outcome is None else outcome.error_code
        self.measures.ended(code, self.clocks.seconds())
        self._free()

    def _free(self) -> None:
        self._busy -= 1
        self._serve()

    def _count(self, now: float) -> None:
        self.measures.busy.set(self._busy, now)
        self.measures.depth.set(len(self._waiting), now)
        if self._busy >= self.workers and not self._checking:
            self._checking = True
            due = (math.floor(now / CHECK_EVERY) + 1) * CHECK_EVERY
            self.clocks.callLater(due - now, self._check)

    def _check(self) -> None:
        # A check that finds a free worker waits for nothing, and needs no event.
        self._checking = False
        if self._busy >= self.workers:
            self._waiting.append(_Check(self.clocks.seconds()))
            self._serve()

    def _health(self) -> dict[str, float]:
        hours: dict[int, list[float]] = {}
        for arrived, waited in self._checks:
            hours.setdefault(int(arrived // HOUR), []).append(waited)
        each_hour = int(HOUR / CHECK_EVERY)
        p95 = [
            percentile([*waited, *[0.0] * (each_hour - len(waited))], 0.95)
            for waited in hours.values()
        ]
        longest = max((waited for _, waited in self._checks), default=0.0)
        return {"p95": max(p95, default=0.0), "max": longest}
