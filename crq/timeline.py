"""
Clocks that are turned by hand, and one that jumps to the next event instead of letting every second
pass.

# Note [Ticks that are left out]

The drainer ticks each second, a million times in twelve days. A tick that finds the rows, the gates
and the time as the tick before found them decides the same, and when that was nothing, nothing
again. So the beat of a LoopingCall is left out until something may have changed: whoever runs the
timeline says from which instant on the next beat matters (at once, at an opening, or never without
another event). The beat then falls on the last second of its grid that is not after that instant,
where the real one would have fallen, and sets the timer for the opening as the real one does; what
happens between two beats waits for the next second of the grid as it would have waited. Nothing but
beats is ever left out or moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from twisted.internet.base import DelayedCall
from twisted.internet.task import Clock, LoopingCall

from crq.instants import Instant

STEP = 0.25  # s; how finely `Clocks.go` lets time pass
FUZZ = 1e-6  # s; sums of floats miss the grid by less


class Clocks(Clock):
    """
    Both clocks (ruling 10): the monotonic one of Twisted, and a wall clock that can be stepped.

    :ivar step: the wall instant at monotonic zero.
    """

    def __init__(self, begins: Instant) -> None:
        super().__init__()
        self.step = begins

    def wall(self) -> Instant:
        """
        The wall clock.
        """
        return self.step + self.seconds()

    def go(self, seconds: float, step: float = STEP) -> None:
        """
        Let time pass in small steps, so that every timer sees its instant.
        """
        self.pump([step] * round(seconds / step))


class Timeline(Clocks):
    """
    Both clocks, moved by what happens.

    :ivar events: events and beats that have happened.
    :ivar moving: called before the clock moves on, with the seconds it is about to move.
    """

    def __init__(
        self, begins: Instant, moving: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        super().__init__(begins)
        self.events = 0
        self.moving = moving

    def run(self, until: float, matters: Callable[[], float] = lambda: math.inf) -> None:
        """
        Let everything happen that is due up to an instant of the monotonic clock, and go there.

        :param until: without end: until nothing is left that would happen.
        :param matters: the monotonic instant from which on the next beat may do something; see note
            [Ticks that are left out].
        """
        while True:
            beat, event = self._next()
            at, call = math.inf if event is None else event.getTime(), event
            if beat is not None:
                due = self._beat_due(beat, matters())
                if due < at:
                    at, call = due, beat
            if call is None or at > until + FUZZ:
                if until < math.inf:
                    self._move(until)
                return
            self._move(at)
            self.calls.remove(call)
            call.called = 1
            self.events += 1
            call.func(*call.args, **call.kw)

    def _move(self, at: float) -> None:
        if at > self.rightNow:
            self.moving(at - self.rightNow)
            self.rightNow = at

    def _next(self) -> tuple[DelayedCall | None, DelayedCall | None]:
        """
        The next beat, and the next event of any other kind.
        """
        beat = event = None
        for call in self.calls:
            if isinstance(call.func, LoopingCall):
                beat = beat or call
            else:
                event = call
                break
        if beat is None:
            beat = next((each for each in self.calls if isinstance(each.func, LoopingCall)), None)
        return beat, event

    def _beat_due(self, beat: DelayedCall, matters: float) -> float:
        """
        When the beat happens: on its grid, and not before now.
        """
        if matters == math.inf:
            return math.inf
        loop = beat.func
        assert isinstance(loop, LoopingCall)
        interval, start = loop.interval or 1.0, loop.starttime or 0.0
        next_one = max(math.ceil((self.rightNow - start) / interval - FUZZ), 0)
        wanted = math.floor((matters - start) / interval + FUZZ)
        return max(beat.getTime(), start + max(next_one, wanted) * interval)
