"""
The daemon's options, its plugin and its tree of services.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet
from twisted.application.service import IServiceMaker, MultiService
from twisted.internet.testing import MemoryReactorClock
from twisted.plugin import getPlugins
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from crq import schema, tap
from crq.database import Database


class TapCase(SynchronousTestCase):
    """
    With a configuration, and locks that are given back.
    """

    def setUp(self) -> None:
        """
        A configuration with all it needs, in a directory of its own.
        """
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.write("salt", "pepper")
        self.write("keys", Fernet.generate_key().decode())
        self.path = self.write(
            "crqueue.toml",
            '[database]\nurl = "sqlite:///queue.db"\n[secrets]\nsalt_file = "salt"\n'
            'seal_keys_file = "keys"\n[drainer]\nlock_file = "lock"\n[executor]\n'
            'lock_dir = "locks"\n',
        )
        self._taken: list[int] = []
        take = tap.take_lock

        def remember(path: Path) -> int:
            self._taken.append(take(path))
            return self._taken[-1]

        self.patch(tap, "take_lock", remember)
        self.addCleanup(lambda: list(map(os.close, self._taken)))
        self.database = Database(f"sqlite:///{self.folder / 'queue.db'}")
        for name in [name for name in os.environ if name.startswith("CRQ_")]:
            self.patch(os, "environ", {k: v for k, v in os.environ.items() if k != name})

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def options(self, *more: str) -> tap.Options:
        options = tap.Options()
        options.parseOptions(["--config", self.path, *more])
        return options

    def make(self, *more: str) -> MultiService:
        """
        The services, and the lock given back at the end of the test.
        """
        reactor: Any = MemoryReactorClock()
        return tap.makeService(self.options(*more), reactor)


class TapTests(TapCase):
    """
    From options to services.
    """

    def test_the_tree_has_its_names(self) -> None:
        """
        Each service can be found by its name.
        """
        schema.upgrade(self.database)
        root = self.make()
        self.assertEqual(root.name, "crqueue")
        for name in ("drainer", "reaper", "http", "gates", "previews", "last resort"):
            self.assertEqual(root.getServiceNamed(name).name, name)

    def test_the_plugin_is_found(self) -> None:
        """
        twistd finds crqueue, and what it finds makes our service.
        """
        (found,) = [plugin for plugin in getPlugins(IServiceMaker) if plugin.tapname == "crqueue"]
        self.assertIs(found.makeService, tap.makeService)
        self.assertIs(found.options, tap.Options)

    def test_a_fault_in_the_options_is_a_usage_error(self) -> None:
        """
        What is wrong with the configuration or the secrets is told by the option's name.
        """
        for more, told in (
            (("--set", "limits.in_flight=0"), "limits.in_flight: 0 is out of range"),
            (("--set", "nonsense"), "write it as section.name=value"),
            (("--set", "secrets.salt_file=/nonexistent"), "secrets.salt_file: /nonexistent"),
        ):
            with self.assertRaisesRegex(UsageError, told):
                self.options(*more)

    def test_the_last_setting_wins(self) -> None:
        """
        --set may be given many times, and is above the file.
        """
        loaded = self.options("--set", "limits.in_flight=6", "--set", "limits.in_flight=7")
        self.assertEqual(loaded["loaded"].limits.in_flight, 7)

    def test_a_database_without_schema_is_refused(self) -> None:
        """
        The start ends with a line that says what to run.
        """
        with self.assertRaisesRegex(SystemExit, "run `crq db upgrade`"):
            self.make()

    def test_one_lock_has_one_holder(self) -> None:
        """
        A lock that is held, or whose place cannot be written, ends the start with its path.
        """
        path = self.folder / "lock"
        held = tap.take_lock(path)
        self._taken.clear()  # it is given back here
        with self.assertRaisesRegex(SystemExit, f"another daemon holds {path}"):
            tap.take_lock(path)
        os.close(held)
        tap.take_lock(path)
        with self.assertRaisesRegex(SystemExit, "drainer.lock_file: /nonexistent/lock"):
            tap.take_lock(Path("/nonexistent/lock"))
