"""
What the door answers, as values: code, JSON, and when to try again. What is wrong is answered as
problem details (`crq.web.problems`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from crq import admission
from crq.admission import Answer
from crq.messages import Admitted, Invalid, Mismatch, Rejected
from crq.web import problems
from crq.web.problems import Kind

JSON = b"application/json; charset=utf-8"
RETRY_SOON = 5  # s; a database that restarts is back by then
RETRY_LATER = 60  # s; a queue as deep as its cap takes minutes


@frozen
class Reply:
    """
    One answer.

    :ivar retry_after: seconds.
    :ivar media: of the body.
    """

    code: int
    body: Mapping[str, Any]
    retry_after: int | None = None
    media: bytes = JSON

    @property
    def text(self) -> bytes:
        """
        The body as it is sent; what a stored row holds may be no JSON value, and is sent as text.
        """
        return json.dumps(self.body, ensure_ascii=False, default=str).encode("utf-8", "replace")


def problem(
    code: int,
    field: str,
    problem: str,
    remedy: str,
    retry: int | None = None,
    kind: Kind | None = None,
    **more: Any,
) -> Reply:
    """
    Say what is wrong, with what, and what to do.
    """
    body = problems.details(code, field, problem, remedy, kind, **more)
    return Reply(code, body, retry, problems.MEDIA_TYPE)


NOTHING_HERE = problem(404, "path", "there is nothing here", "correct the URL")
BUSY = problem(503, "server", "has too much to do", "try again; nothing was taken", RETRY_SOON)
AWAY = problem(503, "database", "does not answer", "try again; nothing was taken", RETRY_SOON)
GATES_AWAY = problem(503, "gates", "their store does not answer", "try again", RETRY_SOON)
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
            return problem(429, **_more(body), retry=RETRY_LATER, kind=problems.FULL)
        case Invalid():
            return problem(422, **_more(body), kind=problems.SCRIPT)
        case Mismatch():
            return problem(422, **_more(body), kind=problems.REUSED)


def _more(body: Mapping[str, Any]) -> dict[str, Any]:
    # In problem details ``status`` is the answer's own.
    return {
        ("executionStatus" if name == "status" else name): value for name, value in body.items()
    }
