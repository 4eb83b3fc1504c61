"""
Finding rows of the log by what no index knows, without reading the whole log.

The walk goes along an index that does exist, newest first, in pieces, and looks at each row it
passes; after `SEEN_LIMIT` rows it stops and says where. So a rare code in a log of a million rows
costs as much as one in a log of a thousand, and the next page goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen

from crq.database import Cursor
from crq.model import ErrorCode, Status, shown_as
from crq.recordvalues import stored_instant, text_of

PIECE = 500  # rows of one statement
SEEN_LIMIT = 2500  # rows passed for one page: some 20 ms
SHOWN = (
    *("queued", "claimed", "running", "success", "failed"),
    *("rejected", "cancelled", "outcome unknown", "never started"),
)
Position = tuple[str, int]  # queued_at as it is stored, execution_id


@frozen
class Wanted:
    """
    What a row must be like.

    :ivar shown: its word for people, with ``claimed`` told apart from ``queued``.
    """

    status: str | None = None
    error_code: int | None = None
    apikey_hash: str | None = None
    shown: str | None = None

    @property
    def base(self) -> str | None:
        """
        The status that all such rows have; None: they have any.
        """
        if self.status is not None:
            return self.status
        if self.shown is not None:
            unsaid = ("outcome unknown", "never started")
            return Status.FAILED.value if self.shown in unsaid else self.shown
        if self.error_code is None:
            return None
        known = {int(code) for code in ErrorCode}
        if self.error_code not in known:
            return None
        refused = self.error_code == ErrorCode.QUEUE_FULL
        return Status.REJECTED.value if refused else Status.FAILED.value

    def fits(self, status: Any, error_code: Any, apikey_hash: Any, started_at: Any) -> bool:
        """
        Whether a row is like that.
        """
        if self.status is not None and text_of(status) != self.status:
            return False
        if self.error_code is not None and error_code != self.error_code:
            return False
        if self.apikey_hash is not None and text_of(apikey_hash) != self.apikey_hash:
            return False
        if self.shown is None:
            return True
        word = text_of(status) or ""
        if word != Status.CLAIMED.value:
            word = shown_as(word, error_code, stored_instant(text_of(started_at)))
        return word == self.shown


@frozen
class Found:
    """
    What a walk found.

    :ivar positions: of the rows, newest first.
    :ivar stopped_at: where it stopped without having seen everything; None: it saw all, or enough.
    """

    positions: tuple[Position, ...]
    stopped_at: Position | None


def walk(
    txn: Cursor,
    wanted: Wanted,
    conditions: list[str],
    values: list[object],
    after: Position | None,
    limit: int,
) -> Found:
    """
    Find up to ``limit`` rows.

    :param conditions: what an index can tell: account, instants; with their values.
    :param after: go on behind this position.
    """
    if wanted.base is not None and not any("subdomain_hash" in each for each in conditions):
        conditions = ["status = ?", *conditions]  # idx_status_queued_at
        values = [wanted.base, *values]
    found: list[Position] = []
    for _ in range(SEEN_LIMIT // PIECE):
        rows = _piece(txn, conditions, values, after)
        for number, queued_at, *row in rows:
            after = (text_of(queued_at) or "", number)
            if wanted.fits(*row):
                found.append(after)
                if len(found) == limit:
                    return Found(tuple(found), None)
        if len(rows) < PIECE:
            return Found(tuple(found), None)
    return Found(tuple(found), after)


def along(txn: Cursor, conditions: Iterable[str]) -> str:
    """
    Name the index that a reading of the log, newest first, is to walk along.

    Left to itself, MySQL reads and sorts the whole table while it is small, and a whole index that
    covers the columns even when it is not.
    """
    if txn.dialect == "sqlite":
        return ""
    given = list(conditions)
    if any(each.startswith("subdomain_hash") for each in given):
        return "FORCE INDEX (idx_account_queued_at)"
    if any(each.startswith("status") for each in given):
        return "FORCE INDEX (idx_status_queued_at)"
    return "FORCE INDEX (idx_queued_at)"


def _piece(
    txn: Cursor, conditions: list[str], values: list[object], after: Position | None
) -> list[tuple[Any, ...]]:
    conditions, values = list(conditions), list(values)
    if after is not None:
        conditions.append("queued_at <= ? AND (queued_at < ? OR execution_id < ?)")
        values += (after[0], after[0], after[1])
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return list(
        txn.execute(
            "SELECT execution_id, queued_at, status, error_code, apikey_hash, started_at"  # noqa: S608 - fixed
            f" FROM codeRunner_executions {along(txn, conditions)} {where}"
            " ORDER BY queued_at DESC, execution_id DESC LIMIT ?",
            (*values, PIECE),
        ).all()
    )
