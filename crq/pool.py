"""
The transactions of `crq.database` through an adbapi pool, for the daemon.

Whatever of the daemon asks the database asks here, so this is where an outage of it is told: in one
line, whoever met it first, and in another when it is over (`crq.outages`). Others do not log it.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from twisted.enterprise import adbapi
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from crq.database import Database, is_outage
from crq.outages import Outage

T = TypeVar("T")
P = ParamSpec("P")

QUIET = 5.0  # s; on a server that is read-only the reads between the failing writes go well


class _Connection(adbapi.Connection):
    """
    A pooled connection whose transactions `Database.transact` has already ended.

    adbapi would send a second COMMIT after each interaction, and log two tracebacks for each one
    that failed while the server was away.
    """

    def __init__(self, pool: Any, database: Database) -> None:
        super().__init__(pool)
        if database.moved(self._connection):
            self.reconnect()

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        # adbapi calls this when an interaction has raised. PyMySQL's connections are opened again
        # by `Database`; one to a file may have been opened to read alone.
        if isinstance(sys.exception(), sqlite3.Error):
            self._pool.disconnect(self._connection)


class Pool:
    """
    The daemon's connections: one for SQLite (it has one writer), a few for MySQL.

    :ivar outage: whether the database fails.
    :ivar size: how many connections there may be.
    """

    _log = Logger()

    def __init__(self, database: Database, reactor: Any, size: int = 4) -> None:
        self._database = database
        self._reactor = reactor
        self.outage = self._outage(lambda: float(reactor.seconds()))
        self.size = 1 if database.dialect == "sqlite" else size
        self._pool = adbapi.ConnectionPool(
            database.module,
            cp_reactor=reactor,
            cp_name="crqueue-database",
            cp_min=1,
            cp_max=self.size,
            cp_openfun=database.prepare,
            cp_noisy=False,
            **database.connect_arguments(),
        )
        self._pool.connectionFactory = partial(_Connection, database=database)  # type: ignore[assignment]

    def read(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """
        Run a reading function (its first parameter is a `crq.database.Cursor`) on a pool thread.
        """
        return self._ask(self._database.read, function, *args, **kwargs)

    def transact(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """
        Run a function in one transaction on a pool thread.

        :raise CommitUnknown: (through the Deferred) the answer to COMMIT was lost.
        """
        return self._ask(self._database.transact, function, *args, **kwargs)

    def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """
        Run a function that asks the database nothing on a pool thread: what takes too long for the
        reactor's.
        """
        result: Deferred[T] = deferToThreadPool(
            self._reactor, self._pool.threadpool, function, *args, **kwargs
        )
        return result

    def _outage(self, clock: Callable[[], float]) -> Outage:
        return Outage("the database", clock, self._log, "database away", "database back", QUIET)

    def _ask(self, how: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        return self._on_thread(how, *args, **kwargs).addCallbacks(self._answered, self._failed)

    def _on_thread(self, how: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        answer: Deferred[Any] = self._pool.runWithConnection(how, *args, **kwargs)
        return answer

    def _answered(self, answer: T) -> T:
        self.outage.went_well()
        return answer

    def _failed(self, failure: Failure) -> Failure:
        if failure.value is not None and is_outage(failure.value):
            self.outage.failed(failure.value)
        return failure
