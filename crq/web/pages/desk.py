"""
What all pages share: who is signed in, forms and their protection, how a page is sent.

A handler takes the door, the request and the `Visitor` and returns what is shown. Whatever goes
wrong becomes a page as well, with the same status that the API would answer.

# Note [Forms]

A form changes something only if it carries the secret of the session's own pages, beside a cookie
that no other site's request is given (SameSite) and no script can read (HttpOnly). The form that
signs in has no session yet: there the browser's own word on where the form came from counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from attrs import field, frozen
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest

from crq.submissions import Refusal
from crq.web import bodies
from crq.web.door import Door
from crq.web.pages.render import render
from crq.web.sessions import Session
from crq.web.tokens import Caller

HOME, LOGIN = "/ui", "/ui/login"
FIELDS = 40  # of one form
LIVE = b"X-Live"  # sent by the script that keeps a page up to date
HEADERS = {
    b"Content-Security-Policy": b"default-src 'none'; style-src 'self'; script-src 'self';"
    b" img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    b" frame-ancestors 'none'",
    # Not no-referrer: with that, a browser says "Origin: null" of our own forms.
    b"Referrer-Policy": b"same-origin",
    b"X-Frame-Options": b"DENY",
    b"Cross-Origin-Opener-Policy": b"same-origin",
    b"Cross-Origin-Resource-Policy": b"same-origin",
    b"Permissions-Policy": b"camera=(), geolocation=(), microphone=()",
}


@frozen
class Page:
    """
    A page to be shown.
    """

    template: str
    context: Mapping[str, Any] = field(factory=dict)
    code: int = 200


@frozen
class Elsewhere:
    """
    Another page to be asked for, with GET.
    """

    path: str


Shown = Page | Elsewhere


@frozen
class Visitor:
    """
    Somebody who is signed in.

    :ivar form: the fields of the form that was sent; empty for a page that is only read.
    """

    caller: Caller
    session: Session
    form: Mapping[str, str] = field(factory=dict)

    @property
    def operates(self) -> bool:
        """
        Whether the token may change anything.
        """
        return self.caller.may("operate")

    @property
    def promotes(self) -> bool:
        """
        Whether the token may let automations act.
        """
        return self.caller.may("promote")

    @property
    def unlimited(self) -> bool:
        """
        Whether the token may see and change what belongs to all.
        """
        return self.caller.accounts is None

    def given(self, name: str) -> str | None:
        """
        A field of the form; None: it is empty or missing.
        """
        return self.form.get(name, "").strip() or None

    def wanted(self, name: str, remedy: str) -> str:
        """
        A field that must be there.

        :raise Refusal: it is not.
        """
        text = self.given(name)
        if text is None:
            raise Refusal(name, "is missing", remedy)
        return text


Handler = Callable[..., Awaitable[Shown]]


def page(scope: str) -> Callable[[Handler], Callable[..., Awaitable[bytes]]]:
    """
    Make a handler of a page for those whose token has a scope.
    """

    def decorate(handler: Handler) -> Callable[..., Awaitable[bytes]]:
        @wraps(handler)
        async def handled(door: Door, request: IRequest, **given: Any) -> bytes:
            session = door.sessions.find(request.requestHeaders)
            if session is None:
                return send(door, request, Elsewhere(_login(request)))
            visitor = None
            try:
                visitor = await _enter(door, request, session, scope)
                shown = await handler(door, request, visitor, **given)
            except CancelledError:  # the browser has gone
                raise
            except Exception:  # noqa: BLE001 - the boundary of a request
                shown = fault(door, request, Failure())
                if isinstance(shown, Page) and shown.code == 401:  # revoked meanwhile
                    door.sessions.end(request.requestHeaders)
                    shown = Elsewhere(_login(request))
            return send(door, request, shown, visitor)

        return handled

    return decorate


def fault(door: Door, request: IRequest, failure: Failure) -> Shown:
    """
    The page that a fault becomes.
    """
    reply = door.fault(request, failure)
    if reply.retry_after is not None:
        request.setHeader(b"Retry-After", b"%d" % reply.retry_after)
    back = fields(request.args).get("back") if request.method == b"GET" else None
    return Page("error.html", {"problem": reply.body, "back": inside(back)}, reply.code)


def send(door: Door, request: IRequest, shown: Shown, visitor: Visitor | None = None) -> bytes:
    """
    Send a page.
    """
    for name, value in HEADERS.items():
        request.setHeader(name, value)
    if isinstance(shown, Elsewhere):
        request.setHeader(b"Location", shown.path.encode("ascii"))
        code, body = 303, b""
    else:
        code = shown.code
        body = render(shown.template, {**_frame(door, request, visitor), **shown.context})
    door.meters.requests.labels(getattr(request, "route", "none"), str(code)).inc()
    request.setResponseCode(code)
    request.setHeader(b"Server", b"crqueue")
    request.setHeader(b"Content-Type", b"text/html; charset=utf-8")
    request.setHeader(b"Content-Length", b"%d" % len(body))
    return body


def _frame(door: Door, request: IRequest, visitor: Visitor | None) -> dict[str, Any]:
    """
    What every template knows.
    """
    live = request.requestHeaders.hasHeader(LIVE)
    here = request.uri.decode("ascii", "backslashreplace")
    return {
        "now": door.wall(),
        "here": inside(here) if request.method == b"GET" else HOME,
        "visitor": visitor,
        "csrf": "" if visitor is None else visitor.session.csrf,
        "notices": [] if visitor is None or live else visitor.session.told(),
    }


async def _enter(door: Door, request: IRequest, session: Session, scope: str) -> Visitor:
    request.requestHeaders.setRawHeaders(b"Authorization", [session.bearer])
    form: Mapping[str, str] = {}
    if request.method == b"POST":
        form = read_form(request)
        if not session.says(form.get("csrf", "")):
            problem = "was not made for this session"
            raise Refusal("form", problem, "load the page again, then repeat", 403)
    return Visitor(await door.caller(request, scope), session, form)


def read_form(request: IRequest) -> dict[str, str]:
    """
    Read the fields of a form.

    :raise Refusal: it is none.
    """
    if bodies.media_type(request.requestHeaders) != bodies.FORM:
        raise Refusal("Content-Type", "is not one that is understood here", bodies.FORM, 415)
    try:
        pairs = parse_qsl(
            request.content.read().decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=FIELDS,
        )
    except ValueError:
        raise Refusal("body", "is not a form", "send the page's own form", 400) from None
    if len(dict(pairs)) != len(pairs):
        raise Refusal("body", "has a field twice", "send the page's own form", 400)
    return dict(pairs)


def foreign(request: IRequest) -> bool:
    """
    Whether the browser says that a form was sent by another site's page.
    """
    headers = request.requestHeaders
    site = (headers.getRawHeaders(b"Sec-Fetch-Site") or [b"same-origin"])[-1]
    origin = headers.getRawHeaders(b"Origin")
    if site not in (b"same-origin", b"none"):
        return True
    if not origin:
        return False
    host = (headers.getRawHeaders(b"Host") or [b""])[-1]
    return bool(urlsplit(origin[-1].decode("latin-1")).netloc != host.decode("latin-1"))


def fields(args: Mapping[bytes, list[bytes]]) -> dict[str, str]:
    """
    The parameters of a query that are not empty; the last one counts. For what is shown back.
    """
    return {
        name.decode("ascii", "replace"): values[-1].decode("utf-8", "replace")
        for name, values in args.items()
        if values and values[-1].strip()
    }


def filled(args: Mapping[bytes, list[bytes]]) -> dict[bytes, list[bytes]]:
    """
    A query without its empty parameters: a form sends them too. Blanks around a value go.
    """
    return {
        name: [value.strip() for value in values]
        for name, values in args.items()
        if any(value.strip() for value in values)
    }


def inside(path: str | None) -> str:
    """
    A path to go back to, if it is one of our pages.
    """
    safe = path is not None and path.isascii() and path.isprintable() and "\\" not in path
    if path is None or not safe or not (path == HOME or path.startswith(("/ui/", "/ui?"))):
        return HOME
    return HOME if path.startswith((LOGIN, "/ui/logout")) else path


def link(path: str, **given: object) -> str:
    """
    A path with a query of what is not None.
    """
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return f"{path}?{query}" if query else path


def _login(request: IRequest) -> str:
    if request.method != b"GET":
        return LOGIN
    return link(LOGIN, next=inside(request.uri.decode("ascii", "backslashreplace")))
