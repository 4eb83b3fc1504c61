"""
Waiting for an answer, but no longer than so many seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

T = TypeVar("T")


def within(
    seconds: float,
    question: Deferred[T],
    clock: IReactorTime,
    given_up: Callable[[], Exception],
    late: Callable[[T | Failure], None],
) -> Deferred[T]:
    """
    Wait for an answer.

    The question itself goes on: a thread cannot be called back.

    :param given_up: makes the failure when it has not come in time.
    :param late: gets an answer that comes after that.
    """
    answer: Deferred[T] = Deferred()
    timer = clock.callLater(seconds, lambda: answer.errback(given_up()))

    def arrived(result: T | Failure) -> None:
        if timer.active():
            timer.cancel()
            answer.callback(result)  # a Failure goes to the errbacks
        else:
            late(result)

    question.addBoth(arrived)
    return answer
