"""
Dispatching on a clock of our own: what is said of each end, and that no slot is ever lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest import mock

from treq.testing import RequestTraversalAgent
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectError, ConnectionLost, DNSLookupError
from twisted.internet.interfaces import IProtocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import URI, ResponseDone, ResponseFailed, ResponseNeverReceived
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer
from twisted.web.resource import Resource
from twisted.web.server import Request
from zope.interface import implementer
from zope.interface.verify import verifyObject

from crq.config import Config, ExecutorOptions
from crq.interfaces import ITransport
from crq.messages import Answered, DispatchResult, Lost, NotSent, Outcome
from crq.model import Claimed, Lane, Limits, Status
from crq.transport import IDLE_FOR, Transport

DEADLINE = 330.0
SUCCESS = Outcome(Status.SUCCESS)
NONCE = "nonce-0123456789abcdef"


def _claimed(number: int, account: str = "account") -> Claimed:
    return Claimed(number, number + 1000, Lane(account, "key"), 1, NONCE)


class _Response:
    """
    What an agent gives once the headers are there.
    """

    def __init__(self, code: int = 200, headers: dict[str, list[str]] | None = None) -> None:
        self.code = code
        self.headers = Headers(headers or {})
        self.connection = StringTransport()
        self.protocol: Any = None

    def deliverBody(self, protocol: IProtocol) -> None:  # noqa: N802
        self.protocol = protocol
        protocol.makeConnection(self.connection)

    def finish(self, body: bytes, reason: Exception | None = None) -> None:
        self.protocol.dataReceived(body)
        self.protocol.connectionLost(Failure(reason or ResponseDone()))


@implementer(IAgent)
class _Agent:
    """
    Keeps each request; a test decides what becomes of it.

    :ivar answer: makes the Deferred of the next request.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[Deferred[Any], IBodyProducer]] = []
        self.answer: Callable[[], Deferred[Any]] = Deferred

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,  # noqa: N803
    ) -> Deferred[Any]:
        assert bodyProducer is not None
        answer = self.answer()
        self.requests.append((answer, bodyProducer))
        return answer

    def connect(self, number: int = -1) -> bytes:
        """
        The connection is there: what it sends.
        """
        consumer = StringTransport()
        self.requests[number][1].startProducing(consumer).addErrback(lambda _: None)
        return bytes(consumer.value())

    def respond(self, number: int = -1, response: _Response | None = None) -> _Response:
        response = response or _Response()
        self.connect(number)
        self.requests[number][0].callback(response)
        return response


class _Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.agent = _Agent()
        self.transport = self.over(self.agent)

    def over(self, agent: IAgent, url: str = "http://executor:8081") -> Transport:
        return Transport(
            agent, self.clock, url, deadline=DEADLINE, answer_limit=1000, per_account=2
        )

    def dispatch(self, number: int = 1, account: str = "account") -> Deferred[DispatchResult]:
        return Deferred.fromCoroutine(self.transport.dispatch(_claimed(number, account)))

    def assertIdle(self) -> None:
        """
        No slot is taken, nothing is remembered, no timer runs.
        """
        self.assertEqual(self.transport._slots, {})
        self.assertEqual(self.clock.getDelayedCalls(), [])


def _outcome(number: int = 1) -> bytes:
    return json.dumps({"executionId": number, "status": "success"}).encode()


class _Executor(Resource):
    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bytes, dict[bytes, list[bytes]], Headers]] = []

    def render_POST(self, request: Request) -> bytes:
        assert request.args is not None
        self.seen.append((request.uri, request.args, request.requestHeaders))
        request.setHeader(b"Set-Cookie", b"session=1")
        if len(self.seen) == 3:
            request.setResponseCode(302)
            request.setHeader(b"Location", b"http://elsewhere/")
        return _outcome(int(request.args[b"jobId"][0]) - 1000)


class RequestTests(_Case):
    """
    What is sent, through Twisted's real client and server.
    """

    def setUp(self) -> None:
        super().setUp()
        self.executor = _Executor()

    def send(self, url: str, number: int = 1) -> DispatchResult:
        self.transport = self.over(RequestTraversalAgent(self.executor), url)
        return self.successResultOf(self.dispatch(number))

    def test_job_and_nonce_are_posted_as_a_form(self) -> None:
        """
        The wire format the existing executor speaks, at its path, below the configured address.
        """
        for url, path in (
            ("http://executor:8081", b"/codeRunner/runAsync"),
            ("http://executor/", b"/codeRunner/runAsync"),
            ("http://executor/front", b"/front/codeRunner/runAsync"),
        ):
            self.executor.seen.clear()
            self.assertEqual(self.send(url, 42), Answered(200, SUCCESS))
            ((uri, fields, headers),) = self.executor.seen
            self.assertEqual(uri, path)
            self.assertEqual(fields, {b"jobId": [b"1042"], b"asyncNonce": [NONCE.encode()]})
            self.assertEqual(
                headers.getRawHeaders("content-type"), ["application/x-www-form-urlencoded"]
            )

    def test_cookies_are_not_sent_back(self) -> None:
        """
        No execution is told apart by what another one's answer set.
        """
        self.transport = self.over(RequestTraversalAgent(self.executor))
        for number in (1, 2):
            self.successResultOf(self.dispatch(number))
        self.assertEqual([each[2].hasHeader("cookie") for each in self.executor.seen], [False] * 2)

    def test_a_redirect_is_an_answer(self) -> None:
        """
        F107: its status is told, and no second request is made.
        """
        self.transport = self.over(RequestTraversalAgent(self.executor))
        results = [self.successResultOf(self.dispatch(number)) for number in (1, 2, 3)]
        assert isinstance(results[2], Answered)
        self.assertEqual(results[2].http_status, 302)
        self.assertEqual(len(self.executor.seen), 3)

    def test_retry_after_is_handed_over(self) -> None:
        """
        The header comes with the answer as it was sent, bytes that are no text too; without one
        there is none.
        """
        for header, told in (([b"120"], "120"), ([b"s\xf6on", b"2"], "s\xf6on"), ([], None)):
            transport = self.over(self.agent)
            answer = Deferred.fromCoroutine(transport.dispatch(_claimed(1)))
            response = _Response(503)
            response.headers.setRawHeaders(b"Retry-After", header)
            self.agent.connect()
            self.agent.requests[-1][0].callback(response)
            response.finish(b"later")
            found = self.successResultOf(answer)
            assert isinstance(found, Answered)
            self.assertEqual((found.http_status, found.retry_after), (503, told))


class ResultTests(_Case):
    """
    Answered, NotSent or Lost. See note [Sent or not].
    """

    def test_provides_the_interface(self) -> None:
        """
        The seam is kept.
        """
        verifyObject(ITransport, self.transport)

    def test_a_whole_answer(self) -> None:
        """
        Headers and body have come.
        """
        result = self.dispatch()
        response = self.agent.respond()
        self.assertNoResult(result)
        response.finish(_outcome())
        self.assertEqual(self.successResultOf(result), Answered(200, SUCCESS))
        self.assertIdle()

    def test_an_answer_that_ends_with_the_connection(self) -> None:
        """
        A server that gives no length has said all when it hangs up.
        """
        result = self.dispatch()
        self.agent.respond().finish(_outcome(), PotentialDataLoss())
        self.assertEqual(self.successResultOf(result), Answered(200, SUCCESS))

    def test_what_fails_before_a_connection_was_not_sent(self) -> None:
        """
        Refused, no name, no route.
        """
        for error in (ConnectError(string="refused"), DNSLookupError("no such host")):
            result = self.dispatch()
            self.agent.requests[-1][0].errback(error)
            answer = self.successResultOf(result)
            assert isinstance(answer, NotSent)
            self.assertIn(type(error).__name__, answer.detail)
        self.assertIdle()

    def test_what_fails_after_a_connection_is_lost(self) -> None:
        """
        Reset before headers, in the headers, in the body: who knows whether it began.
        """
        lost = ConnectionLost("reset")
        for error in (ResponseNeverReceived([Failure(lost)]), ResponseFailed([Failure(lost)])):
            result = self.dispatch()
            self.agent.connect()
            self.agent.requests[-1][0].errback(error)
            answer = self.successResultOf(result)
            assert isinstance(answer, Lost)
            self.assertEqual(answer.detail[:16], "ConnectionLost: ")
        result = self.dispatch()
        self.agent.respond().finish(b'{"exec', ResponseFailed([Failure(lost)]))
        self.assertIsInstance(self.successResultOf(result), Lost)
        self.assertIdle()

    def test_an_answer_without_end(self) -> None:
        """
        At the limit the connection is cut; the status is known, an outcome is not read.
        """
        result = self.dispatch()
        response = self.agent.respond(response=_Response(500))
        for _ in range(10):
            response.protocol.dataReceived(b"x" * 100)
        self.assertNoResult(result)
        response.protocol.dataReceived(b"x" * 10_000_000)
        answer = self.successResultOf(result)
        assert isinstance(answer, Answered)
        self.assertEqual((answer.http_status, answer.outcome), (500, None))
        self.assertIn("more than 1000 bytes", answer.detail)
        self.assertTrue(response.connection.disconnecting)
        self.assertLess(len(response.protocol._data), 1002)
        response.finish(b"and more", ResponseFailed([Failure(ConnectionLost())]))
        self.assertIdle()

    def test_the_nonce_is_in_no_text(self) -> None:
        """
        Neither results nor the log carry it, whatever fails.
        """
        results = []
        with capturedLogs() as logged:
            for error in (ConnectError(string="refused"), ValueError("odd"), None):
                result = self.dispatch()
                if error is None:
                    self.clock.advance(DEADLINE)
                else:
                    self.agent.requests[-1][0].errback(error)
                results.append(self.successResultOf(result))
        self.assertNotIn(NONCE, repr(results) + repr(logged) + repr(self.agent.requests))


class DeadlineTests(_Case):
    """
    One deadline over everything. See note [One deadline].
    """

    def test_while_connecting(self) -> None:
        """
        Nothing has left.
        """
        result = self.dispatch()
        self.clock.advance(DEADLINE - 1)
        self.assertNoResult(result)
        self.clock.advance(1)
        self.assertEqual(
            self.successResultOf(result), NotSent(f"no whole answer within {DEADLINE:g} s")
        )
        self.assertIdle()

    def test_while_waiting_for_headers(self) -> None:
        """
        The request has left and is aborted.
        """
        cancelled: list[Deferred[Any]] = []
        self.agent.answer = lambda: Deferred(cancelled.append)
        result = self.dispatch()
        self.agent.connect()
        self.clock.advance(DEADLINE)
        self.assertIsInstance(self.successResultOf(result), Lost)
        self.assertEqual(len(cancelled), 1)
        self.assertIdle()

    def test_while_the_body_drips(self) -> None:
        """
        F32: headers at once and a byte now and then do not move the deadline.
        """
        result = self.dispatch()
        response = self.agent.respond()
        for _ in range(33):
            self.assertNoResult(result)
            self.clock.advance(10)
            response.protocol.dataReceived(b" ")
        self.assertIsInstance(self.successResultOf(result), Lost)
        self.assertTrue(response.connection.disconnecting)
        self.assertIdle()

    def test_begins_when_the_account_has_a_slot(self) -> None:
        """
        Waiting behind one's own account takes nothing from a dispatch's time.
        """
        results = [self.dispatch(number) for number in (1, 2, 3)]
        self.clock.advance(DEADLINE - 1)
        self.agent.respond(0).finish(_outcome(1))
        self.clock.advance(DEADLINE - 1)
        self.assertNoResult(results[2])
        self.agent.respond(2).finish(_outcome(3))
        self.assertEqual(self.successResultOf(results[2]), Answered(200, SUCCESS))

    def test_a_connection_that_comes_too_late_sends_nothing(self) -> None:
        """
        Of what was said not to have left, nothing leaves afterwards.
        """
        self.agent.answer = lambda: Deferred(_raising)
        self.dispatch()
        self.clock.advance(DEADLINE)
        self.assertEqual(self.agent.connect(), b"")
        self.flushLoggedErrors(RuntimeError)


def _raising(_: Deferred[Any]) -> None:
    raise RuntimeError("a canceller with a fault")


class SlotTests(_Case):
    """
    The semaphores.
    """

    def test_an_account_has_so_many_at_once(self) -> None:
        """
        A third dispatch waits for a slot of its account; another account's does not.
        """
        results = [self.dispatch(number) for number in (1, 2, 3)]
        self.dispatch(4, "another")
        self.assertEqual(len(self.agent.requests), 3)
        self.agent.respond(0).finish(_outcome(1))
        self.successResultOf(results[0])
        self.assertEqual(len(self.agent.requests), 4)
        self.assertEqual(set(self.transport._slots), {"account", "another"})

    def test_other_caps_count_from_now_on(self) -> None:
        """
        A raised cap lets the next dispatch go at once; what was on its way ends as it would have.
        """
        results = [self.dispatch(number) for number in (1, 2)]
        self.transport.limit(Limits(per_account=3))
        results += [self.dispatch(number) for number in (3, 4, 5, 6)]
        self.assertEqual(len(self.agent.requests), 5)
        for number in range(5):
            self.agent.respond(number).finish(_outcome(number + 1))
        self.agent.respond(5).finish(_outcome(6))
        for result in results:
            self.assertEqual(self.successResultOf(result), Answered(200, SUCCESS))
        self.assertIdle()

    def test_accounts_leave_no_trace(self) -> None:
        """
        A thousand accounts that came and went take no memory.
        """
        self.agent.answer = lambda: fail(ConnectError())
        for number in range(1000):
            self.successResultOf(self.dispatch(number, f"account {number}"))
        self.assertIdle()

    def test_no_end_keeps_a_slot(self) -> None:
        """
        F34: dispatches that never fire, whose canceller fails, that fail at once in either way, or
        whose answer fires after the deadline: then four others can start.
        """

        def at_once() -> Deferred[Any]:
            raise OSError("no more descriptors")

        late: Deferred[Any] = Deferred(lambda _: None)
        for answer, expected in (
            (lambda: Deferred(_raising), NotSent),
            (lambda: Deferred(lambda _: None), NotSent),
            (lambda: late, NotSent),
            (Deferred, NotSent),
            (lambda: fail(ConnectError()), NotSent),
            (lambda: fail(ValueError("odd")), NotSent),
            (at_once, NotSent),
        ):
            self.agent.answer = answer
            result = self.dispatch()
            self.clock.advance(DEADLINE)
            self.assertIsInstance(self.successResultOf(result), expected)
            self.assertIdle()
        self.agent.answer = Deferred
        self.agent.requests.clear()
        for account in ("account", "another"):
            for number in (1, 2):
                self.dispatch(number, account)
        self.assertEqual(len(self.agent.requests), 4)
        self.flushLoggedErrors(RuntimeError)

    def test_a_fault_after_sending_keeps_no_slot(self) -> None:
        """
        The same once the request has left: the row decides.
        """
        self.agent.answer = lambda: Deferred(_raising)
        result = self.dispatch()
        self.agent.connect()
        self.clock.advance(DEADLINE)
        self.assertIsInstance(self.successResultOf(result), Lost)
        self.assertIdle()
        # The answer comes after all: nobody waits for it.
        self.agent.requests[0][0].callback(_Response())
        self.flushLoggedErrors(RuntimeError)

    def test_five_thousand_wait(self) -> None:
        """
        F35: all are served, in order, when the two in front end; the stack does not grow.
        """
        results = [self.dispatch(number) for number in range(5000)]
        self.assertEqual(len(self.agent.requests), 2)
        self.agent.answer = lambda: fail(ConnectError())
        self.agent.requests[0][0].errback(ConnectError())
        self.agent.requests[1][0].errback(ConnectError())
        for result in results:
            self.assertIsInstance(self.successResultOf(result), NotSent)
        self.assertEqual(len(self.agent.requests), 5000)
        self.assertIdle()


class CancelTests(_Case):
    """
    Cancelling aborts.
    """

    def test_while_waiting_for_a_slot(self) -> None:
        """
        It gives its place in the line back and takes nobody else's.
        """
        results = [self.dispatch(number) for number in (1, 2, 3, 4)]
        results[2].cancel()
        self.assertIsInstance(self.successResultOf(results[2]), NotSent)
        self.agent.respond(0).finish(_outcome(1))
        self.agent.respond(1).finish(_outcome(2))
        self.agent.respond(2).finish(_outcome(4))
        self.assertEqual(self.successResultOf(results[3]), Answered(200, SUCCESS))
        self.assertIdle()

    def test_while_connecting(self) -> None:
        """
        Nothing has left, and nothing will.
        """
        result = self.dispatch()
        result.cancel()
        self.assertEqual(self.successResultOf(result), NotSent("cancelled"))
        self.assertEqual(self.agent.connect(), b"")
        self.assertIdle()

    def test_while_the_executor_works(self) -> None:
        """
        The connection is aborted, before and after the headers.
        """
        result = self.dispatch()
        self.agent.connect()
        result.cancel()
        self.assertEqual(self.successResultOf(result), Lost("cancelled"))
        result = self.dispatch()
        response = self.agent.respond()
        result.cancel()
        self.assertEqual(self.successResultOf(result), Lost("cancelled"))
        self.assertTrue(response.connection.disconnecting)
        self.assertIdle()


class ConstructionTests(SynchronousTestCase):
    """
    `Transport.to_executor` and `close`.
    """

    def test_the_pool_is_set_up_for_dispatching(self) -> None:
        """
        One connection per slot, none kept for long, no request repeated by the library.
        """
        config = Config(executor=ExecutorOptions(url="https://executor/"))
        with mock.patch("crq.transport.Agent") as agent:
            Transport.to_executor(Clock(), config)
        pool = agent.usingEndpointFactory.call_args.kwargs["pool"]
        self.assertTrue(pool.persistent)
        self.assertEqual(pool.maxPersistentPerHost, config.limits.in_flight)
        self.assertEqual(pool.cachedConnectionTimeout, IDLE_FOR)
        self.assertIs(pool.retryAutomatically, False)

    def test_the_way_is_made_once(self) -> None:
        """
        The agent gets the same endpoint each time it asks, over TLS where the address says so.
        """
        from twisted.internet import reactor  # it can look up names; nothing is looked up

        with mock.patch("crq.transport.Agent") as agent:
            Transport.to_executor(reactor, Config())
        factory = agent.usingEndpointFactory.call_args.args[1]
        plain, secure = (URI.fromBytes(b"http://x/a"), URI.fromBytes(b"https://x/a"))
        self.assertIs(factory.endpointForURI(plain), factory.endpointForURI(plain))
        self.assertIsInstance(factory.endpointForURI(plain), HostnameEndpoint)
        self.assertNotIsInstance(factory.endpointForURI(secure), HostnameEndpoint)

    def test_close_waits_for_nobody(self) -> None:
        """
        A peer that says no goodbye, or a fault in it, does not hold up the end.
        """
        clock, pool = Clock(), mock.Mock()
        transport = Transport(
            _Agent(), clock, "http://x", deadline=1, answer_limit=1, per_account=1, pool=pool
        )
        pool.closeCachedConnections.side_effect = [succeed(None), fail(ValueError()), Deferred()]
        for _ in range(2):
            self.assertIsNone(self.successResultOf(Deferred.fromCoroutine(transport.close())))
        closed = Deferred.fromCoroutine(transport.close())
        self.assertNoResult(closed)
        clock.advance(10)
        self.assertIsNone(self.successResultOf(closed))
