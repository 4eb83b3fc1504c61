"""
The wire under the HTTP door: how much a request may be and how long it may take to arrive.

Twisted's own channel stores any body before a handler can object, and its time-out starts anew with
every byte. Here a request that says it is too long is refused when its headers are read, one that
turns out to be too long is refused at that byte, and each must have arrived whole within one
deadline. No access log: the daemon's timers run on the monotonic clock, so its dates would be
wrong, and silence is the rule when nothing happened.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote_to_bytes

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http, server
from twisted.web.http import HTTPChannel
from twisted.web.resource import IResource

LINGER = 1.0  # s to go on reading after a refusal: closing at once would reset the answer away
FLUSH = 15.0  # s for a peer to read what is left, then the connection is cut

HEADERS = {
    b"Content-Security-Policy": b"default-src 'none'; base-uri 'none'; form-action 'none';"
    b" frame-ancestors 'none'",
    b"X-Content-Type-Options": b"nosniff",
    b"Referrer-Policy": b"no-referrer",
    b"Cache-Control": b"no-store",
}


class Channel(HTTPChannel):
    """
    One connection. While no request is being answered, a deadline runs.
    """

    site: Site
    transport: Any
    _deadline: IDelayedCall | None = None
    _closing = False

    def connectionMade(self) -> None:
        """
        Start the deadline of the first request.
        """
        super().connectionMade()
        self._within(self.site.request_seconds)

    def dataReceived(self, data: bytes) -> None:
        """
        Take what comes, unless the answer has been given already.
        """
        if not self._closing:
            super().dataReceived(data)

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        """
        Refuse a header that no honest client sends.
        """
        problem = {
            "field": "headers",
            "problem": f"a line is longer than {self.MAX_LENGTH} bytes",
            "remedy": "send shorter ones",
        }
        self.refuse(b"431 Request Header Fields Too Large", problem)

    def allContentReceived(self) -> None:
        """
        The request is here: from now on it is ours to be slow.
        """
        if not self._closing:
            self._stop_deadline()
        super().allContentReceived()

    def requestDone(self, request: server.Request) -> None:  # noqa: N802
        """
        The answer is written: start the deadline of the next request.
        """
        # First, because the next request may already be here and handled inside.
        if self.persistent:
            self._within(self.site.request_seconds)
        super().requestDone(request)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Forget the deadline.
        """
        self._stop_deadline()
        super().connectionLost(reason)

    def refuse(self, status: bytes, answer: dict[str, str]) -> None:
        """
        Answer before the request is here, and close soon; what still comes is thrown away.
        """
        body = json.dumps(answer).encode("ascii")
        headers = {
            **HEADERS,
            b"Content-Type": b"application/json",
            b"Content-Length": b"%d" % len(body),
            b"Connection": b"close",
        }
        lines = b"".join(b"%s: %s\r\n" % pair for pair in headers.items())
        self.transport.write(b"HTTP/1.1 %s\r\n%s\r\n%s" % (status, lines, body))
        self.persistent = 0
        self._closing = True
        self._within(LINGER)

    def _within(self, seconds: float) -> None:
        self._stop_deadline()
        self._deadline = self.site.reactor.callLater(seconds, self._expired)

    def _stop_deadline(self) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None

    def _expired(self) -> None:
        self._deadline = self.site.reactor.callLater(FLUSH, self.transport.abortConnection)
        self.loseConnection()


class Request(server.Request):
    """
    One request, not longer than the site's limit.

    :ivar refused: it was answered before it was here.
    """

    channel: Channel
    refused = False
    _size = 0

    def __init__(self, channel: Channel, *args: Any, **kwargs: Any) -> None:
        # Forms are parsed by the handler that wants one, off the reactor's thread.
        super().__init__(channel, *args, parsePOSTFormSubmission=False, **kwargs)
        for name, value in HEADERS.items():
            self.setHeader(name, value)

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        """
        Refuse a body that says it is too long.
        """
        too_long = length is not None and length > self.channel.site.body_limit
        super().gotLength(0 if too_long else length)
        if too_long:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        """
        Keep a piece of the body, or refuse it when it is one too many.
        """
        if self.refused:
            return
        self._size += len(data)
        if self._size > self.channel.site.body_limit:
            self._refuse()
        else:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """
        Handle the request, unless it is answered already.
        """
        if not self.refused:
            super().requestReceived(command, path, version)

    def process(self) -> None:
        """
        Route the request, unless its path or Host could not even be routed.
        """
        if not self.requestHeaders.hasHeader(b"Host"):
            self.requestHeaders.setRawHeaders(b"Host", [b"localhost"])
        try:
            unquote_to_bytes(self.path).decode("utf-8")
            self.getRequestHostname().decode("ascii").encode("idna")
        except UnicodeError:
            self.refused = True
            problem = {
                "field": "request",
                "problem": "the path is not UTF-8 text, or the Host is no host name",
                "remedy": "correct the URL",
            }
            self.channel.refuse(b"400 Bad Request", problem)
            return
        super().process()

    def _refuse(self) -> None:
        self.refused = True
        # Nothing more is wanted: no "100 Continue" after the refusal.
        self.requestHeaders.removeHeader(b"Expect")
        limit = self.channel.site.body_limit
        problem = {
            "field": "body",
            "problem": f"is longer than {limit} bytes",
            "remedy": "send less; the limit is web.body_limit",
        }
        self.channel.refuse(b"413 Content Too Large", problem)


class Site(server.Site):
    """
    A site whose connections are `Channel`.

    :ivar body_limit: bytes of one request body.
    :ivar request_seconds: seconds for one request to arrive whole.
    """

    protocol = Channel  # type: ignore[assignment]  # without the proxy that picks HTTP/2

    def __init__(
        self, resource: IResource, reactor: IReactorTime, body_limit: int, request_seconds: float
    ) -> None:
        # Without Twisted's idle time-out: the deadline is stricter.
        super().__init__(resource, requestFactory=Request, reactor=reactor, timeout=None)
        self.body_limit = body_limit
        self.request_seconds = request_seconds

    def startFactory(self) -> None:
        """
        Begin; there is no access log to open and no date to keep for it.
        """

    def log(self, request: http.Request) -> None:
        """
        Log nothing (see the module).
        """

    def acceptableProtocols(self) -> list[bytes]:  # noqa: N802
        """
        HTTP/1.1 alone: the limits are those of `Channel`.
        """
        return [b"http/1.1"]
