"""
The liveness lock: held by a worker from before it starts an execution until after it finished it.

It dies with the process, so a lock that is free says that the worker is dead. With MySQL it is a
named lock on a connection of its own; with SQLite a locked file per execution.

# Note [A lock that was lost while its worker lives]

A server restart, or a killed connection, frees a named lock although its worker works on. A keeper
thread therefore looks at the lock every second and takes it again. Whoever asks must see it free
for `GRACE` seconds before calling a worker dead, and count no time in which it could not ask.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import frozen

from crq.database import Cursor, Database

KEEP_EVERY = 1.0  # s between two looks of the keeper
GRACE = 3.0  # s for which all looks find the lock free: three chances for the keeper
TAKE_WITHIN = 5  # s to wait for a lock: only a second delivery of the same job can be in the way

# The database's name keeps two installations on one server apart; names are at most 64 long.
_NAME = "CONCAT('crq:', LEFT(DATABASE(), 40), ':', ?)"


class LockBusy(Exception):
    """
    Somebody else holds the lock of this execution.
    """


@frozen
class Liveness:
    """
    The locks of one installation.

    :ivar folder: where the files are with SQLite.
    """

    database: Database
    folder: Path

    @contextmanager
    def hold(self, execution_id: int) -> Iterator[None]:
        """
        Hold an execution's lock.

        :raise LockBusy: somebody else holds it.
        """
        if self.database.dialect == "sqlite":
            with self._hold_file(execution_id):
                yield
            return
        keeper = _Keeper(self.database, execution_id)
        keeper.take()
        keeper.start()
        try:
            yield
        finally:
            keeper.give_back()

    def held(self, txn: Cursor, execution_ids: Iterable[int]) -> frozenset[int]:
        """
        Tell which of these executions have a living worker.
        """
        if self.database.dialect == "sqlite":
            return frozenset(filter(self._file_is_held, execution_ids))
        return frozenset(
            execution_id
            for execution_id in execution_ids
            if txn.execute(f"SELECT IS_FREE_LOCK({_NAME})", (execution_id,)).scalar() == 0
        )

    def _path(self, execution_id: int) -> Path:
        return self.folder / f"{execution_id}.lock"

    @contextmanager
    def _hold_file(self, execution_id: int) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(execution_id)
        descriptor = _locked(path)
        if descriptor is None:
            raise LockBusy(execution_id)
        try:
            yield
            with suppress(FileNotFoundError):
                path.unlink()
        finally:
            os.close(descriptor)

    def _file_is_held(self, execution_id: int) -> bool:
        try:
            descriptor = os.open(self._path(execution_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def _locked(path: Path) -> int | None:
    """
    Make and lock a file; None: somebody else holds it for too long.
    """
    # Those who ask hold a shared lock for an instant; a second worker holds on.
    for _ in range(TAKE_WITHIN * 100):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            # Its holder has removed it meanwhile: whoever asks would find no file, and no lock.
        os.close(descriptor)
        threading.Event().wait(0.01)
    return None


class _Keeper(threading.Thread):
    """
    Holds one named lock and takes it again when it was lost (see note).
    """

    def __init__(self, database: Database, execution_id: int) -> None:
        super().__init__(name=f"liveness-{execution_id}", daemon=True)
        self._database = database
        self._execution_id = execution_id
        self._over = threading.Event()
        self._connection: Any = None

    def take(self) -> None:
        self._connection = self._database.connect()
        if self._ask("GET_LOCK", TAKE_WITHIN) != 1:
            self._connection.close()
            raise LockBusy(self._execution_id)

    def run(self) -> None:
        while not self._over.wait(KEEP_EVERY):
            try:
                if self._connection is not None:
                    self._connection.ping(reconnect=False)
            except Exception:  # noqa: BLE001 - whatever it is, the lock is gone with it
                self._drop()
            try:
                if self._connection is None:
                    self._connection = self._database.connect()
                    if self._ask("GET_LOCK", 0) != 1:
                        self._drop()  # the old session still has it: the next look tries again
            except Exception:  # noqa: BLE001 - whatever it is, the next look tries again
                self._drop()

    def give_back(self) -> None:
        self._over.set()
        self.join()
        self._drop()

    def _ask(self, function: str, *more: object) -> Any:
        places = ", ?" * len(more)
        cursor = Cursor(self._connection.cursor(), "mysql", None)
        return cursor.execute(
            f"SELECT {function}({_NAME}{places})", (self._execution_id, *more)
        ).scalar()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()
