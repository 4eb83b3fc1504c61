"""
What all commands of ``crq automations`` share: the desk, the types, names, how a change is told.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from crq.cli.base import NO, Failed, State, emit

if TYPE_CHECKING:
    from crq.automations.desk import Desk
    from crq.automations.model import Automation
    from crq.automations.types import Types
    from crq.database import Database
    from crq.sealing import Sealer

which_argument = click.argument("which", metavar="WHICH")
limit_option = click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Rows of the page."
)


@contextmanager
def at_desk(state: State) -> Iterator[tuple[Desk, Database, Any]]:
    """
    The desk, and the database it works on.
    """
    from crq import halves
    from crq.automations.desk import NotFound

    opened = sealer(state)
    with state.database() as (database, connection):
        kinds = installed(state, database)
        try:
            yield halves.desk(state.config, opened, kinds), database, connection
        except NotFound as error:
            raise Failed(str(error), NO) from None


def told(state: State, automation: Automation, as_json: bool, word: str) -> None:
    """
    Say what became of an automation.
    """
    from crq.automations import shown
    from crq.instants import iso

    if as_json:
        occurrences = shown.occurrences(automation.cron, automation.zone, state.wall())
        emit({**shown.automation(automation), "occurrences": occurrences})
        return
    following = iso(automation.next_run_at_utc)
    more = f"; next at {following}" if following is not None else "; switched off"
    mode = automation.mode.value
    revision = automation.config_revision
    click.echo(f"{called(automation)} {word}: {mode}, revision {revision}{more}")


def actor() -> str:
    """
    Who is at the terminal, for the audit.
    """
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container may have no name for its user
        return f"cli:{os.getuid()}"


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


def found(state: State, which: str) -> Automation:
    """
    The automation that somebody means.
    """
    from crq.automations import runs

    found = state.read(runs.find, which)
    if found is None:
        raise Failed(f"there is no automation {which}", NO)
    return found


def minute(at: float | None) -> str | None:
    """
    An instant to the minute, in UTC.
    """
    from crq.instants import instant_text

    return None if at is None else instant_text(at)[:16]


def more(after: Any, option: str) -> None:
    """
    Say how the next page is had.
    """
    if after is not None:
        click.echo(f"more: {option} {after}")
