"""
The daemon's pool over the real reactor and its threads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.logger import capturedLogs

from crq import schema
from crq.database import Cursor, Database
from crq.pool import Pool
from tests.servers import MariaDB


def session(txn: Cursor) -> tuple[Any, ...]:
    row = txn.execute("SELECT @@tx_isolation, @@time_zone, @@sql_mode, CONNECTION_ID()").one()
    assert row is not None
    return row


@pytest.fixture
def database(mariadb: MariaDB) -> Database:
    """
    A database that only this pool uses.
    """
    mariadb.create_database("pool")
    database = Database(mariadb.url_socket("pool"))
    schema.upgrade(database)
    return database


@pytest_twisted.async_yield_fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    """
    A started pool.
    """
    made = Pool(database, reactor, 3)
    yield made
    made._pool.close()


@pytest_twisted.ensureDeferred
async def test_killed_connections_are_replaced(pool: Pool, mariadb: MariaDB) -> None:
    """
    After every connection of the pool was killed, three times, each next interaction works, on a
    session as we need it (F11).
    """
    before = (await pool.read(session))[:3]
    assert before[:2] == ("READ-COMMITTED", "+00:00")
    for _ in range(3):
        await gatherResults([pool.read(session) for _ in range(6)])
        for (number,) in mariadb.execute(
            "SELECT id FROM information_schema.processlist WHERE db = 'pool'"
        ):
            mariadb.execute(f"KILL CONNECTION {number}")
        found = await gatherResults([pool.read(session) for _ in range(6)])
        assert {row[:3] for row in found} == {before}


@pytest_twisted.ensureDeferred
async def test_a_server_that_was_away_is_used_again(database: Database, mariadb: MariaDB) -> None:
    """
    While the server is down an interaction fails and says so; afterwards the same pool works.
    """
    with MariaDB() as server:
        server.create_database("away")
        made = Pool(Database(server.dsn("away")), reactor, 2)
        assert await made.read(lambda txn: txn.execute("SELECT 1").scalar()) == 1
        server.stop()
        for _ in range(2):
            with pytest.raises(pymysql.err.OperationalError):
                await made.read(session)
        server.start()
        assert (await made.read(session))[0] == "READ-COMMITTED"
        made._pool.close()


@pytest_twisted.ensureDeferred
async def test_a_slow_query_does_not_answer_the_next(database: Database) -> None:
    """
    With one connection, a query that timed out on our side leaves its answer to nobody (F22).
    """
    made = Pool(evolve(database, timeout=0.3), reactor, 1)
    with pytest.raises(pymysql.err.OperationalError):
        await made.read(lambda txn: txn.execute("SELECT SLEEP(2)").scalar())
    assert await made.read(lambda txn: txn.execute("SELECT 'mine'").scalar()) == "mine"
    made._pool.close()


@pytest.mark.parametrize("engine", ["sqlite", "mariadb"])
@pytest_twisted.ensureDeferred
async def test_a_failed_transaction_leaves_nothing(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """
    What a transaction did before it raised is undone, and the next one commits.
    """
    if engine == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'pool.db'}")
        schema.upgrade(database)
    else:
        database = request.getfixturevalue("database")
    pool = Pool(database, reactor, 1)

    def lock(txn: Cursor, fail: bool) -> int:
        txn.execute("UPDATE codeRunner_drain SET epoch = epoch + 1")
        if fail:
            raise RuntimeError("half way")
        return int(txn.execute("SELECT epoch FROM codeRunner_drain").scalar())

    with pytest.raises(RuntimeError):
        await pool.transact(lock, True)
    assert await pool.transact(lock, False) == 1
    pool._pool.close()


@pytest_twisted.ensureDeferred
async def test_a_file_that_was_opened_to_read_alone(tmp_path: Path) -> None:
    """
    A connection that could not write is not kept: the next one is opened as the file is then. It
    is told once, and what asks the database nothing is no sign of its recovery.
    """
    database = Database(f"sqlite:///{tmp_path / 'pool.db'}")
    schema.upgrade(database)
    pool = Pool(database, reactor)

    def write(txn: Cursor) -> None:
        txn.execute("UPDATE codeRunner_drain SET epoch = epoch + 1")

    with capturedLogs() as logged:
        await pool.read(lambda txn: txn.execute("PRAGMA query_only = ON"))
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            await pool.transact(write)
        assert pool.outage.on
        assert await pool.compute(sum, [1, 2]) == 3
        await pool.transact(write)
    assert [event["action"] for event in logged if "action" in event] == ["database away"]
    pool._pool.close()
