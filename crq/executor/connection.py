"""
The one database connection of a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from attrs import define, field

from crq.database import Cursor, Database

T = TypeVar("T")
P = ParamSpec("P")


@define(eq=False)
class Connection:
    """
    Opened when it is first needed, which is after the fork, and kept until something fails.
    """

    database: Database
    _open: Any = field(init=False, default=None)

    def read(
        self, function: Callable[Concatenate[Cursor, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """
        Run a function that only reads, as `Database.read` does.
        """
        result: T = self._run(self.database.read, function, *args, **kwargs)
        return result

    def transact(
        self, function: Callable[Concatenate[Cursor, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """
        Run a function in one transaction, as `Database.transact` does.
        """
        result: T = self._run(self.database.transact, function, *args, **kwargs)
        return result

    def close(self) -> None:
        """
        Close the connection; the next use opens one.
        """
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(Exception):  # it may be gone already
                connection.close()

    def _run(self, how: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._open is not None and self.database.moved(self._open):
            self.close()
        if self._open is None:
            self._open = self.database.connect()
        try:
            return how(self._open, *args, **kwargs)
        except BaseException:
            # Whatever state it is in, the next transaction does not begin in it.
            self.close()
            raise
