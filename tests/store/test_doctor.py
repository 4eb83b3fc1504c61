"""
The doctor on real databases, with real faults made in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from crq import executions, schema
from crq.config import Config, DatabaseOptions
from crq.database import Cursor, Database
from crq.doctor.examination import Examination
from crq.doctor.findings import Finding, Severity, guarded
from crq.instants import instant_text
from crq.messages import Outcome
from crq.model import ErrorCode, Limits, Status
from crq.sealing import Sealer
from tests import rows
from tests.house import House
from tests.rows import NOON, SEALER
from tests.servers import MariaDB

# The test server is fast instead of durable, and its neighbours of this run come and go.
NOT_OURS = {"durability", "server limits", "drainers"}


class Doctor:
    """
    Looks at one database, and says what is not in order.
    """

    def __init__(self, database: Database, connection: Any) -> None:
        self.database = database
        self.connection = connection
        self.config = Config(database=DatabaseOptions(database.url))
        self.now = NOON + 60
        self.sealer: Sealer = SEALER

    def findings(self) -> list[Finding]:
        """
        All that is found.
        """
        wall = lambda: self.now  # noqa: E731
        examination = Examination(self.config, None, wall, lambda: 0.0)
        return list(examination.connected(self.config, self.database, self.connection, self.sealer))

    def bad(self) -> dict[str, Severity]:
        """
        What is not in order, without clocks: the tests have their own.
        """
        return {
            found.name: found.severity
            for found in self.findings()
            if found.severity is not Severity.OK
            and found.name not in NOT_OURS
            and not found.name.startswith("clock")
        }

    def run(self, sql: str, *values: object) -> None:
        """
        Do something that crqueue never does.
        """

        def change(txn: Cursor) -> None:
            txn.execute(sql, values)

        self.database.transact(self.connection, change)


def severities(doctor: Doctor) -> dict[str, Severity]:
    return {each.name: each.severity for each in doctor.findings()}


@pytest.fixture
def doctor(database: Database, connection: Any) -> Doctor:
    """
    A doctor over an empty, migrated database.
    """
    return Doctor(database, connection)


@pytest.fixture
def own(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Doctor]:
    """
    A doctor over a database of its own, whose tables a test may spoil.
    """
    if engine == "sqlite":
        url = f"sqlite:///{tmp_path / 'own.db'}"
    else:
        server: MariaDB = request.getfixturevalue("mariadb")
        server.create_database("doctor")
        url = server.url_socket("doctor")
    database = Database(url)
    schema.upgrade(database)
    connection = database.connect()
    yield Doctor(database, connection)
    connection.close()


def test_rows_that_the_queue_made_are_in_order(database: Database) -> None:
    """
    After all that can happen to an execution - waiting, running, every end, a refusal, a row that
    does not parse, a restart - no row contradicts itself.
    """
    house = House(database, limits=Limits(queued_per_account=6)).start()
    try:
        numbers = house.admit(count=4) + house.admit("other", "key 2", 3)
        house.drainer.wake()
        house.executor.finish(numbers[0], Outcome(Status.FAILED, ErrorCode.SCRIPT_ERROR, "no"))
        house.executor.answer(numbers[0])
        house.executor.end(numbers[1])
        house.clocks.go(2)
        house = house.restart()
        house.executor.alive.pop(numbers[2])  # its worker dies
        house.clocks.go(8)
        connection, wall = house.pool.connection, house.clocks.wall
        waiting = house.admit("third", "key 3", 2)
        database.transact(connection, executions.cancel, waiting[-1], wall())
        full = Limits(queued_per_account=1)
        refused = rows.submission("third", "key 3")
        database.transact(connection, executions.admit, refused, full, wall())
        database.transact(connection, executions.record_invalid, refused, "no", 1, 1, wall())
        house.admit("late", "key 4", 4)
        house.drainer.wake()
        assert len(house.statuses()) >= 5, house.statuses()
        doctor = Doctor(database, connection)
        doctor.now = wall()
        assert doctor.bad() == {}
    finally:
        house.close()


@pytest.mark.parametrize(
    ("fault", "name", "severity"),
    [
        ("SET started_at = queued_at", "states", Severity.ERROR),
        ("SET finished_at = queued_at", "states", Severity.ERROR),
        ("SET status = 'success'", "states", Severity.ERROR),
        ("SET nonce_hash = 'x'", "states", Severity.ERROR),
        ("SET job_id = NULL", "jobs", Severity.ERROR),
        ("SET job_id = 4711", "jobs", Severity.ERROR),
        ("SET apikey_hash = NULL", "lanes", Severity.NOTE),
        ("SET queued_at = '2029-01-01 00:00:00.000'", "instants", Severity.WARNING),
    ],
)
def test_a_broken_row_is_found(doctor: Doctor, fault: str, name: str, severity: Severity) -> None:
    """
    One row among a hundred, spoilt past the queue.
    """
    for _ in range(100):
        number = rows.admit(doctor.database, doctor.connection)
    assert doctor.bad() == {}
    doctor.run(f"UPDATE codeRunner_executions {fault} WHERE execution_id = ?", number)
    assert doctor.bad()[name] is severity
    found = next(each for each in doctor.findings() if each.name == name)
    assert name == "lanes" or str(number) in found.found


def test_unknown_statuses(doctor: Doctor) -> None:
    """
    A word that nobody knows is found wherever it is, by a few index seeks.
    """
    for _ in range(3):
        number = rows.admit(doctor.database, doctor.connection)
    doctor.run("UPDATE codeRunner_executions SET status = 'zzz' WHERE execution_id = ?", number)
    bad = doctor.bad()
    assert (bad["statuses"], bad["states"]) == (Severity.ERROR, Severity.ERROR)


def test_what_hangs(doctor: Doctor) -> None:
    """
    A claim that nobody follows up, and a row that the reaper should have closed.
    """
    for account in ("a", "b"):
        rows.admit(doctor.database, doctor.connection, account)
    claimed = rows.claim(doctor.database, doctor.connection)
    assert doctor.bad() == {}
    doctor.now = NOON + 600
    assert doctor.bad() == {"claimed": Severity.WARNING}
    rows.start(doctor.database, doctor.connection, claimed[0])
    doctor.now = NOON + 1200
    assert doctor.bad() == {"claimed": Severity.WARNING, "running": Severity.ERROR}


def test_keys_that_nobody_can_open(doctor: Doctor) -> None:
    """
    A sealing key that was lost in a rotation is found before its rows fail; so is a wiped key.
    """
    rows.admit(doctor.database, doctor.connection)
    doctor.sealer = Sealer("pepper", (Fernet.generate_key().decode(), *SEALER.seal_keys))
    assert doctor.bad() == {}
    doctor.sealer = Sealer("pepper", (Fernet.generate_key().decode(),))
    assert doctor.bad() == {"jobs": Severity.ERROR}
    doctor.sealer = SEALER
    doctor.run("UPDATE codeRunner_jobs SET apikey = NULL")
    assert doctor.bad() == {"jobs": Severity.ERROR}


def test_a_reaper_that_does_not_keep_up(doctor: Doctor) -> None:
    """
    Old rows and old keys that should be gone are found.
    """
    number = rows.admit(doctor.database, doctor.connection)
    doctor.database.transact(doctor.connection, executions.cancel, number, NOON)
    doctor.now = NOON + 3600
    assert doctor.bad() == {}
    doctor.now = NOON + 10_000
    assert doctor.bad() == {"API keys": Severity.WARNING}
    doctor.run("UPDATE codeRunner_jobs SET apikey = NULL")
    doctor.now = NOON + 100 * 86400
    assert doctor.bad() == {"purge": Severity.WARNING}


def test_a_lock_row_that_is_gone_comes_back(own: Doctor) -> None:
    """
    Without its row nothing can be claimed; `crq db upgrade` puts it back, with an epoch that no
    older claim has.
    """
    rows.admit(own.database, own.connection)
    (old,) = rows.claim(own.database, own.connection)
    own.run("DELETE FROM codeRunner_drain")
    assert own.bad() == {"lock rows": Severity.ERROR}
    assert schema.upgrade(own.database) == schema.upgrade(own.database)
    assert own.bad() == {}
    rows.admit(own.database, own.connection)
    (new,) = rows.claim(own.database, own.connection)
    assert new.claim_epoch > old.claim_epoch + 1000


def test_a_lost_index(own: Doctor) -> None:
    """
    An index that somebody dropped is named.
    """
    on = "" if own.database.dialect == "sqlite" else " ON codeRunner_executions"
    own.connection.cursor().execute(f"DROP INDEX idx_lane{on}")
    assert own.bad() == {"indexes": Severity.ERROR}


def test_another_schema_stops_the_look_at_rows(own: Doctor) -> None:
    """
    An older revision is an error with what to run, and its rows are left alone.
    """
    own.run("UPDATE alembic_version SET version_num = '0001'")
    assert own.bad() == {"schema": Severity.ERROR, "rows": Severity.NOTE}
    (found,) = (each for each in own.findings() if each.name == "schema")
    assert found.remedy == "run `crq db upgrade`"


def test_a_session_that_is_not_ours(doctor: Doctor) -> None:
    """
    What a proxy or an init_connect makes of our session is seen: mode, zone, isolation, charset;
    with SQLite the durability of a commit.
    """
    cursor = doctor.connection.cursor()
    if doctor.database.dialect == "sqlite":
        cursor.execute("PRAGMA synchronous = OFF")
        assert severities(doctor)["durability"] is Severity.ERROR
        return
    assert doctor.bad() == {}
    cursor.execute("SET SESSION sql_mode = ''")
    assert doctor.bad() == {"session": Severity.ERROR}
    cursor.execute("SET SESSION sql_mode = 'STRICT_TRANS_TABLES', time_zone = '+05:00'")
    assert doctor.bad() == {"session": Severity.ERROR}
    cursor.execute("SET SESSION time_zone = '+00:00'")
    cursor.execute("SET NAMES latin1")
    assert doctor.bad() == {"session": Severity.ERROR}
    cursor.execute("SET NAMES utf8mb4")
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert doctor.bad() == {"isolation": Severity.ERROR}


def test_settings_of_the_server(request: pytest.FixtureRequest, own: Doctor) -> None:
    """
    Durability as the server has it, and a server that takes no writes.
    """
    if own.database.dialect == "sqlite":
        own.connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        assert severities(own)["durability"] is Severity.WARNING
        return
    server: MariaDB = request.getfixturevalue("mariadb")
    before = server.execute("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")[0][0]
    try:
        for value, severity in ((0, Severity.ERROR), (2, Severity.WARNING), (1, Severity.OK)):
            server.execute(f"SET GLOBAL innodb_flush_log_at_trx_commit = {value}")
            assert severities(own)["durability"] is severity
        server.execute("SET GLOBAL read_only = ON")
        assert severities(own)["writable"] is Severity.ERROR
    finally:
        server.execute("SET GLOBAL read_only = OFF")
        server.execute(f"SET GLOBAL innodb_flush_log_at_trx_commit = {before}")
    assert severities(own)["writable"] is Severity.OK


def test_tables_that_somebody_changed(own: Doctor) -> None:
    """
    A narrow character set and an engine without transactions are found.
    """
    if own.database.dialect == "sqlite":
        return  # it has neither
    cursor = own.connection.cursor()
    cursor.execute(
        "ALTER TABLE codeRunner_executions MODIFY identifier VARCHAR(255) CHARACTER SET utf8mb3"
    )
    assert own.bad() == {"character sets": Severity.ERROR}
    cursor.execute("ALTER TABLE codeRunner_jobs ENGINE = Aria")
    assert own.bad() == {"character sets": Severity.ERROR, "engines": Severity.ERROR}


def test_clock_of_the_database(doctor: Doctor) -> None:
    """
    A server whose clock is an hour away from ours is an error; with SQLite there is one clock.
    """
    found = severities(doctor)
    if doctor.database.dialect == "sqlite":
        assert "clock of the database" not in found
        return
    assert found["clock of the database"] is Severity.ERROR  # the tests live in March 2026
    import time

    doctor.now = time.time()
    assert severities(doctor)["clock of the database"] is Severity.OK


def test_a_connection_that_is_lost_under_way(doctor: Doctor) -> None:
    """
    Whoever cannot look says so; nothing is raised.
    """
    doctor.connection.close()
    found = guarded("database", doctor.findings)
    blind = [each for each in found if "could not be looked at" in each.found]
    # A MySQL connection is opened again by whoever needs it.
    assert bool(blind) is (doctor.database.dialect == "sqlite")
    assert all(each.severity is Severity.ERROR for each in blind)


@pytest.mark.slow
def test_looking_has_a_bound(doctor: Doctor) -> None:
    """
    A log that is three times as long costs no more work.
    """
    first = log_of(doctor, 8_000)
    (found,) = (each for each in doctor.findings() if each.name == "states")
    assert found.found == "5000 rows agree with their instants"
    assert log_of(doctor, 16_000) < 1.05 * first


def log_of(doctor: Doctor, more: int) -> int:
    """
    Make the log longer; returns the work of a look at it: steps of SQLite, rows read by MariaDB.
    """

    def fill(txn: Cursor) -> None:
        at = instant_text(NOON)
        sql = (
            "INSERT INTO codeRunner_executions (subdomain_hash, apikey_hash, status, queued_at,"
            " claimed_at, started_at, finished_at) VALUES "
        )
        for _ in range(more // 500):
            txn.execute(sql + ", ".join(["('a', 'k', 'success', ?, ?, ?, ?)"] * 500), [at] * 2000)

    doctor.database.transact(doctor.connection, fill)
    if doctor.database.dialect == "sqlite":
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        doctor.connection.set_progress_handler(step, 100)
        assert doctor.bad() == {}
        doctor.connection.set_progress_handler(None, 0)
        return steps
    before = rows_read(doctor)
    assert doctor.bad() == {}
    return rows_read(doctor) - before


def rows_read(doctor: Doctor) -> int:
    cursor = doctor.connection.cursor()
    cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(value) for _, value in cursor.fetchall())
