"""
What is believed of an answer, and what is shown of it.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq.answers import DETAIL_LENGTH, MESSAGE_LENGTH, read_answer, shown
from crq.messages import Answered, Outcome
from crq.model import Claimed, Lane, Status

CLAIMED = Claimed(7, 8, Lane("account", "key"), 1, "the nonce")
LIMIT = 65536


def _answer(body: Any, http_status: int = 200, limit: int = LIMIT) -> Answered:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_answer(CLAIMED, http_status, data, limit)


class OutcomeTests(SynchronousTestCase):
    """
    Outcomes.
    """

    def test_success(self) -> None:
        """
        An outcome is the executor's word and nothing else is added.
        """
        body = {"executionId": 7, "status": "success", "errorCode": None, "errorMessage": None}
        self.assertEqual(_answer(body), Answered(200, Outcome(Status.SUCCESS)))
        self.assertEqual(
            _answer({"executionId": 7, "status": "success"}),
            Answered(200, Outcome(Status.SUCCESS)),
        )

    def test_failure(self) -> None:
        """
        Code and message come along, whatever the HTTP status was.
        """
        message = "line 3: שלום → 👨\u200d👩\u200d👧\n  at b'\\x00'"
        body = {"executionId": 7, "status": "failed", "errorCode": 301, "errorMessage": message}
        for http_status in (200, 500):
            self.assertEqual(
                _answer(body, http_status),
                Answered(http_status, Outcome(Status.FAILED, 301, message), 301),
            )

    def test_nothing_else_is_an_outcome(self) -> None:
        """
        Another execution, another state, another type: no outcome, and the text for the operator.
        """
        good: dict[str, Any] = {"executionId": 7, "status": "failed", "errorCode": 301}
        for change in (
            {"executionId": 8},
            {"executionId": "7"},
            {"executionId": 7.0},
            {"executionId": None},
            {"executionId": [7]},
            {"status": "running"},
            {"status": "Failed"},
            {"status": None},
            {"status": ["failed"]},
            {"errorCode": None},
            {"errorCode": "301"},
            {"errorCode": True},
            {"errorCode": 0},
            {"errorCode": 10**30},
            {"errorMessage": 5},
            {"status": "success", "errorCode": 301},
        ):
            answer = _answer({**good, **change})
            self.assertIsNone(answer.outcome, change)
            self.assertTrue(answer.detail.startswith("{"), change)
        one: dict[str, Any] = {"executionId": True, "status": "success"}
        claimed = Claimed(1, 1, CLAIMED.lane, 1, "")
        self.assertIsNone(read_answer(claimed, 200, json.dumps(one).encode(), LIMIT).outcome)

    def test_what_is_no_json_is_no_outcome(self) -> None:
        """
        Pages of proxies, cut, nested or differently encoded text: nothing raised.
        """
        good = b'{"executionId": 7, "status": "success"}'
        for body in (
            b"",
            b"OK",
            b"<html><h1>502 Bad Gateway</h1></html>",
            good[:-1],
            good + b"x",
            b"\xef\xbb\xbf" + good,
            good.decode().encode("utf-16"),
            b"[" * 60_000,
            b'{"a":' * 10_000,
            b'{"executionId": 7, "status": "success", "x": ' + b"9" * 5000 + b"}",
            b"[7]",
            b"7",
            b"null",
        ):
            self.assertIsNone(_answer(body).outcome, body[:50])

    def test_an_answer_over_the_limit_is_no_outcome(self) -> None:
        """
        It was cut, so whatever it looks like it is not whole.
        """
        body = b'{"executionId": 7, "status": "success"}'
        self.assertIsNotNone(_answer(body, limit=len(body)).outcome)
        answer = _answer(body, limit=len(body) - 1)
        self.assertIsNone(answer.outcome)
        self.assertTrue(answer.detail.startswith('answer of more than 38 bytes: {"exec'))

    def test_a_message_can_be_stored(self) -> None:
        """
        Half a surrogate pair, and more text than a column holds, come out as something it takes.
        """
        body = b'{"executionId":7,"status":"failed","errorCode":301,"errorMessage":"a\\ud83dz"}'
        outcome = _answer(body).outcome
        assert outcome is not None
        self.assertEqual(outcome.error_message, "a?z")
        body = json.dumps(
            {"executionId": 7, "status": "failed", "errorCode": 301, "errorMessage": "👪" * 20_000},
            ensure_ascii=False,
        ).encode()
        outcome = _answer(body, limit=10**6).outcome
        assert outcome is not None
        assert outcome.error_message is not None
        self.assertEqual(len(outcome.error_message), MESSAGE_LENGTH)
        self.assertLess(len(outcome.error_message.encode()), 2**16)


class ErrorCodeTests(SynchronousTestCase):
    """
    Codes without an outcome.
    """

    def test_a_refusal_has_a_code(self) -> None:
        """
        112 and 113 are said with or without naming the execution.
        """
        for code in (112, 113):
            for body in ({"errorCode": code}, {"errorCode": code, "executionId": 7}):
                answer = _answer(body, 403)
                self.assertEqual((answer.outcome, answer.error_code), (None, code))

    def test_a_refusal_is_never_an_outcome(self) -> None:
        """
        F83: the same request may have been started elsewhere; its row must not be closed by this.
        """
        for code in (112, 113):
            answer = _answer({"executionId": 7, "status": "failed", "errorCode": code})
            self.assertEqual((answer.outcome, answer.error_code), (None, code))

    def test_another_executions_code_is_not_ours(self) -> None:
        """
        An answer that names another execution says nothing about this one.
        """
        self.assertIsNone(_answer({"executionId": 8, "errorCode": 113}).error_code)


class ShownTests(SynchronousTestCase):
    """
    Foreign text in details (F06, F111).
    """

    def test_bytes_that_are_no_text(self) -> None:
        """
        Replacement marks for what is no UTF-8, escapes for control characters.
        """
        answer = _answer(bytes.fromhex("61 92 70 ff 00 f0 9f"), 500)
        self.assertEqual(answer, Answered(500, detail="a\ufffdp\ufffd\\x00\ufffd"))

    def test_one_line(self) -> None:
        """
        No text begins a new line, colours a terminal or turns the direction of writing around.
        """
        self.assertEqual(
            shown("a\r\nb\u2028c\x1b[31m\u202ed\x85\ud800 é → שלום"),
            r"a\r\nb\u2028c\x1b[31m\u202ed\x85\ud800 é → שלום",
        )

    def test_short(self) -> None:
        """
        A detail has at most 300 characters, cut anywhere.
        """
        for body in (b"x" * 10**6, "→".encode() * 10**5, b"\x00" * 10**5, b"\xf0\x9f\x91" * 10**5):
            detail = _answer(body, 502, limit=10**7).detail
            self.assertEqual(len(detail), DETAIL_LENGTH)
            detail.encode("utf-8")
            self.assertEqual(len(_answer(body, 502, limit=1000).detail), DETAIL_LENGTH)

    def test_a_redirect_says_where_it_leads(self) -> None:
        """
        A wrong URL in the configuration is easier to find like this.
        """
        answer = read_answer(CLAIMED, 302, b"moved", LIMIT, b"https://elsewhere/\r\nX: y")
        self.assertEqual(answer, Answered(302, detail=r"redirect to https://elsewhere/\r\nX: y"))
