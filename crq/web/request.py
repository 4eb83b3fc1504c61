"""
A request while it arrives: how long its body may be, and where it is kept meanwhile.
"""

from __future__ import annotations

from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote_to_bytes

from twisted.web import server

if TYPE_CHECKING:
    from crq.web.wire import Channel

STRANGERS_BODY = 4096  # bytes
IN_MEMORY = 100_000  # bytes of a body; more is kept in a file
REMEDY = "send Authorization: Bearer with a token; `crq token new` makes one"

HEADERS = {
    b"Content-Security-Policy": b"default-src 'none'; base-uri 'none'; form-action 'none';"
    b" frame-ancestors 'none'",
    b"X-Content-Type-Options": b"nosniff",
    b"Referrer-Policy": b"no-referrer",
    b"Cache-Control": b"no-store",
}


class Request(server.Request):
    """
    One request, not longer than the site's limit.

    :ivar refused: it was answered before it was here.
    """

    channel: Channel
    refused = False
    _size = 0
    _limit = 0

    def __init__(self, channel: Channel, *args: Any, **kwargs: Any) -> None:
        # Forms are parsed by the handler that wants one, off the reactor's thread.
        super().__init__(channel, *args, parsePOSTFormSubmission=False, **kwargs)
        for name, value in HEADERS.items():
            self.setHeader(name, value)

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        """
        The headers are here: refuse a body that says it is too long.
        """
        channel, site = self.channel, self.channel.site
        if site.knows(self.requestHeaders):
            channel.known = True
            site.crowd.waits(channel, True)
            self._limit = site.body_limit
        else:
            self._limit = min(site.body_limit, STRANGERS_BODY)
        too_long = length is not None and length > self._limit
        super().gotLength(0 if length is None or too_long else length)
        if length is None:
            # Not a file for each: in chunks comes also what is short. Twisted closes it.
            self.content = cast(Any, SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115
        if too_long:
            self.too_long()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        """
        Keep a piece of the body, or refuse it when it is one too many.
        """
        if self.refused:
            return
        self._size += len(data)
        if self._size > self._limit:
            self.too_long()
            return
        try:
            super().handleContentChunk(data)
        except OSError as error:  # a long body is kept in a file
            self.refused = True
            self.channel.site.no_room(error)
            problem = "has no room for a body of this length"
            self.channel.refuse(503, "server", problem, "try again later", b"Retry-After: 5")
        else:
            if self._size > IN_MEMORY:
                self.channel.site.room()

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
            problem = "the path is not UTF-8 text, or the Host is no host name"
            self.channel.refuse(400, "request", problem, "correct the URL")
            return
        super().process()

    def too_long(self) -> None:
        """
        Refuse the body: it is longer than whoever sends it may send.
        """
        self.refused = True
        # Nothing more is wanted: no "100 Continue" after the refusal.
        self.requestHeaders.removeHeader(b"Expect")
        if self.channel.known:
            problem = f"is longer than {self.channel.site.body_limit} bytes"
            self.channel.refuse(413, "body", problem, "send less; the limit is web.body_limit")
        else:
            realm = b'WWW-Authenticate: Bearer realm="crqueue"'
            self.channel.refuse(401, "Authorization", "no known token was sent", REMEDY, realm)
