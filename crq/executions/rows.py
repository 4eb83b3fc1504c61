"""
What the statements of this package share.
"""

from __future__ import annotations

from crq.database import Cursor
from crq.instants import Instant, instant_of


def take_lock(txn: Cursor, table: str) -> None:
    """
    Write the one row of a lock table; the lock is held until the transaction ends.
    """
    txn.execute(f"UPDATE {table} SET epoch = epoch + 1 WHERE id = 1")
    if txn.rowcount != 1:
        raise RuntimeError(f"{table} has lost its row: run `crq db upgrade`")


def take_epoch(txn: Cursor, table: str) -> int:
    """
    Take a lock as `take_lock` does, and return the epoch that was written, in one statement.
    """
    if txn.dialect == "sqlite":
        text = f"UPDATE {table} SET epoch = epoch + 1 WHERE id = 1 RETURNING epoch"
        found = txn.execute(text).all()  # to its end: it is not done before
        epoch = found[0][0] if found else None
    else:
        # The server hands out what LAST_INSERT_ID was given as if it were a new row's key.
        txn.execute(f"UPDATE {table} SET epoch = LAST_INSERT_ID(epoch + 1) WHERE id = 1")
        epoch = txn.lastrowid if txn.rowcount == 1 else None
    if epoch is None:
        raise RuntimeError(f"{table} has lost its row: run `crq db upgrade`")
    return int(epoch)


def instant(text: str | None) -> Instant | None:
    """
    Read an instant that may be NULL.

    One that cannot be understood (SQLite stores any text) counts as the oldest there is: such a row
    takes its turn, and does not stop the tick for all others.
    """
    if text is None:
        return None
    try:
        return instant_of(text)
    except ValueError:
        return 0.0


def set_instant(text: str) -> Instant:
    """
    Read an instant of a column that is never NULL.
    """
    return instant(text) or 0.0


def marks(count: int) -> str:
    """
    That many placeholders.
    """
    return ", ".join("?" * count)


def not_before(column: str) -> str:
    """
    An expression for an instant (given twice), but never before that column's: clocks differ.
    """
    return f"CASE WHEN {column} > ? THEN {column} ELSE ? END"
