"""
The wire under the HTTP door: who may be connected, how much may come, and how long it may take.

Twisted's own channel stores any body before a handler can object, and its time-out starts anew with
every byte. Here a request that says it is too long is refused when its headers are read, one that
turns out to be too long is refused at that byte, and each must have arrived whole within one
deadline. What two programs could read differently (two lengths, a folded header, a transfer coding
other than chunked, two hosts) is refused, never guessed at. No access log: the daemon's timers run
on the monotonic clock, so its dates would be wrong, and silence is the rule when nothing happened.

# Note [Strangers]

Until a known token has been read, nobody is believed. A stranger's body may be as long as a form
for people, and no longer; a stranger's connection is the first to go when there is no room
(`crq.web.crowd`). Each connection is given one request a turn of the reactor, however many it has
sent ahead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http, server
from twisted.web.http import HTTPChannel
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource

from crq.outages import Outage
from crq.web import problems
from crq.web.crowd import Crowd
from crq.web.request import HEADERS, Request

LINGER = 1.0  # s to go on reading after a refusal: closing at once would reset the answer away
FLUSH = 15.0  # s for a peer to read what is left, then the connection is cut
ACCEPTS = 16  # connections accepted in one turn of the reactor
FRAMING = 65_536  # bytes of chunk sizes and trailers beside twice the limit of the body
ROOMY = 60.0  # s with room for everybody after which a crowd is over

_LENGTH = re.compile(rb"[0-9]{1,18}")


class Channel(HTTPChannel):
    """
    One connection. While no request is being answered, a deadline runs.

    :ivar known: it has shown a known token.
    """

    site: Site
    transport: Any
    known = False
    _deadline: IDelayedCall | None = None
    _next: IDelayedCall | None = None
    _closing = False
    _framed = 0  # bytes of a body in chunks as they came

    def connectionMade(self) -> None:
        """
        Take a place, and start the deadline of the first request.
        """
        super().connectionMade()
        if self.site.enter(self):
            self._within(self.site.request_seconds)
            self._later(self._came)
        else:
            problem = "has no room: all its connections are being answered"
            self.refuse(503, "server", problem, "try again soon", b"Retry-After: 1")
            self.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        """
        Take what comes, unless the answer has been given already.
        """
        if not self._closing:
            super().dataReceived(data)

    def lineReceived(self, line: bytes) -> None:
        """
        Take a line of the head; one that continues the line before is read differently by some.
        """
        if self._closing:
            self.clearLineBuffer()
        elif line[:1] in (b" ", b"\t"):
            self._bad("headers", "a line begins with a blank", "write each header in one line")
        else:
            super().lineReceived(line)

    def headerReceived(self, line: bytes) -> bool:  # noqa: N802
        """
        Take a header, unless it says in an odd way where the request ends or whom it is for.
        """
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if name == b"content-length" and _LENGTH.fullmatch(value) is None:
            return self._bad(
                "Content-Length", "is no length", "send the number of the body's bytes"
            )
        if name == b"transfer-encoding" and value.lower() != b"chunked":
            return self._bad("Transfer-Encoding", "is not understood", "send chunked, or a length")
        if name == b"host" and self.requests[-1].requestHeaders.hasHeader(b"Host"):
            return self._bad("Host", "is given twice", "send one")
        return bool(super().headerReceived(line))

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        """
        Refuse a header that no honest client sends.
        """
        problem = f"a line is longer than {self.MAX_LENGTH} bytes"
        self.refuse(431, "headers", problem, "send shorter ones")

    def rawDataReceived(self, data: bytes) -> None:  # noqa: N802
        """
        Take a piece of a body, counted as it came: sizes and extensions of chunks are bytes too.
        """
        if self._closing:
            return
        if not self._handlingRequest and self.length is None:
            self._framed += len(data)
            if self._framed > 2 * self.site.body_limit + FRAMING:
                self.requests[-1].too_long()
                return
        super().rawDataReceived(data)

    def allContentReceived(self) -> None:
        """
        The request is here: from now on it is ours to be slow.
        """
        if not self._closing:
            self._stop_deadline()
            self.site.crowd.is_answered(self)
        self._framed = 0
        super().allContentReceived()

    def requestDone(self, request: server.Request) -> None:  # noqa: N802
        """
        The answer is written: start the deadline of the next request.
        """
        # First, because the next request may already be here.
        if self.persistent:
            self._within(self.site.request_seconds)
            self.site.crowd.waits(self, self.known)
        self.paused = True  # of LineReceiver: what has been sent ahead stays in its buffer
        super().requestDone(request)
        if self._buffer:
            self._later(self._go_on)
        else:
            self.paused = False

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Give the place back.
        """
        self._stop_deadline()
        self._later(None)
        self.site.crowd.leave(self)
        super().connectionLost(reason)

    def refuse(self, code: int, field: str, problem: str, remedy: str, *more: bytes) -> None:
        """
        Answer before the request is here, and close soon; what still comes is thrown away.

        :param more: further headers.
        """
        if self._closing:
            return
        body = json.dumps(problems.details(code, field, problem, remedy)).encode("ascii")
        lines = [
            f"HTTP/1.1 {code} {HTTPStatus(code).phrase}".encode("ascii"),
            *(b"%s: %s" % pair for pair in HEADERS.items()),
            b"Content-Type: " + problems.MEDIA_TYPE,
            b"Content-Length: %d" % len(body),
            b"Connection: close",
            *more,
        ]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.persistent = 0
        self._closing = True
        self._within(LINGER)

    def _bad(self, field: str, problem: str, remedy: str) -> bool:
        self.refuse(400, field, problem, remedy)
        return False

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802
        # Twisted's own answer to whatever it does not understand has no body, and resets it away.
        self._bad("request", "is not HTTP/1.1 as it is written down", "correct the client")

    def _later(self, call: Callable[[], None] | None) -> None:
        """
        Do something in the next turn of the reactor, instead of what was to be done then.
        """
        if self._next is not None and self._next.active():
            self._next.cancel()
        self._next = None if call is None else self.site.reactor.callLater(0, call)

    def _came(self) -> None:
        # Twisted accepts ever more in one turn, as long as more come: a flood of those who connect
        # would take turns of a tenth of a second.
        port = getattr(self.transport, "server", None)
        if port is not None:
            port.numberAccepts = min(port.numberAccepts, ACCEPTS)
        # What has been sent already is read in the turn that begins, at its end.
        self._later(self._had_a_chance)

    def _had_a_chance(self) -> None:
        self.site.crowd.had_a_chance(self)

    def _go_on(self) -> None:
        self.paused = False
        self.dataReceived(b"")

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


class Site(server.Site):
    """
    A site whose connections are `Channel`.

    :ivar crowd: the connections there are.
    :ivar knows: tells from the headers of a request whether its token is a known one.
    :ivar body_limit: bytes of one request body.
    :ivar request_seconds: seconds for one request to arrive whole.
    """

    protocol = Channel  # type: ignore[assignment]  # without the proxy that picks HTTP/2
    _log = Logger()

    def __init__(
        self,
        resource: IResource,
        reactor: IReactorTime,
        body_limit: int,
        request_seconds: float,
        connections: int = 512,
        knows: Callable[[Headers], bool] = lambda _: True,
    ) -> None:
        # Without Twisted's idle time-out: the deadline is stricter.
        super().__init__(resource, requestFactory=Request, reactor=reactor, timeout=None)
        self.crowd: Crowd[Channel] = Crowd(connections)
        self.knows = knows
        self.body_limit = body_limit
        self.request_seconds = request_seconds
        self._crowded = Outage("the door", reactor.seconds, self._log, "crowd", "no crowd", ROOMY)
        self._disk = Outage(
            "the directory of temporary files", reactor.seconds, self._log, "no room", "room again"
        )

    def enter(self, channel: Channel) -> bool:
        """
        Find a place for a connection; False: there is none.
        """
        leaver = self.crowd.enter(channel)
        if leaver is None:
            self._crowded.went_well()
            return True
        self._crowded.failed(
            f"all {self.crowd.limit} connections are taken (web.connections): those that have"
            " waited longest for a request are let go"
        )
        if leaver is channel:
            return False
        leaver.transport.abortConnection()
        return True

    def no_room(self, error: OSError) -> None:
        """
        Note that a long body could not be kept.
        """
        self._disk.failed(f"a long body cannot be kept: {error}")

    def room(self) -> None:
        """
        Note that a long body was kept.
        """
        self._disk.went_well()

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
