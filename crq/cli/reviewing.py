"""
``crq automations``, the reading half: types, list, show, preview, runs, items, audit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from crq.cli.base import EXIT_CODES, NO, Failed, State, emit, json_option

if TYPE_CHECKING:
    from crq.automations.model import Automation
    from crq.automations.types import Types
    from crq.database import Database
    from crq.sealing import Sealer

STATUSES = (
    *("queued", "running", "completed", "capped", "failed", "stopped", "refused"),
    "overlapped",
)
EFFECTS = ("none", "intended", "applying", "applied", "failed", "unknown", "withdrawn")
which_argument = click.argument("which", metavar="WHICH")
limit_option = click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Rows of the page."
)


def attach(group: click.Group) -> None:
    """
    Add these commands to the group.
    """
    for command in (types, list_all, show, preview, list_runs, items, audit):
        group.add_command(command)


@click.command(
    epilog="\b\nExamples:\n  crq automations types\n  crq automations types run_script\n"
    + EXIT_CODES
)
@click.argument("name", required=False)
@json_option
@click.pass_obj
def types(state: State, name: str | None, as_json: bool) -> None:
    """
    Show the installed types of automations, or the settings of one.
    """
    from attrs import asdict

    from crq.automations import settings
    from crq.cli import tables

    found = installed(state, state.config.open_database())
    kinds = list(found) if name is None else [found.known(name)]
    if as_json:
        shown = [
            {
                "name": kind.name,
                "summary": kind.summary,
                "acts": kind.acts,
                "repeatable": kind.repeatable,
                "settings": [asdict(one) for one in settings.described(kind.settings)],
            }
            for kind in kinds
        ]
        emit({"types": shown, "faults": list(found.faults)})
        return
    if name is None:
        rows = [(kind.name, "acts" if kind.acts else "reports", kind.summary) for kind in kinds]
        tables.show(tables.table(("type", "does", "summary"), rows, flexible=("summary",)))
    else:
        described = [
            (
                one.name,
                one.kind + (", secret" if one.secret else ""),
                "required" if one.required else json.dumps(one.default),
                one.meaning,
            )
            for one in settings.described(kinds[0].settings)
        ]
        heads = ("setting", "kind", "default", "meaning")
        tables.show(tables.table(heads, described, flexible=("kind", "meaning")))
    for fault in found.faults:
        click.echo(f"left out: {fault}", err=True)


@click.command(
    "list",
    epilog="\b\nExamples:\n  crq automations list\n  crq automations list --tenant acme --json\n"
    + EXIT_CODES,
)
@click.option("--tenant", help="Only of this tenant.")
@limit_option
@click.option("--after", type=int, default=0, help="Go on after a page: the number it ended with.")
@json_option
@click.pass_obj
def list_all(state: State, tenant: str | None, limit: int, after: int, as_json: bool) -> None:
    """
    List automations: what they are, when they come next, how the last run ended.
    """
    from crq.automations import runs, shown
    from crq.cli import tables

    page = state.read(runs.automations, tenant, after, limit)
    if as_json:
        emit({"automations": [shown.automation(one) for one in page.rows], "after": page.after})
        return
    rows = [
        (
            one.automation_id,
            called(one),
            one.type,
            one.mode.value if one.enabled else "off",
            f"{one.cron} {one.zone}",
            _minute(one.next_run_at_utc),
            one.last_run_status,
            one.problem or one.last_run_summary,
        )
        for one in page.rows
    ]
    heads = ("id", "automation", "type", "mode", "schedule", "next (UTC)", "last run", "about")
    tables.show(tables.table(heads, rows, flexible=("automation", "schedule", "about")))
    _more(page.after, "--after")


@click.command(epilog="\b\nExample:\n  crq automations show acme/remind\n" + EXIT_CODES)
@which_argument
@json_option
@click.pass_obj
def show(state: State, which: str, as_json: bool) -> None:
    """
    Show one automation: its settings, its next ten occurrences in its zone and in UTC.
    """
    from crq.automations import shown
    from crq.cli import tables

    found = _found(state, which)
    value = shown.automation(found)
    value["occurrences"] = shown.occurrences(found.cron, found.zone, state.wall())
    if as_json:
        emit(value)
        return
    pairs = [
        (name, json.dumps(part, ensure_ascii=False) if isinstance(part, dict) else part)
        for name, part in value.items()
        if name != "occurrences"
    ]
    heads = (f"in {found.zone}", "in UTC")
    comes = [(one["local"], one["utc"]) for one in value["occurrences"]]
    tables.show(tables.pairs(pairs), tables.table(heads, comes))


@click.command(epilog="\b\nExample:\n  crq automations preview acme/remind\n" + EXIT_CODES)
@which_argument
@json_option
@click.pass_obj
def preview(state: State, which: str, as_json: bool) -> None:
    """
    Show what a run would decide now, with each reason. Keeps nothing and changes nothing.

    Exit code 1 when the type cannot decide.
    """
    import time

    from crq import halves
    from crq.automations import shown
    from crq.automations.calls import Calls
    from crq.cli import tables

    automation = _found(state, which)
    database = state.config.open_database()
    desk = halves.desk(state.config, sealer(state), installed(state, database))
    found = desk.preview(Calls(database, time.monotonic), automation, state.wall())
    if as_json:
        emit(shown.preview(found))
    else:
        rows = [(one.subject_id, one.verdict.value, one.reason) for one in found.decisions]
        counts = [(reason, number) for reason, number in found.reasons.items()]
        tables.show(
            tables.table(("subject", "verdict", "reason"), rows, flexible=("subject", "reason")),
            tables.table(("reason", "count"), counts, flexible=("reason",)),
        )
        for notice in found.notices:
            click.echo(notice)
        if found.more and found.problem is None:
            click.echo("and more; a run goes on to its cap")
    if found.problem is not None:
        raise Failed(found.problem, NO)


@click.command(
    "runs",
    epilog="\b\nExamples:\n  crq automations runs acme/remind\n"
    "  crq automations runs 7 --status failed\n" + EXIT_CODES,
)
@which_argument
@click.option("--status", "word", type=click.Choice(STATUSES), help="Only in this state.")
@limit_option
@click.option("--before", type=int, help="Go on after a page: the number it ended with.")
@json_option
@click.pass_obj
def list_runs(
    state: State, which: str, word: str | None, limit: int, before: int | None, as_json: bool
) -> None:
    """
    List the runs of an automation, newest first: what they would change, or have changed.
    """
    from crq.automations import runs, shown
    from crq.automations.model import RunStatus
    from crq.cli import tables

    number = _found(state, which).automation_id
    status = None if word is None else RunStatus(word)
    page = state.read(runs.latest_runs, number, before, limit, status)
    if as_json:
        emit({"runs": [shown.run(one) for one in page.rows], "before": page.after})
        return
    rows = [
        (
            one.run_id,
            _minute(one.scheduled_for_utc),
            one.mode.value,
            one.status.value,
            one.counts.items,
            one.counts.would,
            one.counts.approved,
            one.counts.failed + one.counts.unknown,
            one.skipped or None,
            None if one.duration_ms is None else f"{one.duration_ms / 1000:.1f}",
            one.why or one.waits_for,
        )
        for one in page.rows
    ]
    heads = (
        *("run", "for (UTC)", "mode", "status", "decided", "would", "changed", "failed"),
        *("skipped", "secs", "why"),
    )
    tables.show(tables.table(heads, rows, flexible=("why",)))
    _more(page.after, "--before")


@click.command(
    epilog="\b\nExamples:\n  crq automations items 4711\n"
    "  crq automations items 4711 --verdict approved --json\n" + EXIT_CODES
)
@click.argument("run_id", metavar="RUN", type=click.IntRange(1))
@click.option("--verdict", type=click.Choice(("approved", "declined")), help="Only these.")
@click.option("--effect", type=click.Choice(EFFECTS), help="Only these.")
@click.option("--reason", help="Only with this reason.")
@limit_option
@click.option("--after", type=int, default=0, help="Go on after a page: the number it ended with.")
@json_option
@click.pass_obj
def items(
    state: State,
    run_id: int,
    verdict: str | None,
    effect: str | None,
    reason: str | None,
    limit: int,
    after: int,
    as_json: bool,
) -> None:
    """
    List what a run decided, and how far each effect has come.
    """
    from crq.automations import runs, shown
    from crq.automations.model import Effect, Verdict
    from crq.cli import tables

    if state.read(runs.run, run_id) is None:
        raise Failed(f"there is no run {run_id}", NO)
    page = state.read(
        runs.items,
        run_id,
        after,
        limit,
        None if verdict is None else Verdict(verdict),
        None if effect is None else Effect(effect),
        reason,
    )
    if as_json:
        emit({"items": [shown.item(one) for one in page.rows], "after": page.after})
        return
    rows = [
        (
            one.item_id,
            one.decision.subject_id,
            one.decision.verdict.value,
            one.decision.reason,
            None if one.effect.value == "none" else one.effect.value,
            one.detail,
        )
        for one in page.rows
    ]
    heads = ("item", "subject", "verdict", "reason", "effect", "detail")
    tables.show(tables.table(heads, rows, flexible=("subject", "reason", "detail")))
    _more(page.after, "--after")


@click.command(epilog="\b\nExample:\n  crq automations audit acme/remind\n" + EXIT_CODES)
@which_argument
@limit_option
@click.option("--before", type=int, help="Go on after a page: the number it ended with.")
@json_option
@click.pass_obj
def audit(state: State, which: str, limit: int, before: int | None, as_json: bool) -> None:
    """
    Show who did what to an automation, newest first, with what was before and after.
    """
    from crq.automations import runs, shown
    from crq.cli import tables
    from crq.instants import iso

    page = state.read(runs.audit, _found(state, which).automation_id, before, limit)
    if as_json:
        emit({"audit": [shown.audit(one) for one in page.rows], "before": page.after})
        return
    rows = [
        (
            iso(one.at),
            one.actor,
            one.action,
            None if one.before is None else json.dumps(one.before, ensure_ascii=False),
            None if one.after is None else json.dumps(one.after, ensure_ascii=False),
        )
        for one in page.rows
    ]
    heads = ("at", "who", "did", "before", "after")
    tables.show(tables.table(heads, rows, flexible=("before", "after")))
    _more(page.after, "--before")


def called(automation: Automation) -> str:
    """
    What people call an automation.
    """
    return f"{automation.tenant}/{automation.name}"


def sealer(state: State) -> Sealer:
    """
    The secrets of the installation.
    """
    from crq.configfile import ConfigError

    try:
        return state.config.sealer()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def installed(state: State, database: Database) -> Types:
    """
    The installed types, put together.
    """
    from crq import halves
    from crq.gates import open_store

    queue = halves.Queue(
        config=state.config,
        sealer=sealer(state),
        gates=open_store(state.config, database),
        limits=state.config.limits.limits,
        wall=state.wall,
    )
    return halves.types(state.config, sealer(state), queue)


def _found(state: State, which: str) -> Automation:
    from crq.automations import runs

    found = state.read(runs.find, which)
    if found is None:
        raise Failed(f"there is no automation {which}", NO)
    return found


def _minute(at: float | None) -> str | None:
    from crq.instants import instant_text

    return None if at is None else instant_text(at)[:16]


def _more(after: Any, option: str) -> None:
    if after is not None:
        click.echo(f"more: {option} {after}")
