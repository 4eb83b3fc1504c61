"""
The watch of a simulation finds what is wrong, on a queue that is led astray.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq import executions
from crq.inmemory import MemoryDatabase
from crq.invariants import Change
from crq.model import Limits
from crq.simulate.watch import Watch
from crq.timeline import Clocks
from crq.workbench import PlayedExecutor, Workbench
from tests import rows


class WatchTests(SynchronousTestCase):
    """
    `crq.simulate.watch.Watch`.
    """

    def watch(self, **caps: Any) -> Watch:
        """
        Watch a queue with these caps, which are not necessarily those it keeps.
        """
        self.database = MemoryDatabase()
        self.addCleanup(self.database.end)
        self.clocks = Clocks(rows.NOON)
        self.executor = PlayedExecutor(self.database, self.clocks)
        self.bench = Workbench(self.executor, limits=rows.LIMITS)
        self.addCleanup(self.bench.kill)
        self.told: list[Change] = []
        watch = Watch(self.bench, Limits(**caps), lambda change, _code: self.told.append(change))
        self.bench.drainer.ticked = lambda _: watch.ticked()
        return watch

    def admit(self, account: str = "acme", count: int = 1) -> list[int]:
        return [
            rows.admit(
                self.database, self.bench.pool.connection, account, account, self.clocks.wall()
            )
            for _ in range(count)
        ]

    def sql(self, text: str, *values: Any) -> None:
        self.bench.pool.connection.execute(text, values)

    def kinds(self, watch: Watch) -> set[str]:
        return {problem[:2] for problem in watch.problems()}

    def test_a_sound_life(self) -> None:
        """
        What goes its way is seen, change by change, and nothing is wrong with it.
        """
        watch = self.watch()
        self.bench.drainer.startService()
        numbers = self.admit(count=3)
        self.bench.drainer.wake()
        watch.moving(1.0)
        while self.executor.alive:
            self.executor.end_all()
        self.assertEqual(
            [change.new for change in self.told if change.execution_id == numbers[0]],
            ["queued", "claimed", "running", "success"],
        )
        self.assertEqual((watch.open(), +watch.states), (0, {"success": 3}))
        self.database.read(self.bench.pool.connection, watch.ended, 3)
        self.assertEqual(watch.problems(), [])

    def test_an_impossible_arrow(self) -> None:
        """
        A row that goes back from running, or whose instants do not agree with it, breaks I1.
        """
        watch = self.watch()
        self.admit()
        self.sql("UPDATE codeRunner_executions SET status = 'running'")
        self.assertEqual(self.kinds(watch), {"I1"})

    def test_started_twice(self) -> None:
        """
        A second start of one execution breaks I2.
        """
        watch = self.watch()
        self.bench.drainer.startService()
        self.admit()
        self.bench.drainer.wake()
        self.sql("UPDATE codeRunner_executions SET status = 'claimed'")
        self.sql("UPDATE codeRunner_executions SET status = 'running'")
        self.assertIn("I2", self.kinds(watch))

    def test_what_vanishes(self) -> None:
        """
        A row that is gone, and one that has not ended, break I3.
        """
        watch = self.watch()
        self.admit(count=2)
        self.sql("DELETE FROM codeRunner_executions WHERE execution_id = 1")
        self.database.read(self.bench.pool.connection, watch.ended, 2)
        self.assertEqual(self.kinds(watch), {"I3"})
        self.assertIn("2 accepted, 0 ended", watch.problems()[0])

    def test_too_many(self) -> None:
        """
        More in flight than the caps allow break I4: of one account, and of all.
        """
        for caps in ({"per_account": 1}, {"in_flight": 1}):
            watch = self.watch(**caps)
            self.bench.drainer.startService()
            self.admit(count=2)
            self.bench.drainer.wake()
            self.assertEqual(self.kinds(watch), {"I4"})

    def test_an_overtaken_row(self) -> None:
        """
        A claim that leaves an older row of its lane waiting breaks I6.
        """
        watch = self.watch()
        self.admit()
        self.clocks.advance(1)
        (younger,) = self.admit()
        self.clocks.advance(1)
        self.sql(
            "UPDATE codeRunner_executions SET status = 'claimed', nonce_hash = 'x',"
            " claim_epoch = 1, claimed_at = '2026-03-02 12:00:02.000' WHERE execution_id = ?",
            younger,
        )
        self.database.read(self.bench.pool.connection, watch.ended, 0)
        self.assertIn("I6", self.kinds(watch))

    def test_a_row_that_could_start(self) -> None:
        """
        A lane that a tick has seen and that waits while a slot is free breaks I6; one that no tick
        has seen yet, or for less than a timer can tell, does not.
        """
        watch = self.watch()
        self.admit()
        watch.moving(1.0)
        self.assertEqual(watch.problems(), [])
        watch.ticked()
        watch.moving(0.0005)
        self.assertEqual(watch.problems(), [])
        watch.moving(1.0)
        self.assertEqual(self.kinds(watch), {"I6"})

    def test_who_may_wait(self) -> None:
        """
        A closed gate, a full account and a full pool are reasons to wait.
        """
        watch = self.watch()
        self.bench.drainer.startService()
        self.bench.store.close(rows.SEALER.key("acme"), rows.NOON + 60, rows.NOON)
        self.admit()
        self.bench.drainer.wake()
        watch.moving(1.0)
        self.bench.store.open(rows.SEALER.key("acme"))
        self.bench.drainer.wake()
        self.admit("bravo", 4)
        self.bench.drainer.wake()
        watch.moving(1.0)
        self.assertEqual((watch.problems(), watch.states["running"]), ([], 3))

    def test_depth(self) -> None:
        """
        An admission beyond a cap, and a refusal below it, break I7.
        """
        watch = self.watch(queued_per_account=2)
        self.admit(count=3)
        self.assertEqual(self.kinds(watch), {"I7"})
        watch = self.watch()
        few = Limits(queued_per_account=1)
        connection = self.bench.pool.connection
        for _ in range(2):
            self.database.transact(connection, executions.admit, rows.submission(), few, rows.NOON)
        self.assertEqual(self.kinds(watch), {"I7"})
