"""
Gates in a table of the database, for those who have no memcached.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from zope.interface import implementer

from crq.database import Cursor, Database, is_outage
from crq.gatevalues import GatesUnreachable, name_of
from crq.instants import Instant, instant_of, instant_text
from crq.interfaces import IGateStore
from crq.model import GateReading

T = TypeVar("T")
P = ParamSpec("P")

CHUNK = 500  # keys of one SELECT; SQLite takes a limited number of parameters
FORGET_AFTER = 86_400.0  # s after which a passed gate's row is deleted
FORGET_AT_ONCE = 100  # rows deleted after one close

# Assigned from left to right: closed_at is compared with the gate that still stands.
_CLOSE_MYSQL = """
    INSERT INTO codeRunner_gates (apikey_hash, closed_until, closed_at) VALUES (?, ?, ?)
    ON DUPLICATE KEY UPDATE
        closed_at = IF(VALUES(closed_until) > closed_until, VALUES(closed_at), closed_at),
        closed_until = GREATEST(closed_until, VALUES(closed_until))
"""
_CLOSE_SQLITE = """
    INSERT INTO codeRunner_gates (apikey_hash, closed_until, closed_at) VALUES (?, ?, ?)
    ON CONFLICT (apikey_hash) DO UPDATE
       SET closed_until = excluded.closed_until, closed_at = excluded.closed_at
     WHERE excluded.closed_until > codeRunner_gates.closed_until
"""


@implementer(IGateStore)
class DatabaseGates:
    """
    On a connection of its own, which one thread at a time uses: others wait.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None
        self._turn = threading.Lock()

    def read(self, keys: Collection[str], now: Instant) -> GateReading:
        """
        Tell which of these keys are closed, in one statement (for each 500 keys).
        """
        names = {key: name_of(key) for key in keys}
        found = self._run(self._database.read, _closed, list(names.values()), now)
        closed: dict[str, Instant] = {}
        unreadable: dict[str, str] = {}
        for key, name in names.items():
            if name not in found:
                continue
            try:
                closed[key] = instant_of(found[name])
            except ValueError:
                unreadable[key] = repr(found[name])
        return GateReading(closed, unreadable)

    def close(self, key: str, until: Instant, now: Instant) -> Instant:
        """
        Close a key until an instant and return until when it is closed now.
        """
        until = float(math.ceil(until))
        standing = self._run(self._database.transact, _close, name_of(key), until, now)
        with suppress(GatesUnreachable):  # tidying up may wait; the gate stands
            self._run(self._database.read, _forget, now)
        return standing

    def open(self, key: str) -> None:
        """
        Forget a key's gate.
        """
        self._run(self._database.read, _open, name_of(key))

    def disconnect(self) -> None:
        """
        Let go of the connection; the next question opens one.
        """
        with self._turn:
            self._drop()

    def _run(
        self,
        how: Callable[..., Any],
        function: Callable[Concatenate[Cursor, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        with self._turn:
            try:
                if self._connection is not None and self._database.moved(self._connection):
                    self._drop()
                if self._connection is None:
                    self._connection = self._database.connect()
                result: T = how(self._connection, function, *args, **kwargs)
                return result
            except Exception as error:
                self._drop()
                if not is_outage(error):
                    raise
                raise GatesUnreachable(f"database: {type(error).__name__}: {error}") from error

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _closed(txn: Cursor, names: Sequence[str], now: Instant) -> dict[str, str]:
    found: dict[str, str] = {}
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        places = ", ".join("?" * len(chunk))
        rows = txn.execute(
            f"""
            SELECT apikey_hash, closed_until FROM codeRunner_gates
             WHERE apikey_hash IN ({places}) AND closed_until > ?
            """,  # noqa: S608 - only placeholders are put in
            (*chunk, instant_text(now)),
        ).all()
        found.update((name, until) for name, until in rows)
    return found


def _close(txn: Cursor, name: str, until: Instant, now: Instant) -> Instant:
    txn.execute(
        _CLOSE_SQLITE if txn.dialect == "sqlite" else _CLOSE_MYSQL,
        (name, instant_text(until), instant_text(now)),
    )
    standing = txn.execute(
        "SELECT closed_until FROM codeRunner_gates WHERE apikey_hash = ?", (name,)
    ).scalar()
    return instant_of(standing)


def _open(txn: Cursor, name: str) -> None:
    txn.execute("DELETE FROM codeRunner_gates WHERE apikey_hash = ?", (name,))


def _forget(txn: Cursor, now: Instant) -> None:
    # Found without a lock and deleted by key, each only if it has not been closed anew meanwhile.
    before = instant_text(now - FORGET_AFTER)
    rows = txn.execute(
        "SELECT apikey_hash FROM codeRunner_gates WHERE closed_until < ? LIMIT ?",
        (before, FORGET_AT_ONCE),
    ).all()
    for (name,) in rows:
        txn.execute(
            "DELETE FROM codeRunner_gates WHERE apikey_hash = ? AND closed_until < ?",
            (name, before),
        )
