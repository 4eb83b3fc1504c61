"""
Which drainers are dead: told by their silence, as one process has watched it. Pure.

# Note [Silence]

No clock of another host is trusted, nor the database's: what counts is whether a drainer's row
*changes* while we look, on our own monotonic clock. A look adds at most `LOOK` seconds of silence,
however long ago the last one was: after a database that was away, or a process that was stopped,
everybody gets the time to be heard again. A drainer whose row has gone (it stopped in order, or was
forgotten) is silent as well, from when it was first missed.

A wrong word costs little. What a drainer has claimed and not begun goes back to the queue under
another nonce; if it lived after all, its dispatch meets 113 and nothing runs twice.
"""

from __future__ import annotations

from collections.abc import Collection

from attrs import define, field

from crq.pulse import DEAD_AFTER, Beat

LOOK = DEAD_AFTER / 2  # s that one look can add: three beats fit between the first and the verdict
FORGET_AFTER = 3600.0  # s of silence


@define(eq=False)
class Census:
    """
    What is known of the drainers of one database (see note [Silence]).
    """

    _heard: dict[str, tuple[object, float]] = field(init=False, factory=dict)
    _looked_at: float | None = field(init=False, default=None)

    def look(self, beats: Collection[Beat], now: float) -> None:
        """
        Take note of all rows there are.

        :param now: on the monotonic clock.
        """
        gap = 0.0 if self._looked_at is None else min(max(0.0, now - self._looked_at), LOOK)
        self._looked_at = now
        said = {beat.drainer_id: (beat.origin.incarnation, beat.beat_at) for beat in beats}
        heard: dict[str, tuple[object, float]] = {}
        for drainer_id in said.keys() | self._heard.keys():
            words = said.get(drainer_id)
            before, silent = self._heard.get(drainer_id, (None, 0.0))
            silent = silent + gap if drainer_id in self._heard and before == words else 0.0
            if silent < FORGET_AFTER or words is not None:
                heard[drainer_id] = (words, silent)
        self._heard = heard

    def dead(self, drainer_id: str) -> bool:
        """
        Whether a drainer has been silent for too long; one never heard of is watched from now on.
        """
        _, silent = self._heard.setdefault(drainer_id, (None, 0.0))
        return silent >= DEAD_AFTER
