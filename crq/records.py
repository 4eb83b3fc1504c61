"""
What people read: the log page by page, one execution in full, how deep the queue is.

Only SELECTs, and each as cheap on a long log as on a short one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from crq.database import Cursor
from crq.instants import Instant, instant_text
from crq.recordvalues import FullRecord, Record, plain, shown_instant, stored_instant, text_of
from crq.search import Found, Position, Wanted, along, walk

PAGE = 50  # rows of a page
PAGE_LIMIT = 500  # rows of the largest page
ID_LIMIT = 2**63 - 1  # SQLite's driver raises on a larger number
COUNT_LIMIT = 10_000  # rows a count looks at: above every sane cap, and still some ms


@frozen
class Filters:
    """
    Which rows of the log are wanted; what is None does not matter.

    :ivar accounts: hashes of accounts, any of them; an empty tuple matches nothing.
    :ivar apikey_hash: rows of this API key.
    :ivar since: queued at or after this instant.
    :ivar until: queued before this instant.
    :ivar shown: the word for people (`crq.search.SHOWN`).
    """

    accounts: tuple[str, ...] | None = None
    status: str | None = None
    error_code: int | None = None
    apikey_hash: str | None = None
    since: Instant | None = None
    until: Instant | None = None
    shown: str | None = None


@frozen
class Page:
    """
    Some rows of the log, newest first.

    :ivar cursor: gives the page after this one; None: there is none.
    :ivar searched_to: where a search stopped that would have had to read too much (`crq.search`):
        the page is short, or empty, and the cursor goes on from there.
    """

    records: tuple[Record, ...]
    cursor: str | None
    searched_to: str | None = None


@frozen
class Depth:
    """
    What waits.

    :ivar capped: there are more than `COUNT_LIMIT` rows; the numbers are lower bounds.
    :ivar by_account: queued executions by the account's hash.
    """

    total: int
    capped: bool
    oldest_queued_at: Instant | None
    by_account: Mapping[str, int]


_COLUMNS = (
    "execution_id, job_id, subdomain, subdomain_hash, apikey_hash, identifier, status, error_code,"
    " error_message, debug, times, queued_at, claimed_at, started_at, finished_at"
)


def page(txn: Cursor, filters: Filters, after_cursor: str | None = None, limit: int = PAGE) -> Page:
    """
    Read one page of the log, newest first (idx_queued_at, or idx_account_queued_at).

    The order is (queued_at, execution_id) and the cursor names both, so rows of one millisecond are
    neither lost between two pages nor shown twice.

    :raise ValueError: the cursor is none of ours.
    """
    after = None if after_cursor is None else _position(after_cursor, txn.dialect)
    limit = max(1, min(limit, PAGE_LIMIT))
    # Each account by its own index range; a sort over IN (...) would read all their rows.
    accounts: tuple[str | None, ...] = (None,)
    if filters.accounts is not None:
        accounts = tuple(dict.fromkeys(filters.accounts))
    rows: list[tuple[Any, ...]] = []
    stops: list[Position] = []
    for account in accounts:
        found, stop = _rows(txn, filters, account, after, limit + 1)
        rows += found
        stops += [] if stop is None else [stop]
    if len(accounts) > 1:
        rows.sort(key=_position_of, reverse=True)
    if stops:
        # Behind the newest stop nobody knows what there is of the account that stopped.
        rows = [row for row in rows if _position_of(row) >= max(stops)]
    records = tuple(_record(row) for row in rows[:limit])
    if len(rows) > limit:
        return Page(records, _cursor((records[-1].queued_at or "", records[-1].execution_id)))
    if stops:
        return Page(records, _cursor(max(stops)), shown_instant(max(stops)[0]))
    return Page(records, None)


def _rows(
    txn: Cursor, filters: Filters, account: str | None, after: Position | None, limit: int
) -> tuple[list[tuple[Any, ...]], Position | None]:
    """
    Read up to ``limit`` rows, and where a search for them stopped, if it did.
    """
    conditions: list[str] = []
    values: list[object] = []

    def where(condition: str, *more: object) -> None:
        conditions.append(condition)
        values.extend(more)

    if account is not None:
        where("subdomain_hash = ?", account)
    if filters.since is not None:
        where("queued_at >= ?", instant_text(filters.since))
    if filters.until is not None:
        where("queued_at < ?", instant_text(filters.until))
    wanted = Wanted(filters.status, filters.error_code, filters.apikey_hash, filters.shown)
    found = Found((), None)
    if wanted not in (Wanted(), Wanted(filters.status)) or (account and filters.status):
        found = walk(txn, wanted, conditions, values, after, limit)
        if not found.positions:
            return [], found.stopped_at
        ids = [number for _, number in found.positions]
        conditions = [f"execution_id IN ({', '.join('?' * len(ids))})"]
        values = [*ids]
    else:
        if filters.status is not None:
            where("status = ?", filters.status)
        if after is not None:
            # Not a row comparison, which MySQL does not turn into an index range.
            where(
                "queued_at <= ? AND (queued_at < ? OR execution_id < ?)",
                *(after[0], after[0], after[1]),
            )
    given = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    by = "" if found.positions else along(txn, conditions)
    rows = txn.execute(
        f"SELECT {_COLUMNS} FROM codeRunner_executions {by} {given}"  # noqa: S608 - fixed
        " ORDER BY queued_at DESC, execution_id DESC LIMIT ?",
        (*values, limit),
    ).all()
    return list(rows), found.stopped_at


def _position_of(row: tuple[Any, ...]) -> Position:
    return (text_of(row[11]) or "", row[0])


def execution(txn: Cursor, execution_id: int) -> FullRecord | None:
    """
    Read one execution in full; None: there is none of that number.
    """
    if not 0 < execution_id <= ID_LIMIT:
        return None
    row = txn.execute(
        f"SELECT {_COLUMNS}, source_code, drainer_id, worker_id, traceparent"  # noqa: S608 - fixed columns
        " FROM codeRunner_executions WHERE execution_id = ?",
        (execution_id,),
    ).one()
    if row is None:
        return None
    return FullRecord(_record(row), *map(text_of, row[15:]))


def depth(txn: Cursor) -> Depth:
    """
    Count what is queued, by account (idx_lane), and find the oldest (idx_status_queued_at).
    """
    rows = txn.execute(
        "SELECT subdomain_hash, COUNT(*) FROM (SELECT subdomain_hash FROM codeRunner_executions"
        " WHERE status = 'queued' LIMIT ?) AS waiting GROUP BY subdomain_hash",
        (COUNT_LIMIT,),
    ).all()
    oldest = txn.execute(
        "SELECT queued_at FROM codeRunner_executions WHERE status = 'queued'"
        " ORDER BY queued_at LIMIT 1"
    ).scalar()
    by_account = {text_of(row[0]) or "": int(row[1]) for row in rows}
    total = sum(by_account.values())
    return Depth(total, total >= COUNT_LIMIT, stored_instant(text_of(oldest)), by_account)


def subdomains(txn: Cursor, accounts: Iterable[str]) -> dict[str, str]:
    """
    Find the names behind accounts, from the newest row of each (idx_account_queued_at).
    """
    names: dict[str, str] = {}
    for account in accounts:
        name = txn.execute(
            "SELECT subdomain FROM codeRunner_executions WHERE subdomain_hash = ?"
            " ORDER BY queued_at DESC, execution_id DESC LIMIT 1",
            (account,),
        ).scalar()
        if name is not None:
            names[account] = text_of(name) or ""
    return names


def instant_given(text: str) -> Instant:
    """
    Read an instant somebody typed: RFC 3339 or a part of it; without a zone it is UTC.

    :raise ValueError: it is none; the text says how one looks.
    """
    try:
        moment = datetime.fromisoformat(text)
        at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        instant_text(at)
    except (ValueError, OverflowError, OSError):
        raise ValueError("write it as 2026-08-28, or 2026-08-28T12:30:00Z") from None
    return at


def _record(row: tuple[Any, ...]) -> Record:
    return Record(
        execution_id=row[0],
        job_id=plain(row[1]),
        subdomain=text_of(row[2]),
        subdomain_hash=text_of(row[3]),
        apikey_hash=text_of(row[4]),
        identifier=text_of(row[5]),
        status=text_of(row[6]),
        error_code=plain(row[7]),
        error_message=text_of(row[8]),
        debug=bool(row[9]),
        times=plain(row[10]),
        queued_at=text_of(row[11]),
        claimed_at=text_of(row[12]),
        started_at=text_of(row[13]),
        finished_at=text_of(row[14]),
    )


_POSITION = re.compile(r"(?P<queued_at>.{0,64})/(?P<execution_id>[0-9]{1,18})", re.DOTALL)


def _cursor(position: Position) -> str:
    text = f"{position[0]}/{position[1]}"
    return base64.urlsafe_b64encode(text.encode("utf-8")).decode("ascii").rstrip("=")


def _position(cursor: str, dialect: str) -> Position:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        match = _POSITION.fullmatch(base64.b64decode(padded, b"-_", validate=True).decode("utf-8"))
    except (UnicodeError, binascii.Error):
        match = None
    # SQLite may hold an odd instant, which must not end the log; MySQL compares with none.
    if match is None or (dialect == "mysql" and stored_instant(match["queued_at"]) is None):
        raise ValueError("this is no cursor of the log; take it from the page before")
    return match["queued_at"], int(match["execution_id"])
