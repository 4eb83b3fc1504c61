"""
Asking for the states of many rows in one statement.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from crq.gathering import GATHER, SHARE, Gathering
from crq.messages import RowState


def _row(number: int) -> RowState:
    return RowState(number, "success", 1, None, None, None, None)


class GatheringTests(SynchronousTestCase):
    """
    `crq.gathering`, before a database that answers when it is told to.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.questions: list[tuple[list[int], Deferred[Mapping[int, RowState]]]] = []
        self.in_flight = 4
        self.told: list[bool] = []
        self.gathering = Gathering(
            read=self.read,
            clock=self.clock,
            in_flight=lambda: self.in_flight,
            told=lambda: self.told.append(self.gathering.telling),
        )

    def read(self, ids: list[int]) -> Deferred[Mapping[int, RowState]]:
        answer: Deferred[Mapping[int, RowState]] = Deferred()
        self.questions.append((ids, answer))
        return answer

    def answer(self, *missing: int) -> None:
        ids, answer = self.questions[-1]
        answer.callback({each: _row(each) for each in ids if each not in missing})

    def asked(self) -> list[list[int]]:
        return [ids for ids, _ in self.questions]

    def test_the_first_of_few_is_asked_at_once(self) -> None:
        """
        Where few are in flight a state is asked without waiting for others.
        """
        state = self.gathering.state(1)
        self.answer()
        self.assertEqual(self.successResultOf(state), _row(1))

    def test_who_comes_while_one_asks_is_gathered(self) -> None:
        """
        What is asked during a question waits for its end, and is one question then: never an answer
        that may be older than what is asked.
        """
        first = self.gathering.state(1)
        others = [self.gathering.state(2), self.gathering.state(3)]
        self.assertEqual(self.asked(), [[1]])
        self.answer()
        self.successResultOf(first)
        self.assertEqual(self.asked(), [[1], [2, 3]])
        self.answer(3)
        self.assertEqual([self.successResultOf(each) for each in others], [_row(2), None])

    def test_of_many_an_eighth_is_gathered(self) -> None:
        """
        Where many are in flight, a question waits until an eighth of them has come.
        """
        self.in_flight = 2 * SHARE
        states = [self.gathering.state(1)]
        self.assertEqual(self.asked(), [])
        states.append(self.gathering.state(2))
        self.assertEqual(self.asked(), [[1, 2]])
        self.answer()
        for each in states:
            self.successResultOf(each)
        self.clock.advance(GATHER)
        self.assertEqual(len(self.asked()), 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nobody_waits_longer_than_the_limit(self) -> None:
        """
        If no others come, a question is asked after `GATHER`.
        """
        self.in_flight = 64
        self.gathering.state(1)
        self.clock.advance(GATHER * 0.9)
        self.assertEqual(self.asked(), [])
        self.clock.advance(GATHER * 0.2)
        self.assertEqual(self.asked(), [[1]])

    def test_time_that_passes_during_a_question_asks_no_second_one(self) -> None:
        """
        There is one question at a time; the next goes out when it is answered.
        """
        self.in_flight = 64
        self.gathering.state(1)
        self.clock.advance(GATHER)
        self.gathering.state(2)
        self.clock.advance(2 * GATHER)
        self.assertEqual(self.asked(), [[1]])
        self.in_flight = 1
        self.answer()
        self.assertEqual(self.asked(), [[1], [2]])

    def test_a_failure_reaches_all_who_asked(self) -> None:
        """
        An outage is told to each, and the next question is asked all the same.
        """
        self.in_flight = 2 * SHARE
        states = [self.gathering.state(1), self.gathering.state(2)]
        self.questions[-1][1].errback(OSError("away"))
        for each in states:
            self.failureResultOf(each, OSError)
        self.in_flight = 1
        self.gathering.state(3)
        self.assertEqual(self.asked(), [[1, 2], [3]])

    def test_what_follows_is_told_once_and_last(self) -> None:
        """
        While those who asked are told, `telling` says so; afterwards `told` is called, once.
        """
        self.in_flight = 2 * SHARE
        seen: list[bool] = []
        for number in (1, 2):
            self.gathering.state(number).addCallback(lambda _: seen.append(self.gathering.telling))
        self.answer()
        self.assertEqual((seen, self.told), ([True, True], [False]))

    def test_who_has_given_up_disturbs_nobody(self) -> None:
        """
        A question that was cancelled is answered to the others.
        """
        self.in_flight = 2 * SHARE
        gone, stays = self.gathering.state(1), self.gathering.state(2)
        gone.addErrback(lambda _: None)
        gone.cancel()
        self.answer()
        self.assertEqual(self.successResultOf(stays), _row(2))
