"""
``crq automations runs``, ``items`` and ``audit``: what has become of an automation.
"""

from __future__ import annotations

import json

import click

from crq.cli import desk
from crq.cli.base import EXIT_CODES, NO, Failed, State, emit, json_option

STATUSES = (
    *("queued", "running", "completed", "capped", "failed", "stopped", "refused"),
    "overlapped",
)
EFFECTS = ("none", "intended", "applying", "applied", "failed", "unknown", "withdrawn")


@click.command(
    "runs",
    epilog="\b\nExamples:\n  crq automations runs acme/remind\n"
    "  crq automations runs 7 --status failed\n" + EXIT_CODES,
)
@desk.which_argument
@click.option("--status", "word", type=click.Choice(STATUSES), help="Only in this state.")
@desk.limit_option
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

    number = desk.found(state, which).automation_id
    status = None if word is None else RunStatus(word)
    page = state.read(runs.latest_runs, number, before, limit, status)
    if as_json:
        emit({"runs": [shown.run(one) for one in page.rows], "before": page.after})
        return
    rows = [
        (
            one.run_id,
            desk.minute(one.scheduled_for_utc),
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
    desk.more(page.after, "--before")


@click.command(
    epilog="\b\nExamples:\n  crq automations items 4711\n"
    "  crq automations items 4711 --verdict approved --json\n" + EXIT_CODES
)
@click.argument("run_id", metavar="RUN", type=click.IntRange(1))
@click.option("--verdict", type=click.Choice(("approved", "declined")), help="Only these.")
@click.option("--effect", type=click.Choice(EFFECTS), help="Only these.")
@click.option("--reason", help="Only with this reason.")
@desk.limit_option
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
    desk.more(page.after, "--after")


@click.command(epilog="\b\nExample:\n  crq automations audit acme/remind\n" + EXIT_CODES)
@desk.which_argument
@desk.limit_option
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

    page = state.read(runs.audit, desk.found(state, which).automation_id, before, limit)
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
    desk.more(page.after, "--before")


COMMANDS = (list_runs, items, audit)
