"""
Who is dead, told by silence alone.
"""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from crq.census import FORGET_AFTER, LOOK, Census
from crq.origin import lock_of, of_this_process
from crq.pulse import DEAD_AFTER, Beat, Origin

BEAT = Beat("d2", 0.0, 1000.0, origin=Origin("a"))


class CensusTests(SynchronousTestCase):
    """
    On a monotonic clock that has nothing to do with the beats' instants.
    """

    def setUp(self) -> None:
        self.census = Census()

    def looks(self, beats: list[Beat], *at: float) -> bool:
        """
        Look so often; whether d2 is dead then.
        """
        for now in at:
            self.census.look(beats, now)
        return self.census.dead("d2")

    def test_silence_is_watched(self) -> None:
        """
        A row that does not change for as long as we watch is a dead drainer's, whatever its
        instant says; one that changes is alive, however old.
        """
        self.assertFalse(self.looks([BEAT], 0, 10, 20))
        self.assertTrue(self.looks([BEAT], 30))
        self.assertFalse(self.looks([evolve(BEAT, beat_at=3.0)], 40))

    def test_another_process_of_the_name_is_a_sign_of_life(self) -> None:
        """
        Also when it happens to say the very same instant.
        """
        self.assertTrue(self.looks([BEAT], 0, 10, 20, 30))
        self.assertFalse(self.looks([evolve(BEAT, origin=Origin("b"))], 31))

    def test_what_was_not_watched_does_not_count(self) -> None:
        """
        After an hour without a look nobody is dead: a look adds half of the patience at most.
        """
        self.assertFalse(self.looks([BEAT], 0, 3600))
        self.assertFalse(self.looks([BEAT], 3600 + DEAD_AFTER - LOOK - 0.1))
        self.assertTrue(self.looks([BEAT], 3600 + DEAD_AFTER - LOOK))

    def test_one_that_is_not_listed_is_watched_from_the_question_on(self) -> None:
        """
        A claim of a drainer without a row says that it is gone, but not since when.
        """
        self.assertFalse(self.looks([], 0, 10, 20, 30, 40))
        self.assertFalse(self.looks([], 50, 60))
        self.assertTrue(self.looks([], 70))
        self.assertFalse(self.looks([BEAT], 80))

    def test_those_gone_for_long_are_forgotten(self) -> None:
        """
        Memory does not grow with the names there have ever been.
        """
        self.looks([BEAT], 0)
        for now in range(0, int(FORGET_AFTER) + 100, 10):
            self.census.look([], now)
        self.assertEqual(self.census._heard, {})

    def test_a_lock_file_is_known_again(self) -> None:
        """
        The same file is the same, another one is not, and one that is not there is none.
        """
        one, two = self.mktemp(), self.mktemp()
        for path in (one, two):
            with open(path, "w"):
                pass
        self.assertEqual(lock_of(one), lock_of(one))
        self.assertNotEqual(lock_of(one), lock_of(two))
        self.assertEqual(lock_of("/nonexistent/lock"), "")
        first, second = of_this_process(one), of_this_process(one)
        self.assertNotEqual(first.incarnation, second.incarnation)
        self.assertEqual(first.lock_of, second.lock_of)
