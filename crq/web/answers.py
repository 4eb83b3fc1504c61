"""
What the door answers, as values: code, JSON, and when to try again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from crq import admission
from crq.admission import Answer
from crq.messages import Admitted, Invalid, Mismatch, Rejected

RETRY_SOON = 5  # s; a database that restarts is back by then
RETRY_LATER = 60  # s; a queue as deep as its cap takes minutes


@frozen
class Reply:
    """
    One answer.

    :ivar retry_after: seconds.
    """

    code: int
    body: Mapping[str, Any]
    retry_after: int | None = None

    @property
    def text(self) -> bytes:
        """
        The body as it is sent; what a stored row holds may be no JSON value, and is sent as text.
        """
        return json.dumps(self.body, ensure_ascii=False, default=str).encode("utf-8", "replace")


def problem(code: int, field: str, problem: str, remedy: str, retry: int | None = None) -> Reply:
    """
    Say what is wrong, with what, and what to do.
    """
    return Reply(code, {"field": field, "problem": problem, "remedy": remedy}, retry)


NOTHING_HERE = problem(404, "path", "there is nothing here", "correct the URL")
AWAY = problem(503, "database", "does not answer", "try again; nothing was taken", RETRY_SOON)
BROKEN = problem(500, "server", "something went wrong here", "the log of the daemon says what")


def of(answer: Answer, shown: str | None = None) -> Reply:
    """
    Answer a submission.

    :param shown: the present state of an execution that had been admitted before.
    """
    body = admission.as_json(answer)
    match answer:
        case Admitted(repeated=True):
            return Reply(200, {**body, "status": shown})
        case Admitted():
            return Reply(202, body)
        case Rejected():
            return Reply(429, body, RETRY_LATER)
        case Invalid() | Mismatch():
            return Reply(422, body)
