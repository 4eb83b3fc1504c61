"""
The place of one drainer among others: its name, which no two of them may have at once, and which of
the others are gone.

# Note [One name, one drainer]

The rows a drainer has claimed bear its name, and whoever starts under that name puts back what is
still claimed (`crq.drainer`). So two living daemons of one name would undo each other's claims:
nothing is started twice, and nothing gets on. The name is therefore a row that belongs to a
process: who finds it taken by another one that lives does not tick, says so, and looks again each
tick. It takes the name over when that one is dead for certain (it held the very lock file that we
hold now) or has been silent for `pulse.DEAD_AFTER`. A process that was believed dead and is not
finds its name gone with its next beat, and stands by in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from attrs import define, field
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from crq import heartbeat
from crq.census import Census
from crq.instants import Instant
from crq.pool import Pool
from crq.pulse import DEAD_AFTER, Beat, Pulse


class NameTaken(Exception):
    """
    Another living daemon has this drainer's name. Trying again helps once that one is gone.
    """


@define(eq=False)
class Presence:
    """
    One drainer's place (see note [One name, one drainer]).

    :ivar held: whether the name is ours, as far as the last beat knows.
    """

    pool: Pool
    pulse: Pulse
    drainer_id: str
    clock: IReactorTime
    wall: Callable[[], Instant]
    held: bool = field(init=False, default=False)
    _census: Census = field(init=False, factory=Census)

    _log = Logger()

    async def arrive(self) -> None:
        """
        Take the name, before anything is done under it.

        :raise NameTaken: it is in use.
        """
        now = self.wall()
        beat = self.pulse.beat(self.drainer_id, now, self.clock.seconds())
        other = await self.pool.transact(heartbeat.write, beat)
        if other is not None:
            if not self._gone(other, now):
                raise NameTaken(_taken(other, now))
            if not await self.pool.transact(heartbeat.take, beat, other):
                raise NameTaken(_taken(other, now))
        self.held = True

    def said(self, other: Beat | None) -> None:
        """
        Take note of how our beat went: ``other`` is whom the row belongs to now, if not to us.
        """
        if other is None or not self.held:
            return
        self.held = False
        self._log.error(
            "another daemon has taken the name {drainer_id}: {text}",
            action="name lost",
            drainer_id=self.drainer_id,
            text=_taken(other, self.wall()),
        )

    def looked(self, beats: Collection[Beat]) -> None:
        """
        Take note of what all drainers have said.
        """
        self._census.look(beats, self.clock.seconds())

    def gone(self, drainer_id: str) -> bool:
        """
        Whether another drainer is dead, so that what it claimed and did not begin is free.
        """
        return drainer_id != self.drainer_id and self._census.dead(drainer_id)

    def _gone(self, other: Beat, now: Instant) -> bool:
        lock = self.pulse.origin.lock_of
        if lock and other.origin.lock_of == lock:
            return True
        return not other.alive(now) or self._census.dead(self.drainer_id)


@define(eq=False)
class Alone:
    """
    The place of a drainer that has its database for itself.
    """

    held: bool = True

    async def arrive(self) -> None:
        """
        There is nobody to ask.
        """

    def gone(self, drainer_id: str) -> bool:
        """
        Nobody else has claimed anything.
        """
        return False


def _taken(other: Beat, now: Instant) -> str:
    host = other.origin.host or "a host that does not say its name"
    return (
        f"drainer.id {other.drainer_id} is in use by a daemon on {host}, which reported"
        f" {other.age(now):.0f} s ago; give each daemon a drainer.id of its own. If that one is"
        f" gone, this one takes over when it has been silent for {DEAD_AFTER:g} s"
    )
