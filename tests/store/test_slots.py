"""
A slot and its execution over hours, on clocks that a test turns.
"""

from __future__ import annotations

from typing import Any

from crq.config import ReaperOptions
from crq.database import Database
from crq.messages import Lost
from crq.reaper import Reaper
from tests import rows
from tests.house import House

WALL = 300.0  # s


def reap(house: House) -> None:
    """
    One round of the janitor, as there is one each minute.
    """
    liveness = house.drainer.liveness
    reaper = Reaper(house.pool, ReaperOptions(), house.clocks, house.clocks.wall, liveness)
    done: Any = reaper.run_once()
    try:
        done.send(None)
    except StopIteration:
        return
    raise AssertionError("the janitor waits for something")


def test_long_executions_are_sent_once(database: Database) -> None:
    """
    One of 290 s and one that never ends: one POST each, whatever is lost, reaped and restarted in
    between, and the slot of the endless one is only used again when its worker is dead (F48).
    """
    house = House(database).start()
    long, endless, third = house.admit("acme", count=3)
    house.drainer.wake()
    for number in (long, endless):
        house.executor.answer(number, Lost("reset"))  # a front that gave up
    for minute in range(4):
        house.clocks.go(60, 1.0)
        reap(house)
        if minute % 2:
            house = house.restart()
    house.clocks.go(50, 1.0)
    assert house.executor.order == [long, endless]
    house.executor.finish(long)  # after 290 s
    house.clocks.go(2, 1.0)
    assert house.executor.order == [long, endless, third]
    house.executor.end(third)
    # It is past its wall; its worker still lives: what is known counts, not what should be.
    house.clocks.go(WALL, 1.0)
    assert house.status(endless) == "running"
    del house.executor.alive[endless]
    house.clocks.go(10, 1.0)
    assert rows.row(database, house.pool.connection, endless)["error_code"] == 303
    assert house.executor.dispatches == [long, endless, third]
    assert house.status(long) == "success"
    house.close()
