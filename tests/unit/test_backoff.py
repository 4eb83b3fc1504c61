"""
Back-off, suspects and ages.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from crq.backoff import BackOff
from crq.liveness import GRACE
from crq.model import InFlight, Lane, Status
from crq.suspects import Ages, Suspects

ONE, TWO = Lane("a", "k1"), Lane("b", "k2")
WALL = 1_000_000.0


class BackOffTests(SynchronousTestCase):
    """
    How long an executor is left alone.
    """

    def test_pauses_grow_and_end(self) -> None:
        """
        Each failure doubles the pause up to 15 s; one success ends it.
        """
        back_off = BackOff()
        now = 0.0
        pauses = []
        for _ in range(7):
            pauses.append(back_off.failed(ONE, now))
            now += pauses[-1]
            self.assertEqual(back_off.left(now), 0)
        self.assertEqual(pauses, [0.5, 1, 2, 4, 8, 15, 15])
        back_off.failed(ONE, now)
        self.assertEqual(back_off.left(now), 15)
        self.assertTrue(back_off.succeeded(TWO))
        self.assertFalse(back_off.succeeded(TWO))
        self.assertEqual(back_off.left(now), 0)

    def test_a_pause_that_was_asked_for(self) -> None:
        """
        The executor's own word replaces the pause that would have followed, and counts as one.
        """
        back_off = BackOff()
        self.assertEqual(back_off.failed(ONE, 0.0, 20.0), 20)
        self.assertEqual(back_off.left(19.5), 0.5)
        self.assertEqual(back_off.failed(ONE, 20.0), 1)
        self.assertEqual(back_off.failed(ONE, 21.0, 5.0), 5)

    def test_the_next_try_is_another_lanes(self) -> None:
        """
        When the pause is over the lane that failed waits a little longer than the others, and its
        own pause outlives the executor's recovery.
        """
        back_off = BackOff()
        back_off.failed(ONE, 0.0)
        both = frozenset({ONE, TWO})
        self.assertEqual(back_off.lanes(0.5, WALL, both), {ONE: WALL + 0.5})
        back_off.succeeded(TWO)
        self.assertEqual(back_off.lanes(0.5, WALL, both), {ONE: WALL + 0.5})
        self.assertEqual(back_off.lanes(1.0, WALL, both), {})

    def test_when_all_lanes_failed_the_oldest_tries(self) -> None:
        """
        If every waiting lane has failed, none of them is left out.
        """
        back_off = BackOff()
        back_off.failed(ONE, 0.0)
        self.assertEqual(back_off.lanes(0.6, WALL, frozenset({ONE, TWO})), {ONE: WALL + 0.4})
        self.assertEqual(back_off.lanes(0.6, WALL, frozenset({ONE})), {})

    def test_lanes_without_work_are_forgotten(self) -> None:
        """
        Memory is bounded by the lanes that wait.
        """
        back_off = BackOff()
        for number in range(1000):
            back_off.failed(Lane(str(number), None), 0.0)
        back_off.lanes(0.0, WALL, frozenset({ONE}))
        self.assertEqual(back_off._lanes, {})


def flight(number: int, started_at: float = WALL, claim_epoch: int | None = 1) -> InFlight:
    return InFlight(number, ONE, Status.RUNNING, claim_epoch, "d", WALL, started_at)


class SuspectsTests(SynchronousTestCase):
    """
    When a worker is called dead.
    """

    def dies_at(self, suspects: Suspects, start: float) -> float:
        """
        Look each half second from an instant on at a lock that stays free, until it is dead.
        """
        rows = [flight(1)]
        now = start
        while not suspects.dead(rows, set(), now, WALL):
            now += 0.5
            self.assertLess(now, start + 60)
        return now - start

    def test_free_looks(self) -> None:
        """
        A lock must be found free all through the grace; held once in between starts anew.
        """
        self.assertEqual(self.dies_at(Suspects(None), 0.0), GRACE)
        suspects = Suspects(None)
        rows = [flight(1)]
        for now in (0.0, 0.8, 1.6, 2.4):
            self.assertEqual(suspects.dead(rows, set(), now, WALL), [])
        self.assertEqual(suspects.dead(rows, {1}, 2.9, WALL), [])
        self.assertEqual(self.dies_at(suspects, 3.2), GRACE)

    def test_a_time_that_nobody_watched_does_not_count(self) -> None:
        """
        After an outage between two free looks, a living worker has the time to take its lock again.
        """
        suspects = Suspects(None)
        rows = [flight(1)]
        self.assertEqual(suspects.dead(rows, set(), 0.0, WALL), [])
        self.assertEqual(suspects.dead(rows, set(), 600.0, WALL), [])
        self.assertEqual(suspects.dead(rows, set(), 601.0, WALL), [])
        self.assertEqual(suspects.dead(rows, {1}, 601.1, WALL), [])

    def test_looks_in_a_rush_do_not_count_more(self) -> None:
        """
        However often a busy drainer looks, a worker has its seconds.
        """
        suspects = Suspects(None)
        rows = [flight(1)]
        for look in range(290):
            self.assertEqual(suspects.dead(rows, set(), look * 0.01, WALL), [])

    def test_a_row_that_the_queue_did_not_claim_has_no_lock(self) -> None:
        """
        What an older program started inline is left to the reaper.
        """
        for suspects in (Suspects(None), Suspects(330)):
            for now in (0.0, 10_000.0):
                self.assertEqual(
                    suspects.dead([flight(1, claim_epoch=None)], set(), now, WALL + now), []
                )

    def test_the_wall(self) -> None:
        """
        Without locks a row is over when its age has passed the limit.
        """
        suspects = Suspects(330)
        rows = [flight(1, WALL - 100), flight(2, WALL)]
        self.assertEqual(suspects.dead(rows, set(), 0.0, WALL), [])
        self.assertEqual(suspects.dead(rows, set(), 230.0, WALL + 230), rows[:1])
        self.assertEqual(suspects.dead(rows, set(), 330.0, WALL), rows)


class AgesTests(SynchronousTestCase):
    """
    Ages over a stepped clock.
    """

    def test_ages_follow_the_monotonic_clock(self) -> None:
        """
        After the first look only monotonic seconds count; rows that end are forgotten.
        """
        ages = Ages()
        self.assertEqual(ages.of([(1, WALL - 5)], 0.0, WALL), {1: 5.0})
        self.assertEqual(ages.of([(1, WALL - 5)], 2.0, WALL + 3600), {1: 7.0})
        self.assertEqual(ages.of([], 3.0, WALL), {})
        self.assertEqual(ages.of([(1, WALL - 5)], 4.0, WALL - 3600), {1: 0.0})

    def test_the_living_count_from_the_first_look(self) -> None:
        """
        A wall age that may be wrong does not count against a worker that is known to live.
        """
        ages = Ages()
        self.assertEqual(ages.of([(1, WALL - 5000), (2, WALL - 5)], 0.0, WALL, {1}), {1: 0, 2: 5})
