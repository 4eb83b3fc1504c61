"""
What a type's call may use: who it is for, how long it has, and the database.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from attrs import define, field, frozen

from crq.database import Database
from crq.instants import Instant

T = TypeVar("T")
P = ParamSpec("P")


@frozen
class About:
    """
    What a call is about (see `interfaces.Context`).
    """

    tenant: str
    automation_uuid: str
    scheduled_for: Instant
    run_key: str
    config: Any = field(repr=False)


@define(eq=False)
class CallContext:
    """
    The context of one call, on one thread. `close` when the call has ended.

    :ivar ends: until when the call is waited for, on the monotonic clock.
    :ivar writes: whether it may change anything: while applying, not while evaluating.
    """

    about: About
    database: Database
    monotonic: Callable[[], float]
    ends: float
    writes: bool
    _reading: Any = field(init=False, default=None)
    _writing: Any = field(init=False, default=None)

    @property
    def tenant(self) -> str:
        """
        Whose automation it is.
        """
        return self.about.tenant

    @property
    def automation_uuid(self) -> str:
        """
        Which automation it is.
        """
        return self.about.automation_uuid

    @property
    def scheduled_for(self) -> Instant:
        """
        The occurrence.
        """
        return self.about.scheduled_for

    @property
    def run_key(self) -> str:
        """
        Names the run.
        """
        return self.about.run_key

    @property
    def config(self) -> Any:
        """
        The configuration.
        """
        return self.about.config

    def left(self) -> float:
        """
        Seconds until nobody waits for this call any more.
        """
        return max(0.0, self.ends - self.monotonic())

    def read(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kw: P.kwargs) -> T:
        """
        Run a function on a cursor that cannot write: the database itself refuses it.
        """
        if self._reading is None:
            self._reading = self.database.connect()
            if self.database.dialect == "sqlite":
                self._reading.execute("PRAGMA query_only = ON")
            else:
                with self._reading.cursor() as cursor:
                    cursor.execute("SET SESSION TRANSACTION READ ONLY")
        return self.database.read(self._reading, function, *args, **kw)

    def transact(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kw: P.kwargs
    ) -> T:
        """
        Run a function in one transaction.

        :raise RuntimeError: this call only evaluates.
        """
        if not self.writes:
            raise RuntimeError("evaluate changes nothing; put what is to be done into apply")
        if self._writing is None:
            self._writing = self.database.connect()
        return self.database.transact(self._writing, function, *args, **kw)

    def close(self) -> None:
        """
        Let go of the connections.
        """
        for connection in (self._reading, self._writing):
            if connection is not None:
                with suppress(Exception):  # it may have been lost in the call
                    connection.close()
