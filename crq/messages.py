"""
The words of what goes in and out: submissions and their answers, dispatches and their results.

Frozen values, with no I/O and no clock.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from attrs import field, frozen

from crq.instants import Instant
from crq.model import Status


@frozen
class Submission:
    """
    What a caller wants run. `sealing.Sealer.seal` makes it fit to be stored.

    :ivar payload: JSON text handed to the script, or None.
    :ivar idempotency_key: the caller's own name for this submission; a repetition finds its row.
    :ivar traceparent: the caller's place in a trace (W3C Trace Context).
    """

    subdomain: str
    apikey: str = field(repr=False)
    source_code: str = field(repr=False)
    identifier: str | None = None
    payload: str | None = field(default=None, repr=False)
    debug: bool = False
    idempotency_key: str | None = None
    traceparent: str | None = None


@frozen
class SealedSubmission:
    """
    A submission as it is stored: hashes to look it up by, the API key only as a sealed token.

    :ivar idempotency_key: SHA-256 of the caller's key, or of a random one when there was none: an
        unanswered COMMIT is settled by looking for it.
    :ivar named: the caller gave that key, so the same submission may have been admitted before.
    """

    subdomain: str
    subdomain_hash: str
    apikey_hash: str
    sealed_apikey: str = field(repr=False)
    source_code: str = field(repr=False)
    identifier: str | None
    payload: str | None = field(repr=False)
    debug: bool
    idempotency_key: str
    traceparent: str | None = None
    named: bool = True


@frozen
class Admitted:
    """
    The execution waits in the queue.

    :ivar repeated: the same idempotency key had been admitted before; nothing new was stored.
    """

    execution_id: int
    repeated: bool = False


@frozen
class Rejected:
    """
    The queue is too deep (107). The row says so; the caller is told.

    :ivar depth: which cap: ``account`` or ``total``.
    """

    execution_id: int
    depth: str
    limit: int


@frozen
class Invalid:
    """
    The script does not parse (201). The row says so; the caller is told.
    """

    execution_id: int
    message: str
    line: int
    column: int


@frozen
class Mismatch:
    """
    The idempotency key belongs to an earlier, different submission; nothing was stored.
    """

    execution_id: int


@frozen
class Outcome:
    """
    How a script ended, as the executor knows it.
    """

    status: Status
    error_code: int | None = None
    error_message: str | None = None


@frozen
class Answered:
    """
    The executor, or something in front of it, answered.

    :ivar outcome: the outcome the body carried, if it carried one.
    :ivar error_code: the code the body carried (112 and 113 come without an outcome).
    :ivar retry_after: the Retry-After header as it came.
    """

    http_status: int
    outcome: Outcome | None = None
    error_code: int | None = None
    detail: str = ""
    retry_after: str | None = None


@frozen
class NotSent:
    """
    The request provably never left: refused, no name, no route, no connection in time.

    :ivar for_good: nor can it ever: the reason lies in the row itself.
    """

    detail: str
    for_good: bool = False


@frozen
class Lost:
    """
    The request left and no whole answer came back; only the row knows whether it began.
    """

    detail: str


DispatchResult: TypeAlias = Answered | NotSent | Lost


@frozen
class RowState:
    """
    What settling needs to know of a row, and what is measured of it when it has ended.
    """

    execution_id: int
    status: str
    claim_epoch: int | None = None
    error_code: int | None = None
    queued_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None


class Settlement(Enum):
    """
    What is to be done about a row whose dispatch has ended.
    """

    NOTHING = "nothing"
    FINISH = "finish"
    ASK_LIVENESS = "ask liveness"
    RELEASE_AND_BACK_OFF = "release and back off"
    FAIL = "fail"


class Fate(Enum):
    """
    What becomes of a row that a plain endpoint was to run.
    """

    ENDED = "ended"
    GATED = "gated"
    RELEASED = "released"
    UNSENDABLE = "unsendable"


@frozen
class Conclusion:
    """
    What the end of a dispatch to a plain endpoint says.

    :ivar outcome: how it ended, if it did.
    :ivar endpoint_ails: it speaks of the endpoint more than of the row: others would fare alike.
    """

    fate: Fate
    detail: str = ""
    outcome: Outcome | None = None
    endpoint_ails: bool = False


@frozen
class Parcel:
    """
    What a plain endpoint is sent of an execution.

    :ivar account: the hash that its rows carry; ``subdomain`` may be missing.
    """

    execution_id: int
    account: str
    subdomain: str | None
    identifier: str | None
    sealed_apikey: str | None = field(repr=False)
    source_code: str | None = field(repr=False)
    payload: str | None = field(repr=False)
    debug: bool = field(converter=bool)


@frozen
class Started:
    """
    What the executor needs to run an execution it is about to start.
    """

    execution_id: int
    subdomain: str
    subdomain_hash: str
    apikey_hash: str | None
    sealed_apikey: str | None = field(repr=False)
    source_code: str | None = field(repr=False)
    payload: str | None = field(repr=False)
    debug: bool = field(converter=bool)
