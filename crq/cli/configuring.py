"""
``crq config`` and ``crq token``.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import click

from crq.cli.base import EXIT_CODES, NO, Failed, Group, State, emit, json_option

if TYPE_CHECKING:
    from crq.config import Config, Token


@click.group(cls=Group, epilog=EXIT_CODES)
def config() -> None:
    """
    Check and show the configuration.
    """


@config.command(epilog="\b\nExample:\n  crq --config new.toml config check\n" + EXIT_CODES)
@json_option
@click.pass_obj
def check(state: State, as_json: bool) -> None:
    """
    Check every option and read the secrets; exit code 2 and one line when something is wrong.
    """
    from crq.configfile import ConfigError

    try:
        state.config.sealer()
        state.config.executor.token()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if as_json:
        emit({"ok": True})
    else:
        click.echo("the configuration is good")


@config.command("show", epilog="\b\nExample:\n  crq config show | grep limits\n" + EXIT_CODES)
@json_option
@click.pass_obj
def show_config(state: State, as_json: bool) -> None:
    """
    Show every option: its value, secrets hidden, and what it means.
    """
    shown = _options(state.config)
    if as_json:
        tree: dict[str, Any] = {}
        for section, name, value, _meaning in shown:
            tree.setdefault(section, {})[name] = value
        emit({**tree, "tokens": _tokens(state.config)})
        return
    from crq.cli import tables

    rows = [(f"{section}.{name}", value, why) for section, name, value, why in shown]
    tables.show(tables.table(("option", "value", "meaning"), rows, flexible=("value", "meaning")))
    tokens = [
        (t["name"], t["sha256"], ", ".join(t["scopes"]), ", ".join(t["accounts"]) or "all")
        for t in _tokens(state.config)
    ]
    tables.show(tables.table(("token", "sha256", "scopes", "accounts"), tokens))


def _options(config: Config) -> list[tuple[str, str, Any, str]]:
    from attrs import fields

    found: list[tuple[str, str, Any, str]] = []
    for section in fields(type(config)):
        if section.name == "tokens":
            continue
        options = getattr(config, section.name)
        for attribute in fields(type(options)):
            value = _hidden(section.name, attribute.name, getattr(options, attribute.name))
            found.append(
                (section.name, attribute.name, value, attribute.metadata.get("meaning", ""))
            )
    return found


def _hidden(section: str, name: str, value: Any) -> Any:
    if (section, name) in (("secrets", "salt"), ("secrets", "seal_keys")):
        return "(hidden)" if value else ""
    if (section, name) == ("database", "url"):
        from urllib.parse import urlsplit

        parts = urlsplit(value)
        if parts.password is not None:
            where = parts.netloc.rpartition("@")[2]
            return parts._replace(netloc=f"{parts.username}:(hidden)@{where}").geturl()
    return list(value) if isinstance(value, tuple) else value


def _tokens(config: Config) -> list[dict[str, Any]]:
    return [
        {
            "name": token.name,
            "sha256": token.sha256[:8] + "…",
            "scopes": list(token.scopes),
            "accounts": list(token.accounts),
        }
        for token in config.tokens
    ]


@click.group(cls=Group, epilog=EXIT_CODES)
def token() -> None:
    """
    Make, list and revoke tokens for the HTTP door.
    """


@token.command(
    epilog="\b\nExamples:\n  crq token new --name portal\n"
    "  crq token new --name acme --scope admit --account acme\n" + EXIT_CODES
)
@click.option("--name", default="caller", show_default=True, help="Whose it is.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    default=("admit", "read"),
    show_default=True,
    help="What it may do; may be given many times.",
)
@click.option(
    "--account", "accounts", multiple=True, help="A subdomain it is limited to; none: all."
)
@json_option
def new(name: str, scopes: tuple[str, ...], accounts: tuple[str, ...], as_json: bool) -> None:
    """
    Make a token and print it, once, with the lines that make it known.

    Only the hash is to be kept: add the lines to crqueue.toml and restart the daemon.
    """
    from crq.config import Token
    from crq.sealing import sha256_hex

    bearer = new_token()
    try:
        made = Token(name=name, sha256=sha256_hex(bearer), scopes=scopes, accounts=accounts)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        emit(
            {
                "token": bearer,
                "name": name,
                "sha256": made.sha256,
                "scopes": list(scopes),
                "accounts": list(accounts),
            }
        )
        return
    click.echo(bearer)
    click.echo("add this to crqueue.toml and restart the daemon:", err=True)
    click.echo(token_lines(made), err=True)


@token.command(
    epilog="\b\nExamples:\n  crq token add --name portal\n"
    "  crq token add --name night --scope read --scope operate\n" + EXIT_CODES
)
@click.option("--name", required=True, help="Whose it is; the audit speaks of it by this name.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    default=("admit", "read"),
    show_default=True,
    help="What it may do; may be given many times.",
)
@click.option(
    "--account", "accounts", multiple=True, help="A subdomain it is limited to; none: all."
)
@json_option
@click.pass_obj
def add(
    state: State, name: str, scopes: tuple[str, ...], accounts: tuple[str, ...], as_json: bool
) -> None:
    """
    Make a token, keep its hash in the database, and print it, once.

    Running daemons know it within ten seconds; no restart is needed.
    """
    from crq import tokens
    from crq.cli import reports
    from crq.config import Token
    from crq.sealing import sha256_hex
    from crq.submissions import label

    bearer = new_token()
    accounts = tuple(label(account) for account in accounts)
    try:
        made = Token(name=name, sha256=sha256_hex(bearer), scopes=scopes, accounts=accounts)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if any(each.name == name for each in state.config.tokens):
        raise click.UsageError(f"--name: the configuration has a token {name!r}; choose another")
    with state.database() as (database, connection):
        database.transact(connection, tokens.add, made, reports.who(), state.wall())
    if as_json:
        emit({"token": bearer, "name": name, "scopes": list(scopes), "accounts": list(accounts)})
    else:
        click.echo(bearer)


@token.command("list", epilog=EXIT_CODES)
@json_option
@click.pass_obj
def list_tokens(state: State, as_json: bool) -> None:
    """
    Show the tokens of the database and of the configuration; never the tokens themselves.
    """
    from crq import tokens

    stored = [{**each.as_json(), "from": "database"} for each in state.read(tokens.listed)]
    configured = [
        {**each, "createdAt": None, "revokedAt": None, "from": "configuration"}
        for each in _tokens(state.config)
    ]
    found: list[dict[str, Any]] = [*stored, *configured]
    if as_json:
        emit({"tokens": found})
        return
    from crq.cli import tables

    rows = [
        (
            each["name"],
            ", ".join(each["scopes"]),
            ", ".join(each["accounts"]) or "all",
            each["createdAt"],
            each["revokedAt"],
            each["from"],
        )
        for each in found
    ]
    columns = ("token", "scopes", "accounts", "made", "revoked", "from")
    tables.show(tables.table(columns, rows, flexible=("accounts",)))


@token.command(epilog="\b\nExample:\n  crq token revoke portal\n" + EXIT_CODES)
@click.argument("name")
@json_option
@click.pass_obj
def revoke(state: State, name: str, as_json: bool) -> None:
    """
    Make a token of the database worth nothing; running daemons know it within two seconds.
    """
    from crq import tokens
    from crq.cli import reports
    from crq.submissions import Refusal

    with state.database() as (database, connection):
        try:
            changed = database.transact(
                connection, tokens.revoke, name, reports.who(), state.wall()
            )
        except Refusal as refusal:
            raise Failed(str(refusal), NO) from None
    if as_json:
        emit({"name": name, "changed": changed})
    else:
        click.echo(f"token {name} {'is' if changed else 'was'} revoked")


def new_token() -> str:
    """
    Make a bearer token; its prefix lets scanners of leaked secrets know it.
    """
    return "crq_" + secrets.token_urlsafe(32)


def token_lines(token: Token) -> str:
    """
    The lines of TOML that make a token known.
    """
    lines = [
        "[[tokens]]",
        f"name = {json.dumps(token.name)}",
        f"sha256 = {json.dumps(token.sha256)}",
        f"scopes = {json.dumps(list(token.scopes))}",
    ]
    if token.accounts:
        lines.append(f"accounts = {json.dumps(list(token.accounts))}")
    return "\n".join(lines) + "\n"
