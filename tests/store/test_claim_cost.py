"""
The cost of a tick follows the lanes and not the rows behind them (invariant I8).
"""

from __future__ import annotations

from benchmarks import claim
from crq.database import Database


def _quietly(text: str, done: int = 0, total: int | None = None) -> None:
    pass


def test_a_deep_queue_reads_no_more(database: Database) -> None:
    """
    A tick reads the same at 1,000 and at 5,000 waiting rows of 100 lanes.
    """
    figures = claim.measure(database, 5000, _quietly)
    name = "mariadb" if database.dialect == "mysql" else "sqlite"
    assert figures[f"depth_ratio_{name}"].value < 1.1


def test_a_tick_reads_a_few_entries_of_each_lane(database: Database) -> None:
    """
    What a tick reads is bounded by the lanes: two entries each, or a hundred steps of SQLite.
    """
    figures = claim.measure(database, 2000, _quietly)
    if database.dialect == "mysql":
        assert figures["rows_read_mariadb_deep"].value < 2 * 100 + 50
    else:
        assert figures["steps_sqlite_deep"].value < 100 * 100
