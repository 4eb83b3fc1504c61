"""
``crq init`` and ``crq db``: what a first run and an upgrade need.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click

from crq.cli.base import AWAY, EXIT_CODES, NO, OK, Failed, Group, State, emit, json_option
from crq.cli.configuring import new_token, token_lines

CONFIG_FILE, SALT_FILE, KEYS_FILE, DATABASE_FILE = (
    "crqueue.toml",
    "salt",
    "seal.keys",
    "crqueue.db",
)
TEMPLATE = """\
# crqueue. `crq config show` names every option with its meaning.
# Relative paths are relative to this file. `crq token new` makes further tokens.

[database]
url = "sqlite:///{database}"

[secrets]
salt_file = "{salt}"
seal_keys_file = "{keys}"

[drainer]
lock_file = "crqueue.lock"

[executor]
lock_dir = "locks"

{token}"""


@click.command(epilog="\b\nExamples:\n  crq init\n  crq init /var/lib/crqueue\n" + EXIT_CODES)
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False))
@json_option
def init(folder: str, as_json: bool) -> None:
    """
    Make everything a first run needs in DIR (default: here).

    Writes crqueue.toml, a salt and a sealing key that only their owner may read, makes the SQLite
    database, and prints a token once. Nothing that exists is overwritten.
    """
    from cryptography.fernet import Fernet

    from crq import schema
    from crq.config import SCOPES, Token
    from crq.database import Database
    from crq.sealing import sha256_hex

    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in (CONFIG_FILE, SALT_FILE, KEYS_FILE):
        if (root / name).exists():
            raise Failed(f"{root / name} exists already; nothing was changed", NO)
    bearer = new_token()
    token = Token(name="first", sha256=sha256_hex(bearer), scopes=SCOPES)
    _write(root / SALT_FILE, secrets.token_urlsafe(32))
    _write(root / KEYS_FILE, Fernet.generate_key().decode("ascii"))
    path = root / CONFIG_FILE
    _write(
        path,
        TEMPLATE.format(
            database=DATABASE_FILE, salt=SALT_FILE, keys=KEYS_FILE, token=token_lines(token)
        ).rstrip("\n"),
    )
    database = root / DATABASE_FILE
    # SQLite's own files take their mode from it; it holds sealed keys and everybody's scripts.
    os.close(os.open(database, os.O_WRONLY | os.O_CREAT, 0o600))
    revision = schema.upgrade(Database(f"sqlite:///{database.absolute()}"))
    if as_json:
        emit({"config": str(path), "revision": revision, "token": bearer})
        return
    click.echo(f"{path} written; database {database} at revision {revision}")
    click.echo("a token for the HTTP door, shown this once:")
    click.echo(bearer)


def _write(path: Path, text: str) -> None:
    # O_EXCL: what somebody else has made meanwhile is not overwritten either.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")


@click.group(cls=Group, epilog=EXIT_CODES)
def db() -> None:
    """
    Create, upgrade and check the tables.
    """


@db.command(epilog="\b\nExample:\n  crq db upgrade\n" + EXIT_CODES)
@json_option
@click.pass_obj
def upgrade(state: State, as_json: bool) -> None:
    """
    Bring the database to the schema of this version; creates it if there is none.
    """
    from crq import schema

    revision = schema.upgrade(state.config.open_database())
    if as_json:
        emit({"revision": revision})
    else:
        click.echo(f"the database is at revision {revision}")


@db.command(epilog="\b\nExample:\n  crq db current\n" + EXIT_CODES)
@json_option
@click.pass_obj
def current(state: State, as_json: bool) -> None:
    """
    Say at which revision the database is; exit code 1 when it is not this version's.
    """
    from crq import migrations, schema

    database = state.config.open_database()
    if database.dialect == "sqlite" and not Path(database.path).exists():
        raise Failed(f"there is no database at {database.path}; run `crq db upgrade`", AWAY)
    connection = database.connect()
    try:
        revision = database.read(connection, schema.current)
    finally:
        connection.close()
    if as_json:
        emit({"revision": revision, "needed": migrations.HEAD})
    else:
        click.echo(f"revision {revision or 'none'}, this version needs {migrations.HEAD}")
    raise click.exceptions.Exit(OK if revision == migrations.HEAD else NO)


@db.command(epilog="\b\nExample:\n  crq db sql --dialect mysql > crqueue.sql\n" + EXIT_CODES)
@click.option(
    "--dialect", type=click.Choice(("mysql", "sqlite")), default="mysql", show_default=True
)
def sql(dialect: str) -> None:
    """
    Print the SQL of the whole schema, for a DBA to read or to run.
    """
    from crq import schema

    click.echo(schema.sql(dialect))
