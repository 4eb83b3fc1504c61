"""
What all commands share: configuration, database, output, errors in one line.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from crq import instants

if TYPE_CHECKING:
    from crq.config import Config
    from crq.database import Cursor, Database

T = TypeVar("T")
P = ParamSpec("P")

OK, NO, USAGE, AWAY, BROKEN, DEGRADED = 0, 1, 2, 3, 4, 5
EXIT_CODES = """
\b
Exit codes:
  0  done
  1  the answer is no: refused, not found, too late, stalled
  2  wrong usage, configuration or input
  3  the database is away, or not at this version's schema
  4  a fault in crq itself
  5  the queue is degraded (crq status alone)
"""
APIKEY = "CRQ_APIKEY"  # read by `crq submit`; every other CRQ_ variable is an option


class Failed(click.ClickException):
    """
    A command that cannot go on: one line on stderr and an exit code.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(visible(message))
        self.exit_code = exit_code  # type: ignore[misc]  # click means it to be overridden


class Group(click.Group):
    """
    A group whose commands end in one line, never in a traceback.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """
        Run a command; what it raises becomes a message and an exit code.
        """
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            # The boundary to the person at the terminal.
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click ends quietly when nobody reads on
            raise explained(error) from None


def explained(error: Exception) -> Failed:
    """
    What went wrong, for a person, with its exit code.
    """
    from crq.automations.model import Unfit
    from crq.configfile import ConfigError
    from crq.database import CommitUnknown, is_outage
    from crq.schema import SchemaMismatch
    from crq.submissions import Refusal

    if isinstance(error, (ConfigError, Refusal, Unfit)):
        return Failed(str(error), USAGE)
    if isinstance(error, SchemaMismatch):
        return Failed(str(error), AWAY)
    if isinstance(error, CommitUnknown):
        return Failed("the database went away during the commit; look before trying again", AWAY)
    if is_outage(error):
        return Failed(f"the database does not answer: {error}", AWAY)
    if isinstance(error, OSError):
        return Failed(f"{error.filename or 'file'}: {error.strerror}", USAGE)
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" ({place.tb_frame.f_code.co_filename}:{place.tb_lineno})"
    return Failed(f"fault in crq: {type(error).__name__}: {error}{where}", BROKEN)


class State:
    """
    What the options before the command said.

    :ivar wall: the wall clock.
    :ivar sleep: waits some seconds, for commands that look again and again.
    """

    def __init__(self, path: str | None, settings: tuple[str, ...]) -> None:
        self.path = path
        self.settings = settings
        self.wall: Callable[[], instants.Instant] = time.time
        self.sleep: Callable[[float], None] = time.sleep

    @cached_property
    def config(self) -> Config:
        """
        The configuration, read when it is first needed.
        """
        from crq import configfile

        environment = {name: text for name, text in os.environ.items() if name != APIKEY}
        return configfile.load(self.path, environment, self.settings)

    @contextmanager
    def database(self) -> Iterator[tuple[Database, Any]]:
        """
        The database and a connection to it, at the schema of this version.
        """
        from crq import schema

        database = self.config.open_database()
        if database.dialect == "sqlite" and not Path(database.path).exists():
            # Connecting would make an empty file.
            raise Failed(f"there is no database at {database.path}; run `crq db upgrade`", AWAY)
        connection = database.connect()
        try:
            database.read(connection, schema.check)
            yield database, connection
        finally:
            connection.close()

    def read(
        self, function: Callable[Concatenate[Cursor, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """
        Run one reading function.
        """
        with self.database() as (database, connection):
            return database.read(connection, function, *args, **kwargs)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text for people."
)


def emit(value: Mapping[str, Any]) -> None:
    """
    Print a value as JSON.
    """
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def visible(text: str, keep: str = "") -> str:
    """
    Escape what a terminal would obey or not show: control characters, direction marks, newlines.

    Customers choose subdomains, identifiers and messages; none of them may paint our screen.
    """
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
