"""
Templates into HTML: everything that is put into one is escaped, and what is missing is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined

from crq.instants import Instant, instant_text, iso
from crq.recordvalues import shown_instant, stored_instant
from crq.sealing import sha256_hex

SHORT = 10  # hex digits of a hash that a page shows; the whole is in the title and in links


@frozen
class Asset:
    """
    One file that the pages need.

    :ivar version: of its content: a browser keeps it until it changes.
    """

    body: bytes
    media: bytes
    version: str


def _asset(name: str, media: bytes) -> Asset:
    text = (files("crq.web.pages") / "static" / name).read_text("utf-8")
    return Asset(text.encode("utf-8"), media, sha256_hex(text)[:12])


ASSETS = {
    "page.css": _asset("page.css", b"text/css; charset=utf-8"),
    "live.js": _asset("live.js", b"text/javascript; charset=utf-8"),
    "icon.svg": _asset("icon.svg", b"image/svg+xml"),
}


def render(template: str, context: Mapping[str, Any]) -> bytes:
    """
    Make the bytes of a page.
    """
    return _ENVIRONMENT.get_template(template).render(context).encode("utf-8", "replace")


def span(seconds: float | None) -> str:
    """
    Say how long something takes, in two units at most.
    """
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = math.floor(seconds)
    for size, unit, part, smaller in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def moment(at: Instant | str | None) -> str:
    """
    Show an instant to people, UTC to the second; a stored text that is none, as it is.
    """
    if at is None:
        return "–"
    if isinstance(at, str):
        known = stored_instant(at)
        return at if known is None else instant_text(known)[:19]
    return instant_text(at)[:19]


def machine(at: Instant | str | None) -> str:
    """
    The same for the ``datetime`` of a time element.
    """
    return (shown_instant(at) if isinstance(at, str) else iso(at)) or ""


def short(text: str | None) -> str:
    """
    The beginning of a hash.
    """
    return "–" if not text else text if len(text) <= SHORT else text[:SHORT] + "…"


def json_text(value: Any) -> str:
    """
    Show a JSON value in one line.
    """
    return json.dumps(value, ensure_ascii=False, default=str)


def asset(name: str) -> str:
    """
    The path of a file that the pages need.
    """
    return f"/ui/static/{name}?v={ASSETS[name].version}"


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("crq.web.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        span=span, moment=moment, machine=machine, short=short, tojson_text=json_text
    )
    made.globals.update(asset=asset)
    return made


_ENVIRONMENT = _environment()
