"""
How a transaction is repeated on Galera, without a server.
"""

from __future__ import annotations

from pathlib import Path

import pymysql
from twisted.trial.unittest import SynchronousTestCase

from crq.database import ATTEMPTS, CERTIFIED_ATTEMPTS, TURN, Cursor, Database


class TurnTests(SynchronousTestCase):
    """
    Conflicts of two nodes.
    """

    def run_against(self, galera: bool, conflicts: int) -> tuple[int, list[float]]:
        """
        How often a transaction is run that meets so many conflicts, and the rests between.

        :raise pymysql.err.OperationalError: the last conflict.
        """
        path = Path(self.mktemp())
        path.touch()
        rests: list[float] = []
        database = Database(f"sqlite:///{path}", galera=galera, rest=rests.append)
        connection = database.connect()
        self.addCleanup(connection.close)
        self.runs = 0

        def conflict(txn: Cursor) -> int:
            self.runs += 1
            if self.runs <= conflicts:
                raise pymysql.err.OperationalError(1213, "Deadlock found")
            return self.runs

        return database.transact(connection, conflict), rests

    def test_a_conflict_is_repeated_until_it_is_our_turn(self) -> None:
        """
        Nine in a row, with rests that grow: no two nodes go on meeting each other.
        """
        runs, rests = self.run_against(True, CERTIFIED_ATTEMPTS - 1)
        self.assertEqual((runs, len(rests)), (CERTIFIED_ATTEMPTS, CERTIFIED_ATTEMPTS - 1))
        for attempt, rest in enumerate(rests, 1):
            self.assertTrue(0 <= rest <= 2 * TURN * attempt, rests)
        self.assertGreater(len(set(rests)), 1)

    def test_not_for_ever(self) -> None:
        """
        The tenth is an error, told to whoever asked.
        """
        with self.assertRaises(pymysql.err.OperationalError):
            self.run_against(True, CERTIFIED_ATTEMPTS)
        self.assertEqual(self.runs, CERTIFIED_ATTEMPTS)

    def test_elsewhere_three_are_enough(self) -> None:
        """
        On one server a deadlock is a fault of two statements, repeated at once.
        """
        self.assertEqual(self.run_against(False, ATTEMPTS - 1), (ATTEMPTS, []))
        with self.assertRaises(pymysql.err.OperationalError):
            self.run_against(False, ATTEMPTS)
