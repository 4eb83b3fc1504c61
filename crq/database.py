"""
The two databases: how to connect, how a transaction runs, what an error means.

Synchronous and without Twisted, so that the daemon (through `crq.pool`), the executor and the
command line run the very same statements.

# Note [What a transaction may assume]

Connections are in autocommit mode; `transact` brackets a function with BEGIN and COMMIT. The
function may run up to three times (a deadlock, a lock wait or a lost connection undoes it whole),
so it must only touch its cursor. MariaDB's default undoes a single statement on a lock-wait
time-out and leaves the rest of the transaction standing: that is why 1205 rolls back here.
When the answer to COMMIT itself is lost nobody knows whether it holds: `CommitUnknown` says so, and
the caller settles it by reading, never by repeating.

# Note [Connections that must not be kept]

A server that has become read-only is often one that was replaced: its name leads to another by now,
and only a new connection finds that one. A SQLite file that was replaced or removed lives on for
whoever has it open, and what is written there is lost: each transaction looks whether the name
still leads to the file, and a missing file is never made anew by whoever wants to use it.

# Note [Several nodes]

On Galera a node knows nothing of the locks of another: two transactions on two nodes may both
believe that they hold a row, and one of them is undone at its COMMIT, or before, with 1213. That
goes by the rows they have *written*: so every lock of ours is a row that is written first, and a
claim or an admission that has counted while another one committed is undone, and counts again. It
is repeated more often than elsewhere, after a moment that differs each time: a conflict is no fault
there, but how nodes take turns.
What another node has committed is seen a moment later, unless one asks to wait for it
(wsrep_sync_wait): without, a nonce would be worth nothing yet where the executor shows it.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pymysql
from attrs import field, frozen
from pymysql.constants import CLIENT, FIELD_TYPE
from pymysql.converters import conversions

from crq import crashpoints
from crq.databaseerrors import CommitUnknown, is_lost, is_outage, is_read_only, is_repeatable

__all__ = [
    "CommitUnknown",
    "Cursor",
    "Database",
    "is_lost",
    "is_outage",
    "is_read_only",
    "is_repeatable",
]

T = TypeVar("T")
P = ParamSpec("P")

ATTEMPTS = 3  # of one transaction (ruling 11)
CERTIFIED_ATTEMPTS = 10  # on Galera; see note [Several nodes]
TURN = 0.01  # s that a node waits there, on average, for each attempt that has failed
LOCK_WAIT = 5  # s; a claim that waits longer is better off in the next tick
IDLE_LIMIT = 10  # s between two statements of a transaction that has written
BUSY_TIMEOUT = 5.0  # s; SQLite writers queue for one lock, and its queue is not fair

# DATETIME comes back as the text that went in: see crq.instants.instant_text.
_CONVERSIONS: Final = {
    kind: how
    for kind, how in conversions.items()
    if kind not in (FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP)
}
_SQL_MODE: Final = (
    "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)


class _File(sqlite3.Connection):
    """
    A connection to a SQLite file that knows which file it was.

    :ivar identity: device and inode; None for a database in memory.
    """

    identity: tuple[int, int] | None = None


class Cursor:
    """
    A DB-API cursor that takes ``?`` for a parameter on both databases.

    :ivar dialect: ``sqlite`` or ``mysql``, for the few statements that differ.
    """

    __slots__ = ("_cursor", "_observe", "dialect")

    def __init__(self, cursor: Any, dialect: str, observe: Callable[[str], None] | None) -> None:
        self._cursor = cursor
        self._observe = observe
        self.dialect = dialect

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Cursor:
        """
        Run one statement and return this cursor.
        """
        if self._observe is not None:
            self._observe(sql)
        if self.dialect == "mysql":
            self._cursor.execute(sql.replace("?", "%s"), parameters)
        else:
            self._cursor.execute(sql, parameters)
        return self

    def one(self) -> tuple[Any, ...] | None:
        """
        The next row, or None.
        """
        row: tuple[Any, ...] | None = self._cursor.fetchone()
        return row

    def all(self) -> Sequence[tuple[Any, ...]]:
        """
        All rows that are left.
        """
        rows: Sequence[tuple[Any, ...]] = self._cursor.fetchall()
        return rows

    def scalar(self) -> Any:
        """
        The first column of the next row; None when there is no row.
        """
        row = self._cursor.fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        """
        Let go of a result that was not read to its end: SQLite would keep its snapshot.
        """
        with suppress(Exception):  # the connection may be gone
            self._cursor.close()

    @property
    def rowcount(self) -> int:
        """
        Rows the last statement matched (not only those it changed) on both databases.
        """
        return int(self._cursor.rowcount)

    @property
    def lastrowid(self) -> int:
        """
        The key of the last inserted row.
        """
        return int(self._cursor.lastrowid)


@frozen
class Database:
    """
    One database, by its URL. Holds no connection.

    :ivar url: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or
        ``mysql://user:password@host:port/name`` with ``unix_socket``, ``ssl_ca`` as options.
    :ivar timeout: seconds to connect, and to wait for an answer, before the server counts as away.
    :ivar galera: the server is a node of Galera, and others may write to other nodes.
    :ivar rest: waits so many seconds.
    :ivar observe: called with the text of each statement, to count or to disturb them.
    :ivar repeated: called with the error whenever a transaction is run again.
    """

    url: str = field(repr=False)
    timeout: float = 10.0
    galera: bool = False
    rest: Callable[[float], None] = field(default=time.sleep, repr=False, eq=False)
    observe: Callable[[str], None] | None = field(default=None, repr=False, eq=False)
    repeated: Callable[[BaseException], None] | None = field(default=None, repr=False, eq=False)

    @url.validator
    def _understood(self, _attribute: object, _value: str) -> None:
        self.connect_arguments()

    @property
    def dialect(self) -> str:
        """
        ``sqlite`` or ``mysql`` (MariaDB included).
        """
        return "sqlite" if urlsplit(self.url).scheme == "sqlite" else "mysql"

    @property
    def module(self) -> str:
        """
        The DB-API module, by name, as adbapi wants it.
        """
        return "sqlite3" if self.dialect == "sqlite" else "pymysql"

    @property
    def path(self) -> str:
        """
        The file of a SQLite database.
        """
        return unquote(urlsplit(self.url).path[1:])

    def connect_arguments(self) -> dict[str, Any]:
        """
        Keyword arguments of the module's ``connect``.

        :raise ValueError: the URL is not one we understand; the text never repeats the password.
        """
        parts = urlsplit(self.url)
        if parts.scheme == "sqlite":
            if parts.netloc or not self.path:
                raise ValueError("a SQLite URL is sqlite:///relative.db or sqlite:////absolute.db")
            in_memory = self.path == ":memory:"
            return {
                "database": self.path if in_memory else f"file:{quote(self.path)}?mode=rw",
                "uri": not in_memory,
                "timeout": BUSY_TIMEOUT,
                "isolation_level": None,
                "check_same_thread": False,  # adbapi closes connections from the reactor's thread
                "factory": _File,
            }
        if parts.scheme not in ("mysql", "mariadb"):
            raise ValueError("the URL must begin with sqlite:/// or mysql://")
        name = unquote(parts.path.lstrip("/"))
        if not name or "/" in name:
            raise ValueError("the URL must name a database: mysql://user:password@host:3306/name")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(set(options) - {"unix_socket", "ssl_ca"})
        if unknown:
            raise ValueError(f"the URL has an unknown option: {unknown[0]}")
        return {
            "host": parts.hostname or "localhost",
            "port": parts.port or 3306,
            "user": unquote(parts.username or "") or None,
            "password": unquote(parts.password or ""),
            "database": name,
            "charset": "utf8mb4",
            "autocommit": True,
            # So that rowcount means the same as on SQLite: rows matched.
            "client_flag": CLIENT.FOUND_ROWS,
            "connect_timeout": max(1, int(self.timeout)),
            "read_timeout": self.timeout,
            "write_timeout": self.timeout,
            "conv": _CONVERSIONS,
            **{name: value for name, value in options.items() if value},
        }

    def connect(self) -> Any:
        """
        Open a connection that is ready for use.
        """
        module = sqlite3 if self.dialect == "sqlite" else pymysql
        connection = module.connect(**self.connect_arguments())
        self.prepare(connection)
        return connection

    def prepare(self, connection: Any) -> None:
        """
        Give a fresh connection the session we rely on (adbapi's ``cp_openfun``).
        """
        cursor = connection.cursor()
        if self.dialect == "sqlite":
            cursor.execute("PRAGMA synchronous = FULL")  # a commit that answered is on the disk
            cursor.execute("PRAGMA foreign_keys = ON")
            connection.identity = self._identity()
        else:
            # Shorter than our own patience: else a lock wait would look like a lost server.
            lock_wait = max(1, min(LOCK_WAIT, int(self.timeout / 2)))
            cursor.execute(
                f"SET SESSION sql_mode = '{_SQL_MODE}', time_zone = '+00:00',"
                f" innodb_lock_wait_timeout = {lock_wait}"
                # MariaDB's alone: whoever freezes, or loses its host, inside a transaction would
                # hold a lock row, and with it everybody, until the server misses it hours later.
                f" /*M!100302 , idle_write_transaction_timeout = {IDLE_LIMIT} */"
            )
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            if self.galera:
                cursor.execute("SET SESSION wsrep_sync_wait = 7")  # reads, updates, inserts
        cursor.close()

    def read(
        self,
        connection: Any,
        function: Callable[Concatenate[Cursor, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """
        Run a function that only reads; each statement sees what is committed by then.
        """
        return self._attempts(connection, False, function, *args, **kwargs)

    def transact(
        self,
        connection: Any,
        function: Callable[Concatenate[Cursor, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """
        Run a function in one transaction (see note [What a transaction may assume]).

        :raise CommitUnknown: the answer to COMMIT was lost.
        """
        return self._attempts(connection, True, function, *args, **kwargs)

    def _attempts(
        self,
        connection: Any,
        write: bool,
        function: Callable[Concatenate[Cursor, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        attempts = CERTIFIED_ATTEMPTS if self.galera else ATTEMPTS
        for attempt in range(1, attempts + 1):
            committing = False
            cursor = None
            try:
                if self.moved(connection):
                    raise sqlite3.OperationalError("the database file was replaced or removed")
                cursor = Cursor(connection.cursor(), self.dialect, self.observe)
                if write:
                    cursor.execute("BEGIN IMMEDIATE" if self.dialect == "sqlite" else "BEGIN")
                result = function(cursor, *args, **kwargs)
                if write:
                    crashpoints.reached("committing", function)
                    committing = True
                    cursor.execute("COMMIT")
                    crashpoints.reached("committed", function)
                return result
            except BaseException as error:
                lost = is_lost(error)
                if cursor is not None:
                    cursor.close()
                if write and not lost:
                    self._roll_back(connection)
                if lost and committing:
                    self._discard(connection)
                    raise CommitUnknown from error
                # A server that was too slow once is not asked the same again while others wait.
                again = is_repeatable(error) or (lost and "timed out" not in str(error))
                if attempt == attempts or not again:
                    if lost or is_read_only(error):
                        self._discard(connection)
                    raise
                if self.repeated is not None:
                    self.repeated(error)
                if self.galera and not lost:
                    self.rest(random.uniform(0, 2 * TURN * attempt))
                if lost:
                    self._reopen(connection)
        raise AssertionError("unreachable")

    def moved(self, connection: Any) -> bool:
        """
        Whether a connection is to a SQLite file that was replaced or removed.

        See note [Connections that must not be kept]; whoever keeps a connection asks before he uses
        it, and opens another.
        """
        if self.dialect != "sqlite" or connection.identity is None:
            return False
        try:
            return bool(self._identity() != connection.identity)
        except OSError:
            return True

    def _identity(self) -> tuple[int, int] | None:
        if self.path == ":memory:":
            return None
        found = os.stat(self.path)
        return found.st_dev, found.st_ino

    def _roll_back(self, connection: Any) -> None:
        try:
            if self.dialect == "mysql" or connection.in_transaction:
                # As a statement: the method of a pooled connection is adbapi's, and does nothing.
                connection.cursor().execute("ROLLBACK")
        except Exception:  # noqa: BLE001
            # A connection that cannot even roll back is not used again: the server undoes it.
            self._discard(connection)

    def _discard(self, connection: Any) -> None:
        with suppress(Exception):
            connection.close() if self.dialect == "sqlite" else connection._force_close()

    def _reopen(self, connection: Any) -> None:
        self._discard(connection)
        connection.connect()
        self.prepare(connection)
