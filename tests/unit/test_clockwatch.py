"""
A stepped wall clock is noticed; a slow or late one is not.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from crq.clockwatch import ClockWatch


class ClockWatchTests(SynchronousTestCase):
    """
    `ClockWatch`.
    """

    def test_steps_are_told_once(self) -> None:
        """
        An hour forth and an hour back are one step each, with their size.
        """
        watch = ClockWatch()
        looks = [(1000, 0), (1001, 1), (4602, 2), (4603, 3), (1004, 4), (1005, 5)]
        self.assertEqual([watch.stepped(*look) for look in looks], [0, 0, 3600, 0, -3600, 0])

    def test_time_that_passes_is_no_step(self) -> None:
        """
        A tick that comes an hour late, and a clock that is corrected little by little, are none.
        """
        watch = ClockWatch()
        watch.stepped(1000, 0)
        self.assertEqual(watch.stepped(4600, 3600), 0)
        self.assertEqual([watch.stepped(4600 + n * 1.5, 3600 + n) for n in range(9)], [0] * 9)
