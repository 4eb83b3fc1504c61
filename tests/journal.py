"""
Every change of an execution's status, written down by triggers of the database itself.

In the same transaction as the change, so that nothing is missed and nothing is written that did not
hold. From it `tests.invariants` tells what must be true of every moment, not only of the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crq.database import Cursor, Database
from crq.invariants import Change

__all__ = ["Change", "changes", "install"]

_MYSQL = (
    """
    CREATE TABLE journal (
        seq BIGINT AUTO_INCREMENT PRIMARY KEY, execution_id INT, account CHAR(64), apikey CHAR(64),
        old VARCHAR(16), new VARCHAR(16), epoch BIGINT, queued_at DATETIME(3),
        claimed_at DATETIME(3), at DOUBLE
    ) ENGINE=InnoDB CHARACTER SET ascii
    """,
    """
    CREATE TRIGGER journal_insert AFTER INSERT ON codeRunner_executions FOR EACH ROW
    INSERT INTO journal (execution_id, account, apikey, old, new, epoch, queued_at, claimed_at, at)
    VALUES (NEW.execution_id, NEW.subdomain_hash, NEW.apikey_hash, NULL, NEW.status, NULL,
            NEW.queued_at, NULL, UNIX_TIMESTAMP(NOW(6)))
    """,
    """
    CREATE TRIGGER journal_update AFTER UPDATE ON codeRunner_executions FOR EACH ROW
    IF NOT (OLD.status <=> NEW.status) THEN
        INSERT INTO journal
            (execution_id, account, apikey, old, new, epoch, queued_at, claimed_at, at)
        VALUES (NEW.execution_id, NEW.subdomain_hash, NEW.apikey_hash, OLD.status, NEW.status,
                NEW.claim_epoch, NEW.queued_at, NEW.claimed_at, UNIX_TIMESTAMP(NOW(6)));
    END IF
    """,
)
_NOW_SQLITE = "(julianday('now') - 2440587.5) * 86400.0"
_SQLITE = (
    "CREATE TABLE journal (seq INTEGER PRIMARY KEY AUTOINCREMENT, execution_id INTEGER,"
    " account TEXT, apikey TEXT, old TEXT, new TEXT, epoch INTEGER, queued_at TEXT,"
    " claimed_at TEXT, at REAL)",
    f"""
    CREATE TRIGGER journal_insert AFTER INSERT ON codeRunner_executions BEGIN
        INSERT INTO journal
            (execution_id, account, apikey, old, new, epoch, queued_at, claimed_at, at)
        VALUES (NEW.execution_id, NEW.subdomain_hash, NEW.apikey_hash, NULL, NEW.status, NULL,
                NEW.queued_at, NULL, {_NOW_SQLITE});
    END
    """,
    f"""
    CREATE TRIGGER journal_update AFTER UPDATE ON codeRunner_executions
    WHEN OLD.status IS NOT NEW.status BEGIN
        INSERT INTO journal
            (execution_id, account, apikey, old, new, epoch, queued_at, claimed_at, at)
        VALUES (NEW.execution_id, NEW.subdomain_hash, NEW.apikey_hash, OLD.status, NEW.status,
                NEW.claim_epoch, NEW.queued_at, NEW.claimed_at, {_NOW_SQLITE});
    END
    """,
)


def install(database: Database, connection: Any) -> None:
    """
    Begin the journal of an empty queue.
    """
    for statement in _SQLITE if database.dialect == "sqlite" else _MYSQL:
        connection.cursor().execute(statement)


def changes(database: Database, connection: Any, chunk: int = 5000) -> Iterator[Change]:
    """
    Read the journal from its beginning, when nothing is changed any more.
    """
    last = 0

    def read(txn: Cursor) -> list[Change]:
        return [
            Change(*row)
            for row in txn.execute(
                "SELECT seq, execution_id, account, apikey, old, new, epoch, queued_at, claimed_at,"
                " at FROM journal WHERE seq > ? ORDER BY seq LIMIT ?",
                (last, chunk),
            ).all()
        ]

    while found := database.read(connection, read):
        yield from found
        last = found[-1].seq
