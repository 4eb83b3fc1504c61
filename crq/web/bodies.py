"""
What a request carries: the fields of a submission out of JSON or a form, a page's query.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl

from twisted.web.http_headers import Headers

from crq import records
from crq.model import Status
from crq.sealing import Sealer
from crq.search import SHOWN
from crq.submissions import FIELDS, Refusal, json_value, label, visible
from crq.traceparent import traceparent

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
QUERY = (
    *("subdomain", "account", "key", "status", "shown", "errorCode", "since", "until"),
    *("limit", "cursor"),
)
SELECTION = ("subdomain", "account", "key", "since", "until")
_HASH = re.compile("[0-9a-f]{64}")


def media_type(headers: Headers) -> str:
    """
    Read which of the two forms a body has.

    :raise Refusal: 415.
    """
    given = headers.getRawHeaders(b"Content-Type") or []
    name, *parameters = given[0].decode("latin-1").lower().split(";") if len(given) == 1 else [""]
    charsets = [
        value.strip().strip('"')
        for key, _, value in (parameter.partition("=") for parameter in parameters)
        if key.strip() == "charset"
    ]
    encoded = headers.getRawHeaders(b"Content-Encoding") or []
    plain = all(encoding.strip().lower() == b"identity" for encoding in encoded)
    if name.strip() in (JSON, FORM) and set(charsets) <= {"utf-8", "utf8"} and plain:
        return name.strip()
    raise Refusal(
        "Content-Type", "is not one that is understood", f"send {JSON} or {FORM}, in UTF-8", 415
    )


def idempotency_key(headers: Headers) -> str | None:
    """
    Read the Idempotency-Key; whether it is a good one, `crq.admission.submission` says.
    """
    given = headers.getRawHeaders(b"Idempotency-Key") or []
    if len(given) > 1:
        raise Refusal("idempotency_key", "is given twice", "send one Idempotency-Key header")
    return given[0].decode("latin-1") if given else None


def fields(body: bytes, media: str) -> Mapping[str, object]:
    """
    Read the fields of a submission.

    :raise Refusal: the body cannot be read (400), or a field of a form is not of its kind (422).
    """
    if media == FORM:
        return _form(body)
    value = json_value(body, "body", 400)
    if not isinstance(value, dict):
        raise Refusal("body", "is not a JSON object", "send an object with the fields", 400)
    return value


def _form(body: bytes) -> Mapping[str, object]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=2 * len(FIELDS),
        )
    except ValueError:  # UnicodeDecodeError is one
        raise Refusal("body", "is not a form", f"send {FORM} in UTF-8", 400) from None
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name in found:
            raise Refusal(name, "is given twice", "give each field once")
        found[name] = text
        if name == "payload":
            found[name] = json_value(text, "payload")
        elif name == "debug":
            if text not in BOOLEANS:
                raise Refusal("debug", "is not true or false", "give true or false")
            found[name] = BOOLEANS[text]
    return found


def query(
    args: Mapping[bytes, list[bytes]], sealer: Sealer
) -> tuple[records.Filters, str | None, int]:
    """
    Read which page of the log is wanted: filters, cursor and limit.

    :raise Refusal: a parameter is unknown, given twice or not of its kind.
    """
    given = names(args, QUERY)
    filters = records.Filters(
        accounts=_accounts(given, sealer),
        status=_status(given.get("status")),
        error_code=number("errorCode", given.get("errorCode"), 0, 99_999),
        apikey_hash=None if "key" not in given else hash_of("key", given["key"]),
        since=instant("since", given.get("since")),
        until=instant("until", given.get("until")),
        shown=_shown(given.get("shown")),
    )
    limit = number("limit", given.get("limit"), 1, records.PAGE_LIMIT)
    return filters, given.get("cursor"), records.PAGE if limit is None else limit


def selection(given: Mapping[str, object], sealer: Sealer) -> records.Filters:
    """
    Read which waiting executions an action is about, out of the fields of a body.

    :raise Refusal: as in `query`.
    """
    texts: dict[str, str] = {}
    for name, value in given.items():
        if name not in SELECTION:
            hint = f"known are {', '.join(SELECTION)}"
            raise Refusal(visible(name), "there is no such filter", hint)
        if not isinstance(value, str):
            raise Refusal(name, "is not a text", "give a text, or leave it out")
        texts[name] = value
    return records.Filters(
        accounts=_accounts(texts, sealer),
        apikey_hash=None if "key" not in texts else hash_of("key", texts["key"]),
        since=instant("since", texts.get("since")),
        until=instant("until", texts.get("until")),
    )


def names(args: Mapping[bytes, list[bytes]], known: Collection[str]) -> dict[str, str]:
    """
    Read the parameters of a query, each of a known name and given once.

    :raise Refusal: they are not like that.
    """
    given: dict[str, str] = {}
    for raw, values in args.items():
        name = raw.decode("ascii", "backslashreplace")
        if name not in known:
            hint = f"known are {', '.join(known)}" if known else "there are none"
            raise Refusal(name[:64] or "query", "there is no such filter", hint)
        if len(values) != 1:
            raise Refusal(name, "is given twice", "give each filter once")
        try:
            given[name] = values[0].decode("utf-8")
        except UnicodeDecodeError:
            raise Refusal(name, "is not UTF-8 text", "encode it as UTF-8") from None
    return given


def json_object(body: bytes, media: str) -> dict[str, object]:
    """
    Read a JSON object; an empty body is an empty one.

    :raise Refusal: it is none.
    """
    if not body:
        return {}
    if media != JSON:
        raise Refusal("Content-Type", "is not one that is understood here", f"send {JSON}", 415)
    value = json_value(body, "body", 400)
    if not isinstance(value, dict):
        raise Refusal("body", "is not a JSON object", "send an object with the fields", 400)
    return value


def account_of(name: str, sealer: Sealer) -> str:
    """
    The hash of an account that is named by its hash or by its subdomain.

    No subdomain is as long as a hash, so neither passes for the other.

    :raise Refusal: it is neither.
    """
    if _HASH.fullmatch(name):
        return name
    try:
        return sealer.account(label(name))
    except Refusal:
        remedy = "give its subdomain, or 64 hex digits"
        raise Refusal("account", "is no account", remedy) from None


def hash_of(name: str, text: str) -> str:
    """
    Make sure that a text is the hash of an account or of a key.

    :raise Refusal: it is none.
    """
    if _HASH.fullmatch(text) is None:
        raise Refusal(name, f"is no {name}'s hash", "give 64 hex digits")
    return text


def trace(headers: Headers) -> str | None:
    """
    Read the caller's place in a trace; one that is not valid is as good as none.
    """
    given = headers.getRawHeaders(b"traceparent") or []
    return traceparent(given[0].decode("latin-1")) if len(given) == 1 else None


def _accounts(given: Mapping[str, str], sealer: Sealer) -> tuple[str, ...] | None:
    if not given.keys() & {"subdomain", "account"}:
        return None
    if not re.fullmatch("[0-9a-f]{64}", given.get("account", "0" * 64)):
        raise Refusal("account", "is no account's hash", "give 64 hex digits, or its subdomain")
    accounts = tuple(
        account
        for account in (
            sealer.account(given["subdomain"].lower()) if given.get("subdomain") else None,
            given.get("account"),
        )
        if account is not None
    )
    # Two different accounts: nothing is of both.
    return () if len(set(accounts)) > 1 else accounts


def _shown(text: str | None) -> str | None:
    if text is None or text in SHOWN:
        return text
    raise Refusal("shown", "is no word for a state", f"give one of {', '.join(SHOWN)}")


def _status(text: str | None) -> str | None:
    known = [status.value for status in Status]
    if text is None or text in known:
        return text
    raise Refusal("status", "is no status", f"give one of {', '.join(known)}")


def number(name: str, text: str | None, low: int, high: int) -> int | None:
    """
    Read a whole number of a range; None: it was not given.

    :raise Refusal: it is none.
    """
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    raise Refusal(name, "is not a number in range", f"give {low} to {high}")


def instant(name: str, text: str | None) -> float | None:
    """
    Read an instant; None: it was not given.

    :raise Refusal: it is none.
    """
    try:
        return None if text is None else records.instant_given(text)
    except ValueError as error:
        raise Refusal(name, "is no instant", str(error)) from None
