"""
The end of a drainer, and what its ticks tell a supervisor, over SQLite and MariaDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from crq import executions
from crq.database import Database
from crq.model import Limits
from crq.pulse import Ended
from tests.house import House
from tests.support import SynchronousPool


class SlowCommit(SynchronousPool):
    """
    A pool whose claims are done at once and answered when a test says so.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.waiting: list[Callable[[], object]] = []
        self.slow = False

    def transact(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        done: Deferred[Any] = super().transact(function, *args, **kwargs)
        if not self.slow or function is not executions.claim:
            return done
        answer: Deferred[Any] = Deferred()
        self.waiting.append(lambda: done.chainDeferred(answer))
        return answer


@pytest.fixture
def house(database: Database) -> Iterator[House]:
    """
    A running drainer with nothing to do.
    """
    made = House(database).start()
    yield made
    made.close()


def test_a_claim_that_meets_the_stop_is_given_back(database: Database) -> None:
    """
    The stop begins while COMMIT is under way: nothing is dispatched after it (F42), and the rows
    wait in their place for the next daemon.
    """
    pool = SlowCommit(database)
    house = House(database, pool=pool).start()
    house.admit(count=3)
    pool.slow = True
    house.drainer.wake()
    assert house.statuses() == {"claimed": 2, "queued": 1}
    stopped = house.drainer.stopService()
    assert not stopped.called
    pool.waiting.pop()()
    assert stopped.called
    assert house.executor.dispatches == []
    assert house.statuses() == {"queued": 3}
    house.close()


def test_a_second_signal_ends_the_waiting(house: House) -> None:
    """
    Hanging up ends the drain at once; the row stays true, and its outcome is still written.
    """
    (number,) = house.admit()
    house.drainer.wake()
    stopped = house.drainer.stopService()
    house.clocks.go(1)
    assert not stopped.called
    house.drainer.dispatcher.hang_up()
    assert stopped.called
    assert house.executor.closed
    assert house.status(number) == "running"
    assert house.executor.finish(number)


def test_hanging_up_before_the_drain_counts(house: House) -> None:
    """
    Two signals at once: the drain does not begin to wait.
    """
    house.admit()
    house.drainer.wake()
    house.drainer.dispatcher.hang_up()
    assert house.drainer.stopService().called


def test_other_caps_count_from_the_next_tick(house: House) -> None:
    """
    Raised, they start more at once; lowered, they stop nothing and start nothing until it fits.
    """
    numbers = house.admit(count=8)
    house.drainer.wake()
    assert house.executor.order == numbers[:2]
    house.drainer.limits = Limits(in_flight=6, per_account=4)
    house.drainer.wake()
    assert house.executor.order == numbers[:4]
    house.drainer.limits = Limits(in_flight=2, per_account=1)
    for number in numbers[:3]:
        house.executor.end(number)
        assert house.executor.order == numbers[:4]
    house.executor.end(numbers[3])
    assert house.executor.order == numbers[:5]


def test_ticks_tell_how_they_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Well, with an outage, or with a fault of another kind: a supervisor treats them differently.
    """
    ended: list[Ended] = []
    house.drainer.ticked = ended.append
    house.drainer.wake()

    def away(*_: object, **__: object) -> None:
        import sqlite3

        raise sqlite3.OperationalError("disk I/O error")

    def broken(*_: object, **__: object) -> None:
        raise KeyError("boom")

    for news in (away, broken):
        monkeypatch.setattr(executions, "news", news)
        house.drainer.wake()
    monkeypatch.undo()
    house.drainer.wake()
    assert ended == [Ended.WELL, Ended.OUTAGE, Ended.BADLY, Ended.WELL]


def test_waiting_rows_are_seen(house: House) -> None:
    """
    Whether anything is queued is one question, and claimed rows do not count.
    """

    def waits() -> bool:
        return house.database.read(house.pool.connection, executions.waits)

    assert not waits()
    house.admit(count=3)
    assert waits()
    house.drainer.wake()
    house.executor.end_all()
    house.executor.end_all()
    assert house.statuses() == {"success": 3}
    assert not waits()
