"""
Ten minutes without something, in a second: a whole drainer on clocks, over both engines.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pymysql
import pytest
from twisted.internet import defer
from twisted.logger import LogEvent, LogLevel

from crq import executions, status
from crq.database import Database
from crq.liveness import GRACE
from crq.messages import Admitted, Answered, Lost, NotSent, Rejected
from crq.model import GateReading, Limits
from crq.pool import QUIET
from crq.sealing import NONCE_TTL
from crq.statusreport import StatusReport
from crq.verdict import Verdict
from tests import rows
from tests.house import House
from tests.rows import SEALER

MINUTE = 60.0
ACCOUNTS = 7
REFUSED = NotSent("connection refused")


def warned(events: Sequence[LogEvent]) -> list[str]:
    """
    The actions of what was warned of.
    """
    return [event["action"] for event in events if event["log_level"] >= LogLevel.warn]


def report(house: House) -> StatusReport:
    """
    What the status says now.
    """
    now = house.clocks.wall()
    reading = house.database.read(house.pool.connection, status.read)
    return status.report(
        reading,
        GateReading(house.gates.closed(now)),
        house.limits,
        now,
        half_open=house.gates.half_open,
        pulse=house.pulse,
        drainer_id="d1",
        monotonic=house.clocks.seconds(),
    )


def arrive(house: House, number: int) -> Admitted | Rejected:
    """
    Let one more come.
    """
    account = f"account{number % ACCOUNTS}"
    answer = house.database.transact(
        house.pool.connection,
        executions.admit,
        rows.submission(account, account),
        house.limits,
        house.clocks.wall(),
    )
    assert isinstance(answer, (Admitted, Rejected))
    return answer


def test_a_backlog_grows_in_sight(house: House, logged: Sequence[LogEvent]) -> None:
    """
    Ten minutes without an executor at 137 arrivals a minute: what is too deep is refused with a row
    that says so, depth and age can be seen growing under a verdict that is not "idle" nor "gated",
    tries stay rare; afterwards all of it runs, first in, first out, under the caps (F65).
    """
    house.limits = Limits(queued_per_account=50, queued_total=280)
    house.executor.refuse = REFUSED
    admitted: list[int] = []
    refused = number = 0
    seen = []
    for minute in range(10):
        for _ in range(137):
            answer = arrive(house, number)
            number += 1
            if isinstance(answer, Admitted):
                admitted.append(answer.execution_id)
            else:
                refused += 1
            if number % 12 == 0:
                house.clocks.advance(MINUTE * 12 / 137)
        seen.append(report(house))
        assert seen[-1].verdict is Verdict.STALLED, minute
    depths = [each.depth for each in seen]
    ages = [each.oldest_queued_age or 0.0 for each in seen]
    assert depths == sorted(depths)
    assert depths[-1] == len(admitted) == 280
    assert ages == sorted(ages)
    assert ages[-1] > 9 * MINUTE
    assert refused == 1370 - 280
    assert house.statuses()["rejected"] >= 700  # past 100 a minute of an account, one row counts
    assert 30 < len(house.executor.dispatches) < 80
    assert warned(logged) == ["backing off"]
    assert len(house.pulse.plan.holds) <= ACCOUNTS

    house.executor.refuse = None
    house.clocks.go(16, 1.0)
    while house.executor.alive:
        house.executor.end_all()
        house.clocks.advance(0.25)
    assert house.statuses()["success"] == 280
    assert house.executor.most["total"] <= 4
    for account in range(ACCOUNTS):
        own = [n for n in house.executor.order if n in set(admitted[account::ACCOUNTS])]
        assert own == sorted(own)
    assert report(house).verdict is Verdict.IDLE


def test_ten_minutes_without_a_database(
    house: House, logged: Sequence[LogEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Ticks fail and are counted, one line tells of it, an answer that came meanwhile keeps its slot
    and is settled afterwards, and nothing is begun twice.
    """
    numbers = house.admit(count=6)
    house.drainer.wake()
    first = numbers[0]
    fault = rows_away(house.database)
    with monkeypatch.context() as patch:
        patch.setattr(house.pool, "_on_thread", lambda *_, **__: defer.fail(fault))
        del house.executor.alive[first]
        house.executor.answer(first)
        house.clocks.go(10 * MINUTE, 1.0)
        assert house.pulse.last_error is not None
        assert first in house.drainer.dispatcher.outstanding
    house.clocks.go(QUIET + 3)
    assert house.status(first) == "success"
    while house.executor.alive:
        house.executor.end_all()
        house.clocks.advance(1)
    assert house.statuses() == {"success": 6}
    assert house.executor.starts == dict.fromkeys(numbers, 1)
    assert warned(logged) == ["database away"]
    assert "database back" in [event.get("action") for event in logged]


def rows_away(database: Database) -> Exception:
    """
    What a database that is away says.
    """
    if database.dialect == "sqlite":
        return sqlite3.OperationalError("unable to open database file")
    return pymysql.err.OperationalError(2003, "Can't connect")


@pytest.mark.parametrize(
    "pragma", ["PRAGMA query_only = {}", "PRAGMA max_page_count = {}"], ids=["read-only", "full"]
)
def test_a_file_that_cannot_be_written(
    engine: str, house: House, logged: Sequence[LogEvent], pragma: str
) -> None:
    """
    While a SQLite file is full or read-only nothing is claimed, started or lost, ticks go on, and
    one line tells of it; then all of it runs.
    """
    if engine != "sqlite":
        pytest.skip("only SQLite is a file")
    connection = house.pool.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    house.admit(count=4)
    connection.execute(pragma.format(pages if "page" in pragma else "ON")).fetchall()
    house.drainer.wake()
    house.clocks.go(60)
    if "query_only" in pragma:
        assert house.statuses() == {"queued": 4}
        assert warned(logged) == ["database away"]
    assert house.drainer._loop.running
    connection.execute(pragma.format(10**6 if "page" in pragma else "OFF")).fetchall()
    house.clocks.go(QUIET + 2)
    while house.executor.alive:
        house.executor.end_all()
        house.clocks.advance(1)
    assert house.statuses() == {"success": 4}
    assert set(warned(logged)) <= {"database away"}


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_between_claim_and_start(
    house: House, logged: Sequence[LogEvent], step: float
) -> None:
    """
    A clock that is stepped while a dispatch is on its way costs nothing: a nonce that looks too old
    starts nothing, its row goes back and starts under another.
    """
    house.executor.begin_at_once = False
    (number,) = house.admit()
    house.drainer.wake()
    claimed, _ = house.executor.arrived[number]
    house.clocks.step += step
    began = house.executor.begin(claimed)
    assert began == (step < NONCE_TTL)
    if began:
        house.executor.end(number)
    else:
        house.executor.answer(number, Answered(409, error_code=113))
        house.executor.begin_at_once = True
        house.clocks.go(2)
        house.executor.end_all()
    house.clocks.go(1)
    assert house.status(number) == "success"
    assert house.executor.starts == {number: 1}
    assert "clock stepped" in warned(logged)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_timers_do_not_follow_the_clock(
    house: House, logged: Sequence[LogEvent], step: float
) -> None:
    """
    Pauses, the grace of a dead worker and ticks last as long as they last: a step neither freezes
    nor fires them (F62, ruling 10).
    """
    dead, alive = house.admit("acme") + house.admit("bravo")
    house.drainer.wake()
    del house.executor.alive[dead]
    house.executor.answer(dead, Lost("reset"))
    house.executor.answer(alive, Lost("reset"))
    house.executor.refuse = REFUSED
    (refused,) = house.admit("carla")
    house.drainer.wake()
    ticks = house.pulse.ticks
    house.clocks.step += step
    house.clocks.go(GRACE - 1)
    assert house.status(dead) == "running"
    house.clocks.go(10)
    assert house.status(dead) == "failed"
    assert house.status(alive) == "running"
    assert house.pulse.ticks - ticks >= 10
    assert len(house.executor.dispatches) <= 2 + 6
    house.executor.refuse = None
    house.clocks.go(16)
    assert refused in house.executor.order


def test_gates_that_a_step_opens_are_counted(house: House, logged: Sequence[LogEvent]) -> None:
    """
    A step forth opens gates early: how many is told and counted, and of each key one goes first; a
    step back holds a key longer, by the step at most (F62).
    """
    for account in ("slow", "slower"):
        key, now = SEALER.key(account), house.clocks.wall()
        house.store.close(key, now + 1800, now)
        house.admit(account, account, 3)
    house.clocks.go(2)
    assert house.executor.order == []
    house.clocks.step += 3600
    house.clocks.go(2)
    assert len(house.executor.order) == 2
    (event,) = [event for event in logged if event.get("action") == "clock stepped"]
    assert event["early"] == 2
    assert house.drainer.meters.registry.get_sample_value("crqueue_gates_opened_early_total") == 2
    assert house.drainer.meters.registry.get_sample_value("crqueue_wall_clock_steps_total") == 1
