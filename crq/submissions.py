"""
What a caller may submit: each field checked, with what is wrong and what to do about it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from attrs import fields as attributes

from crq.messages import Submission

SOURCE_LIMIT = 15_000_000  # bytes; MEDIUMTEXT holds 16,777,215 and is shared with nothing else
PAYLOAD_LIMIT = 15_000_000  # bytes, the same
IDENTIFIER_LIMIT = 255  # characters: the column
FIELDS = tuple(
    attribute.name
    for attribute in attributes(Submission)
    if attribute.name not in ("idempotency_key", "traceparent")  # headers, or options
)

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_APIKEY = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,498}[\x21-\x7e])?")
_IDEMPOTENCY = re.compile(r"[\x21-\x7e]{1,255}")


class Refusal(Exception):
    """
    A submission that cannot be taken as it is. Repeating it unchanged cannot help.

    :ivar field: what it is about: a field, or ``body``.
    :ivar problem: what is wrong, without repeating the value: it may be a secret.
    :ivar remedy: what to do about it.
    """

    def __init__(self, field: str, problem: str, remedy: str, http_status: int = 422) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy
        self.http_status = http_status


def submission(
    given: Mapping[str, object],
    idempotency_key: str | None = None,
    traceparent: str | None = None,
) -> Submission:
    """
    Check what a caller gave and make a submission of it.

    :param given: the fields by name; ``payload`` is any JSON value.
    :param traceparent: a valid one (`crq.traceparent`), or None.
    :raise Refusal: a field is missing, unknown or not as it must be.
    """
    for name in given:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(FIELDS)}"
            raise Refusal(visible(name), "there is no such field", hint)
    return Submission(
        subdomain=label(given.get("subdomain")),
        apikey=_matching(
            "apikey",
            given.get("apikey"),
            _APIKEY,
            "give 1 to 500 printable ASCII characters, without blanks around them",
        ),
        source_code=_source_code(given.get("source_code")),
        identifier=_identifier(given.get("identifier")),
        payload=_canonical(given.get("payload")),
        debug=_debug(given.get("debug")),
        idempotency_key=None
        if idempotency_key is None
        else _matching(
            "idempotency_key",
            idempotency_key,
            _IDEMPOTENCY,
            "give 1 to 255 visible ASCII characters, such as a UUID",
        ),
        traceparent=traceparent,
    )


def json_value(text: str | bytes, field: str, http_status: int = 422) -> Any:
    """
    Read JSON (RFC 8259) strictly: no NaN, no name twice in one object, nothing too deep to read.

    :raise Refusal: it is not that.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_no_constant
        )
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    except RecursionError:
        problem = "is nested too deeply"
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except ValueError as error:
        problem = f"is not JSON: {error}"
    raise Refusal(field, problem, "give JSON text in UTF-8", http_status)


def _text(field: str, value: object, remedy: str) -> str:
    if value is None:
        raise Refusal(field, "is missing", remedy)
    if not isinstance(value, str):
        raise Refusal(field, "is not a text", remedy)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        # JSON may spell half a surrogate pair; no database stores it.
        raise Refusal(field, "is not valid Unicode", "remove the lone surrogate") from None
    return value


def _matching(field: str, value: object, form: re.Pattern[str], remedy: str) -> str:
    text = _text(field, value, remedy)
    if form.fullmatch(text) is None:
        raise Refusal(field, "is not of the form it must have" if text else "is empty", remedy)
    return text


def label(value: object) -> str:
    """
    Read the subdomain of an account.

    :raise Refusal: it is none.
    """
    remedy = "give one DNS label: up to 63 letters, digits and inner dashes"
    text = _text("subdomain", value, remedy)
    # ASCII first: the Kelvin sign becomes a plain k in lower case.
    return _matching("subdomain", text.lower() if text.isascii() else text, _LABEL, remedy)


def _source_code(value: object) -> str:
    text = _text("source_code", value, "give the text of a script")
    if not text.strip():
        raise Refusal("source_code", "is empty", "give the text of a script")
    if "\0" in text:
        raise Refusal("source_code", "contains a NUL character", "remove it")
    if len(text.encode("utf-8")) > SOURCE_LIMIT:
        raise Refusal("source_code", "is too long", f"give at most {SOURCE_LIMIT:,} bytes")
    return text


def _identifier(value: object) -> str | None:
    if value is None:
        return None
    remedy = f"give at most {IDENTIFIER_LIMIT} characters, or leave it out"
    text = _text("identifier", value, remedy)
    if len(text) > IDENTIFIER_LIMIT:
        raise Refusal("identifier", "is too long", remedy)
    return text


def _debug(value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise Refusal("debug", "is not true or false", "give true or false")
    return value


def _canonical(value: object) -> str | None:
    """
    One text for one JSON value: sorted names, no blanks; null is no payload.
    """
    if value is None:
        return None
    remedy = "give a value that JSON can express"
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise Refusal("payload", "is not valid Unicode", "remove the lone surrogate") from None
    except RecursionError:
        raise Refusal("payload", "is nested too deeply", "nest it less deeply") from None
    except (TypeError, ValueError):
        raise Refusal("payload", "is not a JSON value", remedy) from None
    if size > PAYLOAD_LIMIT:
        raise Refusal("payload", "is too long", f"give at most {PAYLOAD_LIMIT:,} bytes of JSON")
    return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same name twice")
    return value


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python refuses more than 4,300 digits
        raise ValueError("a number has too many digits") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number JSON knows")


def visible(name: str) -> str:
    """
    Make a word of the caller fit to go back to the caller: plain, and not a megabyte of it.
    """
    return name[:64].encode("ascii", "backslashreplace").decode("ascii")
