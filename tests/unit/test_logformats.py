"""
How a log line looks, whatever is in it.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import LogEvent, LogLevel
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from crq.logformats import Journal, is_journal, journal_record, json_line, text_line
from crq.logs import Logs

NOON = 1_772_452_800.25  # 2026-03-02 12:00:00.250
EVIL = "one\r\ntwo\u2028three\x1b[31m\u202efour\x00"


def event(**more: Any) -> LogEvent:
    return {
        "log_level": LogLevel.warn,
        "log_namespace": "crq.drainer.Drainer",
        "log_format": "execution {execution_id} {why}",
        "log_time": NOON,
        "action": "backing off",
        "execution_id": 17,
        "why": "waits",
        **more,
    }


def fields(record: bytes) -> dict[str, bytes]:
    """
    Read the journal's protocol.
    """
    found = {}
    while record:
        name, rest = record.split(b"\n", 1)
        if b"=" in name:
            key, value = name.split(b"=", 1)
        else:
            length = int.from_bytes(rest[:8], "little")
            key, value, rest = name, rest[8 : 8 + length], rest[8 + length + 1 :]
        found[key.decode()] = value
        record = rest
    return found


class FormTests(SynchronousTestCase):
    """
    Text, JSON, the journal.
    """

    def test_text(self) -> None:
        """
        Instant, level, what happened in one word and in a sentence, on one line.
        """
        self.assertEqual(
            text_line(event()),
            "2026-03-02T12:00:00.250Z warn [backing_off] execution 17 waits\n",
        )
        bare = text_line({"log_level": LogLevel.info, "log_namespace": "x", "log_format": "y"})
        self.assertTrue(bare.endswith("info [x] y\n"))

    def test_json(self) -> None:
        """
        The same as an object, with every field by its name and none of the logger's own.
        """
        found = json.loads(json_line(event(proof=["key a"], log_source=object(), odd=object())))
        self.assertEqual(
            found,
            {
                "time": "2026-03-02T12:00:00.250Z",
                "level": "warn",
                "action": "backing_off",
                "message": "execution 17 waits",
                "logger": "crq.drainer.Drainer",
                "execution_id": 17,
                "why": "waits",
                "proof": ["key a"],
            },
        )

    def test_journal(self) -> None:
        """
        Fields of our own, a priority, a message.
        """
        found = fields(journal_record(event()))
        self.assertEqual(found["MESSAGE"], b"execution 17 waits")
        self.assertEqual((found["PRIORITY"], found["SYSLOG_IDENTIFIER"]), (b"4", b"crqueue"))
        self.assertEqual((found["CRQ_ACTION"], found["CRQ_EXECUTION_ID"]), (b"backing_off", b"17"))

    def test_nobody_forges_a_line(self) -> None:
        """
        Line ends of all kinds, escapes, direction marks: one record each, shown as escapes (F111).
        """
        line = text_line(event(why=EVIL))
        self.assertEqual(len(line.splitlines()), 1)
        self.assertIn("one\\r\\ntwo\\u2028three\\x1b[31m\\u202efour\\x00", line)
        line = json_line(event(why=EVIL))
        self.assertTrue(line.isascii())
        self.assertEqual(len(line.splitlines()), 1)
        self.assertEqual(json.loads(line)["why"], EVIL)
        found = fields(journal_record(event(why=EVIL)))
        self.assertEqual(found["CRQ_WHY"], EVIL.encode())
        self.assertNotIn(b"\n", found["MESSAGE"])

    @given(st.text(), st.integers(), st.dictionaries(st.text(max_size=5), st.text(), max_size=3))
    def test_any_event_is_one_record(self, why: str, number: int, more: dict[str, str]) -> None:
        """
        Whatever is logged.
        """
        made = event(why=why, execution_id=number, **{f"x_{k}": v for k, v in more.items()})
        self.assertEqual(len(text_line(made).splitlines()), 1)
        json.loads(json_line(made))
        found = fields(journal_record(made))
        self.assertEqual(found["PRIORITY"], b"4")
        for name in found:
            self.assertRegex(name, r"\A[A-Z][A-Z0-9_]*\Z")

    def test_a_failure_comes_with_its_trace(self) -> None:
        """
        Behind tabs in text, as a field in JSON, in the message of the journal.
        """
        try:
            raise ValueError(f"sesame{EVIL}")
        except ValueError:
            made = event(log_failure=Failure(), log_format="tick failed")
        first, *trace = text_line(made).splitlines()
        self.assertTrue(first.endswith("tick failed"))
        self.assertTrue(trace)
        self.assertTrue(all(line.startswith("\t") for line in trace))
        self.assertNotIn("\x1b", text_line(made))
        self.assertIn("ValueError", json.loads(json_line(made))["traceback"])
        self.assertIn(b"ValueError", fields(journal_record(made))["MESSAGE"])

    def test_long_fields_are_cut(self) -> None:
        """
        A datagram of the journal is bounded.
        """
        record = journal_record(event(why="x" * 1_000_000, log_format="{why}"))
        self.assertLess(len(record), 100_000)


class JournalTests(SynchronousTestCase):
    """
    Speaking to the journal.
    """

    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.path = str(Path(made.name) / "socket")
        self.otherwise: list[LogEvent] = []
        self.journal = Journal(self.otherwise.append, self.path)
        self.addCleanup(self.journal.close)

    def test_a_record_arrives_in_one_datagram(self) -> None:
        """
        On the socket of the journal.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
            there.bind(self.path)
            self.journal(event())
            self.assertEqual(fields(there.recv(100_000))["CRQ_EXECUTION_ID"], b"17")
        self.assertEqual(self.otherwise, [])

    def test_without_a_journal_lines_go_where_they_would(self) -> None:
        """
        Nothing is lost when nobody listens, and a journal that comes back is used again.
        """
        self.journal(event())
        self.assertEqual(len(self.otherwise), 1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
            there.bind(self.path)
            self.journal(event())
            self.assertTrue(there.recv(100_000))
        self.assertEqual(len(self.otherwise), 1)

    def test_whether_output_leads_there(self) -> None:
        """
        systemd names device and inode of the stream; a redirection has others.
        """
        with tempfile.TemporaryFile() as file:
            found = os.fstat(file.fileno())
            stream = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
            self.assertTrue(is_journal(stream, file.fileno()))
            self.assertFalse(is_journal({"JOURNAL_STREAM": "8:1"}, file.fileno()))
            self.assertFalse(is_journal({}, file.fileno()))
        self.assertFalse(is_journal(stream, 9999))


class ChoiceTests(SynchronousTestCase):
    """
    `Logs` and its forms.
    """

    def test_the_form_is_chosen_and_may_change(self) -> None:
        """
        Text by default, JSON on demand, also while the daemon runs.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "daemon.log"
            logs = Logs("info", {"logfile": str(path), "nodaemon": True}, "auto", {})
            assert logs.observer is not None
            logs.observer(event())
            logs.form = "json"
            logs.observer(event())
            first, second = path.read_text().splitlines()
            self.assertIn("[backing_off]", first)
            self.assertEqual(json.loads(second)["execution_id"], 17)
            assert logs._file is not None
            logs._file.close()
