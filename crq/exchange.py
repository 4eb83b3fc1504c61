"""
One request to the executor and its answer.

# Note [Sent or not]

The request's body knows whether it was asked for: the connection asks once it is there, and sends
headers and body in one go. Before that nothing can have left (refused, no name, no route, deadline
while connecting): `NotSent`. After it only a whole answer counts (`Answered`); everything else is
`Lost`, and the row says whether the execution began. A dispatch that was given up withdraws its
body, so that a connection which comes too late sends nothing.

# Note [One deadline]

treq's own time-out ends with the headers. Here one timer runs over connection, headers and body.
When it fires a result is given even if the connection does not react to being aborted: the slot is
free in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IConsumer, IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from crq import crashpoints
from crq.answers import read_answer, shown
from crq.frugal import NO_COOKIES
from crq.messages import Answered, DispatchResult, Lost, NotSent
from crq.model import Claimed
from crq.traceparent import traceparent

if TYPE_CHECKING:
    from hyperlink import EncodedURL
    from treq.client import HTTPClient


@frozen
class Letter:
    """
    What one request carries besides the trace.

    :ivar leaves: called when its first byte is about to leave; must not raise.
    """

    body: bytes = field(repr=False)
    headers: Mapping[bytes, bytes] = field(repr=False)
    leaves: Callable[[], None] = lambda: None


class Exchange:
    """
    One request and its answer under one deadline. See the notes.
    """

    def __init__(
        self,
        client: HTTPClient,
        url: EncodedURL,
        answer_limit: int,
        claimed: Claimed,
        letter: Letter,
    ) -> None:
        self._client = client
        self._url = url
        self._answer_limit = answer_limit
        self._claimed = claimed
        self._headers = Headers({name: [value] for name, value in letter.headers.items()})
        trace = traceparent(claimed.traceparent)  # again: the row may be another program's
        if trace is not None:
            self._headers.setRawHeaders(b"traceparent", [trace.encode("ascii")])
        self._form = _Form(letter)
        self._given_up: str | None = None
        self._result: Deferred[DispatchResult] = Deferred(lambda _: self._give_up("cancelled"))

    def begin(self, clock: IReactorTime, deadline: float) -> Deferred[DispatchResult]:
        """
        Send it. What is returned fires by the deadline, whatever happens, and never fails.
        """
        self._timer = clock.callLater(
            deadline, self._give_up, f"no whole answer within {deadline:g} s"
        )
        self._talk = Deferred.fromCoroutine(self._post())
        self._talk.addBoth(self._ended)
        return self._result

    async def _post(self) -> Answered:
        response = await self._client.post(
            self._url,
            data=self._form,
            headers=self._headers,
            cookies=NO_COOKIES,
            allow_redirects=False,  # the answer is the answer; a second host never sees a nonce
            unbuffered=True,
        )
        crashpoints.reached("answer begins")
        body = _Body(self._answer_limit)
        response.deliverBody(body)
        data = await body.finished
        crashpoints.reached("answer whole")
        location = response.headers.getRawHeaders(b"Location", [b""])[0]
        asked = response.headers.getRawHeaders(b"Retry-After", [None])[0]
        return read_answer(self._claimed, response.code, data, self._answer_limit, location, asked)

    def _give_up(self, why: str) -> None:
        self._given_up = why
        self._form.withdraw()
        self._talk.cancel()  # it ends at once, even if whoever it waits for fails to cancel

    def _ended(self, answer: Answered | Failure) -> None:
        if self._timer.active():
            self._timer.cancel()
        if not isinstance(answer, Failure):
            self._result.callback(answer)
            return
        detail = self._given_up or _why(answer)
        self._result.callback(Lost(detail) if self._form.begun else NotSent(detail))


@implementer(IBodyProducer)
class _Form:
    """
    The body of the request, and whether it was asked for.
    """

    def __init__(self, letter: Letter) -> None:
        self._body = letter.body
        self._leaves = letter.leaves
        self._withdrawn = False
        self.length = len(self._body)
        self.begun = False

    def withdraw(self) -> None:
        """
        Send nothing from now on.
        """
        self._withdrawn = True

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:  # noqa: N802
        """
        Write everything at once.
        """
        if self._withdrawn:
            return fail(CancelledError())
        crashpoints.reached("request begins")
        self.begun = True
        self._leaves()
        consumer.write(self._body)
        return succeed(None)

    def pauseProducing(self) -> None:  # noqa: N802
        """
        Nothing is left to pause.
        """

    resumeProducing = stopProducing = pauseProducing  # noqa: N815


class _Body(Protocol):
    """
    Collects an answer's body, up to a limit.

    :ivar finished: fires with at most one byte more than the limit; the connection is aborted then.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.finished: Deferred[bytes] = Deferred(lambda _: self._abort())

    def dataReceived(self, data: bytes) -> None:
        if self.finished.called:
            return
        self._data += data[: self._limit + 1 - len(self._data)]
        if len(self._data) > self._limit:
            self.finished.callback(bytes(self._data))
            self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.finished.called:
            return
        # A body without a length ends with the connection.
        if reason.check(ResponseDone, PotentialDataLoss):
            self.finished.callback(bytes(self._data))
        else:
            self.finished.errback(reason)

    def _abort(self) -> None:
        # What Twisted gives us here has no abort, and closing politely waits for the peer (TLS).
        connection: Any = getattr(self.transport, "_producer", None) or self.transport
        abort = getattr(connection, "abortConnection", None) or connection.loseConnection
        abort()


def _why(failure: Failure) -> str:
    reason: Any = failure.value
    while getattr(reason, "reasons", None):  # Twisted's wrappers say nothing themselves
        reason = reason.reasons[0].value
    return shown(f"{type(reason).__name__}: {reason}")
