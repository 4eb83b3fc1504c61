"""
``crq explain``, ``crq accounts``, ``crq drainers``, ``crq history`` and ``crq audit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from crq.cli import reports
from crq.cli.base import EXIT_CODES, NO, Failed, State, emit, json_option

if TYPE_CHECKING:
    from crq.explanation import Explanation


@click.command(epilog="\b\nExample:\n  crq explain 17\n" + EXIT_CODES)
@click.argument("execution_id", metavar="ID", type=click.IntRange(1))
@json_option
@click.pass_obj
def explain(state: State, execution_id: int, as_json: bool) -> None:
    """
    Say why an execution waits, where it stands, and when it can start.

    The first rule that holds it comes first, with what it waits for; then all others that would.
    """
    from crq import explain as explaining

    with state.database() as (database, connection):
        reading = database.read(connection, explaining.read, execution_id)
        if reading is None:
            raise Failed(f"there is no execution {execution_id}", NO)
        reporter = reports.Reporter(state, database, connection)
        closed = reporter.closed(reading.keys)
        reporter.close()
    config = state.config
    found = explaining.explain(
        *(reading, closed, config.limits.limits(), state.wall()), tick=config.drainer.tick
    )
    if as_json:
        emit(found.as_json())
    else:
        _print_explanation(found)


def _print_explanation(found: Explanation) -> None:
    from crq.cli import tables
    from crq.instants import iso

    first, *others = found.why
    more = "+" if found.capped else ""
    rows: list[tuple[str, object]] = [
        ("execution", found.execution_id),
        ("state", found.shown),
        ("because", first.text),
        *(("and", why.text) for why in others),
    ]
    if found.place_in_lane is not None:
        earliest = iso(found.earliest_start) or "not before somebody does something"
        rows += [
            ("place", f"number {found.place_in_lane}{more} of its account and key"),
            ("ahead", f"{found.ahead_in_account}{more} older of its account"),
            ("earliest start", earliest),
            ("expected start", iso(found.expected_start)),
        ]
    tables.show(tables.pairs(rows))


@click.command(epilog="\b\nExample:\n  crq accounts --json | jq '.accounts[0]'\n" + EXIT_CODES)
@json_option
@click.pass_obj
def accounts(state: State, as_json: bool) -> None:
    """
    Show how each account fares: depth, cap, waiting times, what has passed, whether it is paused.
    """
    from crq import accounts as listing
    from crq.cli import tables

    found = state.read(listing.read, state.config.limits.limits(), state.wall())
    if as_json:
        emit({"accounts": [each.as_json() for each in found]})
        return
    rows = [
        (
            each.subdomain or each.subdomain_hash,
            f"{each.queued}+" if each.queued_capped else each.queued,
            f"{each.in_flight} of {each.cap}{' (set)' if each.cap_set else ''}",
            each.wait_p50,
            each.wait_p95,
            f"{each.finished}+" if each.finished_capped else each.finished,
            None if each.pause is None else f"paused by {each.pause.set_by}",
        )
        for each in found
    ]
    columns = ("account", "queued", "in flight", "wait p50", "wait p95", "last hour", "pause")
    tables.show(tables.table(columns, rows, flexible=("account", "pause")))


@click.command(epilog="\b\nExample:\n  crq drainers --json | jq '.drainers[].id'\n" + EXIT_CODES)
@json_option
@click.pass_obj
def drainers(state: State, as_json: bool) -> None:
    """
    List the drainers of this database: who lives, where, and what each has in flight.

    Alive, stopping, dead (it has been silent for 30 seconds, by this host's clock), gone (stopped,
    with something still in flight). What a dead one had claimed and not begun, the others put back.
    """
    from crq import drainers as listing
    from crq.cli import tables
    from crq.instants import iso

    found = state.read(listing.read, state.wall())
    if as_json:
        emit({"drainers": [each.as_json() for each in found]})
        return
    rows = [
        (
            each.drainer_id,
            each.state,
            None if each.beat is None else each.beat.origin.host,
            None if each.age is None else f"{each.age:.0f} s ago",
            each.claimed,
            each.running,
            None if each.beat is None else iso(each.beat.started_at),
            None if each.beat is None else each.beat.origin.version,
        )
        for each in found
    ]
    columns = ("drainer", "state", "host", "reported", "claimed", "running", "since", "version")
    tables.show(tables.table(columns, rows, flexible=("drainer", "host")))


@click.command(
    epilog="\b\nExamples:\n  crq history\n  crq history --since 2026-08-24T14:00 --until"
    " 2026-08-24T14:30\n" + EXIT_CODES
)
@click.option("--since", metavar="TIME", help="From when on; UTC. Else the last hour.")
@click.option("--until", metavar="TIME", help="Up to when. Else now.")
@json_option
@click.pass_obj
def history(state: State, since: str | None, until: str | None, as_json: bool) -> None:
    """
    Show what the queue did, minute by minute.

    A minute that is missing is one in which no drainer ran.
    """
    from crq import records, series
    from crq.cli import tables
    from crq.instants import iso

    try:
        end = state.wall() if until is None else records.instant_given(until)
        begin = end - 3600.0 if since is None else records.instant_given(since)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    minutes = state.read(series.read, begin, end)
    if as_json:
        emit({"minutes": [minute.as_json() for minute in minutes]})
        return
    rows: list[tuple[object, ...]] = []
    before: float | None = None
    for minute in minutes:
        if before is not None and minute.minute - before > series.MINUTE:
            gap = round((minute.minute - before) / series.MINUTE) - 1
            rows.append(("…", f"no drainer for {gap} min", *[None] * 8))
        before = minute.minute
        ended = minute.ended
        rows.append(
            (
                (iso(minute.minute) or "")[:16],
                minute.verdict,
                minute.depth,
                None if minute.oldest_age is None else f"{minute.oldest_age:.0f} s",
                minute.in_flight,
                minute.gates_closed,
                ended.starts,
                ended.success,
                ended.failed + ended.outcome_unknown + ended.never_started,
                ended.rejected,
            )
        )
    columns = (
        *("minute (UTC)", "verdict", "depth", "oldest", "in flight", "gates", "starts", "success"),
        *("failed", "rejected"),
    )
    tables.show(tables.table(columns, rows))


@click.command(
    epilog="\b\nExamples:\n  crq audit\n  crq audit --target execution:17\n" + EXIT_CODES
)
@click.option("--target", help="Only about this: all, account:HASH, key:HASH, execution:17 …")
@click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Lines shown."
)
@click.option("--below", type=click.IntRange(1), help="Only lines with a smaller number.")
@json_option
@click.pass_obj
def audit(state: State, target: str | None, limit: int, below: int | None, as_json: bool) -> None:
    """
    Show who did what, the newest first.
    """
    import json

    from crq import audit as auditing
    from crq.cli import tables

    found = state.read(auditing.page, target, below, limit)
    if as_json:
        emit({"entries": [entry.as_json() for entry in found]})
        return
    rows = [
        (
            entry.audit_id,
            (entry.done_at or "")[:19],
            entry.who,
            entry.action,
            entry.target,
            entry.note,
            None if entry.after is None else json.dumps(entry.after, ensure_ascii=False),
        )
        for entry in found
    ]
    columns = ("line", "when (UTC)", "who", "action", "target", "note", "after")
    tables.show(tables.table(columns, rows, flexible=("target", "note", "after")))
