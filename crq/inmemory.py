"""
The tables in SQLite in memory, and transactions that have run when their Deferred is returned.

For everything that looks at a queue inside one process and one thread: the simulator, the tests of
those who use crqueue, and our own. The statements are the daemon's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

from attrs import field, frozen
from twisted.internet import defer
from twisted.internet.defer import Deferred

from crq import schema
from crq.database import Database
from crq.pool import Pool

T = TypeVar("T")
P = ParamSpec("P")

URL = "sqlite:///:memory:"


class _Kept(sqlite3.Connection):
    """
    A connection that outlives those who use it: with its end the database would be gone.
    """

    identity = None  # of a file: there is none

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@frozen
class MemoryDatabase(Database):
    """
    An empty database in memory, with the schema; everybody gets the one connection to it.

    So nobody may begin a transaction inside another one: call from one thread, never from inside a
    transaction's function.
    """

    url: str = field(default=URL, init=False, repr=False)
    _kept: list[_Kept] = field(init=False, factory=list, repr=False, eq=False)

    def connect(self) -> Any:
        """
        The one connection.
        """
        if not self._kept:
            opened = sqlite3.connect(**{**self.connect_arguments(), "factory": _Kept})
            self._kept.append(opened)
            self.prepare(opened)
            opened.executescript(schema_text())
        return self._kept[0]

    def end(self) -> None:
        """
        Forget everything.
        """
        while self._kept:
            self._kept.pop().end()


class SynchronousPool(Pool):
    """
    A `crq.pool.Pool` on one connection, whose every Deferred has fired when it is returned.

    `Database.observe` may count or disturb the statements. A database in memory is created empty,
    with the schema.

    :ivar connection: for those who want to look behind the scenes.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = lambda: 0.0) -> None:
        # Not Pool's own: it would start an adbapi pool with threads.
        self.database = self._database = database
        self.outage = self._outage(clock)
        self.size = 1
        self.connection: Any = database.connect()
        if database.path == ":memory:" and not isinstance(database, MemoryDatabase):
            self.connection.executescript(schema_text())

    def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """
        Run a function now.
        """
        return defer.execute(function, *args, **kwargs)

    def _on_thread(self, how: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        return defer.execute(how, self.connection, *args, **kwargs)

    def close(self) -> None:
        """
        Close the connection; but see `MemoryDatabase.end`.
        """
        self.connection.close()


@cache
def schema_text() -> str:
    """
    The SQL of the whole schema for SQLite; making it takes a moment, so it is made once.
    """
    return schema.sql("sqlite")
