"""
What operators have set, at the claim: read under its lock, kept over restarts, cheap when idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from crq import actions, controls, executions, policy
from crq.actions import By
from crq.controls import Control, Kind
from crq.database import Cursor, Database
from crq.executions.rows import take_lock
from crq.model import Claimed, Controls, Limits, Plan
from tests import rows
from tests.rows import LIMITS, NOON, SEALER

ACME, OTHER = SEALER.account("acme"), SEALER.account("other")
KEY = SEALER.key("key")
BY = By("token:ops", NOON)

Set = Callable[..., Any]


@pytest.fixture
def do(database: Database, connection: Any) -> Set:
    """
    Do an action in one transaction.
    """

    def act(function: Any, *args: Any) -> Any:
        def all_of_it(txn: Cursor) -> Any:
            return function(txn, *args, BY)

        return database.transact(connection, all_of_it)

    return act


def tick(database: Database, connection: Any, at: float = NOON) -> list[int]:
    """
    Claim what one tick would.
    """
    snapshot = database.read(connection, executions.snapshot, LIMITS.in_flight)
    plan = policy.plan(snapshot, {}, snapshot.controls.over(LIMITS), at)
    return [one.execution_id for one in claim(database, connection, plan, LIMITS, at)]


def claim(
    database: Database, connection: Any, plan: Plan, limits: Limits, at: float = NOON
) -> tuple[Claimed, ...]:
    numbers = iter(range(100))

    def mint() -> str:
        return f"nonce {at} {next(numbers)}"

    return database.transact(connection, executions.claim, plan, limits, "d1", at, mint)


def test_everything_that_is_set_is_read_back(database: Database, connection: Any, do: Set) -> None:
    """
    One statement reads pauses, caps, the drain and requests, whoever set them.
    """
    number = rows.admit(database, connection)
    do(actions.pause, "all", "")
    do(actions.pause, "account", ACME)
    do(actions.pause, "key", KEY)
    do(actions.cap, None, 3, LIMITS, 8)
    do(actions.cap, ACME, 1, LIMITS, 8)
    do(actions.run_one, number)
    do(actions.drain)
    seen: list[str] = []
    watched = Database(database.url, observe=seen.append)
    other = watched.connect()
    found = watched.read(other, controls.read)
    other.close()
    assert len(seen) == 1
    (request,) = found.run_one
    assert request.execution_id == number
    assert (request.lane.subdomain_hash, request.lane.apikey_hash) == (ACME, KEY)
    assert found == Controls(
        draining=True,
        everything=True,
        accounts=frozenset([ACME]),
        keys=frozenset([KEY]),
        in_flight=3,
        per_account={ACME: 1},
        run_one=(request,),
    )
    listed = database.read(connection, controls.listed)
    assert {control.kind for control in listed} == set(Kind)
    assert {control.set_by for control in listed} == {"token:ops"}


def test_rows_of_other_programs_count_for_nothing(database: Database, connection: Any) -> None:
    """
    An unknown kind, a cap without a value, a request without a number: none of them stops a tick.
    """

    def odd(txn: Cursor) -> None:
        for kind, name in (
            ("wedge", "x"),
            ("cap_total", ""),
            ("cap_account", ACME),
            ("run_one", "x"),
        ):
            txn.execute(
                "INSERT INTO codeRunner_controls (kind, name, set_at, set_by)"
                " VALUES (?, ?, '2026-01-01 00:00:00.000', 'x')",
                (kind, name),
            )

    database.transact(connection, odd)
    assert database.read(connection, controls.read) == Controls()
    rows.admit(database, connection)
    assert tick(database, connection) == [1]


def test_nothing_paused_is_claimed(database: Database, connection: Any, do: Set) -> None:
    """
    An account's pause holds its rows and no others; resumed, they go on in their order.
    """
    first = [rows.admit(database, connection) for _ in range(2)]
    other = rows.admit(database, connection, "other")
    do(actions.pause, "account", ACME)
    assert tick(database, connection) == [other]
    do(actions.resume, "account", ACME)
    assert tick(database, connection) == first


def test_a_stale_plan_claims_nothing_that_was_paused_since(
    database: Database, connection: Any, do: Set
) -> None:
    """
    Pauses, caps and the drain are read again under the claim's lock (see After the answer).
    """
    for account in ("acme", "acme", "other", "third"):
        rows.admit(database, connection, account)
    snapshot = database.read(connection, executions.snapshot, 4)
    plan = policy.plan(snapshot, {}, LIMITS, NOON)
    assert len(plan.takes) == 3
    do(actions.pause, "account", OTHER)
    do(actions.cap, ACME, 1, LIMITS, 8)
    claimed = [one.execution_id for one in claim(database, connection, plan, LIMITS)]
    assert claimed == [1, 4]
    do(actions.uncap, ACME)
    do(actions.drain)
    assert claim(database, connection, plan, LIMITS, NOON + 1) == ()
    do(actions.end_drain)
    do(actions.cap, None, 3, LIMITS, 8)
    assert [one.execution_id for one in claim(database, connection, plan, LIMITS, NOON + 2)] == [2]


def test_a_stale_plan_starts_nobody_under_a_drain(
    database: Database, connection: Any, do: Set
) -> None:
    """
    Whoever was asked for before the drain began waits for its end.
    """
    number = rows.admit(database, connection)
    do(actions.pause, "all", "")
    do(actions.run_one, number)
    snapshot = database.read(connection, executions.snapshot, 4)
    plan = policy.plan(snapshot, {}, LIMITS, NOON)
    assert len(plan.picks) == 1
    do(actions.drain)
    assert claim(database, connection, plan, LIMITS) == ()
    do(actions.end_drain)
    assert tick(database, connection) == [number]


def test_a_pause_waits_for_the_claim_that_runs(database: Database, connection: Any) -> None:
    """
    A pause is not answered while a claim that has not seen it holds the lock: what it says holds.
    """
    other = database.connect()
    held, release, order = threading.Event(), threading.Event(), []

    def claiming(txn: Cursor) -> None:
        take_lock(txn, "codeRunner_drain")
        held.set()
        release.wait(10)
        order.append("claimed")

    def pausing() -> None:
        database.transact(connection, actions.pause, "all", "", BY)
        order.append("paused")

    first = threading.Thread(target=lambda: database.transact(other, claiming))
    second = threading.Thread(target=pausing)
    first.start()
    assert held.wait(10)
    second.start()
    second.join(0.2)
    assert order == []
    release.set()
    first.join(20)
    second.join(20)
    other.close()
    assert order == ["claimed", "paused"]


def test_caps_count_in_both_directions(database: Database, connection: Any, do: Set) -> None:
    """
    A higher cap starts more than configured, a lower one starts nothing until there is room.
    """
    for _ in range(6):
        rows.admit(database, connection)
    do(actions.cap, ACME, 3, LIMITS, 8)
    assert len(tick(database, connection)) == 3
    do(actions.cap, ACME, 4, LIMITS, 8)
    do(actions.cap, None, 5, LIMITS, 8)
    assert len(tick(database, connection)) == 1
    do(actions.cap, ACME, 1, LIMITS, 8)
    assert tick(database, connection) == []
    do(actions.uncap, None)
    do(actions.uncap, ACME)
    assert tick(database, connection) == []  # four are in flight, two more than configured


def test_one_execution_starts_under_a_pause(database: Database, connection: Any, do: Set) -> None:
    """
    The one that was asked for overtakes the older ones of its lane, and the request is over.
    """
    numbers = [rows.admit(database, connection, at=NOON + n) for n in range(3)]
    do(actions.pause, "all", "")
    do(actions.run_one, numbers[2])
    assert tick(database, connection, NOON + 9) == [numbers[2]]
    assert database.read(connection, controls.read).run_one == ()
    assert tick(database, connection, NOON + 10) == []
    do(actions.resume, "all", "")
    assert tick(database, connection, NOON + 11) == [numbers[0]]


def test_a_request_keeps_to_the_caps(database: Database, connection: Any, do: Set) -> None:
    """
    With its account at its cap the request waits, and is served when there is room.
    """
    numbers = [rows.admit(database, connection) for _ in range(4)]
    assert tick(database, connection) == numbers[:2]
    do(actions.pause, "account", ACME)
    do(actions.run_one, numbers[3])
    assert tick(database, connection) == []
    (first, _) = database.read(connection, executions.in_flight)
    assert database.transact(connection, executions.release, first.execution_id, first.claim_epoch)
    assert tick(database, connection) == [numbers[3]]


def test_a_request_for_what_waits_no_more_is_dropped(
    database: Database, connection: Any, do: Set
) -> None:
    """
    Cancelled meanwhile: the next tick that has room forgets the request and starts the others.
    """
    numbers = [rows.admit(database, connection, account) for account in ("acme", "other")]
    do(actions.pause, "account", ACME)
    do(actions.run_one, numbers[0])
    do(actions.cancel, numbers[0])
    assert tick(database, connection) == [numbers[1]]
    assert database.read(connection, controls.read).run_one == ()


def test_a_request_is_over_when_its_row_was_claimed_in_its_turn(
    database: Database, connection: Any, do: Set
) -> None:
    """
    Resumed before it was served: the row starts with the others, and the request goes with it.
    """
    number = rows.admit(database, connection)
    do(actions.pause, "all", "")
    do(actions.run_one, number)
    do(actions.resume, "all", "")
    assert tick(database, connection) == [number]
    assert database.read(connection, controls.read).run_one == ()


def test_a_tick_reads_all_in_one_statement(database: Database, connection: Any, do: Set) -> None:
    """
    What is in flight, what is set and the heads are one statement, with work and without; a second
    one is asked when the caller took the slots for full and they are not.
    """
    do(actions.pause, "account", OTHER)
    seen: list[str] = []
    watched = Database(database.url, observe=seen.append)
    other = watched.connect()

    def statements(expected: int = 0) -> int:
        seen.clear()
        watched.read(other, executions.snapshot, LIMITS.in_flight, expected)
        return len(seen)

    assert statements() == 1
    rows.admit(database, connection)
    assert statements() == 1
    assert statements(LIMITS.in_flight) == 2
    tick(database, connection)
    assert statements() == 1
    seen.clear()
    watched.read(other, executions.snapshot, 0)
    assert len(seen) == 1  # the executor is left alone: nothing is looked for
    other.close()


def test_a_cap_that_was_raised_is_seen_when_the_configured_slots_are_taken(
    database: Database, connection: Any, do: Set
) -> None:
    """
    Four run and six may: the heads are read, and two more start.
    """
    for account in "abcdef":
        rows.admit(database, connection, account)
    assert len(tick(database, connection)) == 4
    assert tick(database, connection) == []
    do(actions.cap, None, 6, LIMITS, 8)
    assert len(tick(database, connection)) == 2


def test_the_table_has_a_bound(
    database: Database, connection: Any, do: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each tick reads all of it, so there is a limit; what is set already may be set anew.
    """
    from crq.submissions import Refusal

    monkeypatch.setattr(controls, "ROWS_LIMIT", 2)
    do(actions.pause, "key", "a" * 64)
    do(actions.cap, ACME, 1, LIMITS, 8)
    with pytest.raises(Refusal, match="set already"):
        do(actions.pause, "key", "b" * 64)
    do(actions.cap, ACME, 2, LIMITS, 8)
    assert database.read(connection, controls.get, Kind.CAP_ACCOUNT, ACME) == Control(
        Kind.CAP_ACCOUNT, ACME, 2, NOON, "token:ops", None
    )
