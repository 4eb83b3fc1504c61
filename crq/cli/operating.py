"""
``crq pause``, ``resume``, ``cap``, ``drain``, ``run-one`` and ``settle``: each audited.
"""

from __future__ import annotations

from typing import Any

import click

from crq.cli import reports
from crq.cli.base import EXIT_CODES, NO, Failed, State, emit, json_option

SCOPES = ("all", "account", "key")
DRAIN_EVERY = 0.5  # s between two looks at what is still in flight


def _refused(function: Any, state: State, *args: Any) -> Any:
    """
    Run an action in one transaction; what it refuses for how things are is the answer no.
    """
    from crq.submissions import Refusal

    with state.database() as (database, connection):
        try:
            return database.transact(connection, function, *args)
        except Refusal as refusal:
            if refusal.http_status in (404, 409):
                raise Failed(str(refusal), NO) from None
            raise


def _told(as_json: bool, done: Any, text: str, already: str) -> None:
    if as_json:
        emit(done.as_json())
    else:
        click.echo(text if done.changed else already)


def _scoped(state: State, scope: str, name: str | None) -> tuple[str, str]:
    import re

    if (scope == "all") != (name is None):
        raise click.UsageError("write all, account NAME or key HASH")
    if name is None:
        return "", "everything"
    if scope == "key":
        return reports.key_of(name), f"key {name[:8]}"
    if re.fullmatch("[0-9a-f]{64}", name):
        return name, f"account {name[:8]}"
    return reports.account_of(state, name, None) or "", f"account {name}"


@click.command(
    epilog="\b\nExamples:\n  crq pause all --note 'the API is being moved'\n"
    "  crq pause account acme\n  crq pause key HASH\n" + EXIT_CODES
)
@click.argument("scope", type=click.Choice(SCOPES))
@click.argument("name", required=False)
@reports.note_option
@json_option
@click.pass_obj
def pause(state: State, scope: str, name: str | None, note: str | None, as_json: bool) -> None:
    """
    Start nothing more of everything, of an account or of an API key, until it is resumed.

    What waits stays, what comes is admitted, what runs goes on. A restart keeps the pause.
    """
    from crq import actions

    name, whose = _scoped(state, scope, name)
    done = _refused(actions.pause, state, scope, name, reports.by(state, note))
    _told(as_json, done, f"{whose} is paused", f"{whose} was paused already")


@click.command(epilog="\b\nExample:\n  crq resume all\n" + EXIT_CODES)
@click.argument("scope", type=click.Choice(SCOPES))
@click.argument("name", required=False)
@reports.note_option
@json_option
@click.pass_obj
def resume(state: State, scope: str, name: str | None, note: str | None, as_json: bool) -> None:
    """
    End a pause.
    """
    from crq import actions

    name, whose = _scoped(state, scope, name)
    done = _refused(actions.resume, state, scope, name, reports.by(state, note))
    _told(as_json, done, f"{whose} goes on", f"{whose} was not paused")


@click.command(
    epilog="\b\nExamples:\n  crq cap 2\n  crq cap 1 --subdomain acme\n  crq cap --clear\n"
    + EXIT_CODES
)
@click.argument("value", type=click.IntRange(1), required=False)
@reports.account_options[0]
@reports.account_options[1]
@click.option("--clear", is_flag=True, help="Let the configured cap count again.")
@reports.note_option
@json_option
@click.pass_obj
def cap(
    state: State,
    value: int | None,
    subdomain: str | None,
    account: str | None,
    clear: bool,
    note: str | None,
    as_json: bool,
) -> None:
    """
    Change how many executions may be in flight: over all accounts, or of one.

    A lower cap ends nothing that runs; it counts from the next claim on.
    """
    from crq import actions

    if clear == (value is not None):
        raise click.UsageError("give a VALUE, or --clear")
    chosen = reports.account_of(state, subdomain, account)
    by = reports.by(state, note)
    whose = "over all accounts" if chosen is None else f"of account {subdomain or chosen[:8]}"
    if clear:
        done = _refused(actions.uncap, state, chosen, by)
        _told(as_json, done, f"the configured cap {whose} counts again", "none was set")
        return
    config = state.config
    limits, ceiling = config.limits.limits(), config.executor.workers
    done = _refused(actions.cap, state, chosen, value, limits, ceiling, by)
    _told(as_json, done, f"the cap {whose} is {value}", f"the cap {whose} was {value} already")


@click.command(
    epilog="\b\nExamples:\n  crq drain --wait && systemctl stop crqueue\n  crq drain --end\n"
    + EXIT_CODES
)
@click.option("--end", "ending", is_flag=True, help="Let work start again.")
@click.option("--wait", "waiting", is_flag=True, help="Wait until nothing is in flight any more.")
@reports.note_option
@json_option
@click.pass_obj
def drain(state: State, ending: bool, waiting: bool, note: str | None, as_json: bool) -> None:
    """
    Start nothing at all any more, for maintenance; what runs comes to its end.
    """
    from crq import actions, executions

    if ending and waiting:
        raise click.UsageError("--wait goes with the beginning of a drain")
    by = reports.by(state, note)
    if ending:
        done = _refused(actions.end_drain, state, by)
        _told(as_json, done, "work may start again", "it was not draining")
        return
    done = _refused(actions.drain, state, by)
    if waiting:
        with state.database() as (database, connection):
            while database.read(connection, executions.in_flight):
                state.sleep(DRAIN_EVERY)
    left = " and nothing is in flight" if waiting else ""
    _told(as_json, done, f"nothing is started any more{left}", f"it was draining already{left}")


@click.command("run-one", epilog="\b\nExample:\n  crq run-one 4711\n" + EXIT_CODES)
@click.argument("execution_id", metavar="ID", type=click.IntRange(1))
@reports.note_option
@json_option
@click.pass_obj
def run_one(state: State, execution_id: int, note: str | None, as_json: bool) -> None:
    """
    Have one execution started although it is paused, as soon as gates and caps let it.
    """
    from crq import actions

    done = _refused(actions.run_one, state, execution_id, reports.by(state, note))
    text = f"execution {execution_id} is to be started"
    _told(as_json, done, text, f"{text} already")


@click.command(
    epilog="\b\nExamples:\n  crq settle 4711 success --note 'the comment is there'\n"
    "  crq settle 4711 failed --code 302\n" + EXIT_CODES
)
@click.argument("execution_id", metavar="ID", type=click.IntRange(1))
@click.argument("outcome", type=click.Choice(("success", "failed")))
@click.option("--code", type=click.Choice(("301", "302")), help="Of a failure; 302 by default.")
@reports.note_option
@json_option
@click.pass_obj
def settle(
    state: State,
    execution_id: int,
    outcome: str,
    code: str | None,
    note: str | None,
    as_json: bool,
) -> None:
    """
    Say how an execution ended whose outcome is unknown (303), once you have looked.

    Nothing is run again: its effects may have happened.
    """
    from crq import actions

    number = None if code is None else int(code)
    done = _refused(actions.settle, state, execution_id, outcome, number, reports.by(state, note))
    text = f"execution {execution_id} is settled: {outcome}"
    _told(as_json, done, text, f"execution {execution_id} was settled so already")
