"""
One account's executions, for its own housekeeping: those that have ended, one deletion, one scrub.
"""

from __future__ import annotations

from attrs import frozen

from crq.database import Cursor
from crq.executions.rows import instant, set_instant
from crq.instants import Instant, instant_text


@frozen
class Kept:
    """
    An execution that has been queued for a while.

    :ivar finished_at: None: it has not ended, and is nobody's to tidy.
    :ivar has_key: its sealed API key is still there.
    """

    execution_id: int
    queued_at: Instant
    status: str
    finished_at: Instant | None
    has_key: bool


def kept(
    txn: Cursor,
    subdomain_hash: str,
    queued_before: Instant,
    after: tuple[Instant, int] | None,
    limit: int,
) -> tuple[Kept, ...]:
    """
    Read executions of an account, oldest first (idx_account_queued_at).

    :param after: queued_at and id of the last one that was read: instants repeat, ids do not.
    """
    at, number = after or (0.0, 0)
    rows = txn.execute(
        """
        SELECT e.execution_id, e.queued_at, e.status, e.finished_at, j.apikey IS NOT NULL
          FROM codeRunner_executions e LEFT JOIN codeRunner_jobs j ON j.job_id = e.job_id
         WHERE e.subdomain_hash = ? AND e.queued_at < ? AND e.queued_at >= ?
           AND (e.queued_at > ? OR e.execution_id > ?)
         ORDER BY e.queued_at, e.execution_id LIMIT ?
        """,
        (
            subdomain_hash,
            instant_text(queued_before),
            *[instant_text(at)] * 2,
            number,
            limit,
        ),
    ).all()
    return tuple(
        Kept(row[0], set_instant(row[1]), row[2], instant(row[3]), bool(row[4])) for row in rows
    )


def delete_one(txn: Cursor, subdomain_hash: str, execution_id: int) -> bool:
    """
    Delete one execution of an account that has ended, with its job.
    """
    job_id = txn.execute(
        "SELECT job_id FROM codeRunner_executions WHERE execution_id = ? AND subdomain_hash = ?",
        (execution_id, subdomain_hash),
    ).scalar()
    txn.execute(
        "DELETE FROM codeRunner_executions"
        " WHERE execution_id = ? AND subdomain_hash = ? AND finished_at IS NOT NULL",
        (execution_id, subdomain_hash),
    )
    gone = txn.rowcount == 1
    if gone and job_id is not None:
        txn.execute("DELETE FROM codeRunner_jobs WHERE job_id = ?", (job_id,))
    return gone


def scrub_one(txn: Cursor, subdomain_hash: str, execution_id: int) -> bool:
    """
    Take the sealed API key off the job of one execution of an account that has ended.
    """
    row = txn.execute(
        "SELECT job_id FROM codeRunner_executions"
        " WHERE execution_id = ? AND subdomain_hash = ? AND finished_at IS NOT NULL",
        (execution_id, subdomain_hash),
    ).one()
    if row is None:
        return False
    txn.execute(
        "UPDATE codeRunner_jobs SET apikey = NULL WHERE job_id = ? AND apikey IS NOT NULL",
        (row[0],),
    )
    return txn.rowcount == 1
