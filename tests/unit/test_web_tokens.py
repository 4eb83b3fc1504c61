"""
Tokens: any bytes may come, and only the right ones are let in.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from crq.config import Token
from crq.sealing import sha256_hex
from crq.web.tokens import Caller, callers, who
from tests.door import ACME, TOKEN, TOKENS, Door
from tests.rows import SEALER

CALLERS = callers(TOKENS, SEALER)


def asked(*values: bytes) -> Caller | None:
    """
    Whose token a request with these Authorization headers carries.
    """
    headers = Headers()
    for value in values:
        headers.addRawHeader(b"Authorization", value)
    return who(headers, CALLERS)


class TokenTests(SynchronousTestCase):
    """
    `who`.
    """

    def test_known_token_is_known(self) -> None:
        """
        In any spelling of the scheme that HTTP allows.
        """
        for scheme in (b"Bearer ", b"bearer ", b"BEARER   "):
            caller = asked(scheme + TOKEN.encode())
            assert caller is not None
            self.assertEqual(caller.token.name, "all")

    def test_other_bytes_are_nobody(self) -> None:
        """
        Byte e9, nothing, a megabyte, the right prefix, a longer one, the hash itself (F110).
        """
        right = TOKEN.encode()
        digest = TOKENS[0].sha256.encode()
        for secret in (
            *(b"\xe9", b"", b"x" * 1_000_000, right[:-1], right + b"x", right.upper(), digest),
            *(right + b"\xe9", b"\x00" + right, right + b"," + right),
        ):
            self.assertIsNone(asked(b"Bearer " + secret), secret[:40])

    def test_other_headers_are_nobody(self) -> None:
        """
        No header, two of them, another scheme, no scheme.
        """
        right = TOKEN.encode()
        for values in (
            (),
            (b"Bearer " + right, b"Bearer " + right),
            (b"Basic " + right,),
            (right,),
            (b"Bearer" + right,),
            (b"",),
            (b"\xff\xfe",),
        ):
            self.assertIsNone(asked(*values), values)

    @given(st.binary(max_size=200))
    @settings(max_examples=200, deadline=None)
    def test_nothing_is_raised(self, value: bytes) -> None:
        """
        Whatever a header holds, the answer is somebody or nobody.
        """
        self.assertIsNone(asked(value))

    def test_accounts_are_limits(self) -> None:
        """
        A token with accounts owns those, in any case of letters; one without owns all.
        """
        limited, free = asked(b"Bearer " + ACME.encode()), asked(b"Bearer " + TOKEN.encode())
        assert limited is not None
        assert free is not None
        self.assertTrue(limited.owns(SEALER.account("acme")))
        for other in (SEALER.account("other"), "", None):
            self.assertFalse(limited.owns(other))
            self.assertTrue(free.owns(other))
        (loud,) = callers([Token(name="x", sha256=sha256_hex("x"), accounts=("ACME",))], SEALER)
        self.assertTrue(loud.owns(SEALER.account("acme")))


class WireTests(SynchronousTestCase):
    """
    The same through the door.
    """

    def test_bad_tokens_are_401_without_a_trace(self) -> None:
        """
        401 for each, no traceback; a header longer than any is not even read.
        """
        door = Door()
        self.addCleanup(door.close)
        for token in (b"\xe9", b"", b"x" * 8000, TOKEN[:-1].encode(), TOKEN.encode() + b"x"):
            answer = door.ask("GET", "/status", token=token)
            self.assertEqual(answer.status, 401, token[:20])
        self.assertEqual(door.ask("GET", "/status", token=b"x" * 1_000_000).status, 431)
        self.assertEqual(self.flushLoggedErrors(), [])
