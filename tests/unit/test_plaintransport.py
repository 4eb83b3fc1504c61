"""
The way to a plain endpoint: what is said when there is nothing to send, and what is sent.
"""

from __future__ import annotations

import json
from typing import Any

from treq.testing import RequestTraversalAgent
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import Request
from zope.interface.verify import verifyObject

from crq.database import CommitUnknown
from crq.interfaces import ITransport
from crq.messages import Answered, DispatchResult, NotSent, Parcel
from crq.model import Claimed, Lane, Limits
from crq.plaintransport import PlainTransport
from crq.sealing import Unsealable
from crq.transport import Transport

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class _Pool:
    """
    Where parcels are read.

    :ivar fault: is raised instead.
    """

    def __init__(self) -> None:
        self.reads: list[tuple[int, ...]] = []
        self.fault: Exception | None = None
        self.waits: Deferred[Any] | None = None

    def read(self, function: Any, execution_ids: Any) -> Deferred[Any]:
        self.reads.append(tuple(execution_ids))
        if self.waits is not None:
            return self.waits
        if self.fault is not None:
            return fail(self.fault)
        return succeed(
            {
                number: Parcel(number, "a", "acme", None, f"sealed {number}", "x", None, 0)
                for number in execution_ids
                if number < 100
            }
        )


class _Endpoint(Resource):
    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bytes, dict[str, Any], dict[bytes, bytes | None]]] = []

    def render_POST(self, request: Request) -> bytes:
        names = (b"authorization", b"idempotency-key", b"content-type", b"traceparent")
        headers = {name: request.getHeader(name) for name in names}
        assert request.content is not None
        self.seen.append((request.uri, json.loads(request.content.read()), headers))
        request.setResponseCode(201)
        return b"fine"


class PlainTransportTests(SynchronousTestCase):
    """
    `PlainTransport`.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.pool = _Pool()
        self.endpoint = _Endpoint()
        self.agent = RequestTraversalAgent(self.endpoint)
        self.transport = self.over("https://endpoint.example/run/?a=1")

    def over(self, url: str, **more: Any) -> PlainTransport:
        transport = Transport(
            self.agent,
            self.clock,
            url,
            deadline=10.0,
            answer_limit=1000,
            per_account=2,
            path=None,
        )
        pool: Any = self.pool
        return PlainTransport(
            transport, pool, self.clock, more.get("unseal"), more.get("token", "")
        )

    def dispatch(self, *numbers: int) -> list[Deferred[DispatchResult]]:
        answers = [
            Deferred.fromCoroutine(
                self.transport.dispatch(
                    Claimed(number, 0, Lane(f"account {number}", "key"), 1, "", TRACE)
                )
            )
            for number in numbers
        ]
        self.clock.advance(0)
        self.agent.flush()
        return answers

    def test_what_is_sent(self) -> None:
        """
        One read for all that were claimed together; JSON to the URL as it is configured, slash and
        query too, with the execution's number as the key and the caller's trace.
        """
        verifyObject(ITransport, self.transport)
        sent: list[int] = []
        self.transport.sent = lambda claimed: sent.append(claimed.execution_id)
        for answer in self.dispatch(1, 2):
            self.assertEqual(self.successResultOf(answer), Answered(201, detail="fine"))
        self.assertEqual(self.pool.reads, [(1, 2)])
        self.assertEqual(sent, [1, 2])
        uri, body, headers = self.endpoint.seen[0]
        self.assertEqual(uri, b"/run/?a=1")
        self.assertEqual((body["executionId"], body["subdomain"]), (1, "acme"))
        self.assertNotIn("apikey", body)
        self.assertEqual(
            headers,
            {
                b"authorization": None,
                b"idempotency-key": b"1",
                b"content-type": b"application/json",
                b"traceparent": TRACE.encode(),
            },
        )

    def test_secrets_go_only_when_they_are_to(self) -> None:
        """
        The token in its header, the API key, opened, in the body.
        """
        self.transport = self.over(
            "https://endpoint.example", unseal=lambda text: f"open {text}", token="t0ken"
        )
        self.dispatch(1)
        _, body, headers = self.endpoint.seen[0]
        self.assertEqual(body["apikey"], "open sealed 1")
        self.assertEqual(headers[b"authorization"], b"Bearer t0ken")

    def test_what_cannot_be_sent(self) -> None:
        """
        A key that cannot be opened and a row that is gone speak of the row; nothing is sent.
        """

        def unseal(sealed: str | None) -> str:
            raise Unsealable("the sealed API key cannot be opened")

        self.transport = self.over("https://endpoint.example", unseal=unseal)
        one, gone = (self.successResultOf(each) for each in self.dispatch(1, 100))
        self.assertEqual(one, NotSent("the sealed API key cannot be opened", for_good=True))
        self.assertEqual(gone, NotSent("its row is gone", for_good=True))
        self.assertEqual(self.endpoint.seen, [])

    def test_a_reading_that_fails_has_sent_nothing(self) -> None:
        """
        An outage, a fault of ours and a dispatch that is given up are all "not sent": the row may
        go back.
        """
        self.pool.fault = CommitUnknown()
        (answer,) = self.dispatch(1)
        self.assertEqual(
            self.successResultOf(answer), NotSent("what is to be sent was not read: CommitUnknown")
        )
        self.pool.fault = KeyError("a bug")
        (answer,) = self.dispatch(1)
        self.assertEqual(
            self.successResultOf(answer), NotSent("what is to be sent was not read: KeyError")
        )
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)
        self.pool.waits = Deferred()
        (answer,) = self.dispatch(1)
        answer.cancel()
        self.assertEqual(self.successResultOf(answer), NotSent("cancelled while it was read"))
        self.assertEqual(self.endpoint.seen, [])

    def test_caps_and_the_end_are_those_of_the_transport(self) -> None:
        """
        Changed caps reach it, and it lets go of its connections.
        """
        self.transport.limit(Limits(in_flight=9, per_account=7))
        self.assertEqual(self.transport._transport._per_account, 7)
        self.successResultOf(Deferred.fromCoroutine(self.transport.close()))
