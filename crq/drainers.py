"""
The drainers of one database, for people: who lives, what each has in flight.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import frozen

from crq import executions, heartbeat
from crq.database import Cursor
from crq.instants import Instant, iso
from crq.model import Status
from crq.pulse import Beat


@frozen
class Listed:
    """
    One drainer.

    :ivar beat: what it said last; None: it has no row, and only its claims speak of it.
    :ivar claimed: executions on their way to the executor; ``running``: those that have begun.
    """

    drainer_id: str
    at: Instant
    beat: Beat | None
    claimed: int
    running: int

    @property
    def alive(self) -> bool:
        """
        Whether it counts as alive, by this host's clock.
        """
        return self.beat is not None and self.beat.alive(self.at)

    @property
    def state(self) -> str:
        """
        In one word: ``alive``, ``stopping``, ``dead``; ``gone`` without a row.
        """
        if self.beat is None:
            return "gone"
        if not self.alive:
            return "dead"
        return "stopping" if self.beat.stopping else "alive"

    @property
    def age(self) -> float | None:
        """
        Seconds since its last beat; None: it has none, or it lies in the future.
        """
        age = None if self.beat is None else self.beat.age(self.at)
        return None if age is None or age == float("inf") else round(age, 3)

    def as_json(self) -> dict[str, Any]:
        """
        For a machine.
        """
        beat = self.beat or Beat(self.drainer_id, 0.0, 0.0)
        return {
            "id": self.drainer_id,
            "state": self.state,
            "alive": self.alive,
            "host": beat.origin.host or None,
            "version": beat.origin.version or None,
            "startedAt": None if self.beat is None else iso(beat.started_at),
            "reportedAt": None if self.beat is None else iso(beat.beat_at),
            "reportedAge": self.age,
            "claimed": self.claimed,
            "running": self.running,
            "alarm": beat.alarm,
        }


def read(txn: Cursor, now: Instant) -> tuple[Listed, ...]:
    """
    List them by name: those that have reported, and those that still have something in flight.
    """
    beats = {beat.drainer_id: beat for beat in heartbeat.read(txn)}
    claimed: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for flight in executions.in_flight(txn):
        if flight.drainer_id is not None:
            counter = claimed if flight.status is Status.CLAIMED else running
            counter[flight.drainer_id] += 1
    return tuple(
        Listed(name, now, beats.get(name), claimed[name], running[name])
        for name in sorted({*beats, *claimed, *running})
    )
