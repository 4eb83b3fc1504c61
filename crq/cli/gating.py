"""
``crq gates``: closed gates, their history, and closing and opening one by hand.
"""

from __future__ import annotations

import math
from typing import Any

import click

from crq.cli import reports
from crq.cli.base import AWAY, EXIT_CODES, Failed, Group, State, emit, json_option


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog="\b\nExamples:\n  crq gates\n  crq gates --key HASH\n  crq gates close HASH --for 600"
    " --note 'the API is down'\n  crq gates open HASH\n" + EXIT_CODES,
)
@click.option("--key", metavar="HASH", help="Only of this API key.")
@click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Closings shown."
)
@json_option
@click.pass_context
def gates(context: click.Context, key: str | None, limit: int, as_json: bool) -> None:
    """
    Show closed gates and what became of gates before; close and open one by hand.
    """
    if context.invoked_subcommand is not None:
        return
    from crq import gatehistory
    from crq.cli import tables
    from crq.instants import iso

    state: State = context.obj
    keys = None if key is None else [reports.key_of(key)]
    with state.database() as (database, connection):
        reporter = reports.Reporter(state, database, connection)
        report = reporter.report()
        closings = database.read(connection, gatehistory.closings, keys, limit)
        reporter.close()
    closed = [gate for gate in report.gates if keys is None or gate.apikey_hash in keys]
    if as_json:
        shown = [
            {"key": gate.apikey_hash, "until": iso(gate.until), "accounts": list(gate.accounts)}
            for gate in closed
        ]
        history = [closing.as_json() for closing in closings]
        emit({"closed": shown, "reachable": report.gates_reachable, "history": history})
        return
    parts: list[Any] = []
    if not report.gates_reachable:
        parts.append("the gates' store does not answer: closed gates are not shown")
    rows = [(gate.apikey_hash, iso(gate.until), len(gate.accounts)) for gate in closed]
    parts.append(tables.table(("closed key", "until", "accounts"), rows))
    past = [
        (
            closing.apikey_hash,
            (closing.closed_at or "")[:19],
            (closing.opened_at or "")[:19],
            closing.cause,
            closing.execution_id,
            closing.held,
        )
        for closing in closings
    ]
    columns = ("key", "closed (UTC)", "opened (UTC)", "cause", "execution", "held")
    parts.append(tables.table(columns, past, flexible=("key", "cause")))
    tables.show(*parts)


@gates.command("close", epilog=EXIT_CODES)
@click.argument("key", metavar="KEY")
@click.option(
    "--for",
    "seconds",
    type=click.IntRange(1, 86_400),
    default=300,
    show_default=True,
    help="Seconds.",
)
@reports.note_option
@json_option
@click.pass_obj
def close_gate(state: State, key: str, seconds: int, note: str | None, as_json: bool) -> None:
    """
    Close the gate of an API key, by its hash; a longer gate stays as it is.
    """
    from crq import actions
    from crq.instants import iso

    key = reports.key_of(key)
    by = reports.by(state, note)
    until = math.ceil(by.now + seconds)
    with state.database() as (database, connection):
        database.transact(connection, actions.close_gate, key, until, by)
        standing = _at_store(state, database, connection, key, by, until)
    if as_json:
        emit({"key": key, "until": iso(standing)})
    else:
        click.echo(f"the gate of {key[:8]} is closed until {iso(standing)}")


@gates.command("open", epilog=EXIT_CODES)
@click.argument("key", metavar="KEY")
@reports.note_option
@json_option
@click.pass_obj
def open_gate(state: State, key: str, note: str | None, as_json: bool) -> None:
    """
    Open the gate of an API key, by its hash. One execution of it goes first.
    """
    from crq import actions

    key = reports.key_of(key)
    by = reports.by(state, note)
    with state.database() as (database, connection):
        database.transact(connection, actions.open_gate, key, by)
        _at_store(state, database, connection, key, by, None)
    if as_json:
        emit({"key": key, "until": None})
    else:
        click.echo(f"the gate of {key[:8]} is open")


def _at_store(
    state: State, database: Any, connection: Any, key: str, by: Any, until: float | None
) -> float | None:
    from crq import actions
    from crq.gates import GatesUnreachable, open_store

    store: Any = open_store(state.config, database)
    try:
        if until is None:
            store.open(key)
            return None
        standing: float = store.close(key, until, by.now)
        return standing
    except GatesUnreachable as error:
        database.transact(connection, actions.gate_failed, key, str(error), by)
        raise Failed(f"the gates' store does not answer: {error}", AWAY) from None
    finally:
        disconnect = getattr(store, "disconnect", None)
        if disconnect is not None:
            disconnect()
