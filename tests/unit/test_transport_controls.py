"""
What a dispatch carries of the caller's trace, and how it keeps to caps that operators set.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer

from crq.model import Limits
from tests.unit.test_transport import _Agent, _Case, _claimed

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TraceTests(_Case):
    """
    The traceparent header.
    """

    def setUp(self) -> None:
        """
        An agent that keeps headers.
        """
        super().setUp()
        sent: list[Headers] = []
        self.sent = sent

        class Agent(_Agent):
            def request(
                self,
                method: bytes,
                uri: bytes,
                headers: Headers | None = None,
                bodyProducer: IBodyProducer | None = None,  # noqa: N803
            ) -> Deferred[Any]:
                assert headers is not None
                sent.append(headers)
                return super().request(method, uri, headers, bodyProducer)

        self.transport = self.over(Agent())

    def carried(self, trace: str | None) -> Any:
        """
        What a dispatch carries.
        """
        claimed = evolve(_claimed(len(self.sent)), traceparent=trace)
        Deferred.fromCoroutine(self.transport.dispatch(claimed)).addBoth(lambda _: None)
        self.clock.advance(0)
        return self.sent[-1].getRawHeaders("traceparent")

    def test_it_is_sent_on(self) -> None:
        """
        As it is stored, and only where there is one.
        """
        self.assertEqual(self.carried(TRACE), [TRACE])
        self.clock.advance(400)
        self.assertIsNone(self.carried(None))

    def test_nothing_else_gets_into_the_headers(self) -> None:
        """
        A row that another program wrote is not believed.
        """
        for odd in ("x\r\nX-Evil: 1", "é", "00-" + "0" * 32 + "-" + "1" * 16 + "-00"):
            self.assertIsNone(self.carried(odd))
            self.clock.advance(400)


class CapTests(_Case):
    """
    The second fence, under caps of operators.
    """

    def test_an_account_with_a_cap_of_its_own(self) -> None:
        """
        More than usual for one, fewer for another; the others as configured.
        """
        self.transport.limit(Limits(per_account=2, accounts={"more": 3, "less": 1}))
        for account, allowed in (("more", 3), ("less", 1), ("usual", 2)):
            before = len(self.agent.requests)
            for number in range(5):
                self.dispatch(number, account).addBoth(lambda _: None)
            self.assertEqual(len(self.agent.requests) - before, allowed)
        self.clock.advance(400)
