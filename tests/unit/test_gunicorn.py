"""
How gunicorn is told to run the executor: the numbers that hold the wall and the ceiling.
"""

from __future__ import annotations

import os
import runpy
import tempfile
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq.config import ExecutorOptions

DEPLOY = Path(__file__).parents[2] / "deploy"


class SettingsTests(SynchronousTestCase):
    """
    ``deploy/gunicorn.conf.py``.
    """

    def settings(self, text: str = "") -> dict[str, Any]:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "crqueue.toml"
        path.write_text(text)
        self.patch(os, "environ", {"CRQ_CONFIG": str(path)})
        return runpy.run_path(str(DEPLOY / "gunicorn.conf.py"))

    def test_a_fixed_ceiling_of_killable_processes(self) -> None:
        """
        Sync workers, as many as configured, killed at the wall: threads would lose the wall.
        """
        settings = self.settings()
        options = ExecutorOptions()
        self.assertEqual(settings["worker_class"], "sync")
        self.assertNotIn("threads", settings)
        self.assertEqual((settings["workers"], settings["timeout"]), (8, options.wall))
        self.assertEqual(settings["bind"], options.bind)
        settings = self.settings("[executor]\nworkers = 3\nwall = 20.5\n")
        self.assertEqual((settings["workers"], settings["timeout"]), (3, 21))

    def test_a_stop_waits_for_scripts(self) -> None:
        """
        A stop waits longer than a script may take, and systemd longer than that.
        """
        settings = self.settings()
        self.assertGreater(settings["graceful_timeout"], ExecutorOptions().wall)
        unit = (DEPLOY / "crqueue-executor.service").read_text()
        (line,) = [line for line in unit.splitlines() if line.startswith("TimeoutStopSec=")]
        self.assertGreater(float(line.partition("=")[2]), settings["graceful_timeout"])
