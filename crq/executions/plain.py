"""
From queued to running to an outcome, where a plain endpoint runs (`crq.plain`).

Rows that run there carry the mark of the process that POSTs them; every statement here asks for it,
so that no process writes about, or puts back, what another one has sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from attrs import frozen

from crq.database import Cursor
from crq.executions.rows import instant, marks, not_before
from crq.instants import Instant, instant_text
from crq.messages import Fate, Outcome, Parcel, RowState


@frozen
class Ending:
    """
    What is to be written about one row.

    :ivar outcome: of one that has ended; or why it could not be sent.
    """

    execution_id: int
    claim_epoch: int
    fate: Fate
    outcome: Outcome | None = None
    detail: str = ""


def parcels(txn: Cursor, execution_ids: Iterable[int]) -> Mapping[int, Parcel]:
    """
    Read what endpoints are sent of these executions, by id.
    """
    ids = tuple(execution_ids)
    rows = txn.execute(
        f"""
        SELECT e.execution_id, e.subdomain_hash, e.subdomain, e.identifier, j.apikey,
               e.source_code, j.payload, e.debug
          FROM codeRunner_executions e LEFT JOIN codeRunner_jobs j ON j.job_id = e.job_id
         WHERE e.execution_id IN ({marks(len(ids))})
        """,
        ids,
    ).all()
    return {row[0]: Parcel(*row) for row in rows}


def put_back(txn: Cursor, execution_id: int, claim_epoch: int | None, mark: str) -> bool:
    """
    Put a row that provably has not begun back in its place in the queue.

    :param mark: of the process that knows it: the one that claimed it.
    """
    txn.execute(
        "UPDATE codeRunner_executions SET status = 'queued', claimed_at = NULL, started_at = NULL,"
        " claim_epoch = NULL, drainer_id = NULL, worker_id = NULL"
        " WHERE execution_id = ? AND status = 'running' AND claim_epoch = ? AND worker_id = ?",
        (execution_id, claim_epoch, mark),
    )
    return txn.rowcount == 1


def end(txn: Cursor, endings: Iterable[Ending], mark: str, now: Instant) -> Mapping[int, RowState]:
    """
    Write what came of rows of this process; returns how they stand then, by id.

    Repeating it changes nothing. Outcomes that are alike are one statement. One that comes after
    its row was closed as unknown (303) replaces that, as everywhere.
    """
    alike: defaultdict[Outcome, list[int]] = defaultdict(list)
    ids = []
    for ending in endings:
        ids.append(ending.execution_id)
        if ending.fate is Fate.UNSENDABLE:
            _never_sent(txn, ending, mark, now)
        elif ending.outcome is not None:
            alike[ending.outcome].append(ending.execution_id)
        else:
            put_back(txn, ending.execution_id, ending.claim_epoch, mark)
    for outcome, those in alike.items():
        _finish(txn, outcome, sorted(those), mark, now)
    rows = txn.execute(
        "SELECT execution_id, status, claim_epoch, error_code, queued_at, started_at, finished_at"
        f" FROM codeRunner_executions WHERE execution_id IN ({marks(len(ids))})",
        ids,
    ).all()
    return {row[0]: RowState(*row[:4], *map(instant, row[4:])) for row in rows}


def _finish(txn: Cursor, outcome: Outcome, ids: list[int], mark: str, now: Instant) -> None:
    at = instant_text(now)
    values = (outcome.status.value, outcome.error_code, outcome.error_message, at, at, *ids, mark)
    text = f"""
        UPDATE codeRunner_executions
           SET status = ?, error_code = ?, error_message = ?,
               finished_at = {not_before("started_at")}
         WHERE execution_id IN ({marks(len(ids))}) AND worker_id = ?
    """
    # +status: SQLite would rather walk an index on status than seek the few ids.
    txn.execute(text + " AND +status = 'running'", values)
    if txn.rowcount < len(ids):
        unknown = " AND +status = 'failed' AND error_code = 303 AND started_at IS NOT NULL"
        txn.execute(text + unknown, values)


def _never_sent(txn: Cursor, ending: Ending, mark: str, now: Instant) -> None:
    # As `fail_dispatch`: 106, and no start, for none was made.
    at = instant_text(now)
    txn.execute(
        f"""
        UPDATE codeRunner_executions
           SET status = 'failed', error_code = 106, error_message = ?, started_at = NULL,
               finished_at = {not_before("claimed_at")}
         WHERE execution_id = ? AND status = 'running' AND claim_epoch = ? AND worker_id = ?
        """,
        (ending.detail, at, at, ending.execution_id, ending.claim_epoch, mark),
    )
