"""
An empty, migrated database on each engine; the tests of the store never know which one they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogEvent, capturedLogs

from crq import schema
from crq.database import Database
from tests.house import House
from tests.servers import MariaDB

TABLES = (
    "codeRunner_executions",
    "codeRunner_jobs",
    "codeRunner_gates",
    "codeRunner_gate_history",
    "codeRunner_controls",
    "codeRunner_tokens",
    "codeRunner_audit",
    "codeRunner_series",
    "codeRunner_drainers",
    "automations",
    "automation_runs",
    "automation_run_items",
    "automation_audit",
    "automation_tenants",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--engine")
        engines = ("sqlite", "mariadb") if chosen == "both" else (chosen,)
        metafunc.parametrize("engine", engines, scope="session")


@pytest.fixture(scope="session")
def store_url(request: pytest.FixtureRequest) -> Callable[[], str]:
    """
    Make the MariaDB store once per run, and only if a test asks for it.
    """
    made: list[str] = []

    def url() -> str:
        if not made:
            server: MariaDB = request.getfixturevalue("mariadb")
            server.create_database("store")
            made.append(server.url_socket("store"))
            schema.upgrade(Database(made[0]))
        return made[0]

    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """
    A migrated, empty SQLite file.
    """
    path = tmp_path_factory.mktemp("template") / "template.db"
    database = Database(f"sqlite:///{path}")
    schema.upgrade(database)
    connection = database.connect()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path.read_bytes()


@pytest.fixture
def database(
    engine: str, tmp_path: Path, sqlite_template: bytes, store_url: Callable[[], str]
) -> Iterator[Database]:
    """
    A migrated, empty database.
    """
    if engine == "sqlite":
        path = tmp_path / "store.db"
        path.write_bytes(sqlite_template)
        yield Database(f"sqlite:///{path}")
        return
    database = Database(store_url())
    connection = database.connect()
    for table in TABLES:
        connection.cursor().execute(f"TRUNCATE TABLE {table}")
    connection.close()
    yield database


@pytest.fixture
def connection(database: Database) -> Iterator[Any]:
    """
    A connection to it.
    """
    opened = database.connect()
    yield opened
    opened.close()


@pytest.fixture
def logged() -> Iterator[Sequence[LogEvent]]:
    """
    What is logged.
    """
    with capturedLogs() as events:
        yield events


@pytest.fixture
def house(database: Database, logged: Sequence[LogEvent]) -> Iterator[House]:
    """
    A running drainer with nothing to do.
    """
    made = House(database).start()
    yield made
    made.close()
