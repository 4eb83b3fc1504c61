"""
How many statements the drainer's side costs: idle, and for each execution. These are budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred

from crq import status
from crq.database import Database
from crq.gathering import GATHER
from crq.model import Limits
from tests import rows
from tests.house import Clocks, House, PlayedExecutor
from tests.rows import insert_queued
from tests.support import SynchronousPool

CAP = 64
PER_EXECUTION = 1.2  # statements, BEGIN and COMMIT among them
ACCOUNTS = 100
LIMITS = Limits(in_flight=CAP, per_account=2)


class LatePool(SynchronousPool):
    """
    A pool whose answers come when they are let come: as behind a thread and a server.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._due: list[tuple[Callable[..., Deferred[Any]], tuple[Any, ...], Deferred[Any]]] = []

    def _on_thread(self, how: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        work = super()._on_thread
        self._due.append((lambda *given: work(*given, **kwargs), (how, *args), answer))
        return answer

    def let_come(self) -> bool:
        """
        Let all come that is due; says whether anything was.
        """
        due, self._due = self._due, []
        for work, args, answer in due:
            work(*args).chainDeferred(answer)
        return bool(due)


@pytest.fixture
def seen() -> list[str]:
    """
    The statements of the drainer's side.
    """
    return []


@pytest.fixture
def house(database: Database, seen: list[str]) -> Iterator[House]:
    """
    A drainer whose statements are counted; those of the executor are not.
    """
    watched = evolve(database, observe=seen.append)
    executor = PlayedExecutor(watched, Clocks())
    made = House(watched, executor=executor, limits=LIMITS, pool=LatePool(watched))
    executor.database = database
    yield made
    made.close()


def _settle(house: House) -> None:
    assert isinstance(house.pool, LatePool)
    while house.pool.let_come():
        pass


def test_an_idle_tick_is_one_statement(house: House, seen: list[str]) -> None:
    """
    A tick of the timer that finds nothing, after another, asks one small question, in no
    transaction; one that was woken asks the whole question at once.
    """
    house.start()
    _settle(house)
    ticks = house.pulse.ticks
    seen.clear()
    for _ in range(10):
        house.clocks.advance(1.0)
        _settle(house)
    assert house.pulse.ticks == ticks + 10
    assert len(seen) == 10
    assert not any("UNION" in statement for statement in seen)
    seen.clear()
    house.drainer.wake()
    _settle(house)
    assert ["UNION" in statement for statement in seen] == [True]


def test_a_report_of_an_empty_queue_is_three_statements(
    database: Database, connection: Any, seen: list[str]
) -> None:
    """
    The watch, each ten seconds, counts nothing where no lane has anything; with work, two more.
    """
    watched = evolve(database, observe=seen.append)
    watched.read(connection, status.read, False)
    assert len(seen) == 3
    database.transact(connection, insert_queued, "a", "k", 0.0)
    seen.clear()
    assert watched.read(connection, status.read, False).depth.total == 1
    assert len(seen) == 5


def test_an_execution_costs_little_more_than_one_statement(
    database: Database, house: House, seen: list[str]
) -> None:
    """
    At a cap of 64, with answers that come one by one and a database that lets two of them come
    before it answers, an execution costs the drainer's side at most `PER_EXECUTION` statements.
    """
    count = 500
    connection = database.connect()
    for n in range(count):
        name = f"{n % ACCOUNTS:064}"
        database.transact(connection, insert_queued, name, name, house.clocks.wall() - 60)
    connection.close()
    house.start()
    _settle(house)
    assert len(house.executor.alive) == CAP
    seen.clear()
    ended = 0
    assert isinstance(house.pool, LatePool)
    for _ in range(10 * count):
        for execution_id in list(house.executor.alive)[:2]:
            house.executor.end(execution_id)
            ended += 1
        if ended == count:
            break
        house.pool.let_come()
        house.clocks.advance(GATHER / 10)
    house.clocks.advance(GATHER)
    _settle(house)
    assert ended == count
    assert house.statuses() == {"success": count}
    assert house.executor.most["total"] == CAP
    assert len(seen) / count <= PER_EXECUTION


def test_a_claim_steps_over_rows_that_others_hold(database: Database) -> None:
    """
    On MariaDB each part of a claim's one statement locks its rows and skips what is locked already.
    """
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one writer")
    mine, theirs = database.connect(), database.connect()
    try:
        held = [rows.admit(database, mine, account) for account in "ab"]
        free = [rows.admit(database, mine, account) for account in "ab"]
        cursor = theirs.cursor()
        cursor.execute("BEGIN")
        for number in held:
            cursor.execute(
                "UPDATE codeRunner_executions SET times = 2 WHERE execution_id = %s", (number,)
            )
        claimed = rows.claim(database, mine)
        cursor.execute("ROLLBACK")
    finally:
        mine.close()
        theirs.close()
    assert sorted(row.execution_id for row in claimed) == free


def test_each_claim_has_an_epoch_of_its_own(database: Database, connection: Any) -> None:
    """
    The epoch on the rows is the one that was written under the lock, one more each time.
    """
    rows.admit(database, connection, "a")
    (first,) = rows.claim(database, connection)
    rows.admit(database, connection, "b")
    (second,) = rows.claim(database, connection)
    cursor = connection.cursor()
    cursor.execute("SELECT epoch FROM codeRunner_drain WHERE id = 1")
    assert cursor.fetchone()[0] == second.claim_epoch == first.claim_epoch + 1
