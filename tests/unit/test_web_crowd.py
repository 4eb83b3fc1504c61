"""
Places at the door.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from crq.web.crowd import Crowd


class CrowdTests(SynchronousTestCase):
    """
    `Crowd`, of people with names.
    """

    def enter(self, crowd: Crowd[Any], one: object) -> Any:
        """
        Let somebody in, who then has a chance to speak.
        """
        leaver = crowd.enter(one)
        crowd.had_a_chance(one)
        return leaver

    def test_who_has_waited_longest_goes(self) -> None:
        """
        Strangers push each other out, the oldest first; there are never more than the limit.
        """
        crowd: Crowd[int] = Crowd(3)
        self.assertEqual([self.enter(crowd, n) for n in range(6)], [None, None, None, 0, 1, 2])
        self.assertEqual(len(crowd), 3)

    def test_known_callers_stay(self) -> None:
        """
        However many strangers come, a caller that was known once keeps its place.
        """
        crowd: Crowd[str] = Crowd(4)
        self.enter(crowd, "known")
        crowd.waits("known", True)
        gone = [self.enter(crowd, f"stranger {n}") for n in range(100)]
        self.assertNotIn("known", gone)

    def test_who_is_answered_stays(self) -> None:
        """
        A request that is being answered is never cut off; when all are, the newcomer has to go.
        """
        crowd: Crowd[str] = Crowd(2)
        for name in ("a", "b"):
            self.enter(crowd, name)
            crowd.is_answered(name)
        self.assertEqual(crowd.enter("c"), "c")
        crowd.waits("a", False)
        self.assertEqual(crowd.enter("c"), "a")

    def test_known_ones_make_room_for_known_ones(self) -> None:
        """
        When only known callers wait, the one that has waited longest goes.
        """
        crowd: Crowd[str] = Crowd(2)
        for name in ("a", "b"):
            self.enter(crowd, name)
            crowd.waits(name, True)
        crowd.waits("a", True)
        self.assertEqual(crowd.enter("c"), "b")

    def test_who_has_just_come_stays(self) -> None:
        """
        Somebody who had no chance to speak yet is not let go for the next one: when all are such,
        the newcomer has to go.
        """
        crowd: Crowd[str] = Crowd(2)
        for name in ("a", "b"):
            crowd.enter(name)
        self.assertEqual(crowd.enter("c"), "c")
        crowd.had_a_chance("b")
        self.assertEqual(crowd.enter("c"), "b")

    def test_a_ghost_takes_no_place(self) -> None:
        """
        Who has been let go, or has left, is not put back by what still happens to him.
        """
        crowd: Crowd[str] = Crowd(1)
        self.enter(crowd, "a")
        self.assertEqual(self.enter(crowd, "b"), "a")
        crowd.waits("a", True)
        crowd.is_answered("a")
        crowd.leave("a")
        self.assertEqual(len(crowd), 1)
        crowd.leave("b")
        self.assertEqual(len(crowd), 0)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["enter", "chance", "known", "waits", "answered", "leave"]),
                st.integers(0, 9),
            ),
            max_size=60,
        )
    )
    def test_never_more_than_the_limit(self, steps: list[tuple[str, int]]) -> None:
        """
        Whatever happens in whatever order, the limit holds and nobody who is answered has to go.
        """
        crowd: Crowd[int] = Crowd(3)
        inside: set[int] = set()
        answered: set[int] = set()
        for what, who in steps:
            if what == "enter" and who not in inside:
                leaver = crowd.enter(who)
                self.assertNotIn(leaver, answered)
                inside = (inside | {who}) - {leaver}
            elif what == "chance":
                crowd.had_a_chance(who)
            elif what == "leave":
                crowd.leave(who)
                inside.discard(who)
                answered.discard(who)
            elif what == "answered":
                crowd.is_answered(who)
                answered |= {who} & inside
            elif what != "enter":
                crowd.waits(who, what == "known")
                answered.discard(who)
            self.assertEqual(len(crowd), len(inside))
            self.assertLessEqual(len(crowd), 3)
