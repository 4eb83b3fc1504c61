"""
The wire: how much may come, and how long it may take.
"""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from crq.web.wire import FLUSH, LINGER
from tests.door import Door, Wire, request

LIMIT = 4096  # bytes, of the doors here
SECONDS = 30.0  # the default of web.request_seconds
JSON = [("Content-Type", "application/json")]
BODY = json.dumps({"subdomain": "acme", "apikey": "k", "source_code": "x = 1"}).encode()
SUBMIT = request("POST", "/codeRunner", BODY, headers=JSON)


class Case(SynchronousTestCase):
    """
    With a door and connections to it.
    """

    def setUp(self) -> None:
        self.wires: list[Wire] = []
        self.door = Door(body_limit=LIMIT)
        self.addCleanup(self.door.close)
        self.wire = self.connect()

    def tearDown(self) -> None:
        for wire in self.wires:
            wire.hang_up()
        self.assertEqual(self.door.clock.getDelayedCalls(), [])

    def connect(self) -> Wire:
        """
        One more connection; it leaves no timer behind when it ends.
        """
        wire = Wire(self.door)
        self.wires.append(wire)
        return wire

    def head(self, *lines: bytes) -> bytes:
        """
        The head of a submission.
        """
        return b"\r\n".join(
            [b"POST /codeRunner HTTP/1.1", b"Host: door", b"Authorization: Bearer crq_all"]
            + [b"Content-Type: application/json", *lines, b"", b""]
        )


class SizeTests(Case):
    """
    Bodies without limit (F114).
    """

    def assert_refused(self) -> None:
        """
        Check that 413 was answered, and that the connection ends soon whatever still comes.
        """
        answer = self.wire.answer()
        self.assertEqual((answer.status, answer.json["field"]), (413, "body"))
        self.assertEqual(answer.headers["connection"], "close")
        self.wire.send(b"x" * 100_000)
        self.assertEqual(self.wire.value(), b"")
        self.door.clock.advance(LINGER)
        self.assertTrue(self.wire.closed)

    def test_announced_body_is_refused_before_it_comes(self) -> None:
        """
        A Content-Length of 10 GB is answered at once: no byte of the body has been read.
        """
        self.wire.send(self.head(b"Content-Length: 10000000000"))
        self.assert_refused()

    def test_no_leave_to_continue_is_given(self) -> None:
        """
        A client that asks first is told 413, and not 100.
        """
        self.wire.send(self.head(b"Content-Length: 10000000000", b"Expect: 100-continue"))
        self.assertNotIn(b"100 Continue", self.wire.value())
        self.assert_refused()

    def test_body_that_grows_is_refused_at_its_limit(self) -> None:
        """
        Chunks are refused with the byte that is one too many; what was kept is not more than that.
        """
        self.wire.send(self.head(b"Transfer-Encoding: chunked"))
        for _ in range(4):
            self.wire.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        self.assertEqual(self.wire.value(), b"")
        kept = self.wire.protocol.requests[0].content
        self.wire.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        self.assertLessEqual(kept.seek(0, 2), LIMIT)
        self.assert_refused()

    def test_end_of_a_refused_body_is_not_a_request(self) -> None:
        """
        When the rest of it arrives all the same, nothing is admitted.
        """
        long = BODY[:-1] + b" " * LIMIT + b"}"
        head = self.head(b"Content-Length: %d" % len(long))
        for pieces in ((head, long), (head + long,), (head + long + SUBMIT,)):
            self.wire = self.connect()
            self.wire.send(*pieces)
            self.assert_refused()
        self.assertEqual(self.door.woken, 0)

    def test_limit_itself_is_allowed(self) -> None:
        """
        A body of exactly the limit is admitted, by length and in chunks.
        """
        body = BODY[:-1] + b" " * (LIMIT - len(BODY)) + b"}"
        self.wire.send(self.head(b"Content-Length: %d" % len(body)), body)
        self.assertEqual(self.wire.answer().status, 202)
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        self.wire.send(self.head(b"Transfer-Encoding: chunked"), chunk)
        self.assertEqual(self.wire.answer().status, 202)

    def test_lengths_that_contradict_each_other(self) -> None:
        """
        Two lengths, or a length with chunks, are refused and the connection ends: no smuggling.
        """
        for lines in (
            (b"Content-Length: 5", b"Content-Length: 6"),
            (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
            (b"Content-Length: -1",),
            (b"Content-Length: 0x10",),
        ):
            wire = self.connect()
            wire.send(self.head(*lines), b"hello GET /status HTTP/1.1\r\n\r\n")
            self.assertEqual(wire.answer().status, 400, lines)
            self.door.clock.advance(LINGER)
            self.assertTrue(wire.closed)

    def test_forms_are_not_parsed_before_the_token_is_known(self) -> None:
        """
        A form of many fields, or in many parts, costs an unknown caller's request nothing.
        """
        for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=b"):
            wire = self.connect()
            body = b"a=1&" * 1000
            wire.send(request("POST", "/codeRunner", body, None, [("Content-Type", kind)]))
            self.assertEqual(wire.answer().status, 401)


class DeadlineTests(Case):
    """
    Slow senders (F116): an idle time-out is no defence against a byte now and then.
    """

    def drip(self, data: bytes, every: float) -> None:
        """
        Send one byte after the other.
        """
        for offset in range(len(data)):
            self.wire.send(data[offset : offset + 1])
            self.door.clock.advance(every)
            if self.wire.closed:
                return

    def test_dripping_headers_end_at_the_deadline(self) -> None:
        """
        However regularly bytes come, the connection ends when its time is over.
        """
        self.drip(b"GET /status HTTP/1.1\r\nHost: " + b"x" * 100, every=5)
        self.assertTrue(self.wire.closed)
        self.assertEqual(self.door.clock.seconds(), SECONDS)

    def test_dripping_body_ends_at_the_deadline(self) -> None:
        """
        The deadline runs from the first byte of the request to its last.
        """
        self.wire.send(self.head(b"Content-Length: 1000"))
        self.drip(b"x" * 1000, every=5)
        self.assertTrue(self.wire.closed)
        self.assertEqual((self.door.clock.seconds(), self.door.woken), (SECONDS, 0))

    def test_silent_connections_end(self) -> None:
        """
        Who connects and says nothing is let go; who does not even take note is cut off.
        """
        self.door.clock.advance(SECONDS)
        self.assertTrue(self.wire.disconnecting)
        self.assertFalse(self.wire.disconnected)
        self.door.clock.advance(FLUSH)
        self.assertTrue(self.wire.disconnected)

    def test_each_request_has_its_own_time(self) -> None:
        """
        A connection that is kept alive starts anew with each answer, and ends when it falls silent.
        """
        for _ in range(3):
            self.door.clock.advance(SECONDS - 1)
            self.wire.send(SUBMIT)
            self.assertEqual(self.wire.answer().status, 202)
        self.assertFalse(self.wire.closed)
        self.door.clock.advance(SECONDS)
        self.assertTrue(self.wire.closed)

    def test_two_requests_at_once_are_both_answered(self) -> None:
        """
        What is sent ahead is answered in order.
        """
        self.wire.send(SUBMIT + SUBMIT)
        answers = (self.wire.answer(), self.wire.answer())
        self.assertEqual([answer.json["executionId"] for answer in answers], [1, 2])

    def test_close_is_obeyed(self) -> None:
        """
        A client that wants one answer gets it, and the connection ends.
        """
        self.wire.send(request("GET", "/health/live", headers=[("Connection", "close")]))
        self.assertEqual(self.wire.answer().status, 200)
        self.assertTrue(self.wire.closed)


class SilenceTests(SynchronousTestCase):
    """
    What is not done.
    """

    def test_no_timer_runs_for_an_access_log(self) -> None:
        """
        A site that nobody asks does nothing: no clock ticks in it, no line is written.
        """
        door = Door()
        self.addCleanup(door.close)
        door.site.doStart()
        self.assertEqual(door.clock.getDelayedCalls(), [])
        door.site.doStop()

    def test_only_http_1_1_is_offered(self) -> None:
        """
        TLS clients are not led to HTTP/2, whose streams know none of these limits.
        """
        door = Door()
        self.addCleanup(door.close)
        self.assertEqual(door.site.acceptableProtocols(), [b"http/1.1"])
