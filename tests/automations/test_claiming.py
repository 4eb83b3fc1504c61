"""
Phase A: due automations become runs, on SQLite and on MariaDB.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from crq.automations import limits, runs
from crq.automations.model import RunStatus, Trigger
from crq.automations.rounds import Ticked
from crq.database import Cursor, Database
from tests.automations.house import House, utc
from tests.house import Clocks
from tests.rows import NOON
from tests.support import SynchronousPool

DAY = 86_400.0


def claim(house: House, tenant: str = "acme", at: float | None = None) -> Any:
    return house.do(
        runs.claim_due, tenant, house.now if at is None else at, limits.CLAIMS_PER_ROUND
    )


def due(house: House, **more: Any) -> Any:
    """
    An automation whose minute has just come.
    """
    automation = house.add(**more)
    house.clocks.advance(60)
    return automation


def test_one_occurrence_is_one_run(house: House) -> None:
    """
    A due automation gets one run, with what it was then, and its pointer moves into the future.
    """
    automation = due(house, config={"threshold": 3})
    (claimed,) = claim(house)
    (run,) = house.runs(automation)
    assert (run.run_id, run.status, run.trigger_kind) == (
        claimed.run_id,
        RunStatus.QUEUED,
        Trigger.SCHEDULE,
    )
    assert run.scheduled_for_utc == NOON + 60
    assert (run.config, run.config_revision, run.skipped) == ({"threshold": 3}, 1, 0)
    assert house.automation(automation).next_run_at_utc == NOON + 120
    assert claim(house) == ()


def test_the_pointer_moves_whether_or_not_we_made_the_row(house: House) -> None:
    """
    A run that is there already is the occurrence's run: no second one, and the pointer moves.
    """
    automation = due(house)
    (first,) = claim(house)
    house.sql(
        "UPDATE automations SET next_run_at_utc = ?", "2026-03-02 12:01:00.000"
    )  # as if the process had died between the two
    (again,) = claim(house)
    assert again.run_id == first.run_id
    assert len(house.runs(automation)) == 1
    assert house.automation(automation).next_run_at_utc == NOON + 120


def test_an_insert_that_is_ignored_finds_the_row_of_the_other(database: Database) -> None:
    """
    A run that another process has committed since this transaction began is found by its key (F16).
    """
    house = House(database)
    automation = due(house)
    other = House(database, house.clocks)
    seen: list[Any] = []

    def slow(txn: Cursor) -> Any:
        txn.execute("SELECT COUNT(*) FROM automation_runs").all()
        if database.dialect == "mysql":
            seen.append(claim(other))
        found = txn.execute("SELECT automation_id FROM automations").all()
        assert len(found) == 1
        return runs.claim(txn, [automation], house.now)

    (claimed,) = house.do(slow)
    assert [claimed.run_id] == [run.run_id for run in house.runs(automation)]
    if seen:
        assert seen[0][0].run_id == claimed.run_id
    house.close()
    other.close()


def test_three_hundred_repeats_of_one_key_are_one_row(house: House) -> None:
    """
    One key, inserted again and again, is one row; ids are BIGINT, so that none are missed (F16).
    """
    automation = due(house)

    def repeat(txn: Cursor) -> None:
        for _ in range(300):
            runs.claim(txn, [automation], house.now)

    house.do(repeat)
    assert len(house.runs(automation)) == 1
    if house.database.dialect == "mysql":
        ((kind,),) = house.sql(
            "SELECT COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()"
            " AND TABLE_NAME = 'automation_runs' AND COLUMN_NAME = 'run_id'"
        )
        assert kind.startswith("bigint")


def test_the_same_minute_is_found_due_once(house: House) -> None:
    """
    Ticks at 11:59:59.996, 12:00:00.004, again, and at 12:00:59.9 make one run, for 12:00 (F93).
    """
    house.clocks.step = NOON - 3600
    automation = house.add(cron="0 12 * * *")
    made = []
    for at in (NOON - 0.004, NOON + 0.004, NOON + 0.004, NOON + 59.9):
        house.clocks.step = at - house.clocks.seconds()
        made.append(house.tick().claimed)
    assert made == [0, 1, 0, 0]
    (run,) = house.runs(automation)
    assert run.scheduled_for_utc == NOON


def test_a_second_daemon_claims_nothing_twice(database: Database) -> None:
    """
    Two daemons that tick at the same moments make one run of each occurrence.
    """
    one = House(database)
    two = House(database, one.clocks)
    automations = [one.add(tenant, cron="*/2 * * * *") for tenant in ("acme", "bravo")]
    total = 0
    for _ in range(6):
        one.clocks.advance(60)
        total += one.tick().claimed + two.tick().claimed
    assert total == 6
    for automation in automations:
        assert [run.scheduled_for_utc - NOON for run in one.runs(automation)] == [120, 240, 360]
    one.close()
    two.close()


def test_after_downtime_one_catches_up_and_the_rest_is_counted(house: House) -> None:
    """
    A minutely automation that rested for three days has one run, for the latest minute; the others
    are counted where people look, and the pointer is in the future (F95).
    """
    automation = house.add()
    house.clocks.step += 3 * DAY
    ticked = house.tick()
    assert ticked.claimed == 1
    (run,) = house.runs(automation)
    assert run.scheduled_for_utc == NOON + 3 * DAY
    assert run.skipped == 3 * 1440 - 1
    stored = house.automation(automation)
    assert stored.skipped_count == 3 * 1440 - 1
    assert stored.next_run_at_utc == NOON + 3 * DAY + 60
    assert house.tick().claimed == 0


def test_a_storm_after_downtime_delays_nobody(house: House) -> None:
    """
    With a hundred minutely automations of one tenant behind, another's is claimed in the same tick
    and nobody gets more than one run (F95).
    """
    for number in range(100):
        house.add("storm", name=f"rule {number}")
    other = house.add("zulu", cron="0 12 * * *")
    house.clocks.step += DAY
    assert house.tick().claimed == 101
    assert len(house.runs(other)) == 1
    assert house.sql("SELECT COUNT(*) FROM automation_runs") == [(101,)]


def test_a_machine_that_slept_notices_within_a_tick(database: Database) -> None:
    """
    The wall clock goes eight hours ahead while the monotonic one stands still: the first look at
    the clock after that finds what became due, under the rule of one catch-up (F92).
    """
    house = House(database)
    automation = house.add(cron="0 * * * *")
    house.scheduler.startService()
    house.clocks.step += 8 * 3600
    house.clocks.advance(1)
    (run,) = house.runs(automation)
    assert (run.scheduled_for_utc, run.skipped) == (NOON + 8 * 3600, 7)
    house.close()


def test_a_minute_has_one_tick(database: Database) -> None:
    """
    The timer looks each second and ticks once a minute, at its beginning, also after a step back.
    """
    clocks = Clocks(NOON + 57.5)
    house = House(database, clocks)
    ticks: list[float] = []

    async def counted() -> None:
        ticks.append(clocks.wall() - NOON)

    house.scheduler.tick = counted  # type: ignore[method-assign]
    house.scheduler.startService()
    clocks.go(125)
    assert ticks == [57.5, 60.5, 120.5, 180.5]
    clocks.step -= 3600
    clocks.go(2)
    assert len(ticks) == 5
    house.close()


def test_the_clock_is_set_back(house: House) -> None:
    """
    After a day that was not, pointers are aimed anew from now; what has run does not run again.
    """
    automation = house.add(cron="0 * * * *")
    house.tick()
    house.clocks.advance(3600)
    house.tick()
    house.clocks.step += DAY  # a wrong clock …
    house.tick()
    assert len(house.runs(automation)) == 2
    house.clocks.step -= DAY  # … is set right
    house.tick()
    assert house.automation(automation).next_run_at_utc == NOON + 2 * 3600
    house.clocks.advance(3600)
    house.tick()
    assert [run.scheduled_for_utc - NOON for run in house.runs(automation)] == [
        3600,
        DAY + 3600,
        7200,
    ]
    house.clocks.step -= 3600
    house.tick()
    house.clocks.advance(3600)
    house.tick()
    assert len(house.runs(automation)) == 3, "13:00 has run already"


def test_claims_come_in_bounded_rounds(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    No transaction claims more than its bound, every tenant comes before another's second round,
    and all that is due is claimed in the tick.
    """
    monkeypatch.setattr(limits, "CLAIMS_PER_ROUND", 4)
    for number in range(10):
        house.add("acme", name=f"rule {number}")
    for number in range(3):
        house.add(f"tenant{number}")
    house.clocks.advance(60)
    order: list[tuple[str, int]] = []
    transact = house.pool.transact

    def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
        done = transact(function, *args, **kwargs)
        if function is runs.claim_due:
            done.addCallback(note, args[0])
        return done

    def note(found: Any, tenant: str) -> Any:
        order.append((tenant, len(found)))
        return found

    house.pool.transact = watched  # type: ignore[method-assign]
    assert house.tick().claimed == 13
    assert order == [
        *[("acme", 4), ("tenant0", 1), ("tenant1", 1), ("tenant2", 1)],
        *[("acme", 4), ("acme", 2)],
    ]


def test_a_stored_schedule_that_cannot_be_read_stops_nobody(house: House) -> None:
    """
    A stored expression that never comes is switched off with its reason; the others are claimed,
    and the next tick does not meet it again (F91).
    """
    broken = house.add(name="broken")
    zoneless = house.add(name="zoneless")
    sound = house.add(name="sound")
    house.sql(
        "UPDATE automations SET cron = '0 0 31 2 *' WHERE automation_id = ?", broken.automation_id
    )
    house.sql(
        "UPDATE automations SET zone = 'Gone/Away' WHERE automation_id = ?",
        zoneless.automation_id,
    )
    house.clocks.advance(60)
    assert house.tick().claimed == 1
    assert len(house.runs(sound)) == 1
    for automation, told in ((broken, "0 0 31 2"), (zoneless, "no zone 'Gone/Away'")):
        stored = house.automation(automation)
        assert (stored.enabled, stored.next_run_at_utc) == (False, None)
        assert told in (stored.problem or "")
        page = house.read(runs.audit, automation.automation_id)
        assert page.rows[0].action == "switched off"
    assert house.read(runs.behind, house.now) == 0


def test_a_schedule_that_ends_is_switched_off(house: House) -> None:
    """
    An expression whose last occurrence has come gets its run, and says why there is no next one.
    """
    automation = house.add(cron="0 0 * 2 MON#5")
    house.sql("UPDATE automations SET next_run_at_utc = ?", "2044-02-29 00:00:00.000")
    house.clocks.step = utc(9990, 1, 1) - house.clocks.seconds()
    assert claim(house) != ()
    stored = house.automation(automation)
    assert not stored.enabled
    assert stored.problem == "its schedule has no further occurrence"


def test_a_run_that_is_still_open_is_not_overtaken(house: House) -> None:
    """
    An occurrence whose automation has an open run gets a row that says so, and nothing runs twice
    at once.
    """
    house.kind.records = list(range(1, 3000))
    automation = house.add(max_items_per_run=3000)
    house.minutes(2)
    first, second = house.runs(automation)
    assert first.status is RunStatus.RUNNING
    assert (second.status, second.why) == (
        RunStatus.OVERLAPPED,
        "the run before it was still open",
    )
    assert second.finished_at is not None
    house.minutes(2)
    states = Counter(run.status for run in house.runs(automation))
    assert states == {RunStatus.COMPLETED: 1, RunStatus.OVERLAPPED: 2, RunStatus.RUNNING: 1}


def test_a_tenant_that_somebody_is_at_is_waited_for_last(database: Database) -> None:
    """
    While an edit holds a tenant's lock the others are claimed first, and nobody is left out.
    """
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one lock for all")
    house = House(database)
    for tenant in ("acme", "bravo", "carla"):
        due(house, tenant=tenant)
    connection = database.connect()
    connection.begin()
    held = Cursor(connection.cursor(), database.dialect, None)
    assert runs.lock_tenant(held, "acme")
    assert house.do(runs.claim_due, "acme", house.now, 10) is None
    order: list[str] = []
    transact = house.pool.transact

    def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function is runs.claim_due:
            order.append(args[0])
            if order[2:] == ["carla"]:
                connection.commit()
        return transact(function, *args, **kwargs)

    house.pool.transact = watched  # type: ignore[method-assign]
    assert house.tick().claimed == 3
    assert order == ["acme", "bravo", "carla", "acme"]
    connection.close()
    house.close()


def test_a_tenant_that_stays_locked_costs_the_others_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A lock that is not given back fails its tenant alone, after the others; next minute it is tried
    again.
    """
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one lock for all")
    house = House(database)
    for tenant in ("acme", "bravo"):
        due(house, tenant=tenant)
    house.pool.connection.cursor().execute("SET SESSION innodb_lock_wait_timeout = 1")
    connection = database.connect()
    connection.begin()
    runs.lock_tenant(Cursor(connection.cursor(), database.dialect, None), "acme")
    assert house.tick().claimed == 1
    assert house.read(runs.behind, house.now) == 1
    connection.rollback()
    connection.close()
    assert house.tick().claimed == 1
    house.close()


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_an_edit_of_a_due_minute_neither_loses_nor_doubles_it(
    database: Database, when: str
) -> None:
    """
    An edit before the insert of the run, between it and the pointer's move, or after both: one run
    for the due minute, with the configuration it became due with; the pointer follows the new
    schedule (F97).
    """
    house = House(database)
    automation = due(house, config={"threshold": 3})
    editor = House(database, house.clocks)
    edited: list[Any] = []

    def edit() -> None:
        edited.append(
            editor.do(
                editor.desk.edit,
                automation.automation_id,
                {"cron": "*/30 * * * *", "config": {"threshold": 9}},
                "editor",
                house.now,
            )
        )

    if when == "before":
        edit()
        assert house.tick().claimed == 0
    elif when == "after":
        claim(house)
        edit()
    else:
        thread = threading.Thread(target=edit)

        def observe(sql: str) -> None:
            if "next_run_at_utc = CASE" in sql:
                thread.start()
                time.sleep(0.1)  # it is at the lock by now, or it would be done already
                assert not edited

        pool = SynchronousPool(evolve(database, observe=observe))
        pool.database.transact(pool.connection, runs.claim_due, "acme", house.now, 10)
        pool.close()
        thread.join()
    (run,) = house.runs(automation)
    assert run.scheduled_for_utc == NOON + 60
    assert (run.config, run.config_revision) == ({"threshold": 3}, 1)
    stored = house.automation(automation)
    assert (stored.config, stored.config_revision) == ({"threshold": 9}, 2)
    assert stored.next_run_at_utc == NOON + 1800
    house.minutes(29)
    assert [run.scheduled_for_utc - NOON for run in house.runs(automation)] == [60, 1800]
    house.close()
    editor.close()


def test_a_pointer_that_was_moved_meanwhile_is_left_alone(house: House) -> None:
    """
    A claim of what was read before an edit does not bring the old schedule's pointer back (F97).
    """
    automation = due(house)
    house.do(
        house.desk.edit, automation.automation_id, {"cron": "*/30 * * * *"}, "editor", house.now
    )
    house.do(runs.claim, [automation], house.now)
    assert house.automation(automation).next_run_at_utc == NOON + 1800
    assert len(house.runs(automation)) == 1


def test_a_damaged_row_stops_its_own_tenant_only(house: House) -> None:
    """
    A row that cannot be read fails the claim of its tenant; the others are claimed.
    """
    damaged = due(house, tenant="acme")
    other = house.add("bravo")
    house.clocks.advance(60)
    house.sql("UPDATE automations SET mode = 'odd' WHERE automation_id = ?", damaged.automation_id)
    assert house.tick().claimed == 1
    assert len(house.runs(other)) == 1


def test_an_edit_never_fires(house: House) -> None:
    """
    An edit whose new schedule would have been due a minute ago makes no run.
    """
    automation = house.add(cron="0 0 * * *")
    house.clocks.advance(90)
    house.do(house.desk.edit, automation.automation_id, {"cron": "1 12 * * *"}, "e", house.now)
    house.tick()
    assert house.runs(automation) == []
    assert house.automation(automation).next_run_at_utc == NOON + DAY + 60


def test_what_is_switched_off_is_not_due(house: House) -> None:
    """
    A declared automation rests until it is told to observe; what it missed while it was off is
    neither run nor counted.
    """
    automation = house.add(observe=False)
    house.minutes(3)
    assert house.runs(automation) == []
    house.observe(automation)
    house.minutes(1)
    house.do(house.desk.disable, automation.automation_id, "tester", house.now)
    house.minutes(5)
    house.do(house.desk.enable, automation.automation_id, "tester", house.now)
    house.minutes(1)
    stored = house.automation(automation)
    assert stored.skipped_count == 0
    assert [(run.scheduled_for_utc - NOON) / 60 for run in house.runs(automation)] == [4, 10]


def test_a_tenant_has_room_for_so_many(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A tenant cannot declare without end: what one tenant makes due in a minute is bounded.
    """
    monkeypatch.setattr(limits, "AUTOMATIONS_PER_TENANT", 2)
    house.add(name="one")
    house.add(name="two")
    with pytest.raises(ValueError, match="tenant: has 2 automations"):
        house.add(name="three")
    house.add("bravo")


def test_the_database_goes_away_in_mid_claim(database: Database) -> None:
    """
    A tick that loses the database claims nothing half, and the next one claims it all.
    """
    house = House(database)
    automations = [house.add(f"tenant{number}") for number in range(3)]
    house.clocks.advance(60)
    count = 0

    def observe(sql: str) -> None:
        nonlocal count
        if "INSERT INTO automation_runs" in sql:
            count += 1
            if count == 2:
                raise ConnectionError("away")

    pool = SynchronousPool(evolve(database, observe=observe))
    broken = House(database, house.clocks, pool=pool)
    assert broken.tick().claimed == 2
    assert house.tick().claimed == 1
    for automation in automations:
        (run,) = house.runs(automation)
        assert run.scheduled_for_utc == NOON + 60
    house.close()
    broken.close()


def test_a_tick_that_fails_is_left_to_the_next_one(house: House) -> None:
    """
    A fault is told once, not each minute; the timer goes on, and the end of it is told as well; an
    outage is the pool's to tell.
    """
    faults: list[Exception | None] = [
        RuntimeError("of ours"),
        RuntimeError("of ours"),
        sqlite3.OperationalError("database is locked"),
        None,
    ]
    run_once = house.scheduler.run_once

    async def disturbed() -> Ticked:
        fault = faults.pop(0)
        if fault is not None:
            raise fault
        return await run_once()

    house.scheduler.run_once = disturbed  # type: ignore[method-assign]
    house.add(cron="* * * * *")
    with capturedLogs() as events:
        house.scheduler.startService()
        house.clocks.go(61)
        assert house.scheduler.last_error == "RuntimeError: of ours"
        assert house.scheduler.last_good_tick is None
        house.clocks.go(60)
        assert house.scheduler.last_error == "OperationalError: database is locked"
        house.clocks.go(60)
    actions = [event.get("action") for event in events if event.get("action") is not None]
    assert actions.count("tick failed") == 1
    assert actions.count("recovered") == 1
    assert actions.count("ticked") == 1  # something was claimed
    assert house.scheduler.last_error is None
    assert house.scheduler.last_good_tick == house.clocks.wall() - house.clocks.wall() % 60


def test_a_stop_waits_for_the_tick_that_runs(house: House) -> None:
    """
    What a tick has begun is brought to its end before the service has stopped.
    """
    going: Deferred[None] = Deferred()

    async def slow() -> Ticked:
        await going
        return Ticked()

    house.scheduler.run_once = slow  # type: ignore[method-assign]
    house.scheduler.startService()
    stopped: list[object] = []
    house.scheduler.stopService().addCallback(stopped.append)
    assert stopped == []
    going.callback(None)
    assert stopped == [None]
