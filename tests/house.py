"""
A whole drainer on clocks that a test turns, over a real store, with an executor that a test plays.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from crq import timeline
from crq.database import Database
from crq.model import Limits
from crq.workbench import SUCCESS, PlayedExecutor, PlayedLiveness, Workbench
from tests import rows
from tests.support import SynchronousPool

__all__ = ["LIVING", "SUCCESS", "Clocks", "House", "PlayedExecutor", "PlayedLiveness"]

# What a test has started and not ended. Its unfinished coroutines would otherwise be closed when
# they are collected, in the middle of some other test, which would be blamed for what they say.
LIVING: list[Workbench] = []


class Clocks(timeline.Clocks):
    """
    Both clocks, from noon on.
    """

    def __init__(self, noon: float = rows.NOON) -> None:
        super().__init__(noon)


class House(Workbench):
    """
    One drainer process, with what tests ask of it; `restart` makes another over the same parts.
    """

    def __init__(
        self,
        database: Database,
        clocks: timeline.Clocks | None = None,
        executor: PlayedExecutor | None = None,
        limits: Limits = rows.LIMITS,
        wall_limit: float | None = None,
        pool: SynchronousPool | None = None,
        drainer_id: str = "d1",
    ) -> None:
        super().__init__(
            executor or PlayedExecutor(database, clocks or Clocks()),
            limits=limits,
            wall_limit=wall_limit,
            pool=pool,
            drainer_id=drainer_id,
        )
        LIVING.append(self)

    def start(self) -> House:
        """
        Start the service: its first tick runs at once.
        """
        self.drainer.startService()
        return self

    def restart(self) -> House:
        """
        Kill this process and start another over the same store and executor.
        """
        self.kill()
        return House(self.database, self.clocks, self.executor, self.limits).start()

    def admit(self, account: str = "acme", key: str = "key", count: int = 1) -> list[int]:
        """
        Admit executions now.
        """
        return [
            rows.admit(
                self.database,
                self.pool.connection,
                account,
                key,
                self.clocks.wall(),
                self.limits,
            )
            for _ in range(count)
        ]

    def status(self, execution_id: int) -> str:
        """
        A row's status.
        """
        return str(rows.row(self.database, self.pool.connection, execution_id)["status"])

    def statuses(self) -> Counter[str]:
        """
        How many rows are in each state.
        """

        def read(txn: Any) -> list[tuple[str, int]]:
            sql = "SELECT status, COUNT(*) FROM codeRunner_executions GROUP BY status"
            return list(txn.execute(sql).all())

        return Counter(dict(self.database.read(self.pool.connection, read)))

    def close(self) -> None:
        """
        End it all, the executor too.
        """
        self.kill()
        self.executor.connection.close()
