"""
Notices that the wall clock was stepped, by the monotonic clock beside it.

Nothing waits for this: timers and ages are monotonic anyway (ruling 10). It is for people, who
would look for the reason why gates opened early or late, or why a log's instants go backwards.
"""

from __future__ import annotations

from attrs import define, field

from crq.instants import Instant

LEAST = 2.0  # s; below, it is the clock's usual correction, or a tick that was late


@define(eq=False)
class ClockWatch:
    """
    Compares the two clocks from look to look. A machine that slept looks like a step forward.
    """

    _offset: float | None = field(init=False, default=None)

    def stepped(self, wall: Instant, monotonic: float) -> float:
        """
        Seconds by which the wall clock was stepped since the last look; 0: it was not.
        """
        offset = wall - monotonic
        known, self._offset = self._offset, offset
        if known is None or abs(offset - known) < LEAST:
            return 0.0
        return offset - known
