"""
The index of lanes over a real store: nothing startable stays hidden longer than its rule says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from crq import executions
from crq import lanes as module
from crq.database import Cursor, Database
from crq.instants import instant_text
from crq.lanes import CONFIRM, TURN, Lanes
from crq.model import Lane
from tests.house import House
from tests.rows import NOON, SEALER, insert_queued

MANY = 20


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    More than two lanes are many.
    """
    monkeypatch.setattr(module, "FEW", 2)


@pytest.fixture
def house(database: Database) -> Iterator[House]:
    """
    A drainer with many lanes, each behind a closed gate.
    """
    made = House(database)
    for number in range(MANY):
        made.admit(f"account{number}", f"key{number}")
        made.store.close(SEALER.key(f"key{number}"), NOON + 3600, NOON)
    made.start()
    made.clocks.go(2.0)
    assert made.drainer.lanes.many
    assert not made.executor.alive
    yield made
    made.close()


def _do(house: House, sql: str, *values: object) -> None:
    house.database.transact(house.executor.connection, lambda txn: txn.execute(sql, values))


def test_rows_that_others_insert_start_with_the_next_tick(house: House) -> None:
    """
    A row of a lane that nobody knew, inserted by SQL, starts within a second.
    """
    at = house.clocks.wall() - 100
    house.database.transact(house.executor.connection, insert_queued, "a" * 64, None, at)
    house.clocks.go(1.0)
    assert len(house.executor.alive) == 1


def test_only_what_is_new_is_read(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Between two full readings no tick reads the heads of all lanes.
    """
    asked: list[int | None] = []
    learn = Lanes.learn

    def remembered(lanes: Lanes, question: Any, *more: Any) -> None:
        asked.append(question.after)
        learn(lanes, question, *more)

    monkeypatch.setattr(Lanes, "learn", remembered)
    house.clocks.go(2 * CONFIRM)
    assert 18 <= len(asked) <= 22
    assert asked.count(None) in (1, 2)


def test_a_gate_opened_by_another_process_is_seen(house: House) -> None:
    """
    A closed gate is asked for every `TURN` ticks; opened early, its lane starts by then.
    """
    house.store.open(SEALER.key("key7"))
    house.clocks.go(TURN + 1.0)
    assert len(house.executor.alive) == 1


def test_a_gate_that_passes_starts_its_lane(house: House) -> None:
    """
    When gates pass, their lanes start without a full reading.
    """
    house.clocks.go(3601.0)
    assert len(house.executor.alive) == 4


def test_a_row_that_went_back_starts_again(house: House) -> None:
    """
    An execution put back by another drainer starts within the next tick.
    """
    (number,) = house.admit("other", "free")
    house.clocks.go(1.0)
    assert list(house.executor.alive) == [number]
    house.executor.alive.clear()
    _do(
        house,
        "UPDATE codeRunner_executions SET status = 'queued', claimed_at = NULL, started_at = NULL,"
        " claim_epoch = NULL, drainer_id = NULL WHERE execution_id = ?",
        number,
    )
    house.executor.answer(number)
    house.clocks.go(1.0)
    assert house.executor.starts[number] == 2


def test_a_row_written_behind_our_back_is_found_in_time(house: House) -> None:
    """
    A row that becomes queued in a way no reading of what is new can see starts within `CONFIRM`.
    """

    def insert(txn: Cursor, account: str, count: int) -> int:
        insert_queued(txn, account, SEALER.key("key1"), NOON, count)
        return txn.lastrowid

    old = house.database.transact(house.executor.connection, insert, "a" * 64, 1)
    change = (
        "UPDATE codeRunner_executions SET status = ?, apikey_hash = NULL WHERE execution_id = ?"
    )
    _do(house, change, "cancelled", old)
    account = SEALER.account("account1")
    house.database.transact(house.executor.connection, insert, account, module.OVERLAP + 5)
    house.clocks.go(CONFIRM + 1.0)
    _do(house, change, "queued", old)
    house.clocks.go(2.0)
    assert old not in house.executor.alive  # so it is the full reading that is tested here
    house.clocks.go(CONFIRM)
    assert old in house.executor.alive


def test_lanes_that_have_emptied_hold_up_nobody(house: House) -> None:
    """
    Lanes that others have emptied are planned in vain once, and what can start does so at once.
    """
    running = [house.admit("busy", f"free{number}")[0] for number in range(2)]
    house.clocks.go(1.0)
    assert list(house.executor.alive) == running
    gone = [house.admit("busy", f"gone{number}")[0] for number in range(12)]
    house.clocks.go(1.0)
    (last,) = house.admit("busy", "last")
    house.clocks.go(1.0)
    for number in gone:
        _do(house, "UPDATE codeRunner_executions SET status = 'x' WHERE execution_id = ?", number)
    house.executor.end_all()
    assert list(house.executor.alive) == [last]


def test_a_restart_knows_nothing_and_reads_all(house: House) -> None:
    """
    The index is of the process; the next one finds what waits with its first tick.
    """
    house.admit("other", "free")
    again = house.restart()
    assert len(again.executor.alive) == 1
    again.kill()


def test_the_index_agrees_with_the_table(database: Database, connection: Any) -> None:
    """
    Through a thousand random changes, by us and by others, the index knows a head, not younger than
    the true one, of each lane with work; after a full reading they are the same.
    """
    chance = random.Random(11)
    lanes, now, alive = Lanes(), 0.0, {}
    everything = [Lane(f"{n % 7:064}", f"{n:064}" if n % 5 else None) for n in range(30)]

    def heads(txn: Cursor) -> dict[Lane, float]:
        return {head.lane: head.queued_at for head in executions.heads(txn)}

    def read() -> None:
        question = lanes.question(now)
        snapshot, news = database.read(connection, executions.news, question)
        lanes.learn(question, news, now)
        lanes.note_flights({row.execution_id: row.lane for row in snapshot.in_flight})

    def change(txn: Cursor) -> None:
        what = chance.random()
        lane = chance.choice(everything)
        if what < 0.5:
            at = NOON + chance.randrange(1000)
            insert_queued(txn, lane.subdomain_hash, lane.apikey_hash, at)
        elif what < 0.75:
            found = txn.execute(
                "SELECT execution_id, subdomain_hash, apikey_hash FROM codeRunner_executions"
                " WHERE status = 'queued' ORDER BY queued_at LIMIT 1"
            ).one()
            if found is not None:
                txn.execute(
                    "UPDATE codeRunner_executions SET status = 'claimed', claimed_at = ?"
                    " WHERE execution_id = ?",
                    (instant_text(NOON), found[0]),
                )
                alive[found[0]] = Lane(found[1], found[2])
                lanes.touch([alive[found[0]]])
        elif alive:
            number = chance.choice(list(alive))
            status = chance.choice(["queued", "success"])
            txn.execute(
                "UPDATE codeRunner_executions SET status = ? WHERE execution_id = ?",
                (status, number),
            )
            del alive[number]

    read()
    for step in range(300):
        for _ in range(chance.randrange(5)):
            database.transact(connection, change)
            if chance.random() < 0.3:
                read()
        now += 1.0
        read()
        read()
        known = {head.lane: head.queued_at for head in lanes.heads()}
        true = database.read(connection, heads)
        for lane, at in true.items():
            assert known.get(lane, float("inf")) <= at, (step, lane)
        if step % 50 == 49:
            now += CONFIRM
            read()
            assert {head.lane: head.queued_at for head in lanes.heads()} == true
