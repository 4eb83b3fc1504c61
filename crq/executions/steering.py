"""
What operators do to rows by hand: cancel what waits, and say how an unknown outcome ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from crq.database import Cursor
from crq.executions.rows import marks, not_before
from crq.instants import Instant, instant_text
from crq.model import Status


def count_waiting(
    txn: Cursor,
    accounts: Sequence[str] | None,
    apikey_hash: str | None,
    since: Instant | None,
    until: Instant | None,
    limit: int,
) -> int:
    """
    Count the queued rows that fit, up to a limit; reads no more than what waits.
    """
    where, values = _waiting(accounts, apikey_hash, since, until)
    count = txn.execute(
        f"SELECT COUNT(*) FROM (SELECT 1 FROM codeRunner_executions {where} LIMIT ?) AS waiting",
        (*values, limit),
    ).scalar()
    return int(count)


def cancel_waiting(
    txn: Cursor,
    accounts: Sequence[str] | None,
    apikey_hash: str | None,
    since: Instant | None,
    until: Instant | None,
    limit: int,
    now: Instant,
) -> tuple[int, bool]:
    """
    Cancel the oldest queued rows that fit; returns how many, and whether there may be more.

    A row that is claimed in the same moment is left to whoever has claimed it.
    """
    where, values = _waiting(accounts, apikey_hash, since, until)
    rows = txn.execute(
        f"SELECT execution_id FROM codeRunner_executions {where}"
        " ORDER BY queued_at, execution_id LIMIT ?",
        (*values, limit),
    ).all()
    if not rows:
        return 0, False
    txn.execute(
        f"""
        UPDATE codeRunner_executions
           SET status = 'cancelled', finished_at = {not_before("queued_at")}
         WHERE execution_id IN ({marks(len(rows))}) AND +status = 'queued'
        """,
        (*[instant_text(now)] * 2, *(row[0] for row in rows)),
    )
    return txn.rowcount, len(rows) == limit


def settle_unknown(
    txn: Cursor, execution_id: int, status: Status, error_code: int | None, message: str
) -> bool:
    """
    Write how an execution ended whose outcome was unknown; an outcome that is known stays.
    """
    txn.execute(
        "UPDATE codeRunner_executions SET status = ?, error_code = ?, error_message = ?"
        " WHERE execution_id = ? AND status = 'failed' AND error_code = 303"
        " AND started_at IS NOT NULL",
        (status.value, error_code, message, execution_id),
    )
    return txn.rowcount == 1


def _waiting(
    accounts: Sequence[str] | None,
    apikey_hash: str | None,
    since: Instant | None,
    until: Instant | None,
) -> tuple[str, list[object]]:
    conditions = ["status = 'queued'"]
    values: list[object] = []
    if accounts is not None:
        conditions.append(f"subdomain_hash IN ({marks(len(accounts)) or 'NULL'})")
        values += accounts
    if apikey_hash is not None:
        conditions.append("apikey_hash = ?")
        values.append(apikey_hash)
    if since is not None:
        conditions.append("queued_at >= ?")
        values.append(instant_text(since))
    if until is not None:
        conditions.append("queued_at < ?")
        values.append(instant_text(until))
    return f"WHERE {' AND '.join(conditions)}", values
