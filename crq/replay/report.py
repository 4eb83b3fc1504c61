"""
What became of a replay, in figures. Pure; all durations are as measured, in seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from crq.instants import Instant


@frozen
class Played:
    """
    One execution of a replay, as its row says.

    :ivar shown: the word a customer sees for its state.
    """

    account: str
    shown: str
    error_code: int | None
    queued_at: Instant
    claimed_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None


@frozen
class Probe:
    """
    One look at the health check.

    :ivar at: when it began, on the monotonic clock.
    :ivar good: it was answered with 200.
    """

    at: float
    seconds: float
    good: bool


@frozen
class Spread:
    """
    Some durations in short.
    """

    count: int
    p50: float
    p95: float
    longest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """
        The spread of these; None: there are none.
        """
        found = sorted(values)
        if not found:
            return None
        return cls(len(found), _percentile(found, 50), _percentile(found, 95), found[-1])

    def as_json(self) -> dict[str, Any]:
        """
        For a machine.
        """
        return {
            "count": self.count,
            "p50": round(self.p50, 4),
            "p95": round(self.p95, 4),
            "max": round(self.longest, 4),
        }


@frozen
class Report:
    """
    The whole of it.

    :ivar waits: from admission to start, by account, of those that have started.
    :ivar most: executions in flight at once, at most: of all accounts (""), and of each.
    :ivar limits: calls that the API refused (429), by key.
    :ivar refused: submissions that were refused for depth (107), by the cap that fired.
    :ivar at_the_wall: executions whose worker died (303).
    :ivar idle: the health check before anything was submitted.
    :ivar health: the health check during the replay.
    """

    speed: float
    seconds: float
    submitted: int
    states: Mapping[str, int]
    waits: Mapping[str, Spread]
    most: Mapping[str, int]
    limits: Mapping[str, int]
    refused: Mapping[str, int]
    at_the_wall: int
    idle: Spread | None
    health: Spread | None
    sick: int = field(default=0)

    def as_json(self) -> dict[str, Any]:
        """
        For a machine.
        """
        return {
            "speed": self.speed,
            "seconds": round(self.seconds, 3),
            "submitted": self.submitted,
            "states": dict(self.states),
            "waits": {account: spread.as_json() for account, spread in self.waits.items()},
            "mostInFlight": self.most[""],
            "mostInFlightOf": {name: count for name, count in self.most.items() if name},
            "limits": sum(self.limits.values()),
            "limitsOf": dict(self.limits),
            "refused": dict(self.refused),
            "atTheWall": self.at_the_wall,
            "healthIdle": None if self.idle is None else self.idle.as_json(),
            "health": None if self.health is None else self.health.as_json(),
            "healthFailed": self.sick,
        }


def report(
    played: Sequence[Played],
    *,
    speed: float,
    seconds: float,
    limits: Mapping[str, int],
    refused: Mapping[str, int],
    idle: Iterable[Probe] = (),
    health: Sequence[Probe] = (),
) -> Report:
    """
    Count and measure.

    :param played: what was admitted.
    :param refused: what was not, by cap.
    """
    accounts = sorted({one.account for one in played})
    waits = {
        account: Spread.of(
            max(0.0, one.started_at - one.queued_at)
            for one in played
            if one.account == account and one.started_at is not None
        )
        for account in accounts
    }
    most = {account: _most(one for one in played if one.account == account) for account in accounts}
    return Report(
        speed=speed,
        seconds=seconds,
        submitted=len(played) + sum(refused.values()),
        states=Counter(one.shown for one in played),
        waits={account: spread for account, spread in waits.items() if spread is not None},
        most={"": _most(played), **most},
        limits=dict(limits),
        refused=dict(refused),
        at_the_wall=sum(1 for one in played if one.error_code == 303 and one.started_at),
        idle=Spread.of(probe.seconds for probe in idle),
        health=Spread.of(probe.seconds for probe in health),
        sick=sum(1 for probe in health if not probe.good),
    )


def _most(played: Iterable[Played]) -> int:
    """
    The most that were in flight at one instant; what ends at an instant is not in flight then.
    """
    steps: list[tuple[Instant, int]] = []
    for one in played:
        if one.claimed_at is not None and one.started_at is not None:
            steps.append((one.claimed_at, 1))
            steps.append((math.inf if one.finished_at is None else one.finished_at, -1))
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
