"""
The loop, on clocks that the test turns, over SQLite and MariaDB.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pymysql
import pytest
from attrs import evolve
from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, LogLevel
from twisted.python.failure import Failure

from crq import executions
from crq.database import CommitUnknown, Database
from crq.liveness import GRACE
from crq.messages import Answered, Lost, NotSent, Outcome
from crq.model import Limits, Reason, Status
from crq.pool import QUIET
from crq.sealing import NONCE_TTL
from tests import rows
from tests.house import Clocks, House
from tests.rows import SEALER
from tests.support import SynchronousPool

REFUSED = NotSent("connection refused")


def actions(events: Sequence[LogEvent], *wanted: str) -> list[str]:
    return [event["action"] for event in events if event.get("action") in wanted]


# -- fairness


def test_one_account_never_holds_more_than_its_share(house: House) -> None:
    """
    500 executions of one account never have more than 2 in flight, and another account's first
    execution starts within one service time (F51).
    """
    house.admit("acme", count=500)
    house.drainer.wake()
    assert len(house.executor.alive) == 2
    (other,) = house.admit("bravo")
    house.clocks.go(1.0)
    assert other in house.executor.alive
    for _ in range(200):
        house.executor.end_all()
        house.clocks.advance(0)
    account = SEALER.account("acme")
    assert house.executor.most[account] == 2
    assert house.statuses()["success"] > 300


def test_work_starts_in_the_order_it_came(house: House) -> None:
    """
    Inside a lane executions start first in, first out.
    """
    numbers = house.admit(count=12)
    house.drainer.wake()
    while house.executor.alive:
        house.executor.end_all()
    assert house.executor.order == numbers


def test_a_freed_slot_is_used_at_once(house: House) -> None:
    """
    The next execution starts when one ends, not at the next tick.
    """
    first, second, third = house.admit(count=3)
    house.drainer.wake()
    assert house.executor.order == [first, second]
    house.executor.end(first)
    assert house.executor.order == [first, second, third]
    assert house.clocks.seconds() == 0


# -- gates


def test_gated_key_waits_while_others_run(house: House) -> None:
    """
    Rows of a key whose gate is closed stay queued with that reason; another key's rows start.
    """
    house.store.close(SEALER.key("slow"), house.clocks.wall() + 1800, house.clocks.wall())
    gated = house.admit("acme", "slow", count=3)
    (free,) = house.admit("bravo", "fast")
    house.drainer.wake()
    assert house.executor.order == [free]
    assert [house.status(number) for number in gated] == ["queued"] * 3
    (hold,) = house.pulse.plan.holds
    assert (hold.reason, hold.until) == (Reason.GATED, rows.NOON + 1800)
    house.clocks.go(1801, 1.0)
    assert gated[0] in house.executor.order


def test_the_earliest_opening_wakes_the_drainer(house: House) -> None:
    """
    A gate that opens between two ticks is not waited for until the next one.
    """
    opening = int(house.clocks.wall()) + 1
    house.clocks.advance(0.6)  # the timer ticks at whole seconds of its own clock
    house.clocks.step += 0.3
    house.store.close(SEALER.key("key"), opening, house.clocks.wall())
    house.admit()
    house.drainer.wake()
    house.clocks.advance(0.05)
    assert house.executor.order == []
    house.clocks.advance(0.06)
    assert house.executor.order == [1]
    assert house.clocks.seconds() < 1


def test_after_a_gate_one_goes_first(house: House) -> None:
    """
    When a gate has passed one execution of its key starts; the others follow when it has ended
    and the gate is still open (ruling 8).
    """
    key, wall = SEALER.key("key"), house.clocks.wall
    house.store.close(key, wall() + 10, wall())
    numbers = house.admit(count=4)
    house.drainer.wake()
    house.clocks.go(12)
    assert house.executor.order == numbers[:1]
    house.clocks.go(5)
    assert house.executor.order == numbers[:1]
    house.store.close(key, wall() + 10, wall())
    house.executor.end(numbers[0])
    house.clocks.go(5)
    assert house.executor.order == numbers[:1]
    house.clocks.go(7)
    assert house.executor.order == numbers[:2]
    house.executor.end(numbers[1])
    assert house.executor.order == numbers


# -- an executor that cannot


def test_unreachable_executor_leaves_the_queue_intact(
    house: House, logged: Sequence[LogEvent]
) -> None:
    """
    A refused connection costs no row: it waits in its place, tries grow rarer, and one line tells.
    """
    house.executor.refuse = REFUSED
    numbers = house.admit(count=3)
    house.drainer.wake()
    house.clocks.go(60)
    assert house.statuses() == {"queued": 3}
    assert 5 <= len(house.executor.dispatches) <= 12
    assert house.pulse.alarm is not None
    assert actions(logged, "backing off", "executor back") == ["backing off"]
    house.executor.refuse = None
    house.clocks.go(16)
    assert house.executor.order == numbers[:2]
    assert house.pulse.alarm is None
    assert actions(logged, "backing off", "executor back") == ["backing off", "executor back"]


@pytest.mark.parametrize(
    "result",
    [Answered(401), Answered(404), Answered(302), Answered(503), Answered(409, error_code=113)],
    ids=str,
)
def test_answers_about_the_executor_cost_no_row(house: House, result: Answered) -> None:
    """
    Whatever speaks of the executor puts the row back, under a nonce that is worth nothing.
    """
    house.executor.refuse = result
    (number,) = house.admit()
    house.drainer.wake()
    assert house.status(number) == "queued"
    assert rows.row(house.database, house.pool.connection, number)["nonce_hash"] is None


def test_an_answer_about_the_row_fails_it_alone(house: House) -> None:
    """
    422 before a start closes the row as 106, never started, and the others go on at once.
    """
    house.executor.refuse = Answered(422, detail="the API key cannot be opened")
    (bad,) = house.admit()
    house.drainer.wake()
    house.executor.refuse = None
    (good,) = house.admit()
    house.drainer.wake()
    row = rows.row(house.database, house.pool.connection, bad)
    assert (row["status"], row["error_code"], row["started_at"]) == ("failed", 106, None)
    assert "cannot be opened" in row["error_message"]
    assert house.executor.order == [good]


def test_one_bad_lane_does_not_stop_the_others(house: House) -> None:
    """
    A row that the executor can never take keeps its place, and other lanes run past it (F64).
    """
    (bad,) = house.admit("acme", "bad")
    good = house.admit("bravo", "good", count=6)
    dispatch = house.executor.dispatch

    async def choosy(claimed: Any) -> Any:
        if claimed.execution_id == bad:
            return Answered(500)
        return await dispatch(claimed)

    house.drainer.dispatcher.transport.dispatch = choosy  # type: ignore[method-assign]
    house.drainer.wake()
    for _ in range(40):
        house.clocks.go(1)
        house.executor.end_all()
    assert house.executor.order == good
    assert house.status(bad) == "queued"


def test_a_transport_that_raises_leaks_no_slot(house: House, logged: Sequence[LogEvent]) -> None:
    """
    A fault of ours in a dispatch releases the row and the slot (F34).
    """
    house.executor.refuse = RuntimeError("a fault of ours")
    house.admit(count=4)
    house.drainer.wake()
    assert house.statuses() == {"queued": 4}
    house.executor.refuse = None
    house.clocks.go(20)
    assert len(house.executor.alive) == 2
    assert "dispatch failed" in actions(logged, "dispatch failed")


# -- answers that do not come


def test_a_lost_answer_of_a_row_that_did_not_begin_is_released(house: House) -> None:
    """
    Reset before the start: the row goes back, and the old nonce, arriving late, starts nothing.
    """
    house.executor.begin_at_once = False
    (number,) = house.admit()
    house.drainer.wake()
    claimed, _ = house.executor.arrived[number]
    house.executor.answer(number, Lost("reset"))
    assert house.status(number) == "queued"
    assert not house.executor.begin(claimed)


def test_a_lost_answer_of_a_living_worker_keeps_its_slot(house: House) -> None:
    """
    While the worker lives its slot is taken and nothing is dispatched twice; its own outcome
    counts when it comes (F75).
    """
    first, second, third = house.admit(count=3)
    house.drainer.wake()
    house.executor.answer(first, Answered(504))
    house.clocks.go(120, 1.0)
    assert house.status(first) == "running"
    assert house.executor.order == [first, second]
    house.executor.finish(first)
    house.clocks.go(1)
    assert house.executor.order == [first, second, third]
    assert house.executor.dispatches == [first, second, third]


def test_a_dead_worker_frees_its_slot(house: House) -> None:
    """
    A worker whose lock is free at two looks is dead: 303 now, and the slot is used again (F45).
    """
    first, second, third = house.admit(count=3)
    house.drainer.wake()
    del house.executor.alive[first]
    house.executor.answer(first, Lost("reset"))
    assert house.status(first) == "running"
    house.clocks.go(GRACE + 1)
    row = rows.row(house.database, house.pool.connection, first)
    assert (row["status"], row["error_code"]) == ("failed", 303)
    assert house.executor.order == [first, second, third]
    assert house.executor.starts[first] == 1


def test_a_lock_that_comes_back_in_time_is_alive(house: House) -> None:
    """
    A lock that was free for a moment, as after a server restart, does not kill its execution.
    """
    (number,) = house.admit()
    house.drainer.wake()
    house.executor.answer(number, Lost("reset"))
    claimed = house.executor.alive.pop(number)
    house.clocks.go(GRACE - 1)
    house.executor.alive[number] = claimed
    house.clocks.go(60)
    assert house.status(number) == "running"


def test_where_locks_are_not_trusted_the_wall_decides(database: Database) -> None:
    """
    With liveness = "wall" a slot is held until the wall and its grace have passed.
    """
    house = House(database, wall_limit=330).start()
    (number,) = house.admit()
    house.drainer.wake()
    del house.executor.alive[number]
    house.executor.answer(number, Lost("reset"))
    house.clocks.step += 3600  # a stepped wall clock ages nothing (F62)
    house.clocks.go(325, 1.0)
    assert house.status(number) == "running"
    house.clocks.go(10)
    assert house.status(number) == "failed"
    house.close()


def test_an_outcome_in_the_answer_is_written(house: House) -> None:
    """
    When the executor lost its database at the end, the drainer writes the outcome it was told.
    """
    (number,) = house.admit()
    house.drainer.wake()
    del house.executor.alive[number]
    told = Outcome(Status.FAILED, 301, "no such card")
    house.executor.answer(number, Answered(200, told))
    row = rows.row(house.database, house.pool.connection, number)
    assert (row["status"], row["error_code"]) == ("failed", 301)


# -- restarts


def test_running_rows_of_a_previous_process_count(house: House) -> None:
    """
    After a kill with every slot busy nothing starts until a slot is really free (F44).
    """
    running = house.admit("acme", count=2) + house.admit("bravo", count=2)
    house.drainer.wake()
    waiting = house.admit("carla", count=2)
    again = house.restart()
    again.clocks.go(30)
    assert again.executor.order == running
    again.executor.end(running[0])
    again.clocks.go(1)
    assert again.executor.order == [*running, waiting[0]]
    assert again.executor.most["total"] == 4
    again.kill()


def test_unconsumed_claims_return_to_the_queue(house: House) -> None:
    """
    A kill between claim and start loses nothing: the row is claimed anew and starts once, even if
    the first request arrives after all.
    """
    house.executor.begin_at_once = False
    (number,) = house.admit()
    house.drainer.wake()
    old, _ = house.executor.arrived[number]
    again = house.restart()
    new, _ = again.executor.arrived[number]
    assert new.nonce != old.nonce
    assert not again.executor.begin(old)
    assert again.executor.begin(new)
    assert again.executor.starts == {number: 1}
    again.kill()


def test_claims_of_another_drainer_are_left_until_their_nonce_is_void(database: Database) -> None:
    """
    A row that somebody else claimed is released only when its nonce is too old to start it.
    """
    house = House(database)
    house.admit()
    (claimed,) = rows.claim(database, house.pool.connection, drainer_id="elsewhere")
    house.start()
    house.clocks.go(NONCE_TTL - 1, 1.0)
    assert house.status(claimed.execution_id) == "claimed"
    house.clocks.go(3)
    assert house.executor.order == [claimed.execution_id]
    house.close()


def test_an_unanswered_commit_of_a_claim_dispatches_once(database: Database) -> None:
    """
    Rows of a claim whose COMMIT was not answered are found, released and dispatched once (F08).
    """

    class Forgetful(SynchronousPool):
        lost = 0

        def transact(self, function: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
            done = super().transact(function, *args, **kwargs)
            if function is executions.claim and self.lost == 0:
                self.lost += 1
                return defer.fail(CommitUnknown())
            return done

    house = House(database, pool=Forgetful(database))
    numbers = house.admit(count=2)
    house.start()
    assert house.executor.order == numbers
    assert house.executor.starts == dict.fromkeys(numbers, 1)
    house.close()


# -- the loop survives


@pytest.mark.parametrize("fault", ["database", "ours"])
def test_the_loop_survives_any_tick(
    house: House, logged: Sequence[LogEvent], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """
    After ticks that failed the next one works; one report tells of it, and the pulse does (F23).
    """
    error: Exception = RuntimeError("a fault of ours")
    if fault == "database":
        error = pymysql.err.OperationalError(2003, "Can't connect")
        if house.database.dialect == "sqlite":
            error = sqlite3.OperationalError("unable to open database file")
    told = ["tick failed", "recovered"] if fault == "ours" else ["database away", "database back"]
    with monkeypatch.context() as patch:
        patch.setattr(house.pool, "_on_thread", lambda *_, **__: defer.fail(error))
        house.clocks.go(5)
    assert house.pulse.last_error is not None
    assert str(error) in house.pulse.last_error
    warned = [event for event in logged if event["log_level"] >= LogLevel.warn]
    assert [event["action"] for event in warned] == told[:1]
    assert ("log_failure" in warned[0]) == (fault == "ours")
    house.admit()
    house.clocks.go(1)
    assert house.executor.order == [1]
    assert house.pulse.last_error is None
    assert house.pulse.last_good_tick == house.clocks.wall()
    house.clocks.go(QUIET)
    assert actions(logged, *told) == told


def test_ticks_never_overlap(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    While a tick waits for the database no other begins, what was left out is counted, and no
    burst follows (F25).
    """
    waiting: list[Deferred[Any]] = []
    read: Callable[..., Deferred[Any]] = house.pool.read

    def stalled(*args: Any) -> Deferred[Any]:
        waiting.append(Deferred())
        return waiting[-1]

    monkeypatch.setattr(house.pool, "read", stalled)
    ticks = house.pulse.ticks
    house.clocks.go(5.5)
    assert len(waiting) == 1
    assert house.pulse.skipped_ticks == 4
    monkeypatch.setattr(house.pool, "read", read)
    waiting[0].errback(Failure(pymysql.err.OperationalError(2013, "lost")))
    assert house.pulse.ticks == ticks + 2
    house.clocks.advance(10.5)
    assert house.pulse.ticks == ticks + 3


def test_settling_waits_for_the_database(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    While the database is away an answered dispatch keeps its slot, and is settled afterwards.
    """
    (number,) = house.admit()
    house.drainer.wake()
    del house.executor.alive[number]
    away = pymysql.err.OperationalError(2003, "Can't connect")
    with monkeypatch.context() as patch:
        patch.setattr(house.pool, "transact", lambda *_, **__: defer.fail(away))
        house.executor.answer(number, Answered(200, Outcome(Status.SUCCESS)))
        house.clocks.go(10)
        assert house.status(number) == "running"
        assert number in house.drainer.dispatcher.outstanding
    house.clocks.go(2)
    assert house.status(number) == "success"
    assert not house.drainer.dispatcher.outstanding


def test_a_deadlock_in_every_third_claim_loses_nothing(
    database: Database, logged: Sequence[LogEvent]
) -> None:
    """
    Deadlocks are run again inside the tick: no tick fails and each row starts once (F01).
    """
    claims = 0

    def disturb(sql: str) -> None:
        nonlocal claims
        if "SET status = 'claimed'" in sql:
            claims += 1
            if claims % 3 == 0:
                if database.dialect == "sqlite":
                    raise sqlite3.OperationalError("database is locked")
                raise pymysql.err.OperationalError(1213, "Deadlock found")

    house = House(database, pool=SynchronousPool(evolve(database, observe=disturb))).start()
    numbers = house.admit(count=50)
    house.drainer.wake()
    while house.executor.alive:
        house.executor.end_all()
    assert house.executor.starts == dict.fromkeys(numbers, 1)
    assert actions(logged, "tick failed") == []
    house.close()


# -- stopping


def test_stopping_claims_nothing_and_waits_for_answers(house: House) -> None:
    """
    After SIGTERM nothing is dispatched, answers are awaited, queued rows are untouched (F42).
    """
    numbers = house.admit(count=5)
    house.drainer.wake()
    stopped = house.drainer.stopService()
    house.executor.end(numbers[0])
    house.clocks.go(5)
    assert not stopped.called
    house.executor.end(numbers[1])
    assert stopped.called
    assert house.executor.order == numbers[:2]
    assert house.statuses() == {"success": 2, "queued": 3}
    assert house.executor.closed


def test_stopping_hangs_up_at_the_limit(house: House) -> None:
    """
    What is not answered within the drain limit goes on in the executor; the row stays true.
    """
    (number,) = house.admit()
    house.drainer.wake()
    stopped = house.drainer.stopService()
    house.clocks.go(59)
    assert not stopped.called
    house.clocks.go(2)
    assert stopped.called
    assert house.status(number) == "running"
    assert house.executor.finish(number)


# -- the caps


def test_the_global_cap_holds_over_many_accounts(database: Database) -> None:
    """
    With ten accounts never more than 4 run, and all of it is done in the end.
    """
    house = House(database, clocks=Clocks(), limits=Limits()).start()
    for account in "abcdefghij":
        house.admit(f"account-{account}", f"key-{account}", 4)
    house.drainer.wake()
    while house.executor.alive:
        for number in list(house.executor.alive)[:1]:
            house.executor.end(number)
    assert house.executor.most["total"] == 4
    assert house.statuses() == {"success": 40}
    house.close()


def test_odd_rows_do_not_stop_the_others(database: Database, logged: Sequence[LogEvent]) -> None:
    """
    An unknown status, an instant that is none and a lane without a key stop nobody (F64).
    """
    house = House(database)

    def insert(txn: Any) -> None:
        rows.insert_queued(txn, "a" * 64, None, rows.NOON)
        rows.insert_queued(txn, "b" * 64, "k" * 64, rows.NOON)
        rows.insert_queued(txn, "c" * 64, "k" * 64, rows.NOON)
        txn.execute("UPDATE codeRunner_executions SET status = 'odd' WHERE execution_id = 3")
        if txn.dialect == "sqlite":
            odd = "UPDATE codeRunner_executions SET queued_at = 'garbage' WHERE execution_id = 2"
            txn.execute(odd)

    database.transact(house.pool.connection, insert)
    good = house.admit(count=2)
    house.start()
    while house.executor.alive:
        house.executor.end_all()
    assert set(house.executor.order) == {1, 2, *good}
    assert house.status(3) == "odd"
    assert actions(logged, "tick failed") == []
    house.close()
