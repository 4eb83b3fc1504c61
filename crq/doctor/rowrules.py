"""
Does a stored row keep to its state? Pure; the table is that of README.md (States).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from attrs import frozen

from crq.instants import Instant, instant_of
from crq.model import Status
from crq.recordvalues import text_of

_INSTANTS = ("queued_at", "claimed_at", "started_at", "finished_at")


@frozen
class Row:
    """
    A row as it is stored: whatever the columns hold.
    """

    execution_id: int
    status: Any
    job_id: Any
    subdomain_hash: Any
    apikey_hash: Any
    nonce_hash: Any
    claim_epoch: Any
    queued_at: Any
    claimed_at: Any
    started_at: Any
    finished_at: Any


def broken(row: Row) -> str | None:
    """
    What contradicts the row's state (I1); None: nothing does.
    """
    try:
        at = {name: _instant(getattr(row, name)) for name in _INSTANTS}
    except ValueError as fault:
        return f"has an instant that is none: {fault}"
    if at["queued_at"] is None:
        return "has no queued_at"
    rule = _RULES.get(text_of(row.status) or "")
    if rule is None:
        return f"has the unknown status {text_of(row.status)!r}"
    if problem := rule(row):
        return problem
    if row.nonce_hash is not None and row.status != Status.CLAIMED.value:
        return "has a nonce although it is not claimed"
    known = [(name, when) for name, when in at.items() if when is not None]
    for (earlier, first), (later, second) in pairwise(known):
        if second < first:
            return f"has {later} before {earlier}"
    return None


def _queued(row: Row) -> str | None:
    return _unset(row, "claimed_at", "started_at", "finished_at")


def _claimed(row: Row) -> str | None:
    return _set(row, "claimed_at", "nonce_hash", "claim_epoch") or _unset(
        row, "started_at", "finished_at"
    )


def _running(row: Row) -> str | None:
    # One that another program dispatched was never claimed.
    claimed = () if row.claim_epoch is None else ("claimed_at",)
    return _set(row, "started_at", *claimed) or _unset(row, "finished_at")


def _success(row: Row) -> str | None:
    return _set(row, "started_at", "finished_at")


def _failed(row: Row) -> str | None:
    return _set(row, "finished_at")


def _never_started(row: Row) -> str | None:
    return _set(row, "finished_at") or _unset(row, "started_at")


_RULES: dict[str, Callable[[Row], str | None]] = {
    Status.QUEUED.value: _queued,
    Status.CLAIMED.value: _claimed,
    Status.RUNNING.value: _running,
    Status.SUCCESS.value: _success,
    Status.FAILED.value: _failed,
    Status.REJECTED.value: _never_started,
    Status.CANCELLED.value: _never_started,
}


def _set(row: Row, *names: str) -> str | None:
    for name in names:
        if getattr(row, name) is None:
            return f"is {text_of(row.status)} and has no {name}"
    return None


def _unset(row: Row, *names: str) -> str | None:
    for name in names:
        if getattr(row, name) is not None:
            return f"is {text_of(row.status)} and has {name}"
    return None


def _instant(value: Any) -> Instant | None:
    return None if value is None else instant_of(text_of(value) or "")
