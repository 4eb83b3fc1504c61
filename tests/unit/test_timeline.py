"""
The clocks that jump: everything at its own instant, and no beat where none can matter.
"""

from __future__ import annotations

import math

from twisted.internet.task import LoopingCall
from twisted.trial.unittest import SynchronousTestCase

from crq.timeline import Clocks, Timeline

NOON = 1_772_452_800.0


class ClocksTests(SynchronousTestCase):
    """
    `crq.timeline.Clocks`.
    """

    def test_a_stepped_wall_clock(self) -> None:
        """
        Both clocks go on together; a step moves the wall clock alone.
        """
        clocks = Clocks(NOON)
        clocks.go(2.5)
        self.assertEqual((clocks.wall(), clocks.seconds()), (NOON + 2.5, 2.5))
        clocks.step -= 3600
        self.assertEqual((clocks.wall(), clocks.seconds()), (NOON + 2.5 - 3600, 2.5))


class TimelineTests(SynchronousTestCase):
    """
    `crq.timeline.Timeline`.
    """

    def setUp(self) -> None:
        self.timeline = Timeline(NOON)
        self.seen: list[tuple[str, float]] = []

    def note(self, name: str) -> None:
        self.seen.append((name, self.timeline.seconds()))

    def beat(self, interval: float = 1.0) -> list[int]:
        """
        Start a loop that counts as the drainer's does; it has beaten at zero.
        """
        counts: list[int] = []

        def beaten(count: int) -> None:
            counts.append(count)
            self.note("beat")

        loop = LoopingCall.withCount(beaten)
        loop.clock = self.timeline
        loop.start(interval)
        self.seen.clear()
        return counts

    def test_each_event_at_its_own_instant(self) -> None:
        """
        What is due happens in order, each at its own time, up to the end and at the end itself.
        """
        for name, at in (("b", 2.5), ("a", 0.1), ("end", 3.0), ("late", 3.1)):
            self.timeline.callLater(at, self.note, name)
        self.timeline.run(3.0)
        self.assertEqual(self.seen, [("a", 0.1), ("b", 2.5), ("end", 3.0)])
        self.assertEqual(self.timeline.seconds(), 3.0)

    def test_what_an_event_begins_happens_too(self) -> None:
        """
        A call that is made meanwhile is not forgotten.
        """
        self.timeline.callLater(1, self.timeline.callLater, 1, self.note, "second")
        self.timeline.run(math.inf)
        self.assertEqual(self.seen, [("second", 2)])

    def test_every_beat_where_each_matters(self) -> None:
        """
        Where a beat matters at once, none is left out.
        """
        counts = self.beat()
        self.timeline.run(3.5, self.timeline.seconds)
        self.assertEqual(self.seen, [("beat", 1), ("beat", 2), ("beat", 3)])
        self.assertEqual(counts, [1, 1, 1, 1])

    def test_no_beat_where_none_matters(self) -> None:
        """
        Without anything to wait for no beat happens, and the end comes although the loop goes on.
        """
        self.beat()
        self.timeline.callLater(1000.25, self.note, "event")
        self.timeline.run(math.inf)
        self.assertEqual(self.seen, [("event", 1000.25)])

    def test_a_beat_falls_on_its_grid(self) -> None:
        """
        The beat before an opening falls on the last second before it, the one after an event on the
        next second: where the real ones would have fallen.
        """
        counts = self.beat()
        self.timeline.callLater(50.7, self.note, "event")

        def matters() -> float:
            match self.seen:
                case []:
                    return 20.3  # an opening
                case [*_, ("event", _)]:
                    return self.timeline.seconds()  # something has changed
            return math.inf

        self.timeline.run(math.inf, matters)
        self.assertEqual(self.seen, [("beat", 20.0), ("event", 50.7), ("beat", 51.0)])
        self.assertEqual(counts, [1, 20, 31])  # the loop knows how many it has missed

    def test_the_clock_tells_before_it_moves(self) -> None:
        """
        Whoever watches is called once before each step of time, with the seconds of it, and not
        between two events of one instant.
        """
        steps: list[float] = []
        self.timeline.moving = steps.append
        for at in (1.0, 1.0, 4.0):
            self.timeline.callLater(at, self.note, "event")
        self.timeline.run(10.0)
        self.assertEqual(steps, [1.0, 3.0, 6.0])
