"""
What an executor's answer says: an outcome, an error code, or only something to show an operator.

Pure. The answer may come from the executor or from anything in front of it, so nothing in it is
believed that does not fit: the outcome must name the execution that was asked for.
"""

from __future__ import annotations

import json
from typing import Any

from crq.messages import Answered, Outcome
from crq.model import Claimed, ErrorCode, Status

DETAIL_LENGTH = 300  # characters
CODES = range(100, 1000)
# Refused without a start, whatever else the answer says: the row may be running by another request.
REFUSALS = (ErrorCode.NONCE_MISSING, ErrorCode.NONCE_INVALID)
MESSAGE_LENGTH = 16_000  # characters; with four bytes each they fit into a TEXT column


def read_answer(
    claimed: Claimed,
    http_status: int,
    body: bytes,
    limit: int,
    location: bytes = b"",
    retry_after: bytes | None = None,
) -> Answered:
    """
    Read an answer's status and body.

    :param limit: a longer body was cut there and is not read as an outcome.
    :param location: where a redirect leads; it is shown and never followed.
    :param retry_after: the header of this name.
    """
    outcome, error_code, detail = None, None, ""
    if len(body) > limit:
        detail = f"answer of more than {limit} bytes: {shown(body)}"
    else:
        outcome, error_code = _read(claimed, body)
    if outcome is None and not detail:
        detail = f"redirect to {shown(location)}" if location else shown(body)
    asked = None if retry_after is None else retry_after.decode("latin-1")
    return Answered(http_status, outcome, error_code, detail[:DETAIL_LENGTH], asked)


def shown(text: str | bytes) -> str:
    """
    Make foreign text fit for one line of a log: valid UTF-8, control characters as escapes, short.
    """
    if isinstance(text, bytes):
        text = text[: 4 * DETAIL_LENGTH].decode("utf-8", "replace")
    text = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text[:DETAIL_LENGTH]
    )
    return text[:DETAIL_LENGTH]


def _read(claimed: Claimed, body: bytes) -> tuple[Outcome | None, int | None]:
    try:
        answer = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(answer, dict):
        return None, None
    named = answer.get("executionId")
    if named is not None and (type(named) is not int or named != claimed.execution_id):
        return None, None  # of another execution: not a word of it counts
    error_code, message = answer.get("errorCode"), answer.get("errorMessage")
    if error_code is not None and (type(error_code) is not int or error_code not in CODES):
        return None, None
    if message is not None and not isinstance(message, str):
        return None, None
    if named is None:
        return None, error_code
    return _outcome(answer.get("status"), error_code, message), error_code


def _outcome(status: Any, error_code: int | None, message: str | None) -> Outcome | None:
    if status == Status.SUCCESS.value and error_code is None:
        return Outcome(Status.SUCCESS)
    if status == Status.FAILED.value and error_code not in (None, *REFUSALS):
        return Outcome(Status.FAILED, error_code, _storable(message))
    return None


def _storable(message: str | None) -> str | None:
    # JSON can spell half a surrogate pair, which no database takes.
    if message is None:
        return None
    return message[:MESSAGE_LENGTH].encode("utf-8", "replace").decode("utf-8")
