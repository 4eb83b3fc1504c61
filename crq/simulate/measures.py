"""
What a simulation tells: waits, slots, refusals, gates, depth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

HOUR = 3600.0  # s
ENOUGH = 10  # arrivals of an hour from which on its p95 says something
POINTS = 240  # of a curve: one for each column of a wide terminal, and of a picture


@frozen
class Waits:
    """
    Waits of one account from admission to start, in seconds.

    :ivar p95_worst_hour: the p95 of those who arrived in the worst clock hour of the simulation.
    """

    count: int
    p50: float
    p95: float
    max: float
    p95_worst_hour: float

    def as_json(self) -> dict[str, Any]:
        """
        The waits for a machine.
        """
        return {
            "count": self.count,
            "p50": round(self.p50, 3),
            "p95": round(self.p95, 3),
            "max": round(self.max, 3),
            "p95WorstHour": round(self.p95_worst_hour, 3),
        }


@frozen
class Curve:
    """
    A number over time.

    :ivar most: the highest it was in each of the equal parts of the simulated time.
    """

    seconds: float
    most: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """
        The curve for a machine.
        """
        return {"seconds": round(self.seconds, 3), "most": list(self.most)}


@define(eq=False)
class Level:
    """
    A number that changes now and then.

    :ivar spent: seconds that were spent at each height.
    """

    height: int = 0
    most: int = 0
    spent: dict[int, float] = field(factory=dict)
    _since: float = 0.0
    _steps: list[tuple[float, int]] = field(factory=list)

    def set(self, height: int, now: float) -> None:
        """
        Take note of a change.
        """
        if height == self.height:
            return
        self.end(now)
        self.height = height
        self.most = max(self.most, height)
        self._steps.append((now, height))

    def end(self, now: float) -> None:
        """
        Count the time up to now at the height it has.
        """
        self.spent[self.height] = self.spent.get(self.height, 0.0) + now - self._since
        self._since = now

    def mean(self) -> float:
        """
        The mean over time.
        """
        seconds = sum(self.spent.values())
        return (
            sum(height * spent for height, spent in self.spent.items()) / seconds if seconds else 0
        )

    def curve(self, seconds: float, points: int = POINTS) -> Curve:
        """
        The highest in each of so many equal parts of the first so many seconds.
        """
        most = [0] * points
        height, part = 0, 0
        for at, step in [*self._steps, (seconds, 0)]:
            last = min(points - 1, int(at / seconds * points)) if seconds else 0
            for each in range(part, last + 1):
                most[each] = max(most[each], height)
            height, part = step, last
            if at < seconds:
                most[last] = max(most[last], step)
        return Curve(seconds, tuple(most))


@define(eq=False)
class Measures:
    """
    Collects what happens.

    :ivar outcomes: how many ended how: ``success``, or a code.
    :ivar refused: refused at admission, by the cap: ``account`` or ``total``.
    :ivar last: when the last one ended, in seconds.
    """

    outcomes: Counter[str] = field(factory=Counter)
    refused: Counter[str] = field(factory=Counter)
    depth: Level = field(factory=Level)
    busy: Level = field(factory=Level)
    last: float = 0.0
    _arrived: dict[int, tuple[str, float]] = field(factory=dict)
    _waits: dict[str, list[tuple[float, float]]] = field(factory=dict)

    def arrived(self, number: int, account: str, now: float) -> None:
        """
        Take note of an arrival that was taken.
        """
        self._arrived[number] = (account, now)

    def started(self, number: int, now: float) -> None:
        """
        Take note of a start.
        """
        account, arrived = self._arrived.pop(number)
        self._waits.setdefault(account, []).append((arrived, now - arrived))

    def ended(self, error_code: int | None, now: float) -> None:
        """
        Take note of an end.
        """
        self.outcomes["success" if error_code is None else str(error_code)] += 1
        self.last = max(self.last, now)

    def everybody(self) -> Waits:
        """
        The waits of all accounts together.
        """
        return _waits([each for waited in self._waits.values() for each in waited])

    def waits(self) -> dict[str, Waits]:
        """
        The waits of each account, of the greatest first.
        """
        found = sorted(self._waits.items(), key=lambda each: (-len(each[1]), each[0]))
        return {account: _waits(waited) for account, waited in found}


def _waits(waited: Sequence[tuple[float, float]]) -> Waits:
    hours: dict[int, list[float]] = {}
    for arrived, wait in waited:
        hours.setdefault(int(arrived // HOUR), []).append(wait)
    every = [wait for _, wait in waited]
    worst = [percentile(each, 0.95) for each in hours.values() if len(each) >= ENOUGH]
    return Waits(
        count=len(every),
        p50=percentile(every, 0.5),
        p95=percentile(every, 0.95),
        max=max(every, default=0.0),
        p95_worst_hour=max(worst, default=max(every, default=0.0)),
    )


def percentile(values: Iterable[float], share: float) -> float:
    """
    The smallest value that this share of the values does not exceed; 0 of none.
    """
    found = sorted(values)
    return found[max(0, math.ceil(share * len(found)) - 1)] if found else 0.0


@frozen
class Result:
    """
    What one simulation found; the same load, policy and seed find the same.

    :ivar seconds: simulated, from the first arrival to the last end.
    :ivar slots: the cap, or the workers without a queue.
    :ivar full_seconds: for which all slots were taken.
    :ivar lost: requests that nobody served in time (without a queue).
    :ivar health: how long a health check waited for a worker: ``p95`` of the worst hour, ``max``;
        None: with a queue the shared pool is not touched.
    :ivar depth: how many waited, over time; ``busy``: how many ran.
    :ivar gates: closings, seconds closed over all keys, and the longest of them.
    :ivar checks: how often the invariants were checked.
    :ivar problems: which did not hold.
    """

    policy: Mapping[str, Any]
    executions: int
    seconds: float
    outcomes: Mapping[str, int]
    accounts: Mapping[str, Waits]
    everybody: Waits
    slots: int
    slots_most: int
    slots_mean: float
    full_seconds: float
    calls: int
    api_refused: Mapping[int, int]
    depth: Curve
    depth_most: int
    busy: Curve
    refused: Mapping[str, int] = field(factory=dict)
    lost: int = 0
    health: Mapping[str, float] | None = None
    gates: Mapping[str, float] = field(factory=dict)
    ticks: int = 0
    events: int = 0
    checks: int = 0
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """
        The result for a machine: seconds, to the millisecond.
        """
        return {
            "policy": dict(self.policy),
            "executions": self.executions,
            "seconds": round(self.seconds, 3),
            "outcomes": dict(self.outcomes),
            "waits": self.everybody.as_json(),
            "accounts": {name: waits.as_json() for name, waits in self.accounts.items()},
            "slots": {
                "of": self.slots,
                "most": self.slots_most,
                "mean": round(self.slots_mean, 6),
                "fullSeconds": round(self.full_seconds, 3),
            },
            "api": {"calls": self.calls, "refused": _texts(self.api_refused)},
            "capsFired": dict(self.refused),
            "lost": self.lost,
            "health": None if self.health is None else _rounded(self.health),
            "gates": _rounded(self.gates),
            "depth": {"most": self.depth_most, "curve": self.depth.as_json()},
            "running": self.busy.as_json(),
            "ticks": self.ticks,
            "events": self.events,
            "checks": self.checks,
            "problems": list(self.problems),
        }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def _texts(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(counts.items())}
