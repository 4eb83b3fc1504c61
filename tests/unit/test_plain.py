"""
The plain contract, pure: what is sent, what an answer means; and questions that go together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from crq import plain
from crq.batch import Batch
from crq.messages import Answered, DispatchResult, Fate, Lost, NotSent, Parcel

UNKNOWN, FATAL = 303, 302


class ConclusionTests(SynchronousTestCase):
    """
    `plain.conclude`.
    """

    def test_what_becomes_of_a_row(self) -> None:
        """
        Each end of a POST has one fate, one code, and speaks of the endpoint or not.
        """
        table: tuple[tuple[DispatchResult, Fate, Any, bool], ...] = (
            (Answered(200), Fate.ENDED, "success", False),
            (Answered(204), Fate.ENDED, "success", False),
            (Answered(299, retry_after="5"), Fate.ENDED, "success", False),
            (Answered(429, retry_after="5"), Fate.GATED, None, False),
            (Answered(503, retry_after="soon"), Fate.GATED, None, False),
            (Answered(503, retry_after=""), Fate.GATED, None, False),
            (Answered(429), Fate.ENDED, 429, False),
            (Answered(503), Fate.ENDED, 503, False),
            (Answered(500, retry_after="5"), Fate.ENDED, 500, False),
            (Answered(400), Fate.ENDED, 400, False),
            (Answered(422), Fate.ENDED, 422, False),
            (Answered(599), Fate.ENDED, 599, False),
            (Answered(401), Fate.ENDED, 401, True),
            (Answered(403), Fate.ENDED, 403, True),
            (Answered(404), Fate.ENDED, 404, True),
            (Answered(405), Fate.ENDED, 405, True),
            (Answered(502), Fate.ENDED, 502, True),
            (Answered(504), Fate.ENDED, 504, True),
            (Answered(301), Fate.ENDED, FATAL, True),
            (Answered(303), Fate.ENDED, FATAL, True),
            (Answered(199), Fate.ENDED, FATAL, True),
            (Lost("reset"), Fate.ENDED, UNKNOWN, True),
            (NotSent("refused"), Fate.RELEASED, None, False),
            (NotSent("its key", for_good=True), Fate.UNSENDABLE, None, False),
        )
        for result, fate, ended, ails in table:
            found = plain.conclude(result)
            outcome = found.outcome
            how = None if outcome is None else outcome.error_code or outcome.status.value
            self.assertEqual(
                (found.fate, how, found.endpoint_ails), (fate, ended, ails), str(result)
            )

    def test_an_outcome_in_the_body_counts_for_nothing(self) -> None:
        """
        A body that says otherwise does not turn a 500 into a success: the status is the outcome.
        """
        found = plain.conclude(Answered(500, detail='{"status": "success"}'))
        assert found.outcome is not None
        self.assertEqual(found.outcome.error_message, 'HTTP 500 {"status": "success"}')


class BodyTests(SynchronousTestCase):
    """
    `plain.body`.
    """

    parcel = Parcel(7, "a" * 64, "acme", "job 1", "sealed", "print('ü')", '{"a": 1}', 1)

    def test_what_is_sent(self) -> None:
        """
        The submission as it was admitted, in JSON of ASCII; never the sealed key.
        """
        body = plain.body(self.parcel, None)
        self.assertEqual(
            json.loads(body),
            {
                "executionId": 7,
                "account": "a" * 64,
                "subdomain": "acme",
                "identifier": "job 1",
                "source_code": "print('ü')",
                "payload": '{"a": 1}',
                "debug": True,
            },
        )
        self.assertTrue(body.isascii())

    def test_the_key_is_sent_when_it_is_given(self) -> None:
        """
        The API key itself is there, and nowhere in what a log would show of a parcel.
        """
        self.assertEqual(json.loads(plain.body(self.parcel, "secret"))["apikey"], "secret")
        for hidden in ("sealed", "print", '"a"'):
            self.assertNotIn(hidden, repr(self.parcel))


class BatchTests(SynchronousTestCase):
    """
    `Batch`.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.asked: list[list[int]] = []
        self.answers: list[Deferred[list[int]]] = []
        self.batch: Batch[int, int] = Batch(self.answer, self.clock, 3)

    async def answer(self, questions: Sequence[int]) -> Sequence[int]:
        self.asked.append(list(questions))
        self.answers.append(Deferred())
        return await self.answers[-1]

    def test_what_comes_meanwhile_goes_together(self) -> None:
        """
        The first turn's questions go together, and so does what is asked before they are answered,
        at most so many at once; each gets its own answer.
        """
        first = [self.batch.ask(number) for number in (1, 2)]
        self.assertEqual(self.asked, [])
        self.clock.advance(0)
        later = [self.batch.ask(number) for number in (3, 4, 5, 6)]
        self.clock.advance(0)
        self.assertEqual(self.asked, [[1, 2]])
        self.answers[0].callback([10, 20])
        self.assertEqual([self.successResultOf(each) for each in first], [10, 20])
        self.assertEqual(self.asked, [[1, 2], [3, 4, 5]])
        self.answers[1].callback([30, 40, 50])
        self.answers[2].callback([60])
        self.assertEqual([self.successResultOf(each) for each in later], [30, 40, 50, 60])
        again = self.batch.ask(7)
        self.clock.advance(0)
        self.answers[3].callback([70])
        self.assertEqual(self.successResultOf(again), 70)

    def test_a_fault_is_of_those_who_asked_together(self) -> None:
        """
        A failure reaches each of them, and the next questions are asked all the same.
        """
        first = [self.batch.ask(number) for number in (1, 2)]
        self.clock.advance(0)
        later = self.batch.ask(3)
        self.answers[0].errback(OSError("away"))
        for each in first:
            self.failureResultOf(each, OSError)
        self.answers[1].callback([30])
        self.assertEqual(self.successResultOf(later), 30)

    def test_giving_up_an_answer_does_not_stop_it(self) -> None:
        """
        Who gives up gets no answer; the others get theirs.
        """
        first, second = self.batch.ask(1), self.batch.ask(2)
        self.clock.advance(0)
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.answers[0].callback([10, 20])
        self.assertEqual(self.successResultOf(second), 20)
