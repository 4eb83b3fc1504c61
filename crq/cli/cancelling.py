"""
``crq cancel``: one execution that waits, or all that fit the filters.
"""

from __future__ import annotations

import math
from typing import Any

import click

from crq.cli import reports
from crq.cli.base import EXIT_CODES, NO, OK, Failed, State, emit, json_option


@click.command(
    epilog="\b\nExamples:\n  crq cancel 4711\n  crq cancel --all --subdomain acme\n"
    "  crq cancel --all --since 2026-08-24T12:00 --yes\n" + EXIT_CODES
)
@click.argument("execution_id", metavar="[ID]", type=click.IntRange(1), required=False)
@click.option("--all", "everything", is_flag=True, help="All that waits and fits the filters.")
@reports.account_options[0]
@reports.account_options[1]
@click.option("--key", metavar="HASH", help="Only of this API key.")
@click.option("--since", metavar="TIME", help="Only queued at or after; UTC.")
@click.option("--until", metavar="TIME", help="Only queued before.")
@click.option("--yes", is_flag=True, help="Do not ask; without it --json only counts.")
@reports.note_option
@json_option
@click.pass_obj
def cancel(
    state: State,
    execution_id: int | None,
    everything: bool,
    subdomain: str | None,
    account: str | None,
    key: str | None,
    since: str | None,
    until: str | None,
    yes: bool,
    note: str | None,
    as_json: bool,
) -> None:
    """
    Cancel an execution that still waits, or all that fit the filters.

    What has been claimed or has begun is not stopped: exit code 1.
    """
    from crq import records

    filters = any(given is not None for given in (subdomain, account, key, since, until))
    if everything == (execution_id is not None) or (filters and not everything):
        raise click.UsageError("give an ID, or --all and its filters")
    if execution_id is not None:
        _cancel_one(state, execution_id, note, as_json)
        return
    chosen = reports.account_of(state, subdomain, account)
    try:
        wanted = records.Filters(
            accounts=None if chosen is None else (chosen,),
            apikey_hash=None if key is None else reports.key_of(key),
            since=None if since is None else records.instant_given(since),
            # What is admitted from now on is never meant.
            until=(math.floor(state.wall() * 1000) + 1) / 1000
            if until is None
            else records.instant_given(until),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    _cancel_all(state, wanted, yes, note, as_json)


def _cancel_one(state: State, execution_id: int, note: str | None, as_json: bool) -> None:
    from crq import actions, records
    from crq.database import CommitUnknown
    from crq.submissions import Refusal

    by = reports.by(state, note)
    done = False
    with state.database() as (database, connection):
        try:
            database.transact(connection, actions.cancel, execution_id, by)
            done = True
        except (CommitUnknown, Refusal):
            pass  # the row itself says, below
        found = database.read(connection, records.execution, execution_id)
    if found is None:
        raise Failed(f"there is no execution {execution_id}", NO)
    cancelled = done or found.record.status == "cancelled"
    if as_json:
        shown = {"executionId": execution_id, "status": found.record.shown, "cancelled": cancelled}
        emit(shown)
        raise click.exceptions.Exit(OK if cancelled else NO)
    if not cancelled:
        stored = found.record.status
        raise Failed(f"execution {execution_id} does not wait any more: it is {stored}", NO)
    click.echo(f"execution {execution_id} cancelled")


def _cancel_all(state: State, wanted: Any, yes: bool, note: str | None, as_json: bool) -> None:
    from crq import actions

    by = reports.by(state, note)
    with state.database() as (database, connection):
        count, capped = database.read(connection, actions.count_waiting, wanted)
        cancelled = 0
        shown = f"{count}{'+' if capped else ''} executions wait"
        go_on = yes or (not as_json and count and click.confirm(f"{shown}; cancel {count}?"))
        more = bool(go_on)
        while more and cancelled < count:
            done, more = database.transact(
                connection, actions.cancel_some, wanted, count - cancelled, by
            )
            cancelled += done
    if as_json:
        filters = actions.filters_json(wanted)
        emit({"count": count, "capped": capped, "cancelled": cancelled, "filters": filters})
    else:
        click.echo(f"{shown}; {cancelled} cancelled")
