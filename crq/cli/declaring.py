"""
``crq automations add`` and ``edit``: what is given for an automation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crq.cli import desk
from crq.cli.base import EXIT_CODES, State, json_option

if TYPE_CHECKING:
    from crq.automations.desk import Desk


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


@click.command(
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
    with desk.at_desk(state) as (people, database, connection):
        fields = _given(people, kind, {}, given)
        fields = {**fields, "name": name, "type": kind, "config": fields["config"] or {}}
        for word in ("cron", "zone"):
            if fields.get(word) is None:
                raise click.UsageError(f"give --{word}")
        draft = people.drafting.drafted(tenant, fields, state.wall())
        made = database.transact(connection, people.add, draft, desk.actor(), state.wall())
    desk.told(state, made, as_json, "added")


@click.command(
    epilog="\b\nExample:\n  crq automations edit acme/remind --setting path=/cards/open\n"
    + EXIT_CODES
)
@desk.which_argument
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
    with desk.at_desk(state) as (people, database, connection):
        before = database.read(connection, people.found, which)
        fields = _given(people, before.type, dict(before.config), given)
        after = database.transact(
            connection,
            people.edit,
            before.automation_id,
            {**fields, "name": name},
            desk.actor(),
            state.wall(),
            before.config_revision,
        )
    desk.told(state, after, as_json, "edited")


def _given(
    people: Desk, kind: str, config: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
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
        for attribute in fields(people.drafting.types.known(kind).settings)
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


COMMANDS = (add, edit)
