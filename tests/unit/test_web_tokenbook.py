"""
Tokens of the database under a flood of callers that nobody knows.
"""

from __future__ import annotations

import sqlite3

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from crq.config import Token
from crq.sealing import sha256_hex
from crq.web.tokens import FRESH, STALE, Caller, TokenBook
from tests.rows import SEALER

STORED = Token(name="stored", sha256=sha256_hex("secret"))
AWAY = sqlite3.OperationalError("unable to open database file")


def bearing(token: str) -> Headers:
    """
    Headers with a token.
    """
    return Headers({b"Authorization": [b"Bearer " + token.encode()]})


class BookTests(SynchronousTestCase):
    """
    `TokenBook`, whose questions the test answers.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.asked: list[Deferred[tuple[Token, ...]]] = []
        self.book = TokenBook((), SEALER, self.read, self.clock.seconds)

    def read(self) -> Deferred[tuple[Token, ...]]:
        """
        Keep a question.
        """
        self.asked.append(Deferred())
        return self.asked[-1]

    def who(self, token: str) -> Deferred[Caller | None]:
        """
        Ask the book.
        """
        return Deferred.fromCoroutine(self.book.who(bearing(token)))

    def test_a_flood_of_forged_tokens_is_one_question(self) -> None:
        """
        Thousands who come while the database is asked wait for that one answer.
        """
        forged = [self.who(f"forged {n}") for n in range(3000)]
        honest = self.who("secret")
        self.assertEqual(len(self.asked), 1)
        self.asked[0].callback((STORED,))
        self.assertEqual([self.successResultOf(each) for each in forged], [None] * 3000)
        caller = self.successResultOf(honest)
        assert caller is not None
        self.assertEqual(caller.token.name, "stored")
        self.assertIsNone(self.successResultOf(self.who("forged again")))
        self.assertEqual(len(self.asked), 1)
        self.clock.advance(FRESH)
        self.who("forged later")
        self.assertEqual(len(self.asked), 2)

    def test_who_hangs_up_takes_nobody_with_him(self) -> None:
        """
        The question of somebody who has gone is answered to those who wait for it.
        """
        first, second = self.who("secret"), self.who("secret")
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.asked[0].callback((STORED,))
        self.assertIsNotNone(self.successResultOf(second))

    def test_a_database_that_is_away_is_asked_now_and_then(self) -> None:
        """
        All who wait are told; it is asked again after a while, not for each of them.
        """
        waiting = [self.who(f"forged {n}") for n in range(10)]
        self.asked[0].errback(AWAY)
        for each in waiting:
            self.failureResultOf(each, sqlite3.OperationalError)
        for _ in range(10):
            self.failureResultOf(self.who("secret"), sqlite3.OperationalError)
        self.assertEqual(len(self.asked), 1)
        self.clock.advance(FRESH)
        late = self.who("secret")
        self.asked[1].callback((STORED,))
        self.assertIsNotNone(self.successResultOf(late))

    def test_who_is_known_at_once(self) -> None:
        """
        Whether a caller is known is told without waiting: one doubtful caller now and then has the
        benefit of the doubt, and all who bear a token while nobody can tell.
        """
        self.assertFalse(self.book.knows(Headers()))
        self.assertTrue(self.book.knows(bearing("anything")))
        self.assertTrue(self.book.knows(bearing("anything")))  # nobody can tell yet
        self.asked[0].callback((STORED,))
        self.assertTrue(self.book.knows(bearing("secret")))
        self.assertFalse(self.book.knows(bearing("forged")))
        self.clock.advance(FRESH)
        self.assertEqual(
            [self.book.knows(bearing("forged")) for _ in range(5)], [True] + [False] * 4
        )
        self.asked[1].errback(AWAY)
        self.assertTrue(self.book.knows(bearing("secret")))
        self.clock.advance(STALE)
        self.assertTrue(self.book.knows(bearing("made meanwhile")))
