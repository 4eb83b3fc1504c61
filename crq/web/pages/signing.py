"""
Signing in and out, and the files that every page needs.
"""

from __future__ import annotations

from twisted.python.failure import Failure
from twisted.web.http_headers import Headers
from twisted.web.iweb import IRequest

from crq.submissions import Refusal
from crq.web import answers
from crq.web.door import Door, routes
from crq.web.pages import desk
from crq.web.pages.desk import Elsewhere, Page, Shown
from crq.web.pages.render import ASSETS
from crq.web.rates import NOBODY
from crq.web.sessions import COOKIE


@routes.route("/", methods=["GET"])
def root(door: Door, request: IRequest) -> bytes:
    """
    Show the way to the pages.
    """
    return desk.send(door, request, Elsewhere(desk.HOME))


@routes.route("/ui/static/<name>", methods=["GET"])
def static(door: Door, request: IRequest, name: str) -> bytes:
    """
    Send a file that the pages need.
    """
    found = ASSETS.get(name)
    if found is None:
        return door.reply(request, answers.NOTHING_HERE)
    door.meters.requests.labels(getattr(request, "route", "none"), "200").inc()
    request.setHeader(b"Server", b"crqueue")
    request.setHeader(b"Content-Type", found.media)
    request.setHeader(b"Content-Length", b"%d" % len(found.body))
    # Its address changes with its content.
    request.setHeader(b"Cache-Control", b"public, max-age=31536000, immutable")
    return found.body


@routes.route("/ui/login", methods=["GET"])
def login_page(door: Door, request: IRequest) -> bytes:
    """
    Ask for a token.
    """
    way = desk.inside(desk.fields(request.args).get("next"))
    return desk.send(door, request, Page("login.html", {"next": way, "problem": None}))


@routes.route("/ui/login", methods=["POST"])
async def login(door: Door, request: IRequest) -> bytes:
    """
    Sign in with a token.
    """
    try:
        shown = await _sign_in(door, request)
    except Exception:  # noqa: BLE001 - the boundary of a request
        shown = desk.fault(door, request, Failure())
    return desk.send(door, request, shown)


async def _sign_in(door: Door, request: IRequest) -> Shown:
    if desk.foreign(request):
        problem = "was sent by a page of another site"
        raise Refusal("form", problem, f"sign in at {desk.LOGIN}", 403)
    form = desk.read_form(request)
    way = desk.inside(form.get("next"))
    bearer = b"Bearer " + form.get("token", "").strip().encode("utf-8", "replace")
    caller = await door.book.who(Headers({b"Authorization": [bearer]}))
    door.count(request, NOBODY if caller is None else caller.token.name)
    if caller is None:
        problem = "This token is not known. `crq token add` makes one; a revoked one stays revoked."
        return Page("login.html", {"next": way, "problem": problem}, 401)
    if not caller.may("read"):
        problem = "This token may not read. Use one with the scope read."
        return Page("login.html", {"next": way, "problem": problem}, 403)
    door.sessions.end(request.requestHeaders)
    identity, _ = door.sessions.start(caller.token.name, bearer)
    _cookie(request, identity)
    return Elsewhere(way)


@routes.route("/ui/logout", methods=["POST"])
@desk.page("read")
async def logout(door: Door, request: IRequest, visitor: desk.Visitor) -> Shown:
    """
    Sign out.
    """
    door.sessions.end(request.requestHeaders)
    _cookie(request, "", gone=True)
    return Elsewhere(desk.LOGIN)


def _cookie(request: IRequest, value: str, gone: bool = False) -> None:
    told = (request.requestHeaders.getRawHeaders(b"X-Forwarded-Proto") or [b""])[-1]
    secure = "; Secure" if request.isSecure() or told.strip().lower() == b"https" else ""
    ends = "; Max-Age=0" if gone else ""
    text = f"{COOKIE}={value}; Path=/ui; HttpOnly; SameSite=Strict{secure}{ends}"
    request.setHeader(b"Set-Cookie", text.encode("ascii"))
