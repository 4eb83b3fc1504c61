"""
The transactions of `crq.database` through an adbapi pool, for the daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from twisted.enterprise import adbapi
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorCore

from crq.database import Database

T = TypeVar("T")
P = ParamSpec("P")


class _Connection(adbapi.Connection):
    """
    A pooled connection whose transactions `Database.transact` has already ended.

    adbapi would send a second COMMIT after each interaction, and log two tracebacks for each one
    that failed while the server was away.
    """

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass


class Pool:
    """
    The daemon's connections: one for SQLite (it has one writer), a few for MySQL.
    """

    def __init__(self, database: Database, reactor: IReactorCore, size: int = 4) -> None:
        self._database = database
        if database.dialect == "sqlite":
            size = 1
        self._pool = adbapi.ConnectionPool(
            database.module,
            cp_reactor=reactor,
            cp_name="crqueue-database",
            cp_min=1,
            cp_max=size,
            cp_openfun=database.prepare,
            cp_noisy=False,
            **database.connect_arguments(),
        )
        self._pool.connectionFactory = _Connection

    def read(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """
        Run a reading function (its first parameter is a `crq.database.Cursor`) on a pool thread.
        """
        result: Deferred[T] = self._pool.runWithConnection(
            self._database.read, function, *args, **kwargs
        )
        return result

    def transact(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """
        Run a function in one transaction on a pool thread.

        :raise CommitUnknown: (through the Deferred) the answer to COMMIT was lost.
        """
        result: Deferred[T] = self._pool.runWithConnection(
            self._database.transact, function, *args, **kwargs
        )
        return result
