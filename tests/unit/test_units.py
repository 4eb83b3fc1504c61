"""
The units for systemd: what an operator relies on when a process dies.
"""

from __future__ import annotations

from configparser import RawConfigParser
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from crq.config import DatabaseOptions, DrainerOptions, ExecutorOptions
from crq.database import ATTEMPTS, LOCK_WAIT
from crq.supervision import LEAST_TICKS, PATIENCE

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = (
    *("crqueue.service", "crqueue-executor.service"),
    *("crqueue-drain.service", "crqueue-admit.service"),
)


def _unit(name: str) -> RawConfigParser:
    # A unit may repeat a key, and its keys are case-sensitive.
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / name).read_text())
    return parser


class UnitTests(SynchronousTestCase):
    """
    All units.
    """

    def test_restarts_for_ever(self) -> None:
        """
        A process that dies comes back after a second, however often it dies.
        """
        for name in UNITS:
            unit = _unit(name)
            self.assertEqual(unit["Unit"]["StartLimitIntervalSec"], "0", name)
            self.assertEqual(unit["Service"]["Restart"], "always", name)
            self.assertEqual(unit["Service"]["RestartSec"], "1", name)

    def test_stays_in_the_foreground(self) -> None:
        """
        systemd watches the process itself, so nothing forks away and no pid file can go stale.
        """
        for name in UNITS:
            service = _unit(name)["Service"]
            if name == "crqueue-admit.service":  # it has no ticks to tell of
                self.assertEqual(service["Type"], "exec", name)
                self.assertNotIn("WatchdogSec", service, name)
                continue
            self.assertEqual(service["Type"], "notify", name)
            self.assertEqual(service["NotifyAccess"], "main", name)
        command = _unit("crqueue.service")["Service"]["ExecStart"].split()
        self.assertIn("--nodaemon", command)
        self.assertIn("--pidfile=", command)

    def test_the_roles_run_side_by_side(self) -> None:
        """
        Each has its role, the drainer a door of its own, and both the directory of the wake socket,
        which outlives either.
        """
        admits, drains = (_unit(f"crqueue-{n}.service")["Service"] for n in ("admit", "drain"))
        self.assertIn("--roles admit", admits["ExecStart"])
        self.assertIn("--roles drain --set web.listen=tcp:8082", drains["ExecStart"])
        for service in (admits, drains):
            self.assertEqual(service["RuntimeDirectory"], "crqueue")
            self.assertEqual(service["RuntimeDirectoryPreserve"], "yes")

    def test_daemon_has_time_to_drain(self) -> None:
        """
        SIGKILL comes later than the longest stop that the configuration's defaults allow.
        """
        drainer = DrainerOptions()
        timeout = float(_unit("crqueue.service")["Service"]["TimeoutStopSec"])
        self.assertGreater(timeout, drainer.drain_limit)
        self.assertGreater(timeout, drainer.stop_limit)

    def test_a_daemon_that_hangs_is_started_anew(self) -> None:
        """
        The watchdog leaves room for a tick that runs into one time-out after the other, and what
        it kills leaves a trace of each thread in the journal and none of its memory on the disk.
        """
        service = _unit("crqueue.service")["Service"]
        watchdog = float(service["WatchdogSec"])
        self.assertGreater(watchdog, LEAST_TICKS * DrainerOptions().tick)
        self.assertGreater(watchdog, 2 * DatabaseOptions().timeout + 2 * ATTEMPTS * LOCK_WAIT)
        self.assertGreaterEqual(PATIENCE, watchdog)
        self.assertIn("PYTHONFAULTHANDLER=1", service["Environment"])
        self.assertEqual(service["LimitCORE"], "0")

    def test_reloads_by_signal(self) -> None:
        """
        systemctl reload of the daemon is SIGHUP to it.
        """
        command = _unit("crqueue.service")["Service"]["ExecReload"]
        self.assertEqual(command, "/bin/kill -HUP $MAINPID")

    def test_scripts_have_time_to_end(self) -> None:
        """
        Stopping the executor lets a script run to its wall, and signals the master alone.
        """
        service = _unit("crqueue-executor.service")["Service"]
        self.assertGreater(float(service["TimeoutStopSec"]), ExecutorOptions().wall)
        self.assertEqual(service["KillMode"], "mixed")

    def test_runs_without_privileges(self) -> None:
        """
        Neither unit runs as root, gains a privilege, or writes outside its state directory.
        """
        for name in UNITS:
            service = _unit(name)["Service"]
            self.assertEqual(service["User"], "crqueue", name)
            self.assertEqual(service["NoNewPrivileges"], "yes", name)
            self.assertEqual(service["CapabilityBoundingSet"], "", name)
            self.assertEqual(service["ProtectSystem"], "strict", name)
            self.assertEqual(service["StateDirectory"], "crqueue", name)
            self.assertNotIn("ReadWritePaths", service, name)
