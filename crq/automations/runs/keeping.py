"""
Old runs are deleted, with their items and their lines in the audit.
"""

from __future__ import annotations

from crq.automations.runs.rows import marks, text_of
from crq.database import Cursor
from crq.instants import Instant


def purge(txn: Cursor, finished_before: Instant, runs: int, items: int) -> int:
    """
    Delete the oldest runs that finished before an instant: so many, and so many items, at most.

    Items go first; the runs go in the transaction that finds none left. What people did stays in
    the audit for ever.

    :return: how many rows were deleted; 0: there is no such run.
    """
    old = txn.execute(
        "SELECT run_id FROM automation_runs WHERE finished_at < ? ORDER BY finished_at LIMIT ?",
        (text_of(finished_before), runs),
    ).all()
    if not old:
        return 0
    ids = tuple(row[0] for row in old)
    found = txn.execute(
        f"SELECT item_id FROM automation_run_items WHERE run_id IN ({marks(len(ids))}) LIMIT ?",
        (*ids, items),
    ).all()
    if found:
        txn.execute(
            f"DELETE FROM automation_run_items WHERE item_id IN ({marks(len(found))})",
            tuple(row[0] for row in found),
        )
    deleted = len(found)
    if deleted < items:
        for table in ("automation_audit", "automation_runs"):
            txn.execute(f"DELETE FROM {table} WHERE run_id IN ({marks(len(ids))})", ids)
            deleted += txn.rowcount
    return deleted
