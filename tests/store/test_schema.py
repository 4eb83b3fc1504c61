"""
The schema's history, on SQLite and on MariaDB.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crq import executions, migrations, schema
from crq.database import Cursor, Database
from crq.executions import reading
from crq.migrations.versions import r0001_as_found
from crq.model import Status
from tests import rows
from tests.servers import MariaDB


@pytest.fixture
def empty(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Database]:
    """
    Make empty databases by name.
    """

    def make(name: str) -> Database:
        if engine == "sqlite":
            path = tmp_path / f"{name}.db"
            path.touch()
            return Database(f"sqlite:///{path}")
        server: MariaDB = request.getfixturevalue("mariadb")
        server.create_database(name)
        return Database(server.url_socket(name))

    return make


def shape(database: Database) -> dict[str, str]:
    """
    How each table and index would be made.
    """
    connection = database.connect()

    def read(txn: Cursor) -> dict[str, str]:
        if txn.dialect == "sqlite":
            found = txn.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").all()
            return {name: " ".join(sql.split()) for name, sql in found}
        tables = [row[0] for row in txn.execute("SHOW TABLES").all()]
        made: dict[str, str] = {}
        for table in tables:
            row = txn.execute(f"SHOW CREATE TABLE {table}").one()
            assert row is not None
            made[table] = re.sub(r" AUTO_INCREMENT=\d+", "", row[1])
        return made

    try:
        return database.read(connection, read)
    finally:
        connection.close()


def test_fresh_is_upgraded(empty: Callable[[str], Database]) -> None:
    """
    A database that held the old tables ends with the same schema as a fresh one, with its rows.
    """
    fresh, old = empty("fresh"), empty("old")
    schema.upgrade(fresh)
    connection = old.connect()
    statements = r0001_as_found.SQLITE if old.dialect == "sqlite" else r0001_as_found.MYSQL
    for statement in statements:
        connection.cursor().execute(statement)
    connection.cursor().execute(
        "INSERT INTO codeRunner_executions (subdomain_hash, status, started_at, finished_at)"
        f" VALUES ('{'a' * 64}', 'success', '2026-01-02 03:04:05.678', '2026-01-02 03:04:06.000'),"
        f" ('{'a' * 64}', 'running', '2026-01-02 03:04:07.000', NULL)"
    )
    schema.upgrade(old)
    assert shape(old) == shape(fresh)
    assert rows.row(old, connection, 1)["queued_at"] == "2026-01-02 03:04:05.678"
    (flight,) = old.read(connection, executions.in_flight)
    assert (flight.execution_id, flight.status) == (2, Status.RUNNING)
    connection.close()


def test_an_upgrade_that_was_cut_off_goes_on(empty: Callable[[str], Database]) -> None:
    """
    Killed after each of its statements, the upgrade ends well when it is run again.
    """
    fresh = empty("fresh")
    schema.upgrade(fresh)
    wanted = shape(fresh)
    for fatal in range(2, 12):
        database = empty(f"cut{fatal}")
        _upgrade_until(database, fatal)
        schema.upgrade(database)
        assert shape(database) == wanted


def _upgrade_until(database: Database, fatal: int) -> None:
    from alembic import op

    real, calls = op.execute, 0

    def execute(statement: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > fatal:
            raise KeyboardInterrupt
        real(statement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "execute", execute)
        with pytest.raises(KeyboardInterrupt):
            schema.upgrade(database)


def test_upgrading_twice_is_upgrading_once(database: Database) -> None:
    """
    An up-to-date database is left as it is.
    """
    before = shape(database)
    assert schema.upgrade(database) == migrations.HEAD
    assert shape(database) == before


def test_schema_of_the_future_is_refused(empty: Callable[[str], Database]) -> None:
    """
    A database of a later version is neither used nor upgraded.
    """
    database = empty("future")
    schema.upgrade(database)
    connection = database.connect()
    connection.cursor().execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(schema.SchemaMismatch, match="later crqueue"):
        database.read(connection, schema.check)
    with pytest.raises(schema.SchemaMismatch, match="later crqueue"):
        schema.upgrade(database)
    connection.close()


def test_a_database_without_schema_says_what_to_run(empty: Callable[[str], Database]) -> None:
    """
    An empty database is told apart from an old one, and the text names the command.
    """
    database = empty("nothing")
    connection = database.connect()
    with pytest.raises(schema.SchemaMismatch, match="no crqueue schema; run `crq db upgrade`"):
        database.read(connection, schema.check)
    connection.close()


def test_the_printed_sql_makes_the_schema(empty: Callable[[str], Database]) -> None:
    """
    What `crq db sql` prints, run by hand, is what an upgrade makes.
    """
    fresh, by_hand = empty("fresh"), empty("by_hand")
    schema.upgrade(fresh)
    connection = by_hand.connect()
    text = re.sub(r"(?m)^--.*$", "", schema.sql(by_hand.dialect))
    for statement in filter(str.strip, text.split(";")):
        connection.cursor().execute(statement)
    connection.close()
    assert shape(by_hand) == shape(fresh)


def test_heads_use_the_loose_scan(database: Database, connection: Any) -> None:
    """
    On MariaDB lane heads are read by skipping through the index, never row by row.
    """
    if database.dialect == "sqlite":
        pytest.skip("SQLite spells its seeks out; the claim benchmark counts them")

    def fill(txn: Cursor) -> None:
        for lane in range(20):
            rows.insert_queued(txn, f"{lane:064d}", "k" * 64, rows.NOON, 10)

    database.transact(connection, fill)
    cursor = connection.cursor()
    cursor.execute("ANALYZE TABLE codeRunner_executions")
    cursor.fetchall()
    for sql in (reading._HEADS_MYSQL, reading._STATE_AND_HEADS_MYSQL):
        cursor.execute("EXPLAIN " + sql)
        assert "Using index for group-by" in str(cursor.fetchall())
