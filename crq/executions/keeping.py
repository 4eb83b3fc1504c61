"""
What the janitor of each minute does to rows: overdue, aged, scrubbed, purged (rulings 1-3).
"""

from __future__ import annotations

from crq.database import Cursor
from crq.executions.rows import marks, not_before, set_instant
from crq.instants import Instant, instant_text

AGED = "waited longer than the limit, never started"


def running_since(txn: Cursor) -> tuple[tuple[int, Instant], ...]:
    """
    Read when each running execution started (idx_status_started_at).
    """
    rows = txn.execute(
        "SELECT execution_id, started_at FROM codeRunner_executions"
        " WHERE status = 'running' AND started_at IS NOT NULL"
    ).all()
    return tuple((row[0], set_instant(row[1])) for row in rows)


def reap_queued(txn: Cursor, queued_before: Instant, now: Instant) -> int:
    """
    Close rows that have waited too long as 303, never started. Off by default (ruling 1).
    """
    txn.execute(
        "UPDATE codeRunner_executions SET status = 'failed', error_code = 303, error_message = ?,"
        f" finished_at = {not_before('queued_at')} WHERE status = 'queued' AND queued_at < ?",
        (AGED, *[instant_text(now)] * 2, instant_text(queued_before)),
    )
    return txn.rowcount


def scrub(txn: Cursor, finished_before: Instant, batch: int) -> int:
    """
    Take the sealed API key off jobs whose execution finished before an instant (ruling 2).

    One batch in one transaction; the caller goes on until a batch comes back short. The index on
    apikey holds only what is not scrubbed yet.
    """
    # SQLite would rather walk everything that has ended, by its index on that.
    join = "CROSS JOIN" if txn.dialect == "sqlite" else "JOIN"
    rows = txn.execute(
        f"""
        SELECT j.job_id
          FROM codeRunner_jobs j {join} codeRunner_executions e ON e.job_id = j.job_id
         WHERE j.apikey IS NOT NULL AND e.finished_at < ?
         LIMIT ?
        """,
        (instant_text(finished_before), batch),
    ).all()
    if rows:
        txn.execute(
            f"UPDATE codeRunner_jobs SET apikey = NULL WHERE job_id IN ({marks(len(rows))})",
            tuple(row[0] for row in rows),
        )
    return len(rows)


def purge(txn: Cursor, queued_before: Instant, batch: int) -> int:
    """
    Delete finished executions queued before an instant, with their jobs (ruling 3).

    One batch in one transaction, so that its locks and its undo stay small.
    """
    rows = txn.execute(
        """
        SELECT execution_id, job_id FROM codeRunner_executions
         WHERE queued_at < ? AND finished_at IS NOT NULL
         ORDER BY queued_at, execution_id LIMIT ?
        """,
        (instant_text(queued_before), batch),
    ).all()
    if not rows:
        return 0
    executions = tuple(row[0] for row in rows)
    jobs = tuple(row[1] for row in rows if row[1] is not None)
    if jobs:
        txn.execute(
            f"DELETE FROM codeRunner_jobs WHERE job_id IN ({marks(len(jobs))})",
            jobs,
        )
    txn.execute(
        f"DELETE FROM codeRunner_executions WHERE execution_id IN ({marks(len(executions))})",
        executions,
    )
    return len(rows)
