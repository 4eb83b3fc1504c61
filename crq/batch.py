"""
Many small questions as one: what is asked while one is under way goes together with the next.

So a statement, and a commit, serves all that came in meanwhile; whoever asks alone waits for
nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

K = TypeVar("K")
V = TypeVar("V")


class Batch(Generic[K, V]):
    """
    Puts questions together, in the order in which they came.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[K]], Awaitable[Sequence[V]]],
        clock: IReactorTime,
        most: int,
    ) -> None:
        """
        Take what a question needs.

        :param answer: answers so many questions at once, each in its place.
        :param most: of them at once.
        """
        self._answer = answer
        self._clock = clock
        self._most = most
        self._waiting: deque[tuple[K, Deferred[V]]] = deque()
        self._busy = False

    def ask(self, question: K) -> Deferred[V]:
        """
        Ask; what makes the answer fail fails for all that were asked together.

        Cancelling it gives up the answer, not what answering does.
        """
        asked: Deferred[V] = Deferred()
        self._waiting.append((question, asked))
        if not self._busy:
            self._busy = True
            # Not now: what else the reactor does in this turn may ask as well.
            self._clock.callLater(0, self._begin)
        return asked

    def _begin(self) -> None:
        Deferred.fromCoroutine(self._go_on())

    async def _go_on(self) -> None:
        while self._waiting:
            count = min(self._most, len(self._waiting))
            together = [self._waiting.popleft() for _ in range(count)]
            try:
                answers = await self._answer([question for question, _ in together])
            except Exception as error:  # noqa: BLE001 - it is for those who asked
                for _, asked in together:
                    asked.errback(error)
            else:
                for (_, asked), answer in zip(together, answers, strict=True):
                    asked.callback(answer)
        self._busy = False
