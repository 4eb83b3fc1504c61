"""
The janitor, on SQLite and MariaDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet import defer
from twisted.internet.defer import Deferred

from crq import executions
from crq.config import ReaperOptions
from crq.database import Cursor, Database
from crq.instants import instant_text
from crq.reaper import DAY, PAUSE, Reaper
from tests import rows
from tests.house import House, PlayedLiveness
from tests.rows import NOON

MINUTE = 60.0


@pytest.fixture
def house(database: Database) -> Iterator[House]:
    """
    A store, clocks and an executor to play; no drainer runs.
    """
    made = House(database)
    yield made
    made.close()


def janitor(house: House, trusted: bool = True, **options: Any) -> Reaper:
    liveness = PlayedLiveness.of(house.executor) if trusted else None
    return Reaper(house.pool, ReaperOptions(**options), house.clocks, house.clocks.wall, liveness)


def rounds(reaper: Reaper) -> dict[str, int]:
    counts: list[dict[str, int]] = []
    Deferred.fromCoroutine(reaper.run_once()).addCallback(counts.append)
    while not counts and reaper.clock.getDelayedCalls():
        reaper.clock.advance(PAUSE)  # type: ignore[attr-defined]
    return counts[0]


def running(house: House) -> int:
    """
    An execution that has just started.
    """
    number = rows.admit(house.database, house.pool.connection, at=house.clocks.wall())
    (claimed,) = rows.claim(house.database, house.pool.connection, at=house.clocks.wall())
    assert house.executor.begin(claimed)
    return number


@pytest.mark.parametrize("trusted", [True, False], ids=["lock", "wall"])
def test_overdue_rows_are_closed(house: House, trusted: bool) -> None:
    """
    A row that has been running for 15 minutes is closed as 303, and not before.
    """
    number = running(house)
    if trusted:
        house.executor.alive.clear()
    reaper = janitor(house, trusted)
    house.clocks.advance(14.9 * MINUTE)
    assert rounds(reaper)["reaped"] == 0
    house.clocks.advance(0.2 * MINUTE)
    assert rounds(reaper)["reaped"] == 1
    row = rows.row(house.database, house.pool.connection, number)
    assert (row["status"], row["error_code"]) == ("failed", 303)


def test_a_stepped_clock_reaps_nobody(house: House) -> None:
    """
    After the wall clock went an hour ahead, rows of ten seconds are still ten seconds old; after
    a restart in that hour a row whose worker is known to live is left alone too (F62).
    """
    number = running(house)
    reaper = janitor(house)
    rounds(reaper)
    house.clocks.advance(10)
    house.clocks.step += 3600
    assert rounds(reaper)["reaped"] == 0
    assert rounds(janitor(house))["reaped"] == 0
    assert house.status(number) == "running"
    house.clocks.advance(16 * MINUTE)
    assert rounds(reaper)["reaped"] == 1


def test_waiting_rows_are_never_aged_out(house: House) -> None:
    """
    A row that waits behind a gate for days is still queued (F47); only whoever sets a limit of a
    day or more gets it closed as never started.
    """
    (number,) = house.admit()
    house.clocks.advance(3 * DAY)
    rounds(janitor(house))
    assert house.status(number) == "queued"
    assert rounds(janitor(house, queued_limit=4 * DAY))["aged"] == 0
    assert rounds(janitor(house, queued_limit=2 * DAY))["aged"] == 1
    row = rows.row(house.database, house.pool.connection, number)
    assert (row["status"], row["error_code"], row["started_at"]) == ("failed", 303, None)


def test_keys_are_wiped_two_hours_after_the_end(house: House) -> None:
    """
    Two hours count from the end, not from the beginning: what waits keeps its key (ruling 2).
    """
    number = running(house)
    (waiting,) = house.admit("bravo")
    house.clocks.advance(3 * 3600)
    house.executor.finish(number)
    house.clocks.advance(1.9 * 3600)
    reaper = janitor(house)
    assert rounds(reaper)["scrubbed"] == 0
    house.clocks.advance(0.2 * 3600)
    assert rounds(reaper)["scrubbed"] == 1
    assert house.status(waiting) == "queued"


def finished(database: Database, connection: Any, count: int) -> None:
    def insert(txn: Cursor) -> None:
        for _ in range(count):
            txn.execute(
                "INSERT INTO codeRunner_executions"
                " (subdomain_hash, status, queued_at, started_at, finished_at)"
                " VALUES (?, 'success', ?, ?, ?)",
                ("a" * 64, *[instant_text(NOON)] * 3),
            )

    database.transact(connection, insert)


def test_purge_goes_batch_by_batch(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Old rows go in committed batches, so a purge that is cut off goes on where it was (F03).
    """
    finished(house.database, house.pool.connection, 25)
    house.clocks.advance(93 * DAY)
    reaper = janitor(house, batch=10)
    batches = 0
    transact: Callable[..., Deferred[Any]] = house.pool.transact

    def cut_off(function: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        nonlocal batches
        if function is executions.purge:
            batches += 1
            if batches == 2:
                return defer.fail(RuntimeError("cut off"))
        return transact(function, *args, **kwargs)

    monkeypatch.setattr(house.pool, "transact", cut_off)
    failures: list[Any] = []
    Deferred.fromCoroutine(reaper.run_once()).addErrback(failures.append)
    house.clocks.advance(PAUSE)
    assert len(failures) == 1
    assert house.statuses() == {"success": 15}
    monkeypatch.undo()
    assert rounds(reaper)["purged"] == 15
    assert house.statuses() == {}


def test_one_part_that_fails_keeps_nobody_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    When keys cannot be wiped, overdue rows are closed and old ones purged all the same; the round
    has failed.
    """
    finished(house.database, house.pool.connection, 3)
    house.clocks.advance(93 * DAY)
    number = running(house)
    house.executor.alive.clear()
    house.clocks.advance(16 * MINUTE)
    transact: Callable[..., Deferred[Any]] = house.pool.transact

    def locked(function: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        if function is executions.scrub:
            return defer.fail(RuntimeError("locked"))
        return transact(function, *args, **kwargs)

    monkeypatch.setattr(house.pool, "transact", locked)
    failures: list[Any] = []
    Deferred.fromCoroutine(janitor(house).run_once()).addErrback(failures.append)
    assert [failure.value.args for failure in failures] == [("locked",)]
    assert house.status(number) == "failed"
    assert house.statuses() == {"failed": 1}


def test_the_rounds_survive_a_fault(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A round that fails is told once; the next one works.
    """
    number = running(house)
    house.executor.alive.clear()
    reaper = janitor(house)
    reaper.startService()
    with monkeypatch.context() as patch:
        patch.setattr(house.pool, "read", lambda *_: defer.fail(RuntimeError("away")))
        house.clocks.pump([60.0] * 3)
    house.clocks.pump([60.0] * 16)
    assert house.status(number) == "failed"
    stopped: list[Any] = []
    reaper.stopService().addCallback(stopped.append)
    assert stopped == [None]
    assert not house.clocks.getDelayedCalls()
