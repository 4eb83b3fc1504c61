"""
From claimed to running to an outcome: what the executor does, and what is done for a dead one.
"""

from __future__ import annotations

from collections.abc import Sequence

from crq.database import Cursor
from crq.executions.rows import instant, marks, not_before
from crq.instants import Instant, instant_text
from crq.messages import Outcome, RowState, Started
from crq.sealing import NONCE_TTL, sha256_hex

DIED = "worker died, outcome unknown"
REAPED = "no outcome within the limit, outcome unknown"


def startable(txn: Cursor, job_id: int) -> Started | None:
    """
    Read what the executor needs of a job's execution, before it starts it.
    """
    row = txn.execute(
        """
        SELECT e.execution_id, e.subdomain, e.subdomain_hash, e.apikey_hash, j.apikey,
               e.source_code, j.payload, e.debug
          FROM codeRunner_executions e JOIN codeRunner_jobs j ON j.job_id = e.job_id
         WHERE e.job_id = ?
        """,
        (job_id,),
    ).one()
    return None if row is None else Started(*row)


def start(txn: Cursor, execution_id: int, nonce: str, worker_id: str, now: Instant) -> bool:
    """
    Begin a claimed execution by consuming its nonce; False (113) means: run nothing.

    See note [The fence].
    """
    at = instant_text(now)
    txn.execute(
        f"""
        UPDATE codeRunner_executions
           SET started_at = {not_before("claimed_at")},
               status = 'running', nonce_hash = NULL, worker_id = ?
         WHERE execution_id = ? AND status = 'claimed' AND nonce_hash = ? AND claimed_at >= ?
        """,
        (at, at, worker_id, execution_id, sha256_hex(nonce), instant_text(now - NONCE_TTL)),
    )
    return txn.rowcount == 1


def finish(txn: Cursor, execution_id: int, outcome: Outcome, now: Instant) -> bool:
    """
    Write how a running execution ended; a real outcome that comes late replaces "unknown" (303).
    """
    at = instant_text(now)
    values = (
        outcome.status.value,
        outcome.error_code,
        outcome.error_message,
        at,
        at,
        execution_id,
    )
    text = f"""
        UPDATE codeRunner_executions
           SET status = ?, error_code = ?, error_message = ?,
               finished_at = {not_before("started_at")}
         WHERE execution_id = ?
    """
    txn.execute(text + " AND status = 'running'", values)
    if txn.rowcount == 0:
        unknown = " AND status = 'failed' AND error_code = 303 AND started_at IS NOT NULL"
        txn.execute(text + unknown, values)
    return txn.rowcount == 1


def died(txn: Cursor, execution_id: int, now: Instant, message: str = DIED) -> bool:
    """
    Close a running execution whose worker is known dead, or overdue: outcome unknown (303).
    """
    at = instant_text(now)
    txn.execute(
        f"""
        UPDATE codeRunner_executions
           SET status = 'failed', error_code = 303, error_message = ?,
               finished_at = {not_before("started_at")}
         WHERE execution_id = ? AND status = 'running'
        """,
        (message, at, at, execution_id),
    )
    return txn.rowcount == 1


def row_states(txn: Cursor, execution_ids: Sequence[int]) -> dict[int, RowState]:
    """
    Read what settling needs of rows, in one statement; a row that is gone is missing.
    """
    rows = txn.execute(
        "SELECT execution_id, status, claim_epoch, error_code, queued_at, started_at, finished_at"
        f" FROM codeRunner_executions WHERE execution_id IN ({marks(len(execution_ids))})",
        execution_ids,
    ).all()
    return {row[0]: RowState(*row[:4], *map(instant, row[4:])) for row in rows}


def worker_of(txn: Cursor, execution_id: int) -> tuple[str, str | None] | None:
    """
    Read a row's status and the worker that started it; settles a start's lost COMMIT.
    """
    row = txn.execute(
        "SELECT status, worker_id FROM codeRunner_executions WHERE execution_id = ?",
        (execution_id,),
    ).one()
    return None if row is None else (row[0], row[1])
