"""
Crash points: inert everywhere but where a test wants one, and then exact.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from crq import crashpoints
from crq.crashpoints import AT, FILE, HEAD, POINTS, Crash, armed

ROOT = Path(__file__).resolve().parent.parent.parent
VISITOR = """
from crq.crashpoints import reached
def _admit(): pass
for _ in range(3):
    reached("settled")
    reached("committed", _admit)
    print("alive", flush=True)
"""


class CrashPointsTests(SynchronousTestCase):
    """
    `crq.crashpoints`.
    """

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "count"
        self.file.write_bytes(HEAD)

    def visit(self, **environment: str) -> tuple[int, int]:
        """
        Let a process come by three times: its exit code, and how often it came through.
        """
        done = subprocess.run(
            [sys.executable, "-c", VISITOR],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,
        )
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.count("alive")

    def test_it_takes_two_variables(self) -> None:
        """
        Without both variables, or with a file that is not a test's, nothing is armed.
        """
        other = self.file.with_name("other")
        other.write_bytes(b"some file of somebody else")
        at, file = {AT: "settled"}, {FILE: str(self.file)}
        for environment in (
            {},
            at,
            file,
            {**at, FILE: str(other)},
            {**at, FILE: str(self.file.with_name("none"))},
            {AT: "", **file},
        ):
            self.assertIsNone(armed(environment), environment)
        self.assertEqual(armed({**at, **file}), Crash("settled", 1, False, self.file))
        self.assertIsNone(crashpoints._crash)

    def test_a_typing_error_is_told(self) -> None:
        """
        A point that does not exist would never be reached, and its test would prove nothing.
        """
        for at in ("setled", "settled:0", "settled:x", "settled:1:all", "claim commited"):
            with self.assertRaises(ValueError, msg=at):
                armed({AT: at, FILE: str(self.file)})
        self.assertEqual(
            armed({AT: "claim committed:2:group", FILE: str(self.file)}),
            Crash("claim committed", 2, True, self.file),
        )

    def test_the_process_ends_at_the_count_and_no_other(self) -> None:
        """
        SIGKILL at the second time of coming by; whoever comes later, in a new process, goes on.
        """
        wanted = {AT: "settled:2", FILE: str(self.file)}
        self.assertEqual(self.visit(**wanted), (-signal.SIGKILL, 1))
        self.assertEqual(self.visit(**wanted), (0, 3))
        self.assertEqual(self.visit(**{AT: "settled:2"}), (0, 3))

    def test_a_transaction_bears_the_name_of_its_function(self) -> None:
        """
        The points around a COMMIT are told apart by the function whose transaction it is.
        """
        wanted = {AT: "admit committed:3:group", FILE: str(self.file)}
        self.assertEqual(self.visit(**wanted), (-signal.SIGKILL, 2))
        wanted = {AT: "claim committed", FILE: str(self.file)}
        self.assertEqual(self.visit(**wanted), (0, 3))

    def test_the_code_comes_by_every_point(self) -> None:
        """
        Each point is reached by the code at one place, and each place is a point.
        """
        found = [
            name
            for path in sorted((ROOT / "crq").rglob("*.py"))
            for name in re.findall(r'crashpoints\.reached\("([^"]+)"', path.read_text("utf-8"))
        ]
        self.assertEqual(sorted(found), sorted([*POINTS, *crashpoints.COMMITS]))
