"""
What can be wrong with a request, as problem details (RFC 9457).

Each kind has a type of its own, a URN that ``docs/operating.md`` explains; beside the members of
the RFC every problem names the field, what is wrong with it and what to do.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

MEDIA_TYPE = b"application/problem+json"
URN = "urn:crqueue:problem:"


@frozen
class Kind:
    """
    One kind of problem.

    :ivar name: the last part of its type.
    :ivar title: the same for every problem of this kind.
    """

    name: str
    title: str

    @property
    def uri(self) -> str:
        """
        Its type.
        """
        return URN + self.name


BAD_REQUEST = Kind("bad-request", "The request cannot be read")
UNAUTHORIZED = Kind("unauthorized", "No known token was sent")
FORBIDDEN = Kind("forbidden", "The token may not do this")
NOT_FOUND = Kind("not-found", "There is nothing here")
METHOD = Kind("method-not-allowed", "The method is not allowed here")
CONFLICT = Kind("conflict", "The state of things does not allow it")
TOO_LARGE = Kind("too-large", "The body is too long")
MEDIA = Kind("unsupported-media-type", "The body is of a kind that is not understood")
INVALID = Kind("invalid", "A field is not as it must be")
SCRIPT = Kind("script-invalid", "The script does not parse")
REUSED = Kind("idempotency-key-reused", "The idempotency key belongs to another submission")
NOT_PROMOTED = Kind("not-promoted", "The automation may not act yet")
FULL = Kind("queue-full", "The queue is full")
LIMITED = Kind("rate-limited", "The token asks too often")
HEADERS = Kind("headers-too-large", "A header is too long")
BROKEN = Kind("internal", "Something went wrong here")
AWAY = Kind("unavailable", "Something that is needed does not answer")

KINDS = {
    400: BAD_REQUEST,
    401: UNAUTHORIZED,
    403: FORBIDDEN,
    404: NOT_FOUND,
    405: METHOD,
    409: CONFLICT,
    413: TOO_LARGE,
    415: MEDIA,
    422: INVALID,
    429: LIMITED,
    431: HEADERS,
    500: BROKEN,
    503: AWAY,
}
ALL = (*dict.fromkeys(KINDS.values()), SCRIPT, REUSED, FULL, NOT_PROMOTED)


def details(
    code: int, field: str, problem: str, remedy: str, kind: Kind | None = None, **more: Any
) -> dict[str, Any]:
    """
    Put problem details together.

    :param kind: None: the usual one of the status code.
    """
    kind = kind or KINDS[code]
    return {
        "type": kind.uri,
        "title": kind.title,
        "status": code,
        "detail": f"{field}: {problem}; {remedy}",
        "field": field,
        "problem": problem,
        "remedy": remedy,
        **more,
    }
