"""
What somebody may send who does not mean well: shapes that two programs read differently, floods,
and a crowd at the door.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from crq.web.request import STRANGERS_BODY
from crq.web.wire import ACCEPTS, FRAMING, LINGER
from tests.door import Answer, Door, Wire, request

BODY = json.dumps({"subdomain": "acme", "apikey": "k", "source_code": "x = 1"}).encode()
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
KIND = b"Content-Type: application/json"
TE = b"Transfer-Encoding: chunked"
FIELDS = ["field", "problem", "remedy"]


def head(*lines: bytes, first: bytes = b"POST /codeRunner HTTP/1.1") -> bytes:
    """
    The head of a submission by a known caller.
    """
    return b"\r\n".join(
        [first, b"Host: door", b"Authorization: Bearer crq_all", KIND, *lines, b"", b""]
    )


class Case(SynchronousTestCase):
    """
    With a door that has few places.
    """

    connections = 8

    def setUp(self) -> None:
        self.door = Door(body_limit=8192, connections=self.connections)
        self.addCleanup(self.door.close)
        self.wires: list[Wire] = []

    def tearDown(self) -> None:
        for wire in self.wires:
            wire.hang_up()
        self.assertEqual(self.door.clock.getDelayedCalls(), [])
        self.assertEqual(len(self.door.site.crowd), 0)

    def connect(self) -> Wire:
        """
        One more connection.
        """
        wire = Wire(self.door)
        self.wires.append(wire)
        return wire

    def send(self, data: bytes) -> Wire:
        """
        Send bytes on a connection of their own.
        """
        wire = self.connect()
        wire.send(data)
        return wire


class SmugglingTests(Case):
    """
    Where a request ends must be said once, and in one way (F114's kin).
    """

    def assert_refused(self, wire: Wire, name: str) -> None:
        """
        Check that a request was answered with 400 and a reason, that nothing behind it was read,
        and that its connection ends.
        """
        answer = wire.answer()
        self.assertEqual(answer.status, 400, name)
        self.assertEqual(sorted(answer.json.keys() & {"field", "problem", "remedy"}), FIELDS, name)
        self.assertEqual(answer.headers["connection"], "close")
        wire.send(b"\r\n" + head(LENGTH) + BODY)
        self.assertEqual(wire.value(), b"", name)
        self.door.clock.advance(LINGER)
        self.assertTrue(wire.closed, name)
        wire.hang_up()
        self.wires.remove(wire)
        self.assertEqual(self.door.woken, 0, name)

    def test_what_can_be_read_in_two_ways_is_refused(self) -> None:
        """
        Whatever a proxy in front may have made of it: nothing of such a request, and nothing behind
        it on the same connection, is admitted; no traceback is left behind.
        """
        behind = head(LENGTH) + BODY
        shapes = {
            "two lengths": head(b"Content-Length: 5", b"Content-Length: 6") + b"hello",
            "one length twice": head(LENGTH, LENGTH) + BODY,
            "a list of lengths": head(b"Content-Length: 5, 5") + b"hello",
            "length and chunks": head(LENGTH, TE) + CHUNKED,
            "chunks and length": head(TE, LENGTH) + CHUNKED,
            "a length with a sign": head(b"Content-Length: +5") + b"hello",
            "a negative length": head(b"Content-Length: -1") + b"hello",
            "a length in hex": head(b"Content-Length: 0x5") + b"hello",
            "a length in other digits": head("Content-Length: ５".encode()) + b"hello",
            "an endless length": head(b"Content-Length: " + b"1" * 5000) + b"hello",
            "a length in blanks": head(b"Content-Length: 5 5") + b"hello",
            "an empty length": head(b"Content-Length: ") + b"hello",
            "identity and length": head(b"Transfer-Encoding: identity", LENGTH) + BODY,
            "chunked, then identity": head(TE, b"Transfer-Encoding: identity") + CHUNKED,
            "xchunked": head(b"Transfer-Encoding: xchunked", LENGTH) + BODY,
            "gzip, chunked": head(b"Transfer-Encoding: gzip, chunked") + CHUNKED,
            "chunked twice": head(TE, TE) + CHUNKED,
            "a folded length": head(b"Content-Length:", b" %d" % len(BODY)) + BODY,
            "a folded coding": head(b"Transfer-Encoding:", b"\tchunked") + CHUNKED,
            "a folded header": head(b"X-Note: a", b" b", LENGTH) + BODY,
            "a blank before the colon": head(b"Content-Length : %d" % len(BODY)) + BODY,
            "a bare line feed": head(b"X-Note: a\nX: b", LENGTH) + BODY,
            "a bare carriage return": head(b"X-Note: a\rX: b", LENGTH) + BODY,
            "a NUL": head(b"X-Note: a\0b", LENGTH) + BODY,
            "a header without a colon": head(b"no colon here", LENGTH) + BODY,
            "two hosts": head(b"Host: other", LENGTH) + BODY,
            "a chunk of negative size": head(TE) + b"-5\r\nhello\r\n0\r\n\r\n",
            "a chunk size with a prefix": head(TE) + b"0x5\r\nhello\r\n0\r\n\r\n",
            "a chunk that is longer than it says": head(TE) + b"3\r\nhello\r\n0\r\n\r\n",
            "a line feed in an extension": head(TE) + b"5;a=\nb\r\nhello\r\n0\r\n\r\n",
            "an endless chunk size": head(TE) + b"0" * 5000 + b"5\r\nhello\r\n0\r\n\r\n",
            "an odd method": head(LENGTH, first=b"P\xd6ST /codeRunner HTTP/1.1") + BODY,
            "no version": b"GET /health/live\r\n",
            "another version": head(first=b"GET /health/live HTTP/2.0"),
            "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "a greeting of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
            "a second request as a body": head(b"Content-Length: 0, 5") + behind,
        }
        with capturedLogs() as logged:
            for name, data in shapes.items():
                self.assert_refused(self.send(data + behind), name)
        self.assertEqual([event for event in logged if "log_failure" in event], [])

    def test_what_is_odd_and_clear_is_taken(self) -> None:
        """
        Extensions and trailers of chunks are ignored, as the RFC wants it.
        """
        for data in (
            head(TE) + CHUNKED,
            head(TE) + b"%x;name=value\r\n%s\r\n0\r\nX-Sum: 1\r\n\r\n" % (len(BODY), BODY),
            head(b"Transfer-Encoding: Chunked") + CHUNKED,
            head(b"content-length:%d" % len(BODY)) + BODY,
        ):
            self.assertEqual(self.send(data).answer().status, 202)

    def test_nothing_ends_without_carriage_returns(self) -> None:
        """
        A head in line feeds alone never ends; it is let go with the deadline.
        """
        wire = self.send((head(LENGTH) + BODY).replace(b"\r\n", b"\n"))
        self.assertEqual(wire.value(), b"")
        self.door.clock.advance(30)
        self.assertTrue(wire.closed)


class StrangerTests(Case):
    """
    Who has shown no known token is not trusted with much.
    """

    def stranger(self, *lines: bytes, token: bytes = b"wrong") -> bytes:
        """
        The head of a submission under a token that is none.
        """
        first = b"POST /codeRunner HTTP/1.1"
        return b"\r\n".join(
            [first, b"Host: door", b"Authorization: Bearer " + token, KIND, *lines, b"", b""]
        )

    def test_a_stranger_s_long_body_is_refused_unread(self) -> None:
        """
        401 comes before the body, however the token looks and whether its length is said or not.
        """
        # What the database knows of tokens is known from here on.
        self.assertEqual(self.send(request("GET", "/status", token="wrong")).answer().status, 401)
        for token in (b"", b"wrong", b"\xe9\xff", b"crq_al", b"crq_all\xe9", b"x" * 10_000):
            long = self.stranger(b"Content-Length: %d" % (STRANGERS_BODY + 1), token=token)
            answer = self.send(long).answer()
            self.assertEqual((answer.status, answer.json["field"]), (401, "Authorization"))
            self.assertIn("Bearer", answer.headers["www-authenticate"])
            self.wires.pop().hang_up()
        wire = self.send(self.stranger(TE) + b"1001\r\n" + b"x" * 4097)
        self.assertEqual(wire.answer().status, 401)
        self.assertEqual(self.door.woken, 0)

    def test_a_stranger_s_short_body_is_read(self) -> None:
        """
        A form for people may come from somebody who is not known yet; the handler says what it is.
        """
        body = b"x" * STRANGERS_BODY
        answer = self.send(self.stranger(b"Content-Length: %d" % len(body)) + body).answer()
        self.assertEqual(answer.status, 401)

    def test_a_known_caller_may_send_it(self) -> None:
        """
        The same body is read from a known caller.
        """
        body = BODY[:-1] + b" " * STRANGERS_BODY + b"}"
        answer = self.send(head(b"Content-Length: %d" % len(body)) + body).answer()
        self.assertEqual(answer.status, 202)


class FloodTests(Case):
    """
    More than anybody needs.
    """

    def test_headers_without_end(self) -> None:
        """
        Many headers, or long ones, are refused; memory holds no more of them than one head.
        """
        many = head(*[b"X-%d: 1" % n for n in range(600)], LENGTH)
        large = head(*[b"X-%d: %s" % (n, b"v" * 1000) for n in range(30)], LENGTH)
        for data, status in ((many, 400), (large, 400), (head(b"X: " + b"v" * 20_000), 431)):
            wire = self.connect()
            for start in range(0, len(data), 1000):
                wire.send(data[start : start + 1000])
            self.assertEqual(wire.answer().status, status)
            self.assertLess(len(wire.protocol._buffer), 20_000)

    def test_frames_are_bytes_too(self) -> None:
        """
        A body whose chunks are mostly size and extension ends when as much has come as is allowed
        on the wire, however little of it is body.
        """
        wire = self.send(head(TE))
        chunk = b"1;" + b"e" * 1000 + b"\r\nx\r\n"
        most = 2 * 8192 + FRAMING
        for _ in range(most // len(chunk) - 1):
            wire.send(chunk)
        self.assertEqual(wire.value(), b"")
        wire.send(chunk * 3)
        self.assertEqual(wire.answer().status, 413)

    def test_requests_sent_ahead_take_turns(self) -> None:
        """
        Of thousands of requests in one packet one is answered in a turn of the reactor; somebody
        who comes meanwhile is answered between them.
        """
        wire = self.connect()
        wire.protocol.dataReceived(request("GET", "/health/live", token=None) * 500)
        self.assertEqual(wire.value().count(b"HTTP/1.1 200"), 1)
        other = self.send(request("GET", "/health/live", token=None))
        self.assertEqual(other.answer().status, 200)
        while self.door.clock.getDelayedCalls()[0].getTime() <= self.door.clock.seconds():
            self.door.clock.advance(0)
        self.assertEqual(wire.value().count(b"HTTP/1.1 200"), 500)


class CrowdTests(Case):
    """
    The limit of connections.
    """

    def test_silent_ones_make_room(self) -> None:
        """
        However many connect and say nothing, there are never more than the limit; those that wait
        longest are let go, and whoever comes with a request is answered.
        """
        with capturedLogs() as logged:
            silent = [self.connect() for _ in range(50)]
            answer = self.send(request("GET", "/health/live", token=None)).answer()
        self.assertEqual(answer.status, 200)
        self.assertEqual(len(self.door.site.crowd), self.connections)
        gone = [wire for wire in silent if wire.disconnected]
        self.assertEqual(gone, silent[: 51 - self.connections])
        actions = [event["action"] for event in logged if "action" in event]
        self.assertEqual(actions.count("crowd"), 1)

    def test_a_turn_accepts_only_so_many(self) -> None:
        """
        However many have connected meanwhile, the next turn of the reactor takes few of them.
        """
        port = SimpleNamespace(numberAccepts=140)
        self.patch(Wire, "server", port)
        self.connect()
        self.assertEqual(port.numberAccepts, ACCEPTS)
        port.numberAccepts = 3
        self.connect()
        self.assertEqual(port.numberAccepts, 3)

    def test_a_known_caller_keeps_its_connection(self) -> None:
        """
        A caller whose token is known stays connected while strangers come and go.
        """
        known = self.send(head(LENGTH) + BODY)
        self.assertEqual(known.answer().status, 202)
        for _ in range(50):
            self.send(b"GET / HTTP/1.1\r\nHost: slow\r\nX: ")
        self.assertFalse(known.closed)
        known.send(head(LENGTH) + BODY)
        self.assertEqual(known.answer().status, 202)

    def test_a_slow_body_of_a_known_caller_outlasts_strangers(self) -> None:
        """
        Once its token has been read, a body may arrive in pieces while strangers come and go.
        """
        known = self.send(head(LENGTH) + BODY[:10])
        for _ in range(50):
            self.connect()
        known.send(BODY[10:])
        self.assertEqual(known.answer().status, 202)

    def test_when_all_are_being_answered_the_newcomer_is_told(self) -> None:
        """
        No request that is being answered is cut off: who finds no room is told to come again.
        """
        crowd = self.door.site.crowd
        for _ in range(self.connections):
            crowd.is_answered(self.connect().protocol)
        answer = self.connect().answer()
        self.assertEqual((answer.status, answer.headers["retry-after"]), (503, "1"))
        self.assertTrue(self.wires[-1].closed)
        self.assertEqual(len(crowd), self.connections)


class InjectionTests(Case):
    """
    What is stored is shown as data, wherever it is shown (F113).
    """

    HOSTILE = '<img src=x onerror=alert(1)></script>"><svg onload=x>{{7*7}}`\u2028\x1b[2J\r\nforged'

    def ask(self, path: str) -> Answer:
        """
        Ask as a known caller.
        """
        return self.send(request("GET", path)).answer()

    def texts(self, value: object) -> list[object]:
        """
        All values of a JSON value.
        """
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return [text for each in value for text in self.texts(each)]
        return [value]

    def test_every_stored_text_comes_back_as_data(self) -> None:
        """
        Each text column full of markup: the log, one execution and the status stay JSON, are not
        to be taken for a page by any browser, and carry the policy that would stop its scripts.
        """
        self.assertEqual(self.send(head(LENGTH) + BODY).answer().status, 202)
        texts = ["subdomain", "identifier", "error_message", "source_code", "worker_id"]
        self.door.pool.connection.execute(
            "UPDATE codeRunner_executions SET " + ", ".join(f"{name} = ?" for name in texts),
            [self.HOSTILE] * len(texts),
        )
        for path in ("/codeRunner/logs/data", "/codeRunner/executions/1", "/status"):
            answer = self.ask(path)
            self.assertEqual(answer.status, 200, path)
            self.assertIn("json", answer.headers["content-type"], path)
            self.assertEqual(answer.headers["x-content-type-options"], "nosniff")
            self.assertIn("default-src 'none'", answer.headers["content-security-policy"])
            self.assertNotIn(b"\x1b", answer.body)
            self.assertIn(self.HOSTILE, self.texts(answer.json), path)

    def test_what_is_refused_is_not_repeated_raw(self) -> None:
        """
        A path, a Host, a field name or a cursor with markup comes back in JSON at most.
        """
        for data in (
            request("GET", "/<script>alert(1)</script>"),
            b"GET /nothing HTTP/1.1\r\nHost: <script>\r\n\r\n",
            request("GET", "/codeRunner/logs/data?<script>=1"),
            request("GET", "/codeRunner/logs/data?cursor=<script>"),
        ):
            answer = self.send(data).answer()
            self.assertIn(answer.status, (400, 404, 422))
            self.assertIn("json", answer.headers["content-type"])
            self.assertEqual(answer.headers["x-content-type-options"], "nosniff")
