"""
What tests share: a pool that works at once, without threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeVar

from twisted.internet import defer
from twisted.internet.defer import Deferred

from crq import schema
from crq.database import Database
from crq.pool import Pool

T = TypeVar("T")
P = ParamSpec("P")


class SynchronousPool(Pool):
    """
    A `crq.pool.Pool` on one connection, whose every Deferred has fired when it is returned.

    The real transactions on a real SQLite; `Database.observe` may count or disturb statements. A
    database in memory is created empty, with the schema.

    :ivar connection: for a test that wants to look behind the scenes.
    """

    def __init__(self, database: Database) -> None:
        # Not Pool's own: it would start an adbapi pool with threads.
        self.database = database
        self.connection: Any = database.connect()
        if database.path == ":memory:":
            self.connection.executescript(_schema())

    def read(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """
        Run a reading function now.
        """
        return defer.execute(lambda: self.database.read(self.connection, function, *args, **kwargs))

    def transact(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Deferred[T]:
        """
        Run a function in one transaction now.
        """
        return defer.execute(
            lambda: self.database.transact(self.connection, function, *args, **kwargs)
        )

    def close(self) -> None:
        """
        Close the connection; a database in memory is gone then.
        """
        self.connection.close()


def memory_pool(observe: Callable[[str], None] | None = None) -> SynchronousPool:
    """
    An empty database in memory, with the schema.
    """
    return SynchronousPool(Database("sqlite:///:memory:", observe=observe))


@cache
def _schema() -> str:
    return schema.sql("sqlite")
