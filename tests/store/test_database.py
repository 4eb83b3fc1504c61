"""
What transactions promise, on SQLite and on MariaDB; faults are real where a server can make them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from attrs import evolve

from crq import executions
from crq.database import IDLE_LIMIT, CommitUnknown, Cursor, Database, is_outage
from crq.messages import Admitted, Outcome
from crq.model import Status
from tests import rows
from tests.proxy import Proxy
from tests.rows import NOON
from tests.servers import MariaDB


def count(txn: Cursor) -> int:
    return int(txn.execute("SELECT COUNT(*) FROM codeRunner_executions").scalar())


def insert(txn: Cursor, account: str) -> None:
    rows.insert_queued(txn, account, None, NOON)


def test_a_read_sees_what_others_committed(database: Database, connection: Any) -> None:
    """
    The next read on one connection sees another's commit, also after a read that raised (F07).
    """
    other = database.connect()
    assert database.read(connection, count) == 0
    database.transact(other, insert, "a")
    assert database.read(connection, count) == 1

    def read_and_fail(txn: Cursor) -> None:
        count(txn)
        raise RuntimeError("between a read and its end")

    with pytest.raises(RuntimeError):
        database.transact(connection, read_and_fail)
    database.transact(other, insert, "b")
    assert database.read(connection, count) == 2
    other.close()


def test_a_transaction_that_raises_leaves_nothing(database: Database, connection: Any) -> None:
    """
    An exception undoes every statement, and the connection is usable afterwards.
    """

    def insert_and_fail(txn: Cursor) -> None:
        insert(txn, "a")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        database.transact(connection, insert_and_fail)
    assert database.read(connection, count) == 0
    database.transact(connection, insert, "a")
    assert database.read(connection, count) == 1


def test_a_deadlock_is_repeated_whole(database: Database, connection: Any) -> None:
    """
    1213 on every third claim undoes that claim and runs it again; every row is claimed once (F01).
    """
    updates = 0
    repeats: list[BaseException] = []

    def disturb(sql: str) -> None:
        nonlocal updates
        if "SET status = 'claimed'" in sql:
            updates += 1
            if updates % 3 == 0:
                error = pymysql.err.OperationalError(1213, "Deadlock found")
                raise sqlite3.OperationalError("locked") if database.dialect == "sqlite" else error

    disturbed = evolve(database, observe=disturb, repeated=repeats.append)
    for number in range(50):
        rows.admit(database, connection, f"account{number % 10}", at=NOON + number)
    claimed: list[int] = []
    while batch := rows.claim(disturbed, connection):
        for row in batch:
            claimed.append(row.execution_id)
            rows.start(database, connection, row)
            database.transact(
                connection, executions.finish, row.execution_id, Outcome(Status.SUCCESS), NOON
            )
    assert sorted(claimed) == list(range(1, 51))
    assert len(repeats) == updates // 3 > 0


def test_a_fault_of_ours_is_not_repeated(database: Database, connection: Any) -> None:
    """
    A wrong statement fails at once, with its own error.
    """
    calls = 0

    def wrong(txn: Cursor) -> None:
        nonlocal calls
        calls += 1
        txn.execute("SELECT nothing FROM nowhere")

    with pytest.raises((sqlite3.OperationalError, pymysql.err.ProgrammingError)):
        database.transact(connection, wrong)
    assert calls == 1


def test_many_writers_never_see_locked(database: Database) -> None:
    """
    Threads that admit while another claims get no lock error, and every row is claimed once (F20).
    """
    errors: list[BaseException] = []
    claimed: list[int] = []
    admitting = threading.Event()

    def admitter(account: str) -> None:
        connection = database.connect()
        try:
            for _ in range(15):
                rows.admit(database, connection, account)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    def drainer() -> None:
        connection = database.connect()
        try:
            while not admitting.is_set() or len(claimed) < 90:
                for row in rows.claim(database, connection):
                    claimed.append(row.execution_id)
                    rows.start(database, connection, row)
                    done = Outcome(Status.SUCCESS)
                    database.transact(connection, executions.finish, row.execution_id, done, NOON)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=admitter, args=(f"account{n}",)) for n in range(6)]
    loop = threading.Thread(target=drainer)
    for thread in [*threads, loop]:
        thread.start()
    for thread in threads:
        thread.join(60)
    admitting.set()
    loop.join(60)
    assert errors == []
    assert sorted(claimed) == list(range(1, 91))


# -- faults that only a server has


@pytest.fixture
def server_database(mariadb: MariaDB, database: Database, engine: str) -> Database:
    """
    The store on MariaDB, for a test that needs the server.
    """
    if engine != "mariadb":
        pytest.skip("SQLite has no server and no connections to lose")
    return database


def kill(mariadb: MariaDB, connection: Any) -> None:
    mariadb.execute(f"KILL CONNECTION {connection.thread_id()}")


def test_a_killed_connection_heals(server_database: Database, mariadb: MariaDB) -> None:
    """
    The next use of a killed connection reconnects, and the new session is as we need it (F11).
    """
    database = server_database
    connection = database.connect()

    def session(txn: Cursor) -> tuple[Any, ...]:
        row = txn.execute("SELECT @@tx_isolation, @@time_zone, @@sql_mode").one()
        assert row is not None
        return row

    before = database.read(connection, session)
    assert before[:2] == ("READ-COMMITTED", "+00:00")
    for _ in range(3):
        kill(mariadb, connection)
        assert database.read(connection, session) == before
    database._discard(connection)


@pytest.mark.parametrize("after", [1, 2])
def test_a_lost_connection_leaves_all_or_nothing(
    server_database: Database, mariadb: MariaDB, after: int
) -> None:
    """
    A connection killed between the statements of a transaction never leaves a part of it (F10).
    """
    database = server_database
    connection = database.connect()
    killed = False

    def three(txn: Cursor) -> None:
        nonlocal killed
        for number in range(3):
            if number == after and not killed:
                killed = True
                kill(mariadb, connection)
            insert(txn, f"account{number}")

    database.transact(connection, three)
    assert database.read(connection, count) == 3
    connection.close()


def test_a_lock_wait_undoes_the_whole(server_database: Database) -> None:
    """
    When the second row of a pair is locked, the first stays as it was (F13).
    """
    database = server_database
    blocker, connection = database.connect(), database.connect()
    first, second = (rows.admit(database, connection, name) for name in ("acme", "bravo"))
    connection.cursor().execute("SET SESSION innodb_lock_wait_timeout = 1")
    cursor = blocker.cursor()
    cursor.execute("BEGIN")
    cursor.execute(f"UPDATE codeRunner_executions SET times = 9 WHERE execution_id = {second}")

    def pair(txn: Cursor) -> None:
        for number in (first, second):
            txn.execute(
                "UPDATE codeRunner_executions SET times = 5 WHERE execution_id = ?", (number,)
            )

    with pytest.raises(pymysql.err.OperationalError) as caught:
        database.transact(connection, pair)
    assert is_outage(caught.value)
    blocker.rollback()
    assert [rows.row(database, connection, n)["times"] for n in (first, second)] == [1, 1]
    blocker.close()
    connection.close()


def test_a_lock_row_does_not_stay_with_the_frozen(server_database: Database) -> None:
    """
    MariaDB ends a transaction that has written and says nothing more: whoever freezes inside a
    claim keeps nobody else from claiming for hours.
    """
    connection = server_database.connect()
    cursor = connection.cursor()
    cursor.execute("SELECT @@idle_write_transaction_timeout")
    assert cursor.fetchone() == (IDLE_LIMIT,)
    cursor.execute("SET SESSION idle_write_transaction_timeout = 1")
    cursor.execute("BEGIN")
    cursor.execute("UPDATE codeRunner_drain SET epoch = epoch + 1 WHERE id = 1")
    other = server_database.connect()
    claimed = rows.claim(server_database, other)  # waits for the lock, up to 5 s
    assert claimed == ()
    other.cursor().execute("UPDATE codeRunner_drain SET epoch = epoch + 1 WHERE id = 1")
    with pytest.raises(pymysql.err.Error):
        cursor.execute("SELECT 1")
    other.close()


def test_changed_since_read_is_repeated(server_database: Database) -> None:
    """
    1020 (innodb_snapshot_isolation) is treated like a deadlock: the whole again (F14).
    """
    database = server_database
    other, connection = database.connect(), database.connect()
    number = rows.admit(database, connection)
    # The level at which the server answers 1020 at all.
    connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.cursor().execute("SET SESSION innodb_snapshot_isolation = ON")
    repeats: list[BaseException] = []
    watched = evolve(database, repeated=repeats.append)
    tries = 0

    def read_then_write(txn: Cursor) -> None:
        nonlocal tries
        tries += 1
        found = txn.execute("SELECT times FROM codeRunner_executions").scalar()
        if tries == 1:
            other.cursor().execute("UPDATE codeRunner_executions SET times = 7")
        txn.execute("UPDATE codeRunner_executions SET times = ?", (found + 1,))

    watched.transact(connection, read_then_write)
    assert rows.row(database, other, number)["times"] == 8
    assert [error.args[0] for error in repeats] == [1020]
    other.close()
    connection.close()


def test_a_query_given_up_does_not_answer_the_next(server_database: Database) -> None:
    """
    After a query timed out on our side the next one gets its own rows (F22).
    """
    database = evolve(server_database, timeout=0.3)
    connection = database.connect()
    with pytest.raises(pymysql.err.OperationalError) as caught:
        database.read(connection, lambda txn: txn.execute("SELECT SLEEP(3)").scalar())
    assert is_outage(caught.value)
    assert database.read(connection, lambda txn: txn.execute("SELECT 'mine'").scalar()) == "mine"
    connection.close()


@pytest.fixture
def proxy(server_database: Database, mariadb: MariaDB) -> Iterator[Proxy]:
    """
    A way to the server that can lose an answer.
    """
    with Proxy(("127.0.0.1", mariadb.port)) as opened:
        yield opened


@pytest.fixture
def through(proxy: Proxy, mariadb: MariaDB) -> Database:
    """
    The store by way of the proxy.
    """
    mariadb.execute("GRANT ALL ON store.* TO 'crq'@'%'")
    return Database(f"mysql://crq:{mariadb.password}@127.0.0.1:{proxy.port}/store", 5.0)


def test_an_unanswered_commit_of_an_admission_is_found(
    through: Database, proxy: Proxy, server_database: Database
) -> None:
    """
    The lost COMMIT of an admission is settled by its key: one row, and its id is known (F08).
    """
    connection = through.connect()
    given = rows.submission(idempotency_key="once")
    proxy.lose_answer_to = lambda data: b"COMMIT" in data
    with pytest.raises(CommitUnknown):
        through.transact(connection, executions.admit, given, rows.LIMITS, NOON)
    proxy.lose_answer_to = lambda _: False
    assert proxy.cut == 1
    assert through.read(connection, executions.find, given) == Admitted(1, repeated=True)
    again = through.transact(connection, executions.admit, given, rows.LIMITS, NOON + 1)
    assert again == Admitted(1, repeated=True)
    assert through.read(connection, count) == 1
    connection.close()


def test_an_unanswered_commit_of_an_outcome_is_one_outcome(
    through: Database, proxy: Proxy, server_database: Database
) -> None:
    """
    Writing an outcome again after its COMMIT was lost changes nothing (F08).
    """
    connection = through.connect()
    number = rows.admit(through, connection)
    (claimed,) = rows.claim(through, connection)
    rows.start(through, connection, claimed, at=NOON)
    proxy.lose_answer_to = lambda data: b"COMMIT" in data
    done = Outcome(Status.SUCCESS)
    with pytest.raises(CommitUnknown):
        through.transact(connection, executions.finish, number, done, NOON + 2)
    proxy.lose_answer_to = lambda _: False
    assert not through.transact(connection, executions.finish, number, done, NOON + 9)
    row = rows.row(through, connection, number)
    assert (row["status"], row["finished_at"]) == ("success", "2026-03-02 12:00:02.000")
    connection.close()


def test_passwords_do_not_show() -> None:
    """
    Neither the value nor the errors of a database URL repeat its password.
    """
    assert "hunter2" not in repr(Database("mysql://me:hunter2@db/queue"))
    with pytest.raises(ValueError, match="unknown option: tls") as caught:
        Database("mysql://me:hunter2@db/queue?tls=1")
    assert "hunter2" not in str(caught.value)
