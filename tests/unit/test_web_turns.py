"""
Requests take turns; the loops do not wait for them.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from crq.pool import Pool
from crq.web.turns import Busy, Turns

PATIENCE = 10.0  # s


class SlowPool(Pool):
    """
    A pool whose questions the test answers.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Deferred[Any]]] = []
        self.at_once = False

    def read(self, function: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """
        Keep the question, unless it is answered at once.
        """
        if self.at_once:
            return defer.succeed(args[0])
        self.asked.append((args[0], Deferred()))
        return self.asked[-1][1]

    transact = compute = read


class TurnsTests(SynchronousTestCase):
    """
    `Turns`, two at once.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.pool = SlowPool()
        self.turns = Turns(self.pool, 2, PATIENCE, self.clock)

    def tearDown(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def ask(self, *names: object) -> list[Deferred[Any]]:
        """
        Ask some questions at once.
        """
        return [self.turns.read(None, name) for name in names]  # type: ignore[arg-type]

    def asked(self) -> list[Any]:
        """
        What the pool has been asked.
        """
        return [name for name, _ in self.pool.asked]

    def test_no_more_at_once_than_there_are_turns(self) -> None:
        """
        The third waits until one has ended; they go in the order they came.
        """
        a, _b, c, _d = self.ask(*"abcd")
        self.assertEqual(self.asked(), ["a", "b"])
        self.pool.asked[0][1].callback(1)
        self.assertEqual(self.successResultOf(a), 1)
        self.assertEqual(self.asked(), ["a", "b", "c"])
        for _, answer in self.pool.asked[1:]:
            answer.callback(2)
        self.pool.asked[3][1].callback(3)
        self.assertEqual(self.successResultOf(c), 2)

    def test_an_error_gives_the_turn_back(self) -> None:
        """
        A question that fails fails for who asked it, and the next one is asked.
        """
        a, _b, _c = self.ask(*"abc")
        self.pool.asked[0][1].errback(RuntimeError("away"))
        self.failureResultOf(a, RuntimeError)
        self.assertEqual(self.asked(), ["a", "b", "c"])
        for _, answer in self.pool.asked[1:]:
            answer.callback(None)

    def test_patience_ends(self) -> None:
        """
        Who has waited too long is turned away, and nothing is asked for him, also later.
        """
        _a, _b, c = self.ask(*"abc")
        self.clock.advance(PATIENCE / 2)
        (d,) = self.ask("d")
        self.clock.advance(PATIENCE / 2)
        self.failureResultOf(c, Busy)
        self.assertNoResult(d)
        self.pool.asked[0][1].callback(None)
        self.assertEqual(self.asked(), ["a", "b", "d"])
        for _, answer in self.pool.asked[1:]:
            answer.callback(None)

    def test_who_hangs_up_is_not_asked_for(self) -> None:
        """
        A waiting question that nobody waits for any more is never asked.
        """
        _a, _b, c, _d = self.ask(*"abcd")
        c.cancel()
        self.failureResultOf(c, CancelledError)
        self.pool.asked[0][1].callback(None)
        self.assertEqual(self.asked(), ["a", "b", "d"])
        for _, answer in self.pool.asked[1:]:
            answer.callback(None)

    def test_who_hangs_up_meanwhile_keeps_the_turn_busy(self) -> None:
        """
        A question that is being asked holds its turn until the database has answered: hanging up
        and coming again does not pile up questions.
        """
        a, b, _c = self.ask(*"abc")
        for gone in (a, b):
            gone.cancel()
            self.failureResultOf(gone, CancelledError)
        self.assertEqual(self.asked(), ["a", "b"])
        self.pool.asked[0][1].callback(None)
        self.assertEqual(self.asked(), ["a", "b", "c"])
        for _, answer in self.pool.asked[1:]:
            answer.callback(None)

    def test_thousands_at_once_need_no_stack(self) -> None:
        """
        Answers that are there at once are given one after the other (F35); so are refusals.
        """
        self.ask("a", "b")
        waiting = self.ask(*range(5000))
        self.pool.at_once = True
        for _, answer in list(self.pool.asked):
            answer.callback(None)
        self.assertEqual([self.successResultOf(each) for each in waiting], list(range(5000)))
        self.pool.at_once = False
        late = self.ask(*range(5002))
        self.clock.advance(PATIENCE)
        for each in late[2:]:
            self.failureResultOf(each, Busy)
