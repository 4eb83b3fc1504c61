"""
Create, upgrade and check the schema. Alembic is loaded only when something is to be changed.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql

from crq import migrations
from crq.database import Cursor, Database

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection


EPOCHS_SKIPPED = 1_000_000  # more than were claimed and released again since the last one


class SchemaMismatch(Exception):
    """
    The database is not at the revision this version works with; the text says what to run.
    """


def current(txn: Cursor) -> str | None:
    """
    Read the revision of a database; None when it has none yet.
    """
    try:
        revision = txn.execute("SELECT version_num FROM alembic_version").scalar()
    except (sqlite3.OperationalError, pymysql.err.ProgrammingError) as error:
        if "no such table" in str(error) or error.args[0] == 1146:
            return None
        raise
    return None if revision is None else str(revision)


def check(txn: Cursor) -> None:
    """
    Make sure that the schema is the one this version works with.

    :raise SchemaMismatch: it is missing, older, or of a later version.
    """
    revision = current(txn)
    if revision == migrations.HEAD:
        return
    if revision is None:
        raise SchemaMismatch("the database has no crqueue schema; run `crq db upgrade`")
    if revision not in migrations.KNOWN:
        raise SchemaMismatch(
            f"the database is at revision {revision}, of a later crqueue than this one"
            f" ({migrations.HEAD}); install that version"
        )
    raise SchemaMismatch(
        f"the database is at revision {revision}, this version needs {migrations.HEAD};"
        " run `crq db upgrade`"
    )


def upgrade(database: Database) -> str:
    """
    Bring a database to `migrations.HEAD` and return the revision it is at.

    :raise SchemaMismatch: it is of a later version.
    """
    from alembic import command

    if database.dialect == "sqlite":
        with suppress(OSError):  # whoever connects says what is wrong with the path
            Path(database.path).touch(0o600)  # nobody else makes a file; it holds sealed keys
    connection = database.connect()
    try:
        revision = database.read(connection, current)
        if revision is not None and revision not in migrations.KNOWN:
            database.read(connection, check)
        if database.dialect == "sqlite":
            # Kept in the file: readers and one writer at a time do not wait for each other.
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
    finally:
        connection.close()
    with _engine(database) as bound:
        config = _config()
        config.attributes["connection"] = bound
        command.upgrade(config, "head")
    connection = database.connect()
    try:
        database.transact(connection, _restore_lock_rows)
    finally:
        connection.close()
    return migrations.HEAD


def _restore_lock_rows(txn: Cursor) -> None:
    """
    Put the one row of each lock table back where somebody has deleted it.

    Far above every epoch that a row bears: an old claim must not pass for a new one.
    """
    for table in ("codeRunner_drain", "codeRunner_admit"):
        if txn.execute(f"SELECT 1 FROM {table} WHERE id = 1").one() is None:  # noqa: S608
            epoch = txn.execute(
                "SELECT COALESCE(MAX(claim_epoch), 0) FROM codeRunner_executions"
            ).scalar()
            txn.execute(
                f"INSERT INTO {table} (id, epoch) VALUES (1, ?)",  # noqa: S608 - names of our own
                (int(epoch) + EPOCHS_SKIPPED,),
            )


def sql(dialect: str) -> str:
    """
    The SQL of the whole history, for a DBA to read or run.
    """
    from alembic import command

    text = io.StringIO()
    config = _config(text)
    config.attributes["dialect"] = dialect
    command.upgrade(config, "head", sql=True)
    return text.getvalue()


def _config(output: Any = None) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _engine(database: Database) -> Iterator[Connection]:
    from sqlalchemy import create_engine, event, pool

    name = "sqlite://" if database.dialect == "sqlite" else "mysql+pymysql://"
    engine = create_engine(name, creator=database.connect, poolclass=pool.NullPool)
    if database.dialect == "sqlite":

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            # The driver is in autocommit mode; with this a revision is all or nothing.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
