"""
One line an outage, one traceback a fault, and ever fewer for what comes and goes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pymysql
from twisted.internet.task import Clock
from twisted.logger import LogEvent, Logger, LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from crq.database import CommitUnknown
from crq.outages import LONGEST, SOON, Outage, one_line

AWAY = pymysql.err.OperationalError(2003, "Can't connect")


class OutageTests(SynchronousTestCase):
    """
    `Outage`, on a clock.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        captured = capturedLogs()
        self.logged: Sequence[LogEvent] = captured.__enter__()
        self.addCleanup(captured.__exit__, None, None, None)

    def outage(self, quiet: float = 0.0) -> Outage:
        """
        One that logs here.
        """
        return Outage("the thing", self.clock.seconds, Logger("crq.test"), "away", "back", quiet)

    def actions(self) -> list[str]:
        """
        What was logged by it.
        """
        return [event["action"] for event in self.logged if "action" in event]

    def test_an_outage_is_two_lines(self) -> None:
        """
        Many failures are one warning without a traceback, and their end is one line with how long.
        """
        outage = self.outage()
        for _ in range(50):
            outage.failed(AWAY)
            self.clock.advance(1)
        self.assertTrue(outage.on)
        for _ in range(50):
            outage.went_well()
        self.assertEqual(self.actions(), ["away", "back"])
        away, back = self.logged
        self.assertEqual(away["log_level"], LogLevel.warn)
        self.assertNotIn("log_failure", away)
        self.assertIn("Can't connect", away["error"])
        self.assertEqual((back["seconds"], back["failures"]), (49, 50))

    def test_success_without_an_outage_is_silent(self) -> None:
        """
        What works is not told.
        """
        self.outage().went_well()
        self.assertEqual(self.actions(), [])

    def test_a_success_between_failures_is_no_end(self) -> None:
        """
        Where an outage has a quiet time, single successes within it do not end it, and a failure
        begins the time anew.
        """
        outage = self.outage(quiet=5)
        for _ in range(60):
            outage.failed(AWAY)
            self.clock.advance(0.5)
            outage.went_well()
            self.clock.advance(3)
            outage.went_well()
        self.assertEqual(self.actions(), ["away"])
        self.clock.advance(2)
        outage.went_well()
        self.assertEqual(self.actions(), ["away", "back"])

    def test_flapping_is_told_ever_more_rarely(self) -> None:
        """
        One failure in two for an hour is a handful of lines, and not one for each.
        """
        outage = self.outage()
        for _ in range(3600):
            outage.failed(AWAY)
            outage.went_well()
            self.clock.advance(1)
        self.assertEqual(self.actions(), ["away", "back", "away"])

    def test_slow_flapping_is_told_rarely_too(self) -> None:
        """
        A failure each minute for a day is told at the begin; from then on it is one outage.
        """
        outage = self.outage()
        for minute in range(1440 * 60 // 20):
            if minute % 3 == 0:
                outage.failed(AWAY)
            else:
                outage.went_well()
            self.clock.advance(20)
        self.assertLessEqual(len(self.actions()), 2 * 7)
        self.assertTrue(outage.on)

    def test_after_a_good_while_it_is_a_new_one(self) -> None:
        """
        An outage long after the last is told at once, and so is its end.
        """
        outage = self.outage()
        for _ in range(4):
            outage.failed(AWAY)
            outage.went_well()
            self.clock.advance(SOON + LONGEST)
            outage.went_well()
        self.assertEqual(self.actions(), ["away", "back"] * 4)

    def test_an_end_that_nobody_saw(self) -> None:
        """
        A failure after the quiet time has passed is a new outage, even if nothing succeeded since.
        """
        outage = self.outage(quiet=5)
        outage.failed(AWAY)
        outage.went_well()
        self.clock.advance(60)
        outage.failed(AWAY)
        self.assertEqual(self.actions(), ["away", "back", "away"])

    def test_a_fault_of_ours_is_one_traceback(self) -> None:
        """
        It is shown in full, once for each place it comes from, whatever its text says each time.
        """
        outage = self.outage()
        for number in range(20):
            for fault in (self.one, self.other):
                try:
                    fault(number)
                except (RuntimeError, KeyError) as error:
                    outage.failed(error)
        self.assertEqual(self.actions(), ["away", "away"])
        self.assertEqual(["log_failure" in event for event in self.logged], [True, True])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError, KeyError)), 2)

    def test_a_fault_during_an_outage_is_seen(self) -> None:
        """
        An outage does not hide a fault of ours that comes while it lasts.
        """
        outage = self.outage()
        outage.failed(AWAY)
        try:
            self.one(1)
        except RuntimeError as error:
            outage.failed(error)
        self.assertEqual(self.actions(), ["away", "away"])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def one(self, number: int) -> None:
        """
        Fail.
        """
        raise RuntimeError(f"fault {number}")

    def other(self, number: int) -> None:
        """
        Fail elsewhere.
        """
        raise KeyError(number)


class LineTests(SynchronousTestCase):
    """
    `one_line`.
    """

    def test_foreign_text_stays_in_its_line(self) -> None:
        """
        Line breaks and control characters of an error's text are shown as escapes (F111).
        """
        shown = one_line(RuntimeError("a\r\nforged\u2028line\x1b[2J"))
        self.assertEqual(shown, r"RuntimeError: a\r\nforged\u2028line\x1b[2J")

    def test_an_error_without_text_names_its_cause(self) -> None:
        """
        A COMMIT without an answer says what became of it.
        """
        try:
            raise CommitUnknown from AWAY
        except CommitUnknown as error:
            shown = one_line(error)
        self.assertTrue(shown.startswith("CommitUnknown: OperationalError: (2003"), shown)
        self.assertEqual(one_line(sqlite3.OperationalError()), "OperationalError")
