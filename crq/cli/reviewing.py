"""
``crq automations types``, ``list``, ``show`` and ``preview``: what there is.
"""

from __future__ import annotations

import json

import click

from crq.cli import desk
from crq.cli.base import EXIT_CODES, NO, Failed, State, emit, json_option


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
    from crq.automations import settings, shown
    from crq.cli import tables

    found = desk.installed(state, state.config.open_database())
    kinds = list(found) if name is None else [found.known(name)]
    if as_json:
        emit({"types": [shown.kind(one) for one in kinds], "faults": list(found.faults)})
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
@desk.limit_option
@click.option("--after", type=int, default=0, help="Go on after a page: the number it ended with.")
@json_option
@click.pass_obj
def list_all(state: State, tenant: str | None, limit: int, after: int, as_json: bool) -> None:
    """
    List automations: what they are, when they come next, how the last run ended.
    """
    from crq.automations import runs, shown
    from crq.cli import tables

    page = state.read(runs.automations, None if tenant is None else (tenant,), after, limit)
    if as_json:
        emit({"automations": [shown.automation(one) for one in page.rows], "after": page.after})
        return
    rows = [
        (
            one.automation_id,
            desk.called(one),
            one.type,
            one.mode.value if one.enabled else "off",
            f"{one.cron} {one.zone}",
            desk.minute(one.next_run_at_utc),
            one.last_run_status,
            one.problem or one.last_run_summary,
        )
        for one in page.rows
    ]
    heads = ("id", "automation", "type", "mode", "schedule", "next (UTC)", "last run", "about")
    tables.show(tables.table(heads, rows, flexible=("automation", "schedule", "about")))
    desk.more(page.after, "--after")


@click.command(epilog="\b\nExample:\n  crq automations show acme/remind\n" + EXIT_CODES)
@desk.which_argument
@json_option
@click.pass_obj
def show(state: State, which: str, as_json: bool) -> None:
    """
    Show one automation: its settings, its next ten occurrences in its zone and in UTC.
    """
    from crq.automations import shown
    from crq.cli import tables

    found = desk.found(state, which)
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
@desk.which_argument
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

    automation = desk.found(state, which)
    database = state.config.open_database()
    people = halves.desk(state.config, desk.sealer(state), desk.installed(state, database))
    found = people.preview(Calls(database, time.monotonic), automation, state.wall())
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


COMMANDS = (types, list_all, show, preview)
