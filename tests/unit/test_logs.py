"""
Where log lines go, and from which level on.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
from pathlib import Path

from twisted.logger import LogEvent, LogLevel
from twisted.trial.unittest import SynchronousTestCase

from crq.logs import LogFile, Logs


def event(level: str = "info", text: str = "hello") -> LogEvent:
    return {
        "log_level": LogLevel.levelWithName(level),
        "log_namespace": "crq.test",
        "log_format": "{text}",
        "log_time": 0.0,
        "text": text,
    }


def folder(case: SynchronousTestCase) -> Path:
    """
    A directory for one test.
    """
    made = tempfile.TemporaryDirectory()
    case.addCleanup(made.cleanup)
    return Path(made.name)


class FileTests(SynchronousTestCase):
    """
    A file that somebody rotates.
    """

    def setUp(self) -> None:
        self.folder = folder(self)
        self.path = self.folder / "daemon.log"
        self.file = LogFile(self.path)
        self.addCleanup(self.file.close)

    def test_what_is_there_stays(self) -> None:
        """
        A restart appends.
        """
        self.file.write("one\n")
        again = LogFile(self.path)
        self.addCleanup(again.close)
        again.write("two\n")
        self.assertEqual(self.path.read_text(), "one\ntwo\n")

    def test_a_renamed_file_is_written_until_it_is_reopened(self) -> None:
        """
        No line is lost between the rotation and the signal, and none after it.
        """
        self.file.write("one\n")
        old = self.path.rename(self.folder / "daemon.log.1")
        self.file.write("two\n")
        self.file.reopen()
        self.file.write("three\n")
        self.assertEqual(old.read_text(), "one\ntwo\n")
        self.assertEqual(self.path.read_text(), "three\n")

    def test_a_truncated_file_has_no_hole(self) -> None:
        """
        After a rotation by copy and truncation the next line is the first one.
        """
        self.file.write("one\n")
        os.truncate(self.path, 0)
        self.file.write("two\n")
        self.assertEqual(self.path.read_text(), "two\n")

    def test_a_name_that_cannot_be_opened_keeps_the_old_file(self) -> None:
        """
        Lines go on to where they went.
        """
        old = self.path.rename(self.folder / "daemon.log.1")
        self.path.mkdir()
        with self.assertRaises(OSError):
            self.file.reopen()
        self.file.write("still\n")
        self.assertEqual(old.read_text(), "still\n")

    def test_what_is_no_text_is_shown(self) -> None:
        """
        A lone surrogate costs nobody the line.
        """
        self.file.write("a\udcffb\n")
        self.assertEqual(self.path.read_text(), "a\\udcffb\n")

    def test_others_may_not_read_it(self) -> None:
        """
        A new file is for its owner and group.
        """
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode) & 0o007, 0)


class LogTests(SynchronousTestCase):
    """
    Levels and sinks.
    """

    def lines(self, logs: Logs, *levels: str) -> int:
        assert logs.observer is not None
        for level in levels:
            logs.observer(event(level))
        return len(self.out.getvalue().splitlines())

    def setUp(self) -> None:
        self.out = io.StringIO()
        self.patch(sys, "stdout", self.out)

    def test_a_level_is_the_least_that_is_written(self) -> None:
        """
        By default debug is not; the level may be changed at any time.
        """
        logs = Logs("info")
        self.assertEqual(self.lines(logs, "debug"), 0)
        self.assertEqual(self.lines(logs, "info", "warn", "error", "critical"), 4)
        logs.level = "debug"
        self.assertEqual(self.lines(logs, "debug"), 5)
        logs.level = "error"
        self.assertEqual(self.lines(logs, "warn"), 5)
        self.assertEqual(logs.level, "error")

    def test_a_log_file_is_named_to_twistd(self) -> None:
        """
        --logfile takes the lines, and is opened again when it is asked for.
        """
        path = folder(self) / "daemon.log"
        logs = Logs("info", {"logfile": str(path), "nodaemon": True})
        self.assertEqual(self.lines(logs, "info"), 0)
        path.unlink()
        logs.reopen()
        self.lines(logs, "info")
        self.assertEqual(len(path.read_text().splitlines()), 1)
        assert logs._file is not None
        logs._file.close()

    def test_a_daemon_has_no_standard_output(self) -> None:
        """
        Options that contradict each other, and a file that cannot be opened, end the start.
        """
        with self.assertRaises(SystemExit) as raised:
            Logs("info", {"logfile": "-", "nodaemon": False})
        self.assertIn("--logfile", str(raised.exception))
        with self.assertRaises(SystemExit) as raised:
            Logs("info", {"logfile": "/nonexistent/daemon.log", "nodaemon": True})
        self.assertIn("/nonexistent/daemon.log: No such file", str(raised.exception))

    def test_standard_output_forgives(self) -> None:
        """
        In a locale without umlauts a message with one is written all the same.
        """
        raw = io.BytesIO()
        self.patch(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
        logs = Logs("info")
        assert logs.observer is not None
        logs.observer(event(text="grün"))
        self.assertIn(b"gr\\xfcn\n", raw.getvalue())
