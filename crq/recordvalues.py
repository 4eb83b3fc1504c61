"""
A row of the log as people and machines see it.

It is shown as it is stored, however odd: an unknown status, a text where a number belongs or an
instant that is none must not hide the row, nor the page it is on.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from crq.instants import Instant, instant_of
from crq.model import ErrorCode, shown_as


@frozen
class Record:
    """
    A row of the log as it is stored; instants are the stored text.

    :ivar times: how many refusals this row stands for (ruling 16).
    """

    execution_id: int
    job_id: Any
    subdomain: str | None
    subdomain_hash: str | None
    apikey_hash: str | None
    identifier: str | None
    status: str | None
    error_code: Any
    error_message: str | None
    debug: bool
    times: Any
    queued_at: str | None
    claimed_at: str | None
    started_at: str | None
    finished_at: str | None

    @property
    def shown(self) -> str:
        """
        The word a customer sees for its state.
        """
        return shown_as(self.status or "", self.error_code, stored_instant(self.started_at))

    @property
    def seconds(self) -> float | None:
        """
        How long it ran; None while it has not ended, or where nobody knows.

        The end of a row closed as 303 is when that was noticed, not when it happened (brief §6).
        """
        if self.error_code == ErrorCode.OUTCOME_UNKNOWN:
            return None
        started, finished = stored_instant(self.started_at), stored_instant(self.finished_at)
        if started is None or finished is None:
            return None
        return round(finished - started, 3)

    def as_json(self) -> dict[str, Any]:
        """
        The row for a machine.
        """
        return {
            "executionId": self.execution_id,
            "jobId": self.job_id,
            "subdomain": self.subdomain,
            "account": self.subdomain_hash,
            "key": self.apikey_hash,
            "identifier": self.identifier,
            "status": self.status,
            "shown": self.shown,
            "errorCode": self.error_code,
            "errorMessage": self.error_message,
            "debug": self.debug,
            "times": self.times,
            "queuedAt": shown_instant(self.queued_at),
            "claimedAt": shown_instant(self.claimed_at),
            "startedAt": shown_instant(self.started_at),
            "finishedAt": shown_instant(self.finished_at),
            "seconds": self.seconds,
        }


@frozen
class FullRecord:
    """
    One execution with everything a person may see of it. The payload is left out: it is data.
    """

    record: Record
    source_code: str | None = field(repr=False)
    drainer_id: str | None
    worker_id: str | None
    traceparent: str | None = None

    def as_json(self) -> dict[str, Any]:
        """
        The execution for a machine.
        """
        return {
            **self.record.as_json(),
            "drainerId": self.drainer_id,
            "workerId": self.worker_id,
            "traceparent": self.traceparent,
            "sourceCode": self.source_code,
        }


def shown_instant(text: str | None) -> str | None:
    """
    Show a stored instant in RFC 3339; one that is none, as it is stored.
    """
    if stored_instant(text) is None or text is None:
        return text
    return text.replace(" ", "T") + "Z"


def text_of(value: Any) -> str | None:
    """
    What a text column holds, as text.
    """
    # SQLite keeps any type in any column.
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


def plain(value: Any) -> Any:
    """
    What any other column holds; JSON knows no bytes.
    """
    return text_of(value) if isinstance(value, bytes) else value


def stored_instant(text: str | None) -> Instant | None:
    """
    Read a stored instant; None where it is missing, or none.
    """
    try:
        return None if text is None else instant_of(text)
    except (ValueError, OverflowError):
        return None
