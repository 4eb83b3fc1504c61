"""
The pool as the door sees it: some questions at once, the others wait their turn.

The loops ask the same pool, and never wait behind more than what is asked at once; a flood of
requests waits here. Whoever has waited too long, or has hung up meanwhile, is not asked for:
nothing was begun. A question that has begun keeps its turn until it has ended, even if nobody waits
for it any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from attrs import define
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from crq.pool import Pool

T = TypeVar("T")
P = ParamSpec("P")


class Busy(Exception):
    """
    Too many wait. Nothing was begun; to try again later is safe.
    """


@define(eq=False)
class _Turn:
    """
    One question that waits.
    """

    ask: Callable[[], Deferred[Any]]
    answer: Deferred[Any]
    since: float


class Turns(Pool):
    """
    A pool behind which requests wait for their turn, first come, first served.
    """

    def __init__(self, pool: Pool, at_once: int, patience: float, clock: IReactorTime) -> None:
        """
        Wrap a pool. It is not ours to close.

        :param at_once: questions that are asked at the same time.
        :param patience: seconds that a question waits for its turn, and no longer.
        """
        # Not Pool's own: it would start another one.
        self._behind = pool
        self._free = at_once
        self._patience = patience
        self._clock = clock
        self._queue: deque[_Turn] = deque()
        self._timer: IDelayedCall | None = None
        self._going = False

    def read(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """
        Run a reading function when it is its turn.

        :raise Busy: (through the Deferred) it would have had to wait too long.
        """
        return self._in_turn(partial(self._behind.read, function, *args, **kwargs))

    def transact(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """
        Run a function in one transaction when it is its turn; raises `Busy` as `read` does.
        """
        return self._in_turn(partial(self._behind.transact, function, *args, **kwargs))

    def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """
        Run a function that asks the database nothing when it is its turn; raises `Busy` too.
        """
        return self._in_turn(partial(self._behind.compute, function, *args, **kwargs))

    def _in_turn(self, ask: Callable[[], Deferred[T]]) -> Deferred[T]:
        turn = _Turn(ask, Deferred(lambda _: self._withdraw(turn)), self._clock.seconds())
        self._queue.append(turn)
        self._go_on()
        return turn.answer

    def _withdraw(self, turn: _Turn) -> None:
        with suppress(ValueError):  # it has begun
            self._queue.remove(turn)

    def _go_on(self) -> None:
        if self._going:  # an answer that was there at once: the loop below goes on by itself
            return
        self._going = True
        while self._queue and self._free:
            self._begin(self._queue.popleft())
        self._going = False
        self._set_timer()

    def _begin(self, turn: _Turn) -> None:
        self._free -= 1
        maybeDeferred(turn.ask).addBoth(self._ended, turn.answer)

    def _ended(self, result: Any, answer: Deferred[Any]) -> None:
        self._free += 1
        if not answer.called:
            answer.callback(result)  # a Failure goes to the errbacks
        self._go_on()

    def _set_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            if self._queue:
                return
            self._timer.cancel()
        self._timer = None
        if self._queue:
            left = self._queue[0].since + self._patience - self._clock.seconds()
            self._timer = self._clock.callLater(max(0.0, left), self._turn_away)

    def _turn_away(self) -> None:
        self._timer = None
        before = self._clock.seconds() - self._patience
        while self._queue and self._queue[0].since <= before:
            self._queue.popleft().answer.errback(Busy())
        self._set_timer()
