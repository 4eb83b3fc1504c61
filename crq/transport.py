"""
The way to the executor: POST one execution, and say what came of it.

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

# Note [What treq need not do]

Of each request treq spends more on its address (it is parsed, its host name checked letter by
letter) and on cookies than on all the rest. Here each goes to the same address, and no cookie is
kept: so the address and the way to it are made once, and the jar keeps nothing and gives nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import urlencode

from attrs import field, frozen
from hyperlink import EncodedURL
from treq.client import HTTPClient
from treq.cookies import IndexableCookieJar
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, fail, succeed
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IConsumer, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import (
    URI,
    Agent,
    BrowserLikePolicyForHTTPS,
    HTTPConnectionPool,
    ResponseDone,
    _HTTP11ClientFactory,
)
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from crq import crashpoints
from crq.answers import read_answer, shown
from crq.config import Config
from crq.interfaces import ITransport
from crq.messages import Answered, DispatchResult, Lost, NotSent
from crq.model import Claimed, Limits
from crq.traceparent import traceparent

PATH = "/codeRunner/runAsync"
CONNECT_WITHIN = 10.0  # s; an executor that needs longer has no worker free to accept
IDLE_FOR = 2  # s a connection is kept: below what servers, balancers and NAT keep it for
CLOSE_WITHIN = 2.0  # s for idle connections to say goodbye

_FORM_TYPE = b"application/x-www-form-urlencoded"


@implementer(ITransport)
class Transport:
    """
    Dispatches over one pool of persistent connections, at most so many of one account at once.

    The plan keeps to the caps already; the semaphores here are a second fence around them (I4).
    """

    def __init__(
        self,
        agent: IAgent,
        clock: IReactorTime,
        url: str,
        *,
        deadline: float,
        answer_limit: int,
        per_account: int,
        pool: HTTPConnectionPool | None = None,
        path: str | None = PATH,
    ) -> None:
        """
        Take what a dispatch needs. Nothing is connected yet.

        :param url: the executor's address, without the path.
        :param deadline: seconds for one dispatch: connection, headers and body.
        :param answer_limit: bytes of an answer that are read.
        :param pool: the agent's idle connections, to be let go of by `close`.
        :param path: where runAsync is at that address; None: the address is the whole URL.
        """
        self._client = HTTPClient(_Plain(agent), _NoCookies())
        self._clock = clock
        self._url = _Address.of(url if path is None else url.rstrip("/") + path)
        self._deadline = deadline
        self._answer_limit = answer_limit
        self._per_account = per_account
        self._caps: Mapping[str, int] = {}
        self._pool = pool
        self._slots: dict[str, DeferredSemaphore] = {}
        self._freed: deque[tuple[str, DeferredSemaphore]] = deque()

    @classmethod
    def to_executor(cls, reactor: Any, config: Config) -> Transport:
        """
        The transport that the configuration asks for, over real connections.
        """
        pool = HTTPConnectionPool(reactor)
        pool.maxPersistentPerHost = config.limits.in_flight
        pool.cachedConnectionTimeout = IDLE_FOR
        pool.retryAutomatically = False  # a request is sent once; what follows is ours to decide
        pool._factory = _QuietFactory
        return cls(
            Agent.usingEndpointFactory(reactor, _OneEndpoint(reactor), pool=pool),
            reactor,
            config.executor.url,
            deadline=config.executor.deadline,
            answer_limit=config.executor.answer_limit,
            per_account=config.limits.per_account,
            pool=pool,
            path=None if config.executor.contract == "plain" else PATH,
        )

    async def dispatch(self, claimed: Claimed) -> DispatchResult:
        """
        POST one execution and wait for its answer; cancelling it aborts it.

        Never raises for a reason of the network. The deadline begins when the account has a slot.
        """
        fields = {"jobId": claimed.job_id, "asyncNonce": claimed.nonce}
        letter = Letter(urlencode(fields).encode("ascii"), {b"Content-Type": _FORM_TYPE})
        return await self.post(claimed, letter)

    async def post(self, claimed: Claimed, letter: Letter) -> DispatchResult:
        """
        POST a letter about an execution, in its account's turn, and wait for the answer.
        """
        account = claimed.lane.subdomain_hash
        slots = self._slots.get(account)
        if slots is None:
            slots = self._slots[account] = DeferredSemaphore(
                self._caps.get(account, self._per_account)
            )
        try:
            await slots.acquire()
        except CancelledError:
            return NotSent("cancelled while it waited for a slot of its account")
        try:
            exchange = _Exchange(self._client, self._url, self._answer_limit, claimed, letter)
            return await exchange.begin(self._clock, self._deadline)
        finally:
            self._give_back(account, slots)

    def limit(self, limits: Limits) -> None:
        """
        Keep to other caps from now on; what is on its way keeps the slot it has.
        """
        self._per_account = limits.per_account
        self._caps = limits.accounts
        self._slots = {}
        if self._pool is not None:
            self._pool.maxPersistentPerHost = limits.in_flight

    async def close(self) -> None:
        """
        Let go of idle connections.
        """
        if self._pool is not None:
            closed = self._pool.closeCachedConnections()
            closed.addTimeout(CLOSE_WITHIN, self._clock)
            await closed.addErrback(lambda _: None)  # a peer that says no goodbye holds up nothing

    def _give_back(self, account: str, slots: DeferredSemaphore) -> None:
        # One after the other, not one inside the other: a release may let a dispatch run to its
        # end, and thousands of those must not pile up on the stack.
        self._freed.append((account, slots))
        if len(self._freed) > 1:
            return
        while self._freed:
            account, slots = self._freed[0]
            slots.release()
            if slots.tokens == slots.limit and self._slots.get(account) is slots:
                del self._slots[account]
            self._freed.popleft()


@frozen
class Letter:
    """
    What one request carries besides the trace.

    :ivar leaves: called when its first byte is about to leave; must not raise.
    """

    body: bytes = field(repr=False)
    headers: Mapping[bytes, bytes] = field(repr=False)
    leaves: Callable[[], None] = lambda: None


class _Exchange:
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
            cookies=_NONE,  # else treq makes a jar for each request
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


class _Address(EncodedURL):
    """
    An address that is ready to be sent (see note [What treq need not do]).
    """

    _text: str

    @classmethod
    def of(cls, url: str) -> EncodedURL:
        """
        Make it, from what treq itself would send.
        """
        plain = EncodedURL.from_text(url)
        made = cast(_Address, cls.from_text(url))
        try:
            made._text = plain.to_uri().to_text()
        except ValueError:
            return plain  # a host of that name cannot be: each dispatch will say so
        return made

    def to_uri(self) -> _Address:
        """
        The address: it is as it is sent.
        """
        return self

    def to_text(self, with_password: bool = False) -> str:
        """
        The text that is sent.
        """
        return self._text


class _NoCookies(IndexableCookieJar):
    """
    A jar that keeps nothing: no cookie is ever sent back.
    """

    def add_cookie_header(self, request: object) -> None:
        """
        Add none.
        """

    def extract_cookies(self, response: object, request: object) -> None:
        """
        Keep none.
        """


_NONE = _NoCookies()


@implementer(IAgentEndpointFactory)
class _OneEndpoint:
    """
    The way to the one address, made once: the agent asks for it with each request, also where a
    connection is kept.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._ready: dict[tuple[bytes, bytes, int], IStreamClientEndpoint] = {}

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:  # noqa: N802
        """
        The endpoint of an address, with TLS as browsers check it where the address asks for it.
        """
        where = uri.scheme, uri.host, uri.port
        endpoint = self._ready.get(where)
        if endpoint is None:
            endpoint = HostnameEndpoint(self._reactor, uri.host, uri.port, timeout=CONNECT_WITHIN)
            if uri.scheme == b"https":
                creator = BrowserLikePolicyForHTTPS().creatorForNetloc(uri.host, uri.port)
                endpoint = wrapClientTLS(creator, endpoint)
            self._ready[where] = endpoint
        return endpoint


class _QuietFactory(_HTTP11ClientFactory):
    noisy = False  # else each connection writes two lines into the log


@implementer(IAgent)
class _Plain:
    """
    An agent without compressed answers: treq would decode them, and its decoder knows no limit.
    """

    def __init__(self, agent: IAgent) -> None:
        self._agent = agent

    def request(
        self,
        method: bytes,
        uri: bytes,
        headers: Headers | None = None,
        bodyProducer: IBodyProducer | None = None,  # noqa: N803
    ) -> Deferred[IResponse]:
        """
        Ask for the answer as it is, and take one that is compressed all the same as it is.
        """
        headers = Headers() if headers is None else headers.copy()
        headers.setRawHeaders(b"Accept-Encoding", [b"identity"])
        return self._agent.request(method, uri, headers, bodyProducer).addCallback(self._as_it_is)

    def _as_it_is(self, response: IResponse) -> IResponse:
        response.headers.removeHeader(b"Content-Encoding")
        return response


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
