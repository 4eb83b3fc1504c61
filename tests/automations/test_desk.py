"""
What people do to automations: each change with its refusals and its line in the audit.
"""

from __future__ import annotations

from typing import Any

import pytest

from crq.automations import limits, runs
from crq.automations.desk import NotFound
from crq.automations.model import Automation, Mode, RunStatus, Unfit
from tests.automations.house import MAY, House, Played
from tests.rows import NOON


def audit(house: House, automation: Automation) -> list[Any]:
    """
    The audit, oldest first.
    """
    return list(reversed(house.read(runs.audit, automation.automation_id).rows))


def edit(house: House, automation: Automation, **given: Any) -> Automation:
    changed: Automation = house.do(
        house.desk.edit, automation.automation_id, given, "editor", house.now
    )
    assert changed == house.automation(automation)
    return changed


def test_declaring_does_nothing(house: House) -> None:
    """
    A declared automation is in observe, switched off, and known by number, uuid and name.
    """
    automation = house.add(observe=False, owner="Jo", config={"threshold": 5})
    assert (automation.mode, automation.enabled) == (Mode.OBSERVE, False)
    assert (automation.max_items_per_run, automation.max_changes_per_run) == (1000, 25)
    for which in (automation.automation_id, automation.automation_uuid, "acme/rule"):
        assert house.read(house.desk.found, which) == automation
    for which in (99, "0f8fad5b-d9cb-469f-a165-70867728950e", "acme/other", "\u00fc/x", "acme"):
        with pytest.raises(NotFound):
            house.read(house.desk.found, which)
    (added,) = audit(house, automation)
    assert (added.action, added.actor, added.before) == ("added", "tester", None)
    assert added.after["config"] == {"threshold": 5}


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"tenant": "Acme"}, "tenant: 'Acme' cannot be one"),
    ({"name": ""}, "name: is no text of 1 to 100"),
    ({"name": "x" * 101}, "name: is no text of 1 to 100"),
    ({"name": "a\nb"}, "name: has control characters"),
    ({"type": "nothing"}, "type: 'nothing' is not installed; installed: played"),
    ({"config": []}, "config: is no JSON object"),
    ({"config": {"threshold": "7"}}, 'threshold: "7" is not a whole number'),
    ({"config": {"threshold": True}}, "threshold: true is not a whole number"),
    ({"config": {"treshold": 7}}, "did you mean threshold?"),
    ({"config": {"secret": 7}}, "secret: is no text"),
    ({"config": {"threshold": 1, "x" * 300_000: 1}}, "there is no such setting"),
    ({"cron": "* * * *"}, "cron: has 4 fields"),
    ({"zone": "Nowhere/Land"}, "zone: there is no zone"),
    ({"max_items_per_run": 0}, "max_items_per_run: 0 is out of range"),
    ({"max_items_per_run": 100_001}, "max_items_per_run: 100001 is out of range"),
    ({"max_changes_per_run": 1001}, "max_changes_per_run: 1001 is out of range"),
    ({"max_changes_per_run": True}, "max_changes_per_run: True is out of range"),
    ({"colour": "red"}, "colour: there is no such field"),
]


def test_what_cannot_be_declared(house: House) -> None:
    """
    Each field that is not as it must be is refused by its name, and nothing is stored.
    """
    for given, told in UNFIT:
        with pytest.raises(Unfit) as caught:
            house.add(**given)
        assert told in str(caught.value)
    assert house.sql("SELECT COUNT(*) FROM automations") == [(0,)]


def test_a_name_is_one_automation_s(house: House) -> None:
    """
    A tenant has one automation of a name; another tenant may have one too, and case counts.
    """
    house.add()
    with pytest.raises(runs.NameTaken, match="acme has an automation 'rule', number"):
        house.add()
    other = house.add(name="Rule")
    house.add("bravo")
    with pytest.raises(runs.NameTaken):
        edit(house, other, name="rule")


def test_what_decides_makes_a_revision(house: House) -> None:
    """
    Changed settings, caps or type are a new revision, which goes back to observe and has to
    observe again; a changed schedule, name or owner is none.
    """
    automation = house.live()
    plain: list[dict[str, Any]] = [
        {"cron": "*/5 * * * *"},
        {"zone": "Europe/Berlin"},
        {"name": "other"},
        {"owner": "Jo"},
    ]
    for given in plain:
        changed = edit(house, automation, **given)
        assert (changed.config_revision, changed.mode) == (1, Mode.LIVE)
    changed = edit(house, automation, config={"threshold": 2})
    assert (changed.config_revision, changed.mode) == (2, Mode.OBSERVE)
    assert (changed.promoted_by, changed.promoted_revision) == (None, None)
    outcome = house.do(house.desk.promote, automation.automation_id, MAY, house.now)
    assert [one.precondition for one in outcome.obstacles] == ["evidence"]
    for cap in ("max_items_per_run", "max_changes_per_run"):
        before = changed.config_revision
        changed = edit(house, automation, **{cap: 7})
        assert changed.config_revision == before + 1


def test_an_edit_that_changes_nothing(house: House) -> None:
    """
    An edit that gives what is there already is no revision.
    """
    automation = house.live(config={"secret": "sesame"})
    changed = edit(house, automation, config={}, max_items_per_run=1000)
    assert (changed.config_revision, changed.mode) == (1, Mode.LIVE)


def test_a_secret_is_sealed_hidden_and_kept(house: House) -> None:
    """
    A secret setting is stored sealed, shown to nobody, kept by an edit that does not give it, and
    handed to the type as it was.
    """
    automation = house.add(config={"secret": "sesame", "threshold": 3})
    assert automation.config == {"secret": {"sealed": "emases"}, "threshold": 3}
    seen: list[str] = []

    def look(context: Any, cursor: Any) -> None:
        seen.append(context.config.secret)
        assert "sesame" not in repr(context.config)

    house.kind.before = look
    house.minutes(1)
    edit(house, automation, config={"threshold": 4})
    house.minutes(1)
    assert seen == ["sesame", "sesame"]
    for table, columns in (
        ("automations", "config_json"),
        ("automation_runs", "config_json, reason_counts_json, notices_json"),
        ("automation_audit", "before_json, after_json"),
    ):
        assert "sesame" not in str(house.sql(f"SELECT {columns} FROM {table}"))
    assert audit(house, automation)[0].after["config"]["secret"] == "(sealed)"


def test_who_was_quicker_is_not_overwritten(house: House) -> None:
    """
    An edit of a revision that is not there any more is refused.
    """
    automation = house.add()
    edit(house, automation, config={"threshold": 1})
    with pytest.raises(Unfit, match="was edited meanwhile"):
        house.do(house.desk.edit, automation.automation_id, {}, "slow", house.now, 1)


def test_promotion_needs_all_four(database: Any) -> None:
    """
    Each precondition refuses with its reason, and a refusal is in the audit as well.
    """
    house = House(database, None, Played(), Played("report", acts=False))
    automation = house.add(config={"threshold": 1}, max_changes_per_run=5)
    house.kind = house.types.get("report")
    report = house.add(name="report")
    house.minutes(1)

    def refusals(which: Automation, promoter: str = MAY) -> list[str]:
        outcome = house.do(house.desk.promote, which.automation_id, promoter, house.now)
        assert house.automation(which).mode is Mode.OBSERVE
        return [one.precondition for one in outcome.obstacles]

    assert refusals(automation) == ["cap"]
    assert refusals(automation, "stranger") == ["cap", "authority"]
    assert refusals(report) == ["type"]
    line = audit(house, automation)[-1]
    (run,) = house.runs(automation)
    assert (line.action, line.actor) == ("not promoted", "stranger")
    assert line.after["obstacles"][0] == (
        f"run {run.run_id} would have changed 10 records, the cap is 5; narrow the rule, or raise"
        " the cap and observe again"
    )
    house.close()


def test_promotion_is_written_down(house: House) -> None:
    """
    Who promoted, when and on what evidence is on the automation and in the audit.
    """
    automation = house.live()
    assert (automation.mode, automation.promoted_by) == (Mode.LIVE, MAY)
    assert automation.promoted_at == NOON
    assert automation.promoted_would_count == 10
    line = audit(house, automation)[-1]
    assert (line.action, line.actor) == ("promoted", MAY)
    assert line.before["mode"] == "observe"
    assert line.after["mode"] == "live"
    with pytest.raises(Unfit, match="is live already"):
        house.do(house.desk.promote, automation.automation_id, MAY, house.now)


@pytest.mark.parametrize("status", ["capped", "failed", "stopped", "overlapped", "refused"])
def test_only_a_run_that_came_to_its_end_is_evidence(house: House, status: str) -> None:
    """
    A run that was capped, failed or stopped does not say how many records there are.
    """
    automation = house.add()
    house.minutes(1)
    house.sql("UPDATE automation_runs SET status = ?", status)
    outcome = house.do(house.desk.promote, automation.automation_id, MAY, house.now)
    assert [one.precondition for one in outcome.obstacles] == ["evidence"]


def test_the_last_completed_run_is_the_evidence(house: House) -> None:
    """
    The evidence is the latest run that completed; an older, smaller one does not help.
    """
    automation = house.add()
    house.minutes(1)
    house.kind.records = list(range(1, 40))
    house.minutes(1)
    outcome = house.do(house.desk.promotion, automation.automation_id, MAY)
    assert [one.precondition for one in outcome.obstacles] == ["cap"]
    house.kind.records = [1]
    house.minutes(1)
    assert house.promote(automation).promoted_would_count == 1


def test_a_run_by_hand(house: House) -> None:
    """
    A run outside the schedule has a key of its own, is made once while one is open, and not for an
    automation that is off.
    """
    automation = house.add(cron="0 0 * * *", observe=False)
    with pytest.raises(Unfit, match="is switched off"):
        house.do(house.desk.run_now, automation.automation_id, "t", house.now)
    house.observe(automation)
    house.clocks.advance(7.5)
    house.do(house.desk.run_now, automation.automation_id, "t", house.now)
    with pytest.raises(Unfit, match="has an open run"):
        house.do(house.desk.run_now, automation.automation_id, "t", house.now)
    house.tick()
    (run,) = house.runs(automation)
    assert (run.trigger_kind.value, run.scheduled_for_utc) == ("manual", NOON + 7)
    assert run.status is RunStatus.COMPLETED
    assert audit(house, automation)[-2].action == "run-now"


def test_switching_twice_is_switching_once(house: House) -> None:
    """
    What is on already is left as it is, pointer and audit too.
    """
    automation = house.add()
    lines = len(audit(house, automation))
    house.clocks.advance(600)
    before = house.automation(automation)
    house.do(house.desk.enable, automation.automation_id, "t", house.now)
    assert house.automation(automation) == before
    assert len(audit(house, automation)) == lines


def test_what_was_switched_off_for_a_problem_is_mended(house: House) -> None:
    """
    An edit of the schedule takes the problem away; switching on goes on from now.
    """
    automation = house.add()
    house.sql("UPDATE automations SET cron = '0 0 31 2 *'")
    house.minutes(1)
    assert house.automation(automation).problem is not None
    assert edit(house, automation, cron="*/5 * * * *").problem is None
    house.do(house.desk.enable, automation.automation_id, "t", house.now)
    assert house.automation(automation).next_run_at_utc == NOON + 300


def test_a_preview_keeps_nothing(house: House) -> None:
    """
    A preview shows decisions and reasons of a draft that is not even stored, and stores nothing.
    """
    house.kind.records = list(range(1, 1000))
    draft = house.desk.drafting.drafted(
        "acme",
        {
            "name": "rule",
            "type": "played",
            "config": {"threshold": 150},
            "cron": "* * * * *",
            "zone": "UTC",
        },
        house.now,
    )
    found = house.desk.preview(house.calls, draft, house.now)
    assert len(found.decisions) == limits.PREVIEW_ITEMS
    assert found.reasons == {"too small": 149, "big enough": 51}
    assert (found.more, found.problem) == (True, None)
    for table in ("automations", "automation_runs", "automation_run_items", "automation_audit"):
        assert house.sql(f"SELECT COUNT(*) FROM {table}") == [(0,)]


def test_a_preview_of_what_cannot_decide(house: House) -> None:
    """
    A type that raises, or goes round, ends the preview with the reason and what there was.
    """
    automation = house.add(config={"secret": "sesame"})

    def fail(context: Any, cursor: Any) -> None:
        if cursor is not None:
            raise RuntimeError(f"no {context.config.secret}")

    house.kind.page = 100
    house.kind.records = list(range(1, 300))
    house.kind.before = fail
    found = house.desk.preview(house.calls, automation, house.now)
    assert len(found.decisions) == 100
    assert found.problem == "evaluate raised RuntimeError: no (hidden)"


def test_pages_lose_nothing(house: House) -> None:
    """
    Pages of automations, runs, items and the audit go on after a number, so that rows of one
    instant do not fall between them (F99).
    """
    automation = house.add(cron="0 0 * * *")
    for number in range(6):
        house.add(name=f"rule {number}")
    house.do(house.desk.run_now, automation.automation_id, "t", house.now)
    house.tick()
    (run,) = house.runs(automation)

    def walk(read: Any, *before: Any, start: int | None = 0) -> list[Any]:
        found: list[Any] = []
        after = start
        while True:
            page = house.read(read, *before, after, 3)
            found += page.rows
            after = page.after
            if after is None:
                return found

    assert len(walk(runs.automations, ("acme",))) == 7
    assert [i.decision.subject_id for i in walk(runs.items, run.run_id)] == [
        str(n) for n in range(1, 11)
    ]
    lines = walk(runs.audit, automation.automation_id, start=None)
    assert [one.action for one in lines] == ["run ended", "run-now", "observed", "added"]
    with pytest.raises(Unfit, match="limit: 501 is out of range"):
        house.read(runs.automations, None, 0, 501)


def test_items_can_be_looked_through(house: House) -> None:
    """
    Items are found by verdict, effect and reason.
    """
    automation = house.live(config={"threshold": 8})
    house.minutes(1)
    run = house.runs(automation)[-1]

    def found(**more: Any) -> int:
        return len(house.read(runs.items, run.run_id, **more).rows)

    from crq.automations.model import Effect, Verdict

    assert found() == 10
    assert found(verdict=Verdict.APPROVED) == 3
    assert found(effect=Effect.APPLIED) == 3
    assert found(reason="too small") == 7
    assert found(reason="too small", effect=Effect.APPLIED) == 0
