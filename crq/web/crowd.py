"""
Who is connected to the door, and who has to go when somebody comes and all places are taken.

Pure: it knows no sockets. Whoever is being answered stays, and so does who has only just come and
had no chance to speak yet. Of the others the one goes that has waited longest, first among those
that have never shown a known token: however many strangers come, they push each other out, and not
the callers that are known.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Crowd(Generic[T]):
    """
    The places of a door.

    :ivar limit: how many there are.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._fresh: set[T] = set()
        self._strangers: dict[T, None] = {}  # by how long they wait, the longest first
        self._known: dict[T, None] = {}
        self._answered: set[T] = set()

    def __len__(self) -> int:
        return sum(map(len, (self._fresh, self._strangers, self._known, self._answered)))

    def enter(self, newcomer: T) -> T | None:
        """
        Let somebody in; returns who has to go for it. The newcomer itself, if nobody else may.
        """
        leaver = None
        if len(self) >= self.limit:
            waiting = self._strangers or self._known
            if not waiting:
                return newcomer
            leaver = next(iter(waiting))
            del waiting[leaver]
        self._fresh.add(newcomer)
        return leaver

    def had_a_chance(self, one: T) -> None:
        """
        Note that somebody who has just come could have spoken by now.
        """
        if one in self._fresh:
            self.waits(one, False)

    def waits(self, one: T, known: bool) -> None:
        """
        Note that somebody inside is waited for, from now on.
        """
        if self._inside(one):
            self.leave(one)
            (self._known if known else self._strangers)[one] = None

    def is_answered(self, one: T) -> None:
        """
        Note that the request of somebody inside is here, and is being answered.
        """
        if self._inside(one):
            self.leave(one)
            self._answered.add(one)

    def leave(self, one: T) -> None:
        """
        Let somebody go, if he is inside.
        """
        self._fresh.discard(one)
        self._strangers.pop(one, None)
        self._known.pop(one, None)
        self._answered.discard(one)

    def _inside(self, one: T) -> bool:
        places = (self._fresh, self._strangers, self._known, self._answered)
        return any(one in place for place in places)
