"""
Running rows whose answer will not come: which of them have a dead worker.

# Note [Ages over a stepped clock]

A row's age is its wall age when this process first saw it, plus monotonic seconds since: a stepped
wall clock neither ages nor rejuvenates what is already known.

# Note [Free for how long]

A lock that was lost while its worker lives is taken again within a second, once there is a server
to take it from. So what counts is not the time between two looks that found it free, but the time
that was watched: a look adds at most `LOOK` seconds, however long ago the last one was. Else one
free look, then a server that is away or a process that is stopped for a while, then a second free
look at the very instant all is well again, would kill the execution of a living worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from attrs import define, field

from crq.instants import Instant
from crq.liveness import GRACE, KEEP_EVERY
from crq.model import InFlight

LOOK = KEEP_EVERY  # s that one look can add: a living worker has had one chance in them


@define(eq=False)
class Ages:
    """
    Ages of running rows (see note [Ages over a stepped clock]).
    """

    _seen: dict[int, tuple[float, float]] = field(init=False, factory=dict)

    def of(
        self,
        started: Iterable[tuple[int, Instant]],
        now: float,
        wall: Instant,
        alive: Collection[int] = (),
    ) -> dict[int, float]:
        """
        Seconds since each of these rows started; rows that do not appear are forgotten.

        :param alive: rows known to have a living worker: only what this process has seen counts.
        """
        self._seen = {
            execution_id: self._seen.get(
                execution_id,
                (now, 0.0 if execution_id in alive else max(0.0, wall - started_at)),
            )
            for execution_id, started_at in started
        }
        return {key: age + now - first for key, (first, age) in self._seen.items()}


@define(eq=False)
class Suspects:
    """
    Decides when a worker is dead.

    :ivar wall_limit: seconds after the start at which a row counts as over where locks are not to
        be trusted (design: liveness = "wall"); None where they are.
    """

    wall_limit: float | None
    _free_for: dict[int, float] = field(init=False, factory=dict)
    _looked_at: float | None = field(init=False, default=None)
    _ages: Ages = field(init=False, factory=Ages)

    def dead(
        self, flights: Iterable[InFlight], held: Collection[int], now: float, wall: Instant
    ) -> list[InFlight]:
        """
        Tell which running rows have a dead worker.

        A lock must be found free by all looks of `GRACE` seconds: after a server restart a living
        worker needs a moment to take its lock again (see note [Free for how long]). A row that
        never was claimed by the queue has no lock; only the reaper closes it.
        """
        known = [flight for flight in flights if flight.claim_epoch is not None]
        ages = self._ages.of(
            ((f.execution_id, f.started_at) for f in known if f.started_at is not None), now, wall
        )
        if self.wall_limit is not None:
            return [f for f in known if ages.get(f.execution_id, 0.0) >= self.wall_limit]
        gap = 0.0 if self._looked_at is None else min(now - self._looked_at, LOOK)
        self._looked_at = now
        seen = self._free_for
        self._free_for = {
            flight.execution_id: seen[flight.execution_id] + gap
            if flight.execution_id in seen
            else 0.0
            for flight in known
            if flight.execution_id not in held
        }
        return [flight for flight in known if self._free_for.get(flight.execution_id, 0.0) >= GRACE]
