"""
Back-off: how long an executor that could not take work is left alone (ruling 5).

It is kept per lane as well: a row that the executor can never take must not hold back the others.
Once the pause is over, one dispatch tries for all; while it is on its way nothing else is sent.
"""

from __future__ import annotations

from attrs import define, field

from crq import policy
from crq.instants import Instant
from crq.model import Lane


@define(eq=False)
class BackOff:
    """
    Failures in a row, of the executor and of each lane; times are monotonic seconds.
    """

    failures: int = 0
    _until: float = 0.0
    _lanes: dict[Lane, tuple[int, float]] = field(init=False, factory=dict)

    def failed(self, lane: Lane, now: float, asked: float | None = None) -> float:
        """
        Note that a dispatch of this lane never began; returns the pause that follows.

        :param asked: seconds that the executor itself has asked for.
        """
        self.failures += 1
        pause = policy.back_off(self.failures) if asked is None else asked
        self._until = now + pause
        failures = self._lanes.get(lane, (0, 0.0))[0] + 1
        # Behind the executor's own pause, so that the next try belongs to another lane.
        self._lanes[lane] = (failures, self._until + policy.back_off(failures))
        return pause

    def succeeded(self, lane: Lane) -> bool:
        """
        Note that the executor has taken work; says whether it had been backing off.
        """
        was, self.failures, self._until = self.failures > 0, 0, 0.0
        self._lanes.pop(lane, None)
        return was

    @property
    def failed_lanes(self) -> frozenset[Lane]:
        """
        Lanes of which a dispatch has failed, whether they are still left alone or not.
        """
        return frozenset(self._lanes)

    def left(self, now: float) -> float:
        """
        Seconds for which nothing at all is dispatched.
        """
        return max(0.0, self._until - now)

    def lanes(self, now: float, wall: Instant, waiting: frozenset[Lane]) -> dict[Lane, Instant]:
        """
        Lanes that are still left alone, with the wall instant it ends at.

        :param waiting: lanes with queued rows; when all of them have failed, the oldest may try.
        """
        self._lanes = {lane: seen for lane, seen in self._lanes.items() if lane in waiting}
        left_alone = {
            lane: wall + until - now for lane, (_, until) in self._lanes.items() if until > now
        }
        return {} if waiting <= left_alone.keys() and self.failures else left_alone
