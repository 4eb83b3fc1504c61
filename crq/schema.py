"""
Create, upgrade and check the schema. Alembic is loaded only when something is to be changed.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql

from crq import migrations
from crq.database import Cursor, Database

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection


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
    return migrations.HEAD


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
