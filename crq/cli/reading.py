"""
``crq status``, ``crq logs`` and ``crq show``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from crq.cli import following, reports
from crq.cli.base import (
    DEGRADED,
    EXIT_CODES,
    NO,
    OK,
    Failed,
    State,
    emit,
    json_option,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crq.audit import Entry
    from crq.records import Page
    from crq.recordvalues import FullRecord
    from crq.statusreport import StatusReport

STATES = ("queued", "claimed", "running", "success", "failed", "rejected", "cancelled")
SHOWN = (*STATES, "outcome unknown", "never started")


@click.command(
    epilog="\b\nExamples:\n  crq status\n  crq status --json | jq .oldestQueuedAge\n" + EXIT_CODES
)
@json_option
@click.pass_obj
def status(state: State, as_json: bool) -> None:
    """
    Say how the queue is, in one word, and what waits.

    The words: flowing, idle, saturated (all slots taken), gated (all that waits is held on purpose,
    by closed gates or a pause), stalled (nobody starts what could start; exit code 1), degraded (a
    dependency is not well; exit code 5).
    """
    from crq import status as statuses
    from crq.verdict import Verdict

    with state.database() as (database, connection):
        reporter = reports.Reporter(state, database, connection)
        report = reporter.report()
        reporter.close()
    if as_json:
        emit(statuses.as_json(report))
    else:
        print_report(report)
    code = {Verdict.STALLED: NO, Verdict.DEGRADED: DEGRADED}.get(report.verdict, OK)
    raise click.exceptions.Exit(code)


def print_report(report: StatusReport) -> None:
    """
    Print a report for people.
    """
    from crq.cli import tables

    tables.show(*report_parts(report))


def report_parts(report: StatusReport) -> list[Any]:
    """
    A report as texts and tables.
    """
    from rich.text import Text

    from crq.cli import tables
    from crq.instants import iso

    depth = f"{report.depth}+" if report.depth_capped else str(report.depth)
    oldest = report.oldest_queued_age
    parts: list[Any] = [
        Text.assemble(tables.cell(report.verdict.value), f": {report.because}"),
        tables.pairs(
            [
                ("queued", f"{depth} of {report.limits.queued_total}"),
                ("oldest waits", None if oldest is None else f"{oldest:.0f} s"),
                ("in flight", f"{report.in_flight} of {report.limits.in_flight}"),
                ("last start", iso(report.last_start)),
                *_set(report),
            ]
        ),
    ]
    if not report.gates_reachable:
        parts.append("the gates' store does not answer: closed gates are not shown")
    if report.accounts:
        rows = [(a.subdomain or a.subdomain_hash, a.queued, a.in_flight) for a in report.accounts]
        parts.append(tables.table(("account", "queued", "in flight"), rows))
    if report.gates or report.unreadable:
        closed: list[tuple[object, ...]] = [(g.apikey_hash, iso(g.until)) for g in report.gates]
        closed += [(key, "unreadable") for key in report.unreadable]
        parts.append(tables.table(("key", "closed until"), closed))
    if report.proof:
        shown = [(proof.kind, proof.name, proof.detail) for proof in report.proof]
        parts.append(tables.table(("proof", "name", "detail"), shown, flexible=("name", "detail")))
    return parts


def _set(report: StatusReport) -> list[tuple[str, object]]:
    controls = report.controls
    paused = ["everything"] if controls.everything else []
    paused += [f"account {name[:8]}" for name in sorted(controls.accounts)]
    paused += [f"key {name[:8]}" for name in sorted(controls.keys)]
    rows: list[tuple[str, object]] = []
    if controls.draining:
        rows.append(("draining", "nothing is started, for maintenance"))
    if paused:
        rows.append(("paused", ", ".join(paused)))
    return rows


@click.command(
    epilog="\b\nExamples:\n  crq logs --subdomain acme\n  crq logs --status failed --error-code 301"
    " --since 2026-08-24\n  crq logs --limit 500 --json\n" + EXIT_CODES
)
@click.option("--subdomain", help="Only of this account.")
@click.option("--account", metavar="HASH", help="Only of the account with this hash.")
@click.option("--key", metavar="HASH", help="Only of this API key.")
@click.option("--status", "word", type=click.Choice(STATES), help="Only in this state.")
@click.option("--shown", type=click.Choice(SHOWN), help="Only what people see as this.")
@click.option("--error-code", type=int, help="Only with this code.")
@click.option("--since", metavar="TIME", help="Queued at or after; 2026-08-28T12:30:00Z, UTC.")
@click.option("--until", metavar="TIME", help="Queued before.")
@click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Rows of the page."
)
@click.option("--cursor", help="Go on after a page: the cursor it ended with.")
@click.option("--follow", is_flag=True, help="Go on showing what comes and what changes.")
@json_option
@click.pass_obj
def logs(
    state: State,
    subdomain: str | None,
    account: str | None,
    key: str | None,
    word: str | None,
    shown: str | None,
    error_code: int | None,
    since: str | None,
    until: str | None,
    limit: int,
    cursor: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """
    Show the log of executions, newest first, refused ones included.
    """
    from crq import records

    if follow and (cursor is not None or until is not None):
        raise click.UsageError(
            "--follow shows what comes, and goes with neither --cursor nor --until"
        )
    account = reports.account_of(state, subdomain, account)
    try:
        filters = records.Filters(
            accounts=None if account is None else (account,),
            status=word,
            error_code=error_code,
            apikey_hash=None if key is None else reports.key_of(key),
            shown=shown,
            since=None if since is None else records.instant_given(since),
            until=None if until is None else records.instant_given(until),
        )
        if follow:
            following.follow(state, filters, limit, as_json)
            return
        page = state.read(records.page, filters, cursor, limit)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        executions = [record.as_json() for record in page.records]
        emit({"executions": executions, "cursor": page.cursor, "searchedTo": page.searched_to})
    else:
        _print_page(page)


def _print_page(page: Page) -> None:
    from crq.cli import tables

    rows = [
        (
            record.execution_id,
            (record.queued_at or "")[:19],
            record.shown,
            record.error_code,
            record.subdomain,
            record.identifier,
            record.seconds,
            record.error_message
            if record.times == 1
            else f"({record.times} times) {record.error_message or ''}",
        )
        for record in page.records
    ]
    columns = ("id", "queued (UTC)", "state", "code", "account", "identifier", "secs", "message")
    tables.show(tables.table(columns, rows, flexible=("identifier", "message")))
    if page.searched_to is not None:
        click.echo(f"searched back to {page.searched_to}")
    if page.cursor is not None:
        click.echo(f"more: --cursor {page.cursor}")


@click.command(epilog="\b\nExample:\n  crq show 4711\n" + EXIT_CODES)
@click.argument("execution_id", metavar="ID", type=click.IntRange(1))
@json_option
@click.pass_obj
def show(state: State, execution_id: int, as_json: bool) -> None:
    """
    Show one execution in full: what was asked, what became of it, its source.
    """
    from crq import audit, records

    with state.database() as (database, connection):
        found = database.read(connection, records.execution, execution_id)
        if found is None:
            raise Failed(f"there is no execution {execution_id}", NO)
        acts = database.read(connection, audit.page, f"execution:{execution_id}")
    if as_json:
        emit({**found.as_json(), "acts": [entry.as_json() for entry in acts]})
    else:
        _print_execution(found, acts)


def _print_execution(found: FullRecord, acts: Iterable[Entry]) -> None:
    from crq.cli import tables
    from crq.recordvalues import shown_instant

    record = found.record
    state = record.shown
    if record.status != state:
        state = f"{state} ({record.status})"
    tables.show(
        tables.pairs(
            [
                ("execution", record.execution_id),
                ("state", state),
                ("error", record.error_code),
                ("message", record.error_message),
                ("times", record.times),
                ("account", record.subdomain),
                ("account hash", record.subdomain_hash),
                ("key hash", record.apikey_hash),
                ("identifier", record.identifier),
                ("debug", "yes" if record.debug else "no"),
                ("queued", shown_instant(record.queued_at)),
                ("claimed", shown_instant(record.claimed_at)),
                ("started", shown_instant(record.started_at)),
                ("finished", shown_instant(record.finished_at)),
                ("seconds", record.seconds),
                ("drainer", found.drainer_id),
                ("worker", found.worker_id),
                ("trace", found.traceparent),
                *(
                    (entry.action, f"{shown_instant(entry.done_at)} by {entry.who}")
                    for entry in acts
                ),
            ]
        )
    )
    if found.source_code is not None:
        click.echo()
        click.echo(visible(found.source_code, keep="\n\t"))
