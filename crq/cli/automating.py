"""
``crq automations``: observe, promote, demote, run. The rest is in
`crq.cli.declaring`, `crq.cli.reviewing` and `crq.cli.runs`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crq.cli import declaring, desk, reviewing, runs
from crq.cli.base import EXIT_CODES, NO, Failed, Group, State, emit, json_option

if TYPE_CHECKING:
    pass

TOKEN = "CRQ_TOKEN"  # noqa: S105 - the variable's name
STEPS = """
\b
From nothing to live:
  crq automations types run_script
  crq automations add --tenant acme --name remind --type run_script \\
      --cron '0 8 * * 1-5' --zone Europe/Berlin --setting source=json --setting path=/cards \\
      --from rule=rule.star --from script=remind.star --from apikey=acme.key
  crq automations preview acme/remind
  crq automations observe acme/remind --now
  crq automations runs acme/remind
  crq automations promote acme/remind --token-file token
  crq automations demote acme/remind

WHICH is an automation's number, its uuid, or tenant/name.
"""


@click.group(cls=Group, epilog=STEPS + EXIT_CODES)
def automations() -> None:
    """
    Let rules decide by a schedule: first to be looked at, then to act.

    Nothing acts before it has observed, and before somebody whose token may do so has promoted it.
    The daemon makes and advances runs, once a minute.
    """


@automations.command(
    epilog="\b\nExample:\n  crq automations observe acme/remind --now\n" + EXIT_CODES
)
@desk.which_argument
@click.option("--now", "at_once", is_flag=True, help="Make a run at once, too.")
@json_option
@click.pass_obj
def observe(state: State, which: str, at_once: bool, as_json: bool) -> None:
    """
    Switch an automation on, in observe: it decides by its schedule and changes nothing.
    """
    with desk.at_desk(state) as (people, database, connection):
        after = database.transact(connection, people.observe, which, desk.actor(), state.wall())
        if at_once:
            number = after.automation_id
            database.transact(connection, people.run_now, number, desk.actor(), state.wall())
    desk.told(state, after, as_json, "observes")


@automations.command(
    epilog="\b\nExample:\n  crq automations promote acme/remind --token-file token\n\n"
    f"The token comes from --token-file or ${TOKEN}, never from the command line itself, where"
    " other users of the machine could read it.\n" + EXIT_CODES
)
@desk.which_argument
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with a token that may promote.",
)
@json_option
@click.pass_obj
def promote(state: State, which: str, token_file: str | None, as_json: bool) -> None:
    """
    Let an automation act.

    Its type must be able to, its settings must have observed once to the end, what that run would
    have changed must fit its cap, and the token must be allowed to. Otherwise exit code 1, with
    each reason. All of it is asked again at every run.
    """
    from crq import halves
    from crq.automations import shown

    secret = _token(token_file)
    with desk.at_desk(state) as (people, database, connection):
        token = database.read(connection, halves.token_of, state.config, secret)
        if token is None:
            raise Failed("nobody knows this token", NO)
        outcome = database.transact(connection, people.promote, which, token.name, state.wall())
    if as_json:
        emit(
            {
                **shown.automation(outcome.automation),
                "obstacles": [shown.obstacle(one) for one in outcome.obstacles],
            }
        )
    elif not outcome.obstacles:
        click.echo(f"{desk.called(outcome.automation)} is live")
    else:
        for obstacle in outcome.obstacles:
            click.echo(f"{obstacle.precondition}: {obstacle}", err=True)
        raise Failed(f"{desk.called(outcome.automation)} is not promoted", NO)
    if outcome.obstacles:
        raise click.exceptions.Exit(NO)


def _switching(name: str, word: str, about: str) -> None:
    """
    Make a command that changes one thing of an automation.
    """

    @automations.command(
        name, help=about, epilog=f"\b\nExample:\n  crq automations {name} acme/remind\n{EXIT_CODES}"
    )
    @desk.which_argument
    @json_option
    @click.pass_obj
    def command(state: State, which: str, as_json: bool) -> None:
        with desk.at_desk(state) as (people, database, connection):
            after = database.transact(
                connection, getattr(people, name), which, desk.actor(), state.wall()
            )
        desk.told(state, after, as_json, word)


_switching(
    "demote",
    "observes",
    "Take an automation back to observe, at once: open runs end before their next effect.",
)
_switching("enable", "enabled", "Switch an automation on again; what it missed is not made up for.")
_switching(
    "disable", "disabled", "Switch an automation off; open runs end before their next chunk."
)


@automations.command(
    "run-now", epilog="\b\nExample:\n  crq automations run-now acme/remind\n" + EXIT_CODES
)
@desk.which_argument
@json_option
@click.pass_obj
def run_now(state: State, which: str, as_json: bool) -> None:
    """
    Make a run outside the schedule; the daemon's next tick begins it.
    """
    with desk.at_desk(state) as (people, database, connection):
        found, claimed = database.transact(
            connection, people.run_now, which, desk.actor(), state.wall()
        )
    if as_json:
        emit({"automationId": found.automation_id, "runId": claimed.run_id})
    else:
        click.echo(f"{desk.called(found)}: run {claimed.run_id}")


def _token(path: str | None) -> str:
    if path is not None:
        return Path(path).read_text("utf-8", "replace").strip()
    if TOKEN not in os.environ:
        raise click.UsageError(f"no token: give --token-file or set {TOKEN}")
    return os.environ[TOKEN]


for module in (declaring, reviewing, runs):
    for made in module.COMMANDS:
        automations.add_command(made)
