"""
Who is signed in on the pages: sessions, in memory alone, so that a restart signs everybody out.

A browser gets a random id in a cookie; here only its hash is a name. A session remembers the bearer
token it was opened with, and every request asks the token book about it again: a token that is
revoked ends its sessions with it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from attrs import define, field
from twisted.web.http_headers import Headers

from crq.sealing import sha256_hex

COOKIE = "crq_session"
IDLE = 8 * 3600.0  # s without a request: a shift
LONGEST = 24 * 3600.0  # s since the sign-in, whatever happened since
LIMIT = 200  # sessions at once; the one unused for longest goes
NOTICE_LIMIT = 5  # notices that wait for the next page


@define(eq=False)
class Session:
    """
    One browser that is signed in.

    :ivar bearer: the Authorization header it stands for.
    :ivar csrf: what each of its forms must carry.
    :ivar notices: what its last actions did, for the next page.
    """

    name: str
    bearer: bytes = field(repr=False)
    csrf: str = field(repr=False)
    opened_at: float
    used_at: float
    notices: list[str] = field(factory=list)

    def says(self, csrf: str) -> bool:
        """
        Whether a form came from one of this session's pages.
        """
        return hmac.compare_digest(csrf.encode("utf-8", "replace"), self.csrf.encode("ascii"))

    def notice(self, text: str) -> None:
        """
        Tell something on the next page.
        """
        self.notices = [*self.notices, text][-NOTICE_LIMIT:]

    def told(self) -> list[str]:
        """
        Take what is to be told.
        """
        notices, self.notices = self.notices, []
        return notices


class Sessions:
    """
    All sessions of one door, by the hash of their id.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._open: dict[str, Session] = {}

    def start(self, name: str, bearer: bytes) -> tuple[str, Session]:
        """
        Open a session; returns its id, which only the browser keeps.

        :param name: of the token.
        """
        now = self._monotonic()
        self._forget_old(now)
        while len(self._open) >= LIMIT:
            del self._open[min(self._open, key=lambda known: self._open[known].used_at)]
        identity = secrets.token_urlsafe(32)
        session = Session(name, bearer, secrets.token_urlsafe(32), now, now)
        self._open[sha256_hex(identity)] = session
        return identity, session

    def find(self, headers: Headers) -> Session | None:
        """
        Find the session of a request, and keep it open.
        """
        now = self._monotonic()
        session = self._open.get(_name(headers) or "")
        if session is None or not _lasts(session, now):
            return None
        session.used_at = now
        return session

    def knows(self, headers: Headers) -> bool:
        """
        Whether a request belongs to a session.
        """
        session = self._open.get(_name(headers) or "")
        return session is not None and _lasts(session, self._monotonic())

    def end(self, headers: Headers) -> None:
        """
        Close the session of a request.
        """
        self._open.pop(_name(headers) or "", None)

    def _forget_old(self, now: float) -> None:
        self._open = {name: session for name, session in self._open.items() if _lasts(session, now)}


def _lasts(session: Session, now: float) -> bool:
    return now - session.used_at < IDLE and now - session.opened_at < LONGEST


def _name(headers: Headers) -> str | None:
    for line in headers.getRawHeaders(b"Cookie") or []:
        try:
            found = SimpleCookie(line.decode("latin-1")).get(COOKIE)
        except CookieError:  # another program's on the same host
            continue
        if found is not None:
            return sha256_hex(found.value)
    return None
