"""
What becomes of dispatched rows, asked for many of them in one statement.

# Note [How long one waits for others]

While one question is on its way, those who come are gathered for the next. Beyond that nobody waits
where few executions are in flight: a start is not to be later for it. Where many are, their answers
come one on the heels of the other, and each would cost a statement of its own, and the tick that
fills its slot six more; so a question waits until an eighth of them has come, but no longer than
`GATHER`. An eighth of the slots, for a hundredth of a second, is what that can leave idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from crq.messages import RowState

GATHER = 0.01  # s
SHARE = 8  # of what is in flight, one in so many is enough

_Waiting = tuple[int, Deferred[RowState | None]]


@define(eq=False)
class Gathering:
    """
    Gathers who asks for the state of a row (see note).

    :ivar read: asks the database for the states of rows; rows that are gone are missing.
    :ivar in_flight: how many dispatches are on their way, those that ask among them.
    :ivar told: called when all who were gathered have been told.
    :ivar telling: whether they are being told just now: what each does is not the last of it.
    """

    read: Callable[[list[int]], Deferred[Mapping[int, RowState]]]
    clock: IReactorTime
    in_flight: Callable[[], int]
    told: Callable[[], None]
    telling: bool = field(init=False, default=False)
    _waiting: list[_Waiting] = field(init=False, factory=list)
    _asking: bool = field(init=False, default=False)
    _timer: IDelayedCall | None = field(init=False, default=None)

    def state(self, execution_id: int) -> Deferred[RowState | None]:
        """
        The state of one row, as it is after this call; None: it is gone.
        """
        answer: Deferred[RowState | None] = Deferred()
        self._waiting.append((execution_id, answer))
        self._look()
        return answer

    def _look(self) -> None:
        if self._asking or not self._waiting:
            return
        if len(self._waiting) >= self.in_flight() // SHARE:
            self._ask()
        elif self._timer is None:
            self._timer = self.clock.callLater(GATHER, self._waited)

    def _waited(self) -> None:
        self._timer = None
        if not self._asking and self._waiting:
            self._ask()

    def _ask(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._waiting = self._waiting, []
        self._asking = True
        self.read([execution_id for execution_id, _ in gathered]).addBoth(self._answered, gathered)

    def _answered(self, answer: Mapping[int, RowState] | Failure, gathered: list[_Waiting]) -> None:
        self._asking = False
        self.telling = True
        for execution_id, waiting in gathered:
            if isinstance(answer, Failure):
                waiting.errback(answer)
            else:
                waiting.callback(answer.get(execution_id))
        self.telling = False
        self.told()
        self._look()
