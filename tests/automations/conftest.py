"""
The databases of the store's tests, and a scheduler over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crq.database import Database
from tests.automations.house import House
from tests.store.conftest import (
    TABLES,
    connection,
    pytest_generate_tests,
    sqlite_template,
    store_url,
)

__all__ = ["connection", "pytest_generate_tests", "sqlite_template", "store_url"]


@pytest.fixture
def database(
    engine: str, tmp_path: Path, sqlite_template: bytes, store_url: Callable[[], str]
) -> Database:
    """
    A migrated, empty database. What is in it is deleted and not truncated: it is little, and
    truncating all tables takes longer than most of these tests.
    """
    if engine == "sqlite":
        path = tmp_path / "store.db"
        path.write_bytes(sqlite_template)
        return Database(f"sqlite:///{path}")
    database = Database(store_url())
    opened = database.connect()
    for table in TABLES:
        opened.cursor().execute(f"DELETE FROM {table}")
    opened.close()
    return database


@pytest.fixture
def house(database: Database) -> Iterator[House]:
    """
    A scheduler on clocks that a test turns; nothing is declared.
    """
    made = House(database)
    yield made
    made.close()
