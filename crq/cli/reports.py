"""
What several commands ask the queue: a report, an explanation, who is asking.
"""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING, Any

import click

from crq.cli.base import State

if TYPE_CHECKING:
    from crq.actions import By
    from crq.database import Database
    from crq.interfaces import IGateStore
    from crq.statusreport import StatusReport

note_option = click.option("--note", metavar="TEXT", help="Why; it is kept in the audit.")
account_options = (
    click.option("--subdomain", help="The account, by its subdomain."),
    click.option("--account", metavar="HASH", help="The account, by its hash."),
)


def who() -> str:
    """
    Who acts, as the audit names them: the person behind sudo, where there is one.
    """
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"cli:{user}@{socket.gethostname()}"[:128]


def by(state: State, note: str | None) -> By:
    """
    Who acts, when and why.
    """
    from crq.actions import By
    from crq.audit import NOTE_LENGTH

    if note is not None and len(note) > NOTE_LENGTH:
        raise click.UsageError(f"--note is too long; use at most {NOTE_LENGTH} characters")
    return By(who(), state.wall(), note or None)


def account_of(state: State, subdomain: str | None, account: str | None) -> str | None:
    """
    The account that was named, if one was.
    """
    import re

    from crq.configfile import ConfigError

    if subdomain is not None and account is not None:
        raise click.UsageError("give --subdomain or --account, not both")
    if account is not None and not re.fullmatch("[0-9a-f]{64}", account):
        raise click.UsageError("--account is no account's hash; give 64 hex digits")
    if not subdomain:
        return account
    try:
        return state.config.sealer().account(subdomain.lower())
    except ValueError as error:
        raise ConfigError(str(error)) from None


def key_of(key: str) -> str:
    """
    Make sure that a text is an API key's hash.
    """
    import re

    if not re.fullmatch("[0-9a-f]{64}", key):
        raise click.UsageError("KEY is no key's hash; give 64 hex digits (`crq show` has it)")
    return key


class Reporter:
    """
    Reports of one queue, over one connection.
    """

    def __init__(self, state: State, database: Database, connection: Any) -> None:
        self._state = state
        self._database = database
        self._connection = connection
        self._gates: IGateStore | None = None

    def report(self) -> StatusReport:
        """
        Report how the queue is now, as seen from outside the daemon.
        """
        from crq import status
        from crq.gates import GatesUnreachable
        from crq.model import GateReading

        config = self._state.config
        reading = self._read(status.read)
        now = self._state.wall()
        gates, reachable = GateReading(), True
        if reading.keys:
            try:
                gates = self._store().read(reading.keys, now)
            except GatesUnreachable:
                reachable = False
        made = status.report(
            *(reading, gates, config.limits.limits(), now),
            tick=config.drainer.tick,
            gates_reachable=reachable,
        )
        proven: StatusReport = self._read(status.prove, made)
        return proven

    def closed(self, keys: tuple[str, ...]) -> dict[str, float]:
        """
        Which of these keys are closed, and until when.
        """
        return dict(self._store().read(keys, self._state.wall()).closed) if keys else {}

    def close(self) -> None:
        """
        Let go of the gates' store.
        """
        if self._gates is not None:
            disconnect: Any = getattr(self._gates, "disconnect", None)
            if disconnect is not None:
                disconnect()

    def _store(self) -> IGateStore:
        from crq.gates import open_store

        if self._gates is None:
            self._gates = open_store(self._state.config, self._database)
        return self._gates

    def _read(self, function: Any, *args: Any) -> Any:
        return self._database.read(self._connection, function, *args)
