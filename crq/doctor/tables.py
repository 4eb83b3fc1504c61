"""
The tables: revision, engine, character sets, indexes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from crq import schema
from crq.database import Cursor
from crq.doctor.findings import Finding, error, ok

EXECUTIONS = "codeRunner_executions"
INDEXES = (  # without one of them a tick, an admission or the log reads the whole table
    "idx_lane",
    "idx_status_queued_at",
    "idx_status_started_at",
    "idx_job_id",
    "idx_queued_at",
    "idx_account_queued_at",
    "uniq_idempotency",
)
FREE_OF_TEXT = ("async_nonce",)  # of callers that dispatch inline; hex in whatever set it had

_NAMES = ("coderunner\\_%", "automation%")
_ENGINES = """
    SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES
     WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE'
       AND (LOWER(TABLE_NAME) LIKE ? OR LOWER(TABLE_NAME) LIKE ?)
"""
_CHARSETS = """
    SELECT TABLE_NAME, COLUMN_NAME, CHARACTER_SET_NAME FROM information_schema.COLUMNS
     WHERE TABLE_SCHEMA = DATABASE() AND CHARACTER_SET_NAME IS NOT NULL
       AND (LOWER(TABLE_NAME) LIKE ? OR LOWER(TABLE_NAME) LIKE ?)
"""


def revision(txn: Cursor) -> Finding:
    """
    Judge the schema's revision.
    """
    try:
        schema.check(txn)
    except schema.SchemaMismatch as mismatch:
        found, _, remedy = str(mismatch).partition("; ")
        return error("schema", found, remedy)
    return ok("schema", f"revision {schema.current(txn)}")


def look(txn: Cursor) -> Iterator[Finding]:
    """
    Look at tables that are at our revision.
    """
    yield indexes(_indexes(txn))
    if txn.dialect == "mysql":
        yield engines(txn.execute(_ENGINES, _NAMES).all())
        yield charsets(txn.execute(_CHARSETS, _NAMES).all())


def indexes(there: Collection[str]) -> Finding:
    """
    Judge the indexes of the executions.
    """
    missing = [name for name in INDEXES if name not in there]
    if missing:
        return error(
            "indexes",
            f"{EXECUTIONS} has lost {', '.join(missing)}: work grows with the length of the log",
            "make them again as `crq db sql` says",
        )
    return ok("indexes", f"all {len(INDEXES)} that ticks, admission and the log need")


def engines(found: Iterable[Sequence[object]]) -> Finding:
    """
    Judge the storage engines.
    """
    others = [f"{table} is {engine}" for table, engine in found if engine != "InnoDB"]
    if others:
        return error(
            "engines",
            f"{'; '.join(others)}: without transactions work is lost and counted wrong",
            "ALTER TABLE … ENGINE=InnoDB, while everything is stopped",
        )
    return ok("engines", "InnoDB")


def charsets(found: Iterable[Sequence[object]]) -> Finding:
    """
    Judge the character sets: every character must fit, or be known not to come.
    """
    narrow = [
        f"{table}.{column} is {charset}"
        for table, column, charset in found
        if charset not in ("utf8mb4", "ascii") and str(column) not in FREE_OF_TEXT
    ]
    if narrow:
        return error(
            "character sets",
            f"{'; '.join(narrow)}: an emoji cannot be stored, and the row fails",
            "ALTER TABLE … MODIFY it with CHARACTER SET utf8mb4, as `crq db sql` has it",
        )
    return ok("character sets", "utf8mb4, ascii where it is enough")


def _indexes(txn: Cursor) -> set[str]:
    if txn.dialect == "sqlite":
        return {str(row[1]) for row in txn.execute(f"PRAGMA index_list({EXECUTIONS})").all()}
    rows = txn.execute(
        "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?",
        (EXECUTIONS,),
    ).all()
    return {str(row[0]) for row in rows}
