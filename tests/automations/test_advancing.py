"""
Phase B: open runs go on, on SQLite and on MariaDB.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import pymysql
import pytest
from attrs import evolve

from crq.automations import limits, runs
from crq.automations.interfaces import Context, Later
from crq.automations.model import (
    Chunk,
    Counts,
    Decision,
    Effect,
    Json,
    Mode,
    Run,
    RunStatus,
    Verdict,
)
from crq.automations.workers import NoThread, Overdue
from crq.database import Database
from tests.automations.house import MAY, House, Played
from tests.support import SynchronousPool


def only(house: House, automation: Any) -> Run:
    (run,) = house.runs(automation)
    return run


def last(house: House, automation: Any) -> Run:
    return house.runs(automation)[-1]


def test_unfinished_is_not_failed(house: House) -> None:
    """
    A run that uses up its chunks stays running with its cursor, its counts and no lease, and the
    next tick continues it from there.
    """
    house.kind.records = list(range(1, 2501))
    automation = house.add(cron="0 * * * *", max_items_per_run=5000)
    house.minutes(60)
    run = only(house, automation)
    done = limits.CHUNKS_PER_TICK * limits.BATCH
    assert run.status is RunStatus.RUNNING
    assert (run.cursor, run.counts.items) == ({"after": done}, done)
    assert run.waits_for == "its chunks of this tick are done"
    assert house.sql("SELECT lease_token FROM automation_runs") == [(None,)]
    house.check()
    house.minutes(1)
    assert only(house, automation).counts.items == 2 * done
    house.minutes(1)
    run = only(house, automation)
    assert (run.status, run.why) == (RunStatus.COMPLETED, "nothing was left")
    assert (run.counts.items, run.counts.would) == (2500, 2500)
    assert len(house.items(run)) == 2500
    assert run.duration_ms == 120_000
    house.check()


def test_the_deadline_of_a_tick_pauses(house: House) -> None:
    """
    Past the deadline no chunk begins; what was decided is kept.
    """
    house.kind.records = list(range(1, 1001))

    def slow(context: Context, cursor: Json) -> None:
        house.clocks.advance(6)

    house.kind.before = slow
    automation = house.add(cron="0 * * * *")
    house.clocks.advance(3600)
    house.tick()
    run = only(house, automation)
    assert (run.status, run.chunk_count) == (RunStatus.RUNNING, 2)
    assert run.waits_for == "its time in this tick is up"


def test_the_cursor_goes_through_json(house: House) -> None:
    """
    A cursor that would not come back as it is ends the run, and says so.
    """
    house.kind.before = lambda context, cursor: Chunk((), (1, 2), True)
    automation = house.add()
    house.minutes(1)
    run = only(house, automation)
    assert run.status is RunStatus.FAILED
    assert run.why == "the cursor does not come back from JSON as the same value"


@pytest.mark.parametrize("cycle", [["A"], ["A", "B"], ["A", "B", "C", "D", "E"]])
def test_a_cursor_that_does_not_move_ends_the_run(house: House, cycle: list[str]) -> None:
    """
    "More" for ever, with the same cursor or going round, is an error within the tick; the other
    automation of the tenant is served as if nothing were (F102).
    """
    house.kind.records = list(range(1, 30))
    stuck = house.add(name="stuck", config={"threshold": 99})
    other = house.add(name="other")

    def go_round(context: Context, cursor: Json) -> Chunk | None:
        if context.config.threshold != 99:
            return None
        at = cycle.index(cursor) if cursor in cycle else -1
        return Chunk((), cycle[(at + 1) % len(cycle)], True)

    house.kind.before = go_round
    house.minutes(1)
    house.minutes(1)
    run = house.runs(stuck)[0]
    assert run.status is RunStatus.FAILED
    assert "cursor" in (run.why or "")
    assert run.chunk_count <= 3 * len(cycle) + 1
    assert house.runs(other)[0].status is RunStatus.COMPLETED


def test_a_cursor_that_counts_for_ever_ends_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A type that finds nothing new for ever is ended after its chunks.
    """
    monkeypatch.setattr(limits, "CHUNKS_PER_RUN", 15)
    house.kind.before = lambda context, cursor: Chunk((), (cursor or 0) + 1, True)
    automation = house.add(cron="0 * * * *")
    house.minutes(62)
    run = only(house, automation)
    assert (run.status, run.why) == (RunStatus.FAILED, "had no end after 15 chunks")


def test_a_record_that_comes_again_is_decided_once(house: House) -> None:
    """
    Records that a later chunk offers again write nothing the second time (unique item).
    """
    page = [Decision("number", str(number), Verdict.APPROVED, "first", {}) for number in range(5)]

    def again(context: Context, cursor: Json) -> Chunk:
        step = (cursor or 0) + 1
        return Chunk(tuple(evolve(one, reason=f"chunk {step}") for one in page), step, step < 3)

    house.kind.before = again
    automation = house.add()
    house.minutes(1)
    run = only(house, automation)
    assert (run.status, run.counts) == (RunStatus.COMPLETED, Counts(items=5, would=5))
    assert {item.decision.reason for item in house.items(run)} == {"chunk 1"}
    assert run.reason_counts == {"chunk 1": 5}
    house.check()


def test_a_run_that_reaches_its_cap_closes_and_says_so(house: House) -> None:
    """
    The items of a run are capped exactly, and the run is told from one that came to its end.
    """
    house.kind.records = list(range(1, 1000))
    automation = house.add(max_items_per_run=130)
    house.minutes(1)
    run = only(house, automation)
    assert (run.status, run.why) == (RunStatus.CAPPED, "reached its cap of 130 records")
    assert run.counts.items == len(house.items(run)) == 130
    assert [limit for _, limit in house.kind.evaluated] == [100, 30]
    house.check()


def test_observe_is_live_with_the_write_suppressed(house: House) -> None:
    """
    Preview, observe and live decide the same, and only live changes anything.
    """
    automation = house.add(config={"threshold": 4})
    preview = house.desk.preview(house.calls, automation, house.now)
    house.minutes(1)
    observed = [item.decision for item in house.items(last(house, automation))]
    assert house.kind.effects == {}
    house.promote(automation)
    house.minutes(1)
    live = [item.decision for item in house.items(last(house, automation))]
    assert list(preview.decisions) == observed == live
    assert {subject for _, subject in house.kind.effects} == {str(n) for n in range(4, 11)}
    house.check()


def test_would_is_a_prediction_and_approved_a_change(house: House) -> None:
    """
    What observing counts as would, live counts as approved, and only when it was applied.
    """
    automation = house.live(config={"threshold": 4})
    observed = only(house, automation)
    assert observed.counts == Counts(items=10, declined=3, would=7)
    house.minutes(1)
    run = last(house, automation)
    assert (run.mode, run.status) == (Mode.LIVE, RunStatus.COMPLETED)
    assert run.counts == Counts(items=10, declined=3, intended=7, approved=7)
    effects = {item.decision.subject_id: item.effect for item in house.items(run)}
    assert effects["3"] is Effect.NONE
    assert effects["4"] is Effect.APPLIED
    assert [item.detail for item in house.items(run)][-1] == "did 10"
    house.check()


def test_the_item_is_there_before_its_effect(house: House) -> None:
    """
    When a type is asked to apply, its item is recorded with its intent, as begun; those after it
    as intended.
    """
    automation = house.live(config={"threshold": 9})
    seen: list[list[tuple[str, str]]] = []

    def look(context: Context, decision: Decision) -> None:
        run = last(house, automation)
        seen.append(
            [
                (item.decision.subject_id, item.effect.value)
                for item in house.items(run)
                if item.effect is not Effect.NONE
            ]
        )
        (mine,) = (i for i in house.items(run) if i.decision.subject_id == decision.subject_id)
        assert mine.decision == decision

    house.kind.applying = look
    house.minutes(1)
    assert seen == [
        [("9", "applying"), ("10", "intended")],
        [("9", "applied"), ("10", "applying")],
    ]


def test_changes_are_capped_exactly(house: House) -> None:
    """
    A live run changes as many records as its cap and not one more, though its chunk had more.
    """
    house.kind.records = list(range(1, 11))
    automation = house.live(config={"threshold": 3}, max_changes_per_run=8)
    house.kind.records = list(range(1, 200))
    house.minutes(1)
    run = last(house, automation)
    assert (run.status, run.why) == (RunStatus.CAPPED, "reached its cap of 8 changes")
    assert (run.counts.approved, run.counts.items) == (8, 10)
    assert len(house.kind.effects) == 8
    house.check()


def test_demotion_reaches_the_next_effect(house: House) -> None:
    """
    An operator who demotes while a run applies stops it before its next record; the run says so,
    keeps its mode, since it has acted, and what was not begun is withdrawn.
    """
    automation = house.live(config={"threshold": 1})

    def demote(context: Context, decision: Decision) -> None:
        if decision.subject_id == "3":
            house.do(house.desk.demote, automation.automation_id, "tester", house.now)

    house.kind.applying = demote
    house.minutes(1)
    run = last(house, automation)
    assert (run.status, run.why) == (RunStatus.STOPPED, "the automation was demoted to observe")
    assert (run.mode, run.counts.approved, run.counts.withdrawn) == (Mode.LIVE, 3, 7)
    assert len(house.kind.effects) == 3
    house.check()
    house.minutes(1)
    run = last(house, automation)
    assert (run.mode, run.status, run.counts.would) == (Mode.OBSERVE, RunStatus.COMPLETED, 10)


def test_demotion_reaches_a_queued_run_and_is_written_back(house: House) -> None:
    """
    A run that was queued as live runs in observe after a demotion, and its row says observe.
    """
    automation = house.live()
    house.clocks.advance(60)
    house.do(runs.claim_due, "acme", house.now, 10)
    assert last(house, automation).mode is Mode.LIVE
    house.do(house.desk.demote, automation.automation_id, "tester", house.now)
    house.tick()
    run = last(house, automation)
    assert (run.mode, run.status, run.counts.would) == (Mode.OBSERVE, RunStatus.COMPLETED, 10)
    assert house.kind.effects == {}


def test_promotion_of_a_queued_run_is_honoured(house: House) -> None:
    """
    A run that was queued in observe and has decided nothing goes live with its automation.
    """
    automation = house.add()
    house.minutes(1)
    house.clocks.advance(60)
    house.do(runs.claim_due, "acme", house.now, 10)
    house.promote(automation)
    house.tick()
    run = last(house, automation)
    assert (run.mode, run.counts.approved) == (Mode.LIVE, 10)
    house.check()


def test_a_run_that_has_begun_to_observe_ends_in_observe(house: House) -> None:
    """
    A promotion in the middle of an observing run does not make it act (I10).
    """
    house.kind.records = list(range(1, 5))
    automation = house.add(cron="0 * * * *", max_items_per_run=5000, max_changes_per_run=1000)
    house.do(house.desk.run_now, automation.automation_id, "tester", house.now)
    house.tick()
    house.kind.records = list(range(1, 1500))
    house.do(house.desk.run_now, automation.automation_id, "tester", house.now + 60)
    house.minutes(1)
    assert last(house, automation).status is RunStatus.RUNNING
    house.promote(automation)
    house.minutes(1)
    run = last(house, automation)
    assert (run.mode, run.status, run.counts.would) == (Mode.OBSERVE, RunStatus.COMPLETED, 1499)
    assert house.kind.effects == {}
    house.check()


def test_switching_off_ends_open_runs(house: House) -> None:
    """
    A run whose automation is switched off ends before its next chunk, and keeps what it decided.
    """
    house.kind.records = list(range(1, 3000))
    automation = house.add(max_items_per_run=5000)
    house.minutes(1)
    house.do(house.desk.disable, automation.automation_id, "tester", house.now)
    house.minutes(1)
    run = only(house, automation)
    assert (run.status, run.why) == (RunStatus.STOPPED, "the automation was switched off")
    assert run.counts.items == 1000


def test_a_change_in_the_middle_of_a_chunk_keeps_nothing_of_it(house: House) -> None:
    """
    A demotion while a type decides: the chunk was asked for in another mode, and is dropped.
    """
    automation = house.live()
    house.kind.before = lambda context, cursor: (
        house.do(house.desk.disable, automation.automation_id, "tester", house.now) and None
    )
    house.minutes(1)
    run = last(house, automation)
    assert (run.status, run.counts) == (RunStatus.STOPPED, Counts())


@pytest.mark.parametrize("what", ["type", "authority", "revision"])
def test_every_live_run_is_validated_again(database: Database, what: str) -> None:
    """
    A promoter who lost the right, a type that is gone or an edited configuration: the run is
    refused with its reason and changes nothing.
    """
    house = House(database)
    automation = house.live()
    house.clocks.advance(60)
    house.do(runs.claim_due, "acme", house.now, 10)
    if what == "type":
        house.advancer.types = type(house.types)([Played(name="another")])
        told = "the type 'played' is not installed"
    elif what == "authority":
        house.may.clear()
        told = f"{MAY} may not promote"
    else:
        house.sql("UPDATE automations SET promoted_revision = 7")
        told = "no observe run of revision 1 has completed"
    house.tick()
    run = last(house, automation)
    assert (run.status, run.why, run.counts) == (RunStatus.REFUSED, told, Counts())
    assert house.kind.effects == {}
    assert told in (house.automation(automation).last_run_summary or "")
    house.close()


def test_an_observing_run_needs_no_authority(house: House) -> None:
    """
    Authority is asked for at live runs only: observing changes nothing.
    """
    house.may.clear()
    automation = house.add()
    house.minutes(1)
    assert only(house, automation).status is RunStatus.COMPLETED


def test_a_type_that_was_uninstalled(house: House) -> None:
    """
    The run of a type that is not there any more fails with a line that says so.
    """
    automation = house.add()
    house.advancer.types = type(house.types)([Played(name="another")])
    house.minutes(1)
    run = only(house, automation)
    assert (run.status, run.why) == (RunStatus.FAILED, "the type 'played' is not installed")


def test_a_stored_configuration_that_does_not_fit_any_more(house: House) -> None:
    """
    A configuration that a newer type refuses fails the run with the field's name.
    """
    automation = house.add()
    house.sql("UPDATE automations SET config_json = '{\"treshold\": 1}'")
    house.minutes(1)
    run = only(house, automation)
    assert run.status is RunStatus.FAILED
    assert run.why == (
        "its configuration cannot be used: treshold: there is no such setting;"
        " did you mean threshold?"
    )


def test_what_evaluate_raises_is_told_without_secrets(house: House) -> None:
    """
    An error of a type ends its run with the error, in which its secrets are hidden; the others of
    the tenant go on.
    """
    sound = house.add(name="sound")
    automation = house.add(name="odd", config={"secret": "sesame", "threshold": 99})

    def fail(context: Context, cursor: Json) -> None:
        if context.config.threshold == 99:
            raise OSError(f"401 for key {context.config.secret}")

    house.kind.before = fail
    house.minutes(1)
    run = only(house, automation)
    assert run.why == "evaluate raised OSError: 401 for key (hidden)"
    assert only(house, sound).status is RunStatus.COMPLETED
    text = str(house.sql("SELECT config_json FROM automations"))
    assert "sesame" not in text


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), RecursionError("deep")])
def test_what_is_no_ordinary_error_is_contained_too(house: House, error: BaseException) -> None:
    """
    A type that calls sys.exit() ends its run and not the daemon.
    """

    def leave(context: Context, cursor: Json) -> None:
        raise error

    house.kind.before = leave
    automation = house.add()
    house.minutes(1)
    run = only(house, automation)
    assert run.status is RunStatus.FAILED
    assert type(error).__name__ in (run.why or "")


def test_a_type_that_has_to_wait_is_no_failure(house: House) -> None:
    """
    `Later` pauses a run with what it waits for, and the next tick tries again.
    """
    waits = [Later("the gate of its key")] * 2

    def wait(context: Context, cursor: Json) -> None:
        if waits:
            raise waits.pop()

    house.kind.before = wait
    automation = house.add(cron="0 * * * *")
    house.minutes(60)
    run = only(house, automation)
    assert (run.status, run.waits_for) == (RunStatus.RUNNING, "the gate of its key")
    house.minutes(2)
    run = only(house, automation)
    assert (run.status, run.waits_for) == (RunStatus.COMPLETED, None)


def test_a_run_does_not_wait_for_ever(house: House) -> None:
    """
    A run that has been open for a day is closed as failed, with what it waited for last.
    """

    def wait(context: Context, cursor: Json) -> None:
        raise Later("a place in the queue")

    house.kind.before = wait
    automation = house.add(cron="0 12 * * *")
    house.clocks.step += 24 * 3600
    house.tick()
    assert only(house, automation).status is RunStatus.RUNNING
    house.clocks.step += 23 * 3600
    house.tick()
    assert only(house, automation).status is RunStatus.RUNNING
    house.clocks.step += 2 * 3600
    house.tick()
    run = house.runs(automation)[0]
    assert run.status is RunStatus.FAILED
    assert run.why == "was open for more than 24 hours, waiting for: a place in the queue"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Overdue("did not come back within 15 s"), "evaluate did not come back within 15 s"),
        (NoThread("an earlier call has not come back"), "an earlier call has not come back"),
    ],
)
def test_a_call_that_blocks_ends_its_run(house: House, error: Exception, why: str) -> None:
    """
    A type that does not come back, or gets no thread for that reason, fails its run.
    """
    automation = house.add()
    house.workers.refuse = error
    house.minutes(1)
    run = only(house, automation)
    assert (run.status, run.why) == (RunStatus.FAILED, why)


@pytest.mark.parametrize("repeatable", [False, True])
def test_an_effect_that_does_not_come_back(database: Database, repeatable: bool) -> None:
    """
    Nobody knows how it ended: its item is unknown, or, if it may be repeated, tried again later.
    """
    house = House(database, None, Played(repeatable=repeatable))
    automation = house.live(config={"threshold": 10})
    house.clocks.advance(60)
    call = house.workers.call

    def overdue(caller: Any, function: Any, *args: Any) -> Any:
        if function == house.calls.apply:
            house.workers.refuse = Overdue("did not come back within 15 s")
        return call(caller, function, *args)

    house.workers.call = overdue  # type: ignore[method-assign]
    house.tick()
    run = last(house, automation)
    (item,) = (i for i in house.items(run) if i.decision.verdict is Verdict.APPROVED)
    if not repeatable:
        assert (item.effect, run.status) == (Effect.UNKNOWN, RunStatus.COMPLETED)
        assert item.detail == "apply did not come back within 15 s"
        assert run.counts.unknown == 1
    else:
        assert (item.effect, run.status) == (Effect.APPLYING, RunStatus.RUNNING)
        house.workers.call, house.workers.refuse = call, None  # type: ignore[method-assign]
        house.clocks.advance(30)
        house.tick()
        run = last(house, automation)
        assert (run.status, run.counts.approved) == (RunStatus.COMPLETED, 1)
    house.check()
    house.close()


def test_an_effect_that_has_to_wait(house: House) -> None:
    """
    An effect that cannot be had now leaves its item intended and its run open; the next tick
    begins with it, and it is done once.
    """
    automation = house.live(config={"threshold": 8})
    full = [Later("a place in the queue")]

    def wait(context: Context, decision: Decision) -> None:
        if full and decision.subject_id == "9":
            raise full.pop()

    house.kind.applying = wait
    house.clocks.advance(60)
    house.tick()
    run = last(house, automation)
    assert (run.status, run.waits_for) == (RunStatus.RUNNING, "a place in the queue")
    assert run.counts.approved == 1
    house.clocks.advance(10)
    house.tick()
    run = last(house, automation)
    assert (run.status, run.counts.approved) == (RunStatus.COMPLETED, 3)
    assert set(house.kind.effects.values()) == {1}
    house.check()


def test_an_effect_that_raises_is_kept_with_its_error(house: House) -> None:
    """
    An effect that fails half-way is failed, with its error; the records after it are applied.
    """
    automation = house.live(config={"threshold": 8, "secret": "sesame"})

    def fail(context: Context, decision: Decision) -> None:
        if decision.subject_id == "9":
            house.kind.effects[context.run_key, "half of 9"] += 1
            raise RuntimeError("no such card, said sesame")

    house.kind.applying = fail
    house.minutes(1)
    run = last(house, automation)
    assert run.status is RunStatus.COMPLETED
    assert (run.counts.approved, run.counts.failed) == (2, 1)
    (item,) = (item for item in house.items(run) if item.effect is Effect.FAILED)
    assert item.detail == "RuntimeError: no such card, said (hidden)"
    house.check()


def test_what_fails_ten_times_is_not_tried_further(house: House) -> None:
    """
    After ten failed effects the run ends, and the rest is withdrawn.
    """
    house.kind.records = list(range(1, 20))
    automation = house.live()

    def fail(context: Context, decision: Decision) -> None:
        raise RuntimeError("no")

    house.kind.applying = fail
    house.minutes(1)
    run = last(house, automation)
    assert (run.status, run.why) == (RunStatus.FAILED, "10 effects failed")
    assert (run.counts.failed, run.counts.withdrawn) == (10, 9)
    house.check()


def test_effects_stop_at_the_deadline(house: House) -> None:
    """
    A slow effect does not eat the other tenants' time: the rest of the chunk waits for a later
    tick.
    """
    automation = house.live()

    def slow(context: Context, decision: Decision) -> None:
        house.clocks.advance(4)

    house.kind.applying = slow
    house.clocks.advance(60)
    house.tick()
    run = last(house, automation)
    assert (run.status, run.counts.approved) == (RunStatus.RUNNING, 3)
    house.kind.applying = lambda context, decision: None
    house.clocks.advance(10)
    house.tick()
    assert last(house, automation).counts.approved == 10
    assert set(house.kind.effects.values()) == {1}


def test_closing_a_run_does_four_things(house: House) -> None:
    """
    The run is finished without a lease, the automation's summary and the audit say so in the same
    transaction.
    """
    automation = house.add(config={"threshold": 4})
    house.minutes(1)
    run = only(house, automation)
    assert run.finished_at == house.now
    assert run.reason_counts == {"big enough": 7, "too small": 3}
    ((token, until),) = house.sql("SELECT lease_token, lease_until FROM automation_runs")
    assert (token, until) == (None, None)
    stored = house.automation(automation)
    assert (stored.last_run_id, stored.last_run_status) == (run.run_id, "completed")
    assert stored.last_run_summary == "10 decided, 7 would be changed: nothing was left"
    page = house.read(runs.audit, automation.automation_id)
    assert (page.rows[0].action, page.rows[0].run_id) == ("run ended", run.run_id)
    assert page.rows[0].after["status"] == "completed"


def test_tenants_take_turns(house: House) -> None:
    """
    A tenant with long runs does not keep another from its chunk: each gets one in turn.
    """
    house.kind.records = list(range(1, 5000))
    house.kind.page = 10
    for tenant in ("acme", "bravo", "carla"):
        for name in ("one", "two"):
            house.add(tenant, name=name)
    house.rounds.at_once = 1
    house.clocks.advance(60)
    house.tick()
    order = [caller.tenant for caller in house.workers.calls]
    assert order[:9] == ["acme", "bravo", "carla"] * 3
    first = [caller.automation_uuid for caller in house.workers.calls if caller.tenant == "acme"]
    assert first[0] != first[1], "its second run had to wait for the first"


def test_who_waited_longest_is_served_first(house: House) -> None:
    """
    When a tick has no time for all tenants, the next one begins with those it left out.
    """
    house.kind.records = list(range(1, 100_000))
    house.rounds.at_once = 1

    def slow(context: Context, cursor: Json) -> None:
        house.clocks.advance(9.9)

    house.kind.before = slow
    for number in range(10):
        house.add(f"tenant{number}", cron="0 * * * *", max_items_per_run=100_000)
    house.clocks.advance(3600)
    house.tick()
    served = {caller.tenant for caller in house.workers.calls}
    assert 3 <= len(served) < 10
    house.workers.calls.clear()
    house.clocks.advance(60)
    house.tick()
    assert served.isdisjoint({caller.tenant for caller in house.workers.calls[:3]})


def test_a_slow_automation_keeps_nobody_from_becoming_due(house: House) -> None:
    """
    Phase A comes first: with a tenant that takes all the time there is, another tenant's
    automation becomes due in its minute all the same.
    """
    house.kind.records = list(range(1, 100_000))

    def slow(context: Context, cursor: Json) -> None:
        if context.tenant == "acme":
            house.clocks.advance(59)

    house.kind.before = slow
    house.add("acme", max_items_per_run=100_000)
    other = house.add("zulu")
    for _ in range(3):
        house.clocks.advance(60)
        house.tick()
    assert len(house.runs(other)) == 3


def test_the_database_goes_away_in_phase_b(database: Database) -> None:
    """
    The tick ends with the outage instead of asking for every tenant in vain, and a later one goes
    on where it was.
    """
    house = House(database)
    automations = [house.add(f"tenant{number}") for number in range(4)]
    house.clocks.advance(60)
    asked = 0

    def observe(sql: str) -> None:
        nonlocal asked
        if "UPDATE automation_runs SET status = 'running'" in sql:
            asked += 1
            raise outage(database)

    pool = SynchronousPool(evolve(database, observe=observe))
    broken = House(database, house.clocks, pool=pool)
    with pytest.raises(type(outage(database))):
        broken.tick()
    assert asked == 1
    house.clocks.advance(limits.LEASE_SECONDS + 1)
    house.tick()
    for automation in automations:
        assert house.runs(automation)[0].status is RunStatus.COMPLETED
    house.close()
    broken.close()


def test_a_damaged_run_stops_nobody_else(house: House) -> None:
    """
    A run whose row cannot be read fails its own turn, in every tick; the tenant's other runs and
    other tenants go on.
    """
    damaged, sibling, other = house.add(), house.add(name="two"), house.add("bravo")
    house.clocks.advance(60)
    for tenant in ("acme", "bravo"):
        house.do(runs.claim_due, tenant, house.now, 10)
    house.sql(
        "UPDATE automation_runs SET mode = 'odd' WHERE automation_id = ?", damaged.automation_id
    )
    house.tick()
    assert only(house, sibling).status is RunStatus.COMPLETED
    assert only(house, other).status is RunStatus.COMPLETED


def outage(database: Database) -> Exception:
    """
    What the driver raises when its server is away.
    """
    if database.dialect == "sqlite":
        return sqlite3.OperationalError("unable to open database file")
    return pymysql.err.OperationalError(2003, "Can't connect to MySQL server")


def test_a_deleted_automation_leaves_no_run_behind(house: House) -> None:
    """
    A run whose automation was deleted by hand is stopped: nothing may act in its name.
    """
    automation = house.add()
    house.clocks.advance(60)
    house.do(runs.claim_due, "acme", house.now, 10)
    house.sql("DELETE FROM automations")
    house.tick()
    assert only(house, automation).status is RunStatus.STOPPED


def test_old_runs_go_with_their_items(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Runs that ended long ago are deleted with items and audit, in bounded transactions; what people
    did stays in the audit, and younger runs stay whole.
    """
    monkeypatch.setattr(limits, "PURGE_ITEMS", 7)
    monkeypatch.setattr(limits, "PURGE_RUNS", 2)
    automation = house.add(cron="0 0 * * *")
    for _ in range(5):
        house.clocks.step += 86_400
        house.tick()
    assert len(house.runs(automation)) == 5
    house.scheduler.keep_days = 2
    assert house.tick().purged > 0
    for _ in range(3):
        house.tick()
    kept = house.runs(automation)
    assert len(kept) == 3
    assert house.sql("SELECT COUNT(*) FROM automation_run_items") == [(30,)]
    actions = [row.action for row in house.read(runs.audit, automation.automation_id).rows]
    assert actions == ["run ended"] * 3 + ["observed", "added"]
    house.check()


def test_a_count_that_does_not_equal_its_items_is_found(house: House) -> None:
    """
    The check of stored runs finds a wrong count, an effect of an observing run, and a prediction
    of a live one; it finds nothing in what the scheduler has written.
    """
    automation = house.live(config={"threshold": 4})
    house.minutes(1)
    observed, live = house.runs(automation)
    assert house.read(runs.violations, 100) == ()
    house.sql("UPDATE automation_runs SET approved_count = 6 WHERE run_id = ?", live.run_id)
    house.sql(
        "UPDATE automation_run_items SET effect = 'applied' WHERE run_id = ? AND verdict ="
        " 'declined'",
        observed.run_id,
    )
    found = "\n".join(house.read(runs.violations, 100))
    assert f"I9: run {live.run_id}: approved_count is 6, its items say 7" in found
    assert f"I10: run {observed.run_id} observes, and has 3 effects" in found
    house.sql("UPDATE automation_runs SET would_count = 1 WHERE run_id = ?", live.run_id)
    assert f"I10: run {live.run_id} is live" in "\n".join(house.read(runs.violations, 1))
