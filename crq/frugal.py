"""
A client of treq that does for each request no more than a dispatch needs.

# Note [What treq need not do]

Of each request treq spends more on its address (it is parsed, its host name checked letter by
letter) and on cookies than on all the rest. Here each goes to the same address, and no cookie is
kept: so the address and the way to it are made once, and the jar keeps nothing and gives nothing.
"""

from __future__ import annotations

from typing import Any, cast

from hyperlink import EncodedURL
from treq.client import HTTPClient
from treq.cookies import IndexableCookieJar
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.web.client import URI, BrowserLikePolicyForHTTPS, _HTTP11ClientFactory
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

CONNECT_WITHIN = 10.0  # s; an executor that needs longer has no worker free to accept


def client_of(agent: IAgent) -> HTTPClient:
    """
    The client over an agent.
    """
    return HTTPClient(_Plain(agent), _NoCookies())


class Address(EncodedURL):
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
        made = cast(Address, cls.from_text(url))
        try:
            made._text = plain.to_uri().to_text()
        except ValueError:
            return plain  # a host of that name cannot be: each dispatch will say so
        return made

    def to_uri(self) -> Address:
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


NO_COOKIES = _NoCookies()  # for each request, or treq makes a jar for it


@implementer(IAgentEndpointFactory)
class OneEndpoint:
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


class QuietFactory(_HTTP11ClientFactory):
    """
    Connections that are not told one by one.
    """

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
