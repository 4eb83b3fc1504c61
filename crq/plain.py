"""
The plain contract: any HTTP endpoint is an executor, and the status of its answer is the outcome.

Pure: what is sent, and what an answer means.

# Note [Running from the claim on]

There is no fence at the endpoint: what has left may have begun. So the claim itself makes a row
``running``, under the mark of the process that is to POST it, and only that process may put it
back, for one of two reasons: not a byte has left, or the endpoint has said that it began nothing
(429 or 503 with Retry-After). Whatever else happens ends the row. When the process is gone, nobody
can know: 303.

# Note [What speaks of the endpoint]

A row that was sent is spent, even if a whole deployment answers 404. So that a wrong URL or a dead
endpoint does not burn a backlog within seconds, an answer of that kind pauses everything, as a
refused connection does: at worst a row every `policy.BACK_OFF_LAST` seconds is lost to it.
"""

from __future__ import annotations

import json

from crq.messages import (
    Answered,
    Conclusion,
    DispatchResult,
    Fate,
    NotSent,
    Outcome,
    Parcel,
)
from crq.model import ErrorCode, Status

MARK = "plain by "  # begins the worker_id of a row that a plain endpoint runs; no host has a blank
CONTENT_TYPE = "application/json"
NOTHING_BEGUN = frozenset({429, 503})  # with Retry-After
# Not allowed in, not there, the wrong door, nobody behind it (see note).
SPEAKS_OF_THE_ENDPOINT = frozenset({401, 403, 404, 405, 407, 502, 504})


def mark(drainer_id: str, life: str) -> str:
    """
    The mark of one process on the rows it POSTs.

    :param life: something that no other process has, not even the one before it.
    """
    return f"{MARK}{drainer_id}:{life}"


def conclude(result: DispatchResult) -> Conclusion:
    """
    Say what becomes of a row whose POST has ended so.
    """
    if isinstance(result, NotSent):
        return Conclusion(Fate.UNSENDABLE if result.for_good else Fate.RELEASED, result.detail)
    if not isinstance(result, Answered):
        message = f"no answer, outcome unknown: {result.detail}"
        unknown = Outcome(Status.FAILED, ErrorCode.OUTCOME_UNKNOWN, message)
        return Conclusion(Fate.ENDED, message, unknown, endpoint_ails=True)
    status = result.http_status
    detail = f"HTTP {status} {result.detail}".rstrip()
    if 200 <= status < 300:
        return Conclusion(Fate.ENDED, detail, Outcome(Status.SUCCESS))
    if status in NOTHING_BEGUN and result.retry_after is not None:
        return Conclusion(Fate.GATED, detail)
    return Conclusion(
        Fate.ENDED,
        detail,
        Outcome(Status.FAILED, _code(status), detail),
        endpoint_ails=status < 400 or status in SPEAKS_OF_THE_ENDPOINT,
    )


def _code(http_status: int) -> int:
    # A redirect's number would be taken for a code of ours (301, 302, 303).
    return http_status if http_status >= 400 else int(ErrorCode.EXECUTOR_FATAL)


def body(parcel: Parcel, apikey: str | None) -> bytes:
    """
    Write what the endpoint receives.

    :param apikey: the API key itself; None: it is not to be sent.
    """
    fields: dict[str, object] = {
        "executionId": parcel.execution_id,
        "account": parcel.account,
        "subdomain": parcel.subdomain,
        "identifier": parcel.identifier,
        "source_code": parcel.source_code,
        "payload": parcel.payload,
        "debug": parcel.debug,
    }
    if apikey is not None:
        fields["apikey"] = apikey
    return json.dumps(fields).encode("ascii")
