"""
A drainer on the workbench: what its end leaves behind.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from crq.inmemory import MemoryDatabase
from crq.model import Limits
from crq.timeline import Clocks
from crq.workbench import PlayedExecutor, Workbench
from tests import rows


class WorkbenchTests(SynchronousTestCase):
    """
    `crq.workbench`.
    """

    def setUp(self) -> None:
        self.database = MemoryDatabase()
        self.addCleanup(self.database.end)
        self.clocks = Clocks(rows.NOON)
        self.executor = PlayedExecutor(self.database, self.clocks)
        self.bench = self.opened()
        rows.admit(self.database, self.bench.pool.connection)
        self.bench.drainer.wake()

    def opened(self) -> Workbench:
        bench = Workbench(self.executor, limits=Limits())
        self.addCleanup(bench.kill)
        bench.drainer.startService()
        return bench

    def test_a_kill(self) -> None:
        """
        A killed process leaves no timer of its own, but those of others go on.
        """
        others: list[float] = []
        self.clocks.callLater(5, lambda: others.append(self.clocks.seconds()))
        self.assertEqual(len(self.clocks.getDelayedCalls()), 2)
        self.bench.kill()
        self.assertEqual(len(self.clocks.getDelayedCalls()), 1)
        self.clocks.go(5)
        self.assertEqual(others, [5.0])
        self.bench.kill()  # it cannot die twice

    def test_an_answer_to_the_dead(self) -> None:
        """
        What the executor answers after a kill reaches nobody; the row is as the executor left it.
        """
        self.bench.kill()
        self.executor.end_all()
        self.assertEqual(list(self.bench.dispatcher.outstanding), [1])
        row = rows.row(self.database, self.database.connect(), 1)
        self.assertEqual(row["status"], "success")

    def test_the_database_outlives_its_users(self) -> None:
        """
        Everybody has the one connection, which only the end of the database closes.
        """
        self.bench.kill()
        again = self.opened()
        self.assertIs(again.pool.connection, self.executor.connection)
        self.clocks.go(1)
        self.assertEqual(again.pulse.last_error, None)
        self.assertEqual([flight.execution_id for flight in again.pulse.in_flight], [1])
