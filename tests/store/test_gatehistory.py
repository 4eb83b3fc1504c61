"""
The history of gates: one row a closing, finished by those who see it open.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from crq import executions, gatehistory
from crq.database import Database
from crq.gatehistory import AFTER, CAUSE_LENGTH, KEPT, Closing
from crq.instants import instant_text
from crq.model import Limits
from tests import rows
from tests.rows import NOON

KEY = rows.SEALER.key("key")
OTHER = rows.SEALER.key("other")
Write = Callable[..., Any]


@pytest.fixture
def write(database: Database, connection: Any) -> Write:
    """
    Run a function in a transaction.
    """
    return lambda function, *args, **more: database.transact(connection, function, *args, **more)


@pytest.fixture
def read(database: Database, connection: Any) -> Callable[..., tuple[Closing, ...]]:
    """
    Read closings.
    """

    def closings(*args: Any, **more: Any) -> tuple[Closing, ...]:
        return database.read(connection, gatehistory.closings, *args, **more)

    return closings


Read = Callable[..., tuple[Closing, ...]]


def test_a_closing_is_told_from_its_begin_to_what_came_after(
    database: Database, connection: Any, write: Write, read: Read
) -> None:
    """
    Who was refused first, until when, why; how many waited when it opened; what came after that.
    """
    first = rows.admit(database, connection, "acme")
    write(gatehistory.record, KEY, NOON + 65, NOON, "429, Retry-After: 60", first)
    (closing,) = read()
    assert closing == Closing(
        KEY,
        1,
        instant_text(NOON),
        instant_text(NOON + 65),
        None,
        "429, Retry-After: 60",
        first,
        1,
        None,
        None,
    )
    for account in ("acme", "umbrella", "umbrella"):
        rows.admit(database, connection, account, at=NOON + 1)
    rows.admit(database, connection, "acme", "other", at=NOON + 1)
    write(gatehistory.noted, {}, NOON + 64.999)
    assert read()[0].opened_at is None
    write(gatehistory.noted, {}, NOON + 65)
    (closing,) = read()
    assert (closing.opened_at, closing.held) == (instant_text(NOON + 65), 4)
    write(gatehistory.record, KEY, NOON + 130, NOON + 70, "429")
    write(gatehistory.record, KEY, NOON + 130, NOON + 71, "429")
    write(gatehistory.finish, NOON + 65 + AFTER - 0.001)
    assert read()[1].limits_after is None
    write(gatehistory.finish, NOON + 65 + AFTER)
    newest, closing = read()
    assert (closing.number, closing.limits_after) == (1, 2)
    assert (newest.number, newest.limits, newest.limits_after) == (2, 2, None)
    assert closing.as_json() == {
        "key": KEY,
        "number": 1,
        "closedAt": "2026-03-02T12:00:00.000Z",
        "closedUntil": "2026-03-02T12:01:05.000Z",
        "openedAt": "2026-03-02T12:01:05.000Z",
        "cause": "429, Retry-After: 60",
        "executionId": first,
        "limits": 1,
        "held": 4,
        "limitsAfter": 2,
    }


def test_what_refuses_meanwhile_makes_a_closing_longer(write: Write, read: Read) -> None:
    """
    A later refusal counts, and the longer instant stands, whichever comes last (ruling 7).
    """
    write(gatehistory.record, KEY, NOON + 65, NOON, "first")
    write(gatehistory.record, KEY, NOON + 3605, NOON + 1, "second")
    write(gatehistory.record, KEY, NOON + 15, NOON + 2, "third")
    (closing,) = read()
    assert (closing.limits, closing.cause) == (3, "first")
    assert closing.closed_until == instant_text(NOON + 3605)


def test_a_gate_of_somebody_else_is_noted_once(write: Write, read: Read) -> None:
    """
    A drainer notes what it finds closed; if the executor's own note comes after that, its cause
    and its execution stand.
    """
    write(gatehistory.noted, {KEY: (NOON + 65, "found"), OTHER: (NOON + 30, "found")}, NOON)
    write(gatehistory.noted, {KEY: (NOON + 65, "found")}, NOON + 1)
    assert [(one.limits, one.cause) for one in read()] == [(0, "found"), (0, "found")]
    write(gatehistory.record, KEY, NOON + 65, NOON + 1, "429", 7)
    write(gatehistory.noted, {KEY: (NOON + 65, "found")}, NOON + 2)
    write(gatehistory.record, KEY, NOON + 65, NOON + 3, "429 again", 8)
    (closing,) = read([KEY])
    assert (closing.limits, closing.cause, closing.execution_id) == (2, "429", 7)
    write(gatehistory.noted, {KEY: (NOON + 90, "found")}, NOON + 4)
    (closing,) = read([KEY])
    assert (closing.limits, closing.closed_until) == (2, instant_text(NOON + 90))


def test_workers_that_are_refused_at_once_make_one_closing(
    database: Database, write: Write, read: Read
) -> None:
    """
    Twenty workers write in the same moment: one row, and all twenty counted.
    """

    def refused(number: int) -> None:
        connection = database.connect()
        try:
            until = NOON + 60 + number
            database.transact(connection, gatehistory.record, KEY, until, NOON, "429", number)
        finally:
            connection.close()

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(refused, range(20)))
    (closing,) = read()
    assert (closing.number, closing.limits) == (1, 20)
    assert closing.closed_until == instant_text(NOON + 79)


def test_a_gate_opened_by_hand(
    database: Database, connection: Any, write: Write, read: Read
) -> None:
    """
    It is over at that instant, with those who waited; a key without a closing has none to end.
    """
    rows.admit(database, connection)
    assert not write(gatehistory.opened_by_hand, KEY, NOON)
    write(gatehistory.record, KEY, NOON + 3605, NOON, "closed by hand", limits=0)
    assert write(gatehistory.opened_by_hand, KEY, NOON + 10)
    assert not write(gatehistory.opened_by_hand, KEY, NOON + 11)
    (closing,) = read()
    at = instant_text(NOON + 10)
    assert (closing.closed_until, closing.opened_at, closing.held) == (at, at, 1)
    write(gatehistory.record, KEY, NOON + 100, NOON + 12, "429")
    assert [one.number for one in read()] == [2, 1]


def test_what_a_new_drainer_takes_for_half_open(
    write: Write, database: Database, connection: Any
) -> None:
    """
    Keys of closings that are not finished: still closed, or open for less than a minute.
    """
    write(gatehistory.record, KEY, NOON + 10, NOON, "429")
    write(gatehistory.record, OTHER, NOON + 200, NOON, "429")
    write(gatehistory.noted, {}, NOON + 20)
    unfinished = database.read(connection, gatehistory.unfinished)
    assert unfinished == {KEY: NOON + 10, OTHER: NOON + 200}
    write(gatehistory.finish, NOON + 20 + AFTER)
    assert database.read(connection, gatehistory.unfinished) == {OTHER: NOON + 200}


def test_it_is_bounded(write: Write, read: Read, database: Database, connection: Any) -> None:
    """
    A key that is refused for ever keeps its newest closings; old ones go with the log.
    """
    for number in range(KEPT + 5):
        at = NOON + 100 * number
        write(gatehistory.record, KEY, at + 10, at, "429")
    found = read(limit=KEPT + 100)
    assert len(found) == KEPT
    assert (found[0].number, found[-1].number) == (KEPT + 5, 6)
    assert [one.number for one in read(limit=2, before=NOON + 100 * 10)] == [10, 9]
    write(gatehistory.record, OTHER, NOON + 10, NOON, "429")
    total = 0
    while count := write(gatehistory.purge, NOON + 100 * KEPT, 300):
        assert count <= 300
        total += count
    assert total == KEPT - 4
    assert [one.number for one in read(limit=9)] == [
        KEPT + 5,
        KEPT + 4,
        KEPT + 3,
        KEPT + 2,
        KEPT + 1,
    ]


def test_odd_keys_and_long_causes(
    write: Write, read: Read, database: Database, connection: Any
) -> None:
    """
    What no column takes as it is is hashed or cut; it never stops a script (F67).
    """
    odd = "ü " * 100
    rows.admit(database, connection)
    write(gatehistory.record, odd, NOON + 10, NOON, "→ 👨‍👩‍👧 " * 100)
    write(gatehistory.noted, {}, NOON + 20)
    (closing,) = read([odd])
    assert len(closing.apikey_hash) == 64
    assert len(closing.cause) == CAUSE_LENGTH
    assert closing.held == 0


def test_counting_costs_lanes_and_not_rows(
    database: Database, connection: Any, write: Write
) -> None:
    """
    Each part of the history is found by an index; the rows that waited are counted by their lane.
    """
    for number in range(300):
        account = f"a{number % 3}"
        rows.admit(
            database, connection, account, "other", at=NOON + number, limits=Limits(4, 2, 900, 900)
        )
    rows.admit(database, connection, "a1", "key", at=NOON)
    write(gatehistory.record, KEY, NOON + 10, NOON, "429")
    plans = {
        "SELECT apikey_hash, number FROM codeRunner_gate_history WHERE limits_after IS NULL"
        " AND closed_until <= '2026-01-01' AND opened_at IS NULL": "idx_unfinished",
        "SELECT apikey_hash, number FROM codeRunner_gate_history"
        " WHERE closed_at < '2026-01-01'": "idx_closed_at",
    }
    for sql, index in plans.items():
        assert index in _explained(database, connection, sql)
    lane = next(
        head.lane
        for head in database.read(connection, executions.heads)
        if head.lane.apikey_hash == KEY
    )
    assert database.read(connection, executions.waiting, lane) == 1
    null = "IS" if database.dialect == "sqlite" else "<=>"
    count = (
        "SELECT COUNT(*) FROM codeRunner_executions WHERE status = 'queued'"
        f" AND subdomain_hash = '{lane.subdomain_hash}' AND apikey_hash {null} '{KEY}'"
    )
    assert "idx_lane" in _explained(database, connection, count)


def _explained(database: Database, connection: Any, sql: str) -> str:
    cursor = connection.cursor()
    explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
    cursor.execute(f"{explain} {sql}")
    return str(cursor.fetchall())
