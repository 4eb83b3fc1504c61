"""
``crq automations``: declare, preview, observe, promote, demote. Reading is in `crq.cli.reviewing`.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crq.cli import reviewing
from crq.cli.base import EXIT_CODES, NO, Failed, Group, State, emit, json_option

if TYPE_CHECKING:
    from crq.automations.desk import Desk
    from crq.automations.model import Automation
    from crq.database import Database

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

which_argument = click.argument("which", metavar="WHICH")


@click.group(cls=Group, epilog=STEPS + EXIT_CODES)
def automations() -> None:
    """
    Let rules decide by a schedule: first to be looked at, then to act.

    Nothing acts before it has observed, and before somebody whose token may do so has promoted it.
    The daemon makes and advances runs, once a minute.
    """


def _fields(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option("--cron", help="Five fields, by the rules of Debian cron."),
            click.option("--zone", help="IANA name of the zone the fields are meant in."),
            click.option(
                "--settings",
                "settings_file",
                type=click.File("rb"),
                help="JSON file with the settings of the type.",
            ),
            click.option(
                "--setting",
                "values",
                metavar="NAME=VALUE",
                multiple=True,
                help="One setting: JSON, or else a text.",
            ),
            click.option(
                "--from",
                "files",
                metavar="NAME=FILE",
                multiple=True,
                help="One setting that is the text of a file: a script, a secret.",
            ),
            click.option("--max-items", type=int, help="Records that one run decides about."),
            click.option("--max-changes", type=int, help="Records that one live run changes."),
            click.option("--owner", help="Whom to ask about it."),
        )
    ):
        function = option(function)
    return function


@automations.command(
    epilog="\b\nExample:\n  crq automations add --tenant acme --name tidy --type housekeeping"
    " \\\n      --cron '15 3 * * *' --zone UTC --setting keep_days=30\n" + EXIT_CODES
)
@click.option("--tenant", required=True, help="Whose it is: the account's subdomain.")
@click.option("--name", required=True, help="What it is called.")
@click.option("--type", "kind", required=True, help="One of `crq automations types`.")
@_fields
@json_option
@click.pass_obj
def add(state: State, /, tenant: str, name: str, kind: str, as_json: bool, **given: Any) -> None:
    """
    Declare an automation. It does nothing until it is told to observe.
    """
    with at_desk(state) as (desk, database, connection):
        fields = _given(desk, kind, {}, given)
        fields = {**fields, "name": name, "type": kind, "config": fields["config"] or {}}
        for word in ("cron", "zone"):
            if fields.get(word) is None:
                raise click.UsageError(f"give --{word}")
        draft = desk.drafted(tenant, fields, state.wall())
        made = database.transact(connection, desk.add, draft, _actor(), state.wall())
    _told(state, made, as_json, "added")


@automations.command(
    epilog="\b\nExample:\n  crq automations edit acme/remind --setting path=/cards/open\n"
    + EXIT_CODES
)
@which_argument
@click.option("--name", help="Another name.")
@_fields
@json_option
@click.pass_obj
def edit(state: State, /, which: str, name: str | None, as_json: bool, **given: Any) -> None:
    """
    Change an automation; what is not given stays as it is.

    Changed settings or caps are a new revision: it goes back to observe, and has to observe to the
    end before it may be promoted again.
    """
    with at_desk(state) as (desk, database, connection):
        before = database.read(connection, desk.found, which)
        fields = _given(desk, before.type, dict(before.config), given)
        after = database.transact(
            connection,
            desk.edit,
            before.automation_id,
            {**fields, "name": name},
            _actor(),
            state.wall(),
            before.config_revision,
        )
    _told(state, after, as_json, "edited")


@automations.command(
    epilog="\b\nExample:\n  crq automations observe acme/remind --now\n" + EXIT_CODES
)
@which_argument
@click.option("--now", "at_once", is_flag=True, help="Make a run at once, too.")
@json_option
@click.pass_obj
def observe(state: State, which: str, at_once: bool, as_json: bool) -> None:
    """
    Switch an automation on, in observe: it decides by its schedule and changes nothing.
    """
    with at_desk(state) as (desk, database, connection):
        after = database.transact(connection, desk.observe, which, _actor(), state.wall())
        if at_once:
            number = after.automation_id
            database.transact(connection, desk.run_now, number, _actor(), state.wall())
    _told(state, after, as_json, "observes")


@automations.command(
    epilog="\b\nExample:\n  crq automations promote acme/remind --token-file token\n\n"
    f"The token comes from --token-file or ${TOKEN}, never from the command line itself, where"
    " other users of the machine could read it.\n" + EXIT_CODES
)
@which_argument
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
    with at_desk(state) as (desk, database, connection):
        token = database.read(connection, halves.token_of, state.config, secret)
        if token is None:
            raise Failed("nobody knows this token", NO)
        outcome = database.transact(connection, desk.promote, which, token.name, state.wall())
    if as_json:
        emit(
            {
                **shown.automation(outcome.automation),
                "obstacles": [shown.obstacle(one) for one in outcome.obstacles],
            }
        )
    elif not outcome.obstacles:
        click.echo(f"{reviewing.called(outcome.automation)} is live")
    else:
        for obstacle in outcome.obstacles:
            click.echo(f"{obstacle.precondition}: {obstacle}", err=True)
        raise Failed(f"{reviewing.called(outcome.automation)} is not promoted", NO)
    if outcome.obstacles:
        raise click.exceptions.Exit(NO)


def _switching(name: str, word: str, about: str) -> None:
    """
    Make a command that changes one thing of an automation.
    """

    @automations.command(
        name, help=about, epilog=f"\b\nExample:\n  crq automations {name} acme/remind\n{EXIT_CODES}"
    )
    @which_argument
    @json_option
    @click.pass_obj
    def command(state: State, which: str, as_json: bool) -> None:
        with at_desk(state) as (desk, database, connection):
            after = database.transact(
                connection, getattr(desk, name), which, _actor(), state.wall()
            )
        _told(state, after, as_json, word)


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
@which_argument
@json_option
@click.pass_obj
def run_now(state: State, which: str, as_json: bool) -> None:
    """
    Make a run outside the schedule; the daemon's next tick begins it.
    """
    with at_desk(state) as (desk, database, connection):
        found, claimed = database.transact(connection, desk.run_now, which, _actor(), state.wall())
    if as_json:
        emit({"automationId": found.automation_id, "runId": claimed.run_id})
    else:
        click.echo(f"{reviewing.called(found)}: run {claimed.run_id}")


@contextmanager
def at_desk(state: State) -> Iterator[tuple[Desk, Database, Any]]:
    """
    The desk, and the database it works on.
    """
    from crq import halves
    from crq.automations.desk import NotFound

    sealer = reviewing.sealer(state)
    with state.database() as (database, connection):
        installed = reviewing.installed(state, database)
        try:
            yield halves.desk(state.config, sealer, installed), database, connection
        except NotFound as error:
            raise Failed(str(error), NO) from None


def _given(desk: Desk, kind: str, config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """
    The fields that options name; None: not given.
    """
    from attrs import fields

    from crq import admission

    changed = False
    if given["settings_file"] is not None:
        found = admission.json_value(given["settings_file"].read(), "--settings")
        if not isinstance(found, dict):
            raise click.UsageError('--settings: write one JSON object, {"name": value, …}')
        config, changed = found, True
    secret = {
        attribute.name
        for attribute in fields(desk.types.known(kind).settings)
        if attribute.metadata.get("secret")
    }
    for text in given["values"]:
        name, value = _pair("--setting", text)
        if name in secret:
            raise click.UsageError(f"{name} is secret: give it as --from {name}=FILE")
        try:
            config[name] = json.loads(value)
        except ValueError:
            config[name] = value
        changed = True
    for text in given["files"]:
        name, path = _pair("--from", text)
        try:
            content = Path(path).read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise click.UsageError(f"--from {name}: {path} is not UTF-8 text") from None
        config[name] = content.rstrip("\r\n") if name in secret else content
        changed = True
    return {
        "config": config if changed else None,
        "cron": given["cron"],
        "zone": given["zone"],
        "max_items_per_run": given["max_items"],
        "max_changes_per_run": given["max_changes"],
        "owner": given["owner"],
    }


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{option} {text}: write it as NAME=…")
    return name, value


def _actor() -> str:
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container may have no name for its user
        return f"cli:{os.getuid()}"


def _token(path: str | None) -> str:
    if path is not None:
        return Path(path).read_text("utf-8", "replace").strip()
    if TOKEN not in os.environ:
        raise click.UsageError(f"no token: give --token-file or set {TOKEN}")
    return os.environ[TOKEN]


def _told(state: State, automation: Automation, as_json: bool, word: str) -> None:
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
    click.echo(f"{reviewing.called(automation)} {word}: {mode}, revision {revision}{more}")


reviewing.attach(automations)
