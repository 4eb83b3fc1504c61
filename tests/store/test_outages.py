"""
What a database may do to its users, and what an error of it means: real faults on both engines.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from attrs import evolve

from crq import executions
from crq.database import Cursor, Database, is_outage, is_repeatable
from crq.databaseerrors import REPEATABLE
from crq.executor.connection import Connection
from crq.gates import GatesUnreachable
from crq.gatetable import DatabaseGates
from crq.messages import Outcome
from crq.model import Status
from tests import rows
from tests.rows import NOON
from tests.servers import MariaDB


def count(txn: Cursor) -> int:
    return int(txn.execute("SELECT COUNT(*) FROM codeRunner_executions").scalar())


def failure(database: Database, connection: Any, sql: str, write: bool = False) -> Exception:
    """
    What a statement fails with.
    """
    how = database.transact if write else database.read
    with pytest.raises((sqlite3.Error, pymysql.err.MySQLError)) as caught:
        how(connection, lambda txn: txn.execute(sql))
    return caught.value


def sqlite_only(engine: str) -> None:
    if engine != "sqlite":
        pytest.skip("only SQLite is a file")


def server_only(engine: str) -> None:
    if engine != "mariadb":
        pytest.skip("only a server has connections and accounts")


# -- what an error means


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nothing FROM codeRunner_executions",
        "SELECT 1 FROM nowhere",
        "SELEKT 1",
        "INSERT INTO codeRunner_gates (apikey_hash) VALUES ('a', 'b')",
        "SELECT NO_SUCH_FUNCTION(1)",
    ],
)
def test_a_wrong_statement_is_a_fault_of_ours(
    database: Database, connection: Any, sql: str
) -> None:
    """
    What no waiting can cure is no outage: it is logged in full, and not answered with 503.
    """
    assert not is_outage(failure(database, connection, sql))


@pytest.mark.parametrize(
    "code", [1040, 1044, 1045, 1049, 1114, 1203, 1205, 1226, 1290, 1317, 1698, 2003, 2005, 2013]
)
def test_what_speaks_of_the_server_is_an_outage(code: int) -> None:
    """
    No room, no login, no such database, nobody there: one line, and another try.
    """
    assert is_outage(pymysql.err.OperationalError(code, "of the server"))


def test_a_full_disk_is_an_outage(engine: str, database: Database, connection: Any) -> None:
    """
    A database that has no room takes nothing and loses nothing, and goes on once it has room.
    """
    sqlite_only(engine)
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    long = "x = 1\n" * 20_000
    with pytest.raises(sqlite3.OperationalError) as caught:
        rows.admit(database, connection, source_code=long)
    assert is_outage(caught.value)
    assert not connection.in_transaction
    assert database.read(connection, count) == 0
    connection.execute("PRAGMA max_page_count = 1000000").fetchone()
    assert rows.admit(database, connection, source_code=long) == 1


def test_a_read_only_file_is_an_outage(engine: str, database: Database, connection: Any) -> None:
    """
    A file that may only be read can be read; what would be written is an outage, and undone.
    """
    sqlite_only(engine)
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError, match="readonly") as caught:
        rows.admit(database, connection)
    assert is_outage(caught.value)
    assert database.read(connection, count) == 0
    connection.execute("PRAGMA query_only = OFF")
    rows.admit(database, connection)


@pytest.mark.parametrize("content", [b"not a database at all" * 500, b"SQLite format 3\0" * 500])
def test_a_file_that_is_no_database_is_an_outage(
    engine: str, tmp_path: Path, content: bytes
) -> None:
    """
    A file full of something else is for an operator to see to, not for a traceback each second.
    """
    sqlite_only(engine)
    path = tmp_path / "other.db"
    path.write_bytes(content)
    database = Database(f"sqlite:///{path}")
    with pytest.raises(sqlite3.DatabaseError) as caught:
        Connection(database).read(count)
    assert is_outage(caught.value)


def test_a_missing_file_is_not_made(engine: str, tmp_path: Path) -> None:
    """
    Where a disk is not mounted no empty database appears in its place: it is away, until it is
    there.
    """
    sqlite_only(engine)
    path = tmp_path / "mount" / "rows.db"
    path.parent.mkdir()
    with pytest.raises(sqlite3.OperationalError) as caught:
        Database(f"sqlite:///{path}").connect()
    assert is_outage(caught.value)
    assert not path.exists()


def test_an_odd_path_is_still_a_path(engine: str, tmp_path: Path) -> None:
    """
    A path with characters that a URI reads otherwise leads to its own file.
    """
    sqlite_only(engine)
    path = tmp_path / "50% of 3?mode=ro#x é.db"
    path.touch()
    name = str(path).replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    connection = Database(f"sqlite:///{name}").connect()
    connection.execute("CREATE TABLE here (i INTEGER)")
    connection.close()
    assert path.stat().st_size > 0


@pytest.mark.parametrize("removed", [False, True])
def test_a_replaced_file_is_noticed(
    engine: str, database: Database, tmp_path: Path, sqlite_template: bytes, removed: bool
) -> None:
    """
    Nothing is written into a file that nobody else can see any more: whoever has it open opens the
    one that is there now, and waits where there is none.
    """
    sqlite_only(engine)
    worker, gates = Connection(database), DatabaseGates(database)
    kept = database.connect()
    assert worker.read(count) == 0
    assert gates.close("a" * 64, NOON + 60, NOON) == NOON + 60
    fresh = tmp_path / "fresh.db"
    fresh.write_bytes(sqlite_template)
    for name in ("", "-wal", "-shm"):
        Path(database.path + name).unlink(missing_ok=True)
    if not removed:
        fresh.rename(database.path)
    if removed:
        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            worker.read(count)
        with pytest.raises(GatesUnreachable, match="unable to open"):
            gates.read(["a" * 64], NOON)
        fresh.rename(database.path)
    assert worker.read(count) == 0
    assert gates.read(["a" * 64], NOON).closed == {}
    with pytest.raises(sqlite3.OperationalError, match="replaced or removed"):
        database.read(kept, count)
    worker.close()
    gates.disconnect()
    kept.close()


# -- what is repeated


@pytest.mark.parametrize("code", sorted(REPEATABLE))
def test_every_repeatable_error_undoes_and_repeats_the_whole(
    engine: str, database: Database, connection: Any, code: int
) -> None:
    """
    Deadlocks and their kin are ordinary: the transaction is run again from its beginning, and what
    it had done is there once (F01, F14).
    """
    number = rows.admit(database, connection)
    tries: list[int] = []

    def twice(txn: Cursor) -> None:
        tries.append(code)
        sql = "UPDATE codeRunner_executions SET times = times + 1 WHERE execution_id = ?"
        txn.execute(sql, (number,))
        if len(tries) < 3:
            if engine == "sqlite":
                raise sqlite3.OperationalError("database table is locked")
            raise pymysql.err.OperationalError(code, "of the server")

    database.transact(connection, twice)
    assert len(tries) == 3
    assert rows.row(database, connection, number)["times"] == 2


def test_real_deadlocks_are_nobody_s_problem(engine: str, database: Database) -> None:
    """
    Transactions that lock the same rows in opposite orders all come to their end (F01).
    """
    server_only(engine)
    setup = database.connect()
    pair = [rows.admit(database, setup, account) for account in ("acme", "bravo")]
    repeats: list[BaseException] = []
    errors: list[BaseException] = []
    counted = evolve(database, repeated=repeats.append)
    meet = threading.Barrier(2)

    def cross(order: list[int]) -> None:
        connection = counted.connect()

        def both(txn: Cursor) -> None:
            for step, number in enumerate(order):
                txn.execute(
                    "UPDATE codeRunner_executions SET times = times + 1 WHERE execution_id = ?",
                    (number,),
                )
                if step == 0 and not repeats:
                    meet.wait(10)

        try:
            counted.transact(connection, both)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=cross, args=(order,)) for order in (pair, pair[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert [is_repeatable(error) for error in repeats] == [True]
    assert [rows.row(database, setup, number)["times"] for number in pair] == [3, 3]
    setup.close()


# -- connections


def test_a_half_read_result_keeps_no_snapshot(database: Database, connection: Any) -> None:
    """
    A function that failed between two rows, and whose error somebody keeps, does not freeze what
    the connection sees (F07).
    """
    for account in ("acme", "bravo"):
        rows.admit(database, connection, account)
    kept: list[BaseException] = []

    def half(txn: Cursor) -> None:
        txn.execute("SELECT execution_id FROM codeRunner_executions").one()
        raise RuntimeError("between two rows")

    for how in (database.read, database.transact):
        try:
            how(connection, half)
        except RuntimeError as error:
            kept.append(error)
    other = database.connect()
    rows.admit(database, other, "carla")
    assert database.read(connection, count) == 3
    rows.admit(database, connection, "delta")
    assert database.read(other, count) == 4
    other.close()
    assert len(kept) == 2


def test_our_patience_is_longer_than_a_lock_wait(engine: str, database: Database) -> None:
    """
    However short the time-out is, a lock that is not given back is a lock wait, not a lost server.
    """
    server_only(engine)
    blocker = database.connect()
    connection = evolve(database, timeout=3.0).connect()
    cursor = blocker.cursor()
    cursor.execute("BEGIN")
    cursor.execute("UPDATE codeRunner_drain SET epoch = epoch + 1")
    error = failure(
        evolve(database, timeout=3.0),
        connection,
        "UPDATE codeRunner_drain SET epoch = epoch + 1",
        write=True,
    )
    assert error.args[0] == 1205
    blocker.rollback()
    blocker.close()
    connection.close()


def test_a_read_only_server_is_left(engine: str, database: Database, mariadb: MariaDB) -> None:
    """
    A connection that met a server without writes is not kept: the next one asks for the name
    again, behind which another server may be by then.
    """
    server_only(engine)
    mariadb.execute("GRANT ALL ON store.* TO 'crq'@'%'")
    ours = Database(mariadb.dsn("store"))
    connection = ours.connect()

    def session(txn: Cursor) -> Any:
        return txn.execute("SELECT CONNECTION_ID()").scalar()

    first = ours.read(connection, session)
    mariadb.execute("SET GLOBAL read_only = 1")
    try:
        error = failure(ours, connection, "UPDATE codeRunner_drain SET epoch = epoch + 1", True)
        assert error.args[0] == 1290
        assert is_outage(error)
    finally:
        mariadb.execute("SET GLOBAL read_only = 0")
    assert ours.read(connection, session) != first
    rows.admit(ours, connection)
    connection.close()


@pytest.mark.parametrize(
    "transition",
    [
        lambda txn, number, epoch: executions.release(txn, number, epoch),
        lambda txn, number, epoch: executions.fail_dispatch(txn, number, epoch, "no", NOON + 1),
    ],
    ids=["release", "fail_dispatch"],
)
def test_a_transition_may_be_repeated(
    database: Database, connection: Any, transition: Callable[[Cursor, int, int], bool]
) -> None:
    """
    A transition whose COMMIT was not answered may be tried again: it has happened once (F08).
    """
    number = rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    done = [
        database.transact(connection, transition, number, claimed.claim_epoch) for _ in range(2)
    ]
    assert done == [True, False]


def test_late_truth_is_written_once(database: Database, connection: Any) -> None:
    """
    303 and the real outcome may come in any order and number: the real one stays (F08).
    """
    number = rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    rows.start(database, connection, claimed)
    for _ in range(2):
        database.transact(connection, executions.died, number, NOON + 5)
    done = Outcome(Status.FAILED, 301, "no such card")
    assert database.transact(connection, executions.finish, number, done, NOON + 9)
    assert not database.transact(connection, executions.finish, number, done, NOON + 10)
    assert not database.transact(connection, executions.died, number, NOON + 11)
    row = rows.row(database, connection, number)
    assert (row["error_code"], row["finished_at"]) == (301, "2026-03-02 12:00:09.000")


# -- instants


@pytest.mark.parametrize("mode", ["", "TIME_ROUND_FRACTIONAL"])
def test_no_instant_is_rounded_up(
    engine: str, database: Database, mariadb: MariaDB, mode: str
) -> None:
    """
    Whatever the server does with fractions, what is stored never lies in the future, and a row
    queued at the last ten-thousandth of a day can be claimed in the same (F18).
    """
    server_only(engine)
    mariadb.execute("SET GLOBAL sql_mode = CONCAT(@@GLOBAL.sql_mode, %s)", ("," + mode,))
    late = NOON + 12 * 3600 - 0.0004
    try:
        connection = database.connect()
        number = rows.admit(database, connection, at=late)
        (claimed,) = rows.claim(database, connection, at=late)
        rows.start(database, connection, claimed, at=late)
        done = Outcome(Status.SUCCESS)
        database.transact(connection, executions.finish, number, done, late)
        row = rows.row(database, connection, number)
        names = ("queued_at", "claimed_at", "started_at", "finished_at")
        assert {row[name] for name in names} == {"2026-03-02 23:59:59.999"}
        gates = DatabaseGates(database)
        assert gates.close("a" * 64, late + 60, late) == NOON + 12 * 3600 + 60
        gates.disconnect()
        connection.close()
    finally:
        mariadb.execute("SET GLOBAL sql_mode = DEFAULT")


def test_the_process_s_zone_does_not_matter(
    engine: str, database: Database, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Instants are UTC whatever the zone of the process is.
    """
    import time

    try:
        for zone in ("Pacific/Kiritimati", "America/Noronha"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            number = rows.admit(database, connection)
            assert rows.row(database, connection, number)["queued_at"] == "2026-03-02 12:00:00.000"
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert os.environ.get("TZ") is None
