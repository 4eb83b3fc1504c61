"""
Signals, reloading, and the end that always comes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from attrs import evolve
from twisted.application.service import Application
from twisted.logger import FilteringLogObserver, ILogObserver, LogEvent, Logger, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from crq import lifecycle
from crq.config import Config, LimitOptions, LogOptions, ReaperOptions
from crq.configfile import ConfigError
from crq.lifecycle import Daemon, LastResort, Reloader, Signals
from crq.logs import Logs


class PlayedReactor:
    """
    A reactor whose start and whose turns a test makes.
    """

    def __init__(self) -> None:
        self.turns: list[Callable[[], Any]] = []
        self.at_start: list[Callable[[], Any]] = []

    def callWhenRunning(self, function: Callable[[], Any]) -> None:  # noqa: N802
        self.at_start.append(function)

    def callFromThread(self, function: Callable[[], Any]) -> None:  # noqa: N802
        self.turns.append(function)

    def turn(self) -> None:
        turns, self.turns = self.turns, []
        for function in turns:
            function()


class SignalTests(SynchronousTestCase):
    """
    What a signal does.
    """

    def setUp(self) -> None:
        self.done: list[str] = []
        self.reactor = PlayedReactor()
        self.handlers: dict[int, Any] = {
            signal.SIGTERM: lambda number, frame: self.done.append("stop"),
            signal.SIGINT: lambda number, frame: self.done.append("stop by hand"),
        }
        self.signals = Signals(
            self.reactor,
            lambda: self.done.append("reload"),
            lambda: self.done.append("reopen"),
            lambda: self.done.append("hang up"),
            lambda: self.done.append("hurry"),
            self.handlers.get,
            self.handlers.__setitem__,
        )

    def start(self) -> None:
        self.signals.startService()
        for function in self.reactor.at_start:
            function()

    def receive(self, *numbers: int) -> list[str]:
        """
        Receive signals; returns what came of it by the reactor's next turn.
        """
        for number in numbers:
            self.handlers[number](number, None)
        self.reactor.turn()
        done, self.done = self.done, []
        return done

    def test_the_second_one_ends_the_waiting(self) -> None:
        """
        The first stops in order; the second hangs up, whatever of the two kinds each is.
        """
        for first, second, stopped in (
            (signal.SIGTERM, signal.SIGTERM, "stop"),
            (signal.SIGINT, signal.SIGTERM, "stop by hand"),
            (signal.SIGTERM, signal.SIGINT, "stop"),
        ):
            self.setUp()
            self.start()
            self.assertEqual(self.receive(first), [stopped])
            self.assertEqual(self.receive(second), ["hurry", "hang up"])

    def test_two_at_once_are_two(self) -> None:
        """
        The second counts although the reactor has not turned since the first.
        """
        self.start()
        self.assertEqual(self.receive(signal.SIGTERM, signal.SIGTERM), ["stop", "hurry", "hang up"])

    def test_hurry_does_not_wait_for_the_reactor(self) -> None:
        """
        The reactor may be what hangs: the count-down begins within the handler.
        """
        self.start()
        self.handlers[signal.SIGTERM](signal.SIGTERM, None)
        self.handlers[signal.SIGTERM](signal.SIGTERM, None)
        self.assertEqual(self.done, ["stop", "hurry"])

    def test_hangup_reloads(self) -> None:
        """
        SIGHUP reloads and SIGUSR1 opens the log again, each as often as it comes.
        """
        self.start()
        self.assertEqual(self.receive(signal.SIGHUP), ["reload"])
        self.assertEqual(self.receive(signal.SIGUSR1, signal.SIGHUP), ["reopen", "reload"])

    def test_a_daemon_that_stops_reloads_nothing(self) -> None:
        """
        After the stop has begun, by whatever, only an end is of interest.
        """
        self.start()
        self.signals.stopService()
        self.assertEqual(self.receive(signal.SIGHUP, signal.SIGUSR1), [])
        self.assertEqual(self.receive(signal.SIGTERM), ["hurry", "hang up"])

    def test_an_ignored_signal_stays_ignored(self) -> None:
        """
        A shell's background job ignores SIGINT; it goes on doing so.
        """
        self.handlers[signal.SIGINT] = signal.SIG_IGN
        self.start()
        self.assertIs(self.handlers[signal.SIGINT], signal.SIG_IGN)


class ReloadTests(SynchronousTestCase):
    """
    Reading the configuration again.
    """

    def setUp(self) -> None:
        self.read: Config | Exception = Config()
        self.applied: list[Config] = []
        self.told: list[str] = []
        self.logs = Logs("info", {"logfile": "-", "nodaemon": True})
        self.reloader = Reloader(
            self.load,
            Config(),
            self.logs,
            self.applied.append,
            lambda: self.told.append("before"),
            lambda: self.told.append("after"),
        )

    def load(self) -> Config:
        if isinstance(self.read, Exception):
            raise self.read
        return self.read

    def reload(self) -> list[LogEvent]:
        with capturedLogs() as events:
            self.reloader.reload()
        return [event for event in events if "action" in event]

    def test_limits_and_level_change(self) -> None:
        """
        Both are in force at once, and the log says from what to what.
        """
        self.read = Config(limits=LimitOptions(in_flight=6), log=LogOptions("debug"))
        (event,) = self.reload()
        self.assertEqual(event["changes"], "limits.in_flight 4 -> 6, log.level info -> debug")
        self.assertEqual(self.applied[0].limits.in_flight, 6)
        self.assertEqual(self.logs.level, "debug")
        self.assertEqual(self.told, ["before", "after"])

    def test_what_cannot_change_is_named(self) -> None:
        """
        It stays as it was and is named each time, until the restart; its value is not shown.
        """
        self.read = Config(reaper=ReaperOptions(every=30.0), limits=LimitOptions(per_account=3))
        self.read = evolve(self.read, secrets=evolve(self.read.secrets, salt="sesame"))
        for changes in ("limits.per_account 2 -> 3", "nothing that can change has changed"):
            done, waiting = self.reload()
            self.assertEqual(done["changes"], changes)
            self.assertEqual(waiting["names"], "secrets.salt, reaper.every")
            self.assertNotIn("sesame", repr((done, waiting)))
        self.assertEqual(self.applied[-1].reaper.every, 60.0)

    def test_a_broken_file_changes_nothing(self) -> None:
        """
        One error says what is wrong; limits and level stay, and the manager's reload ends.
        """
        self.read = ConfigError("limits.per_account: 9 is above limits.in_flight")
        (event,) = self.reload()
        self.assertEqual(event["log_level"].name, "error")
        self.assertIn("limits.per_account: 9", event["error"])
        self.assertEqual((self.applied, self.logs.level), ([], "info"))
        self.assertEqual(self.told, ["before", "after"])
        self.read = Config(limits=LimitOptions(in_flight=5))
        self.assertIn("4 -> 5", self.reload()[0]["changes"])

    def test_the_line_itself_is_seen(self) -> None:
        """
        Whichever way the level goes, the line that says so is written.
        """
        written: list[LogEvent] = []
        keep: Any = written.append
        sink = FilteringLogObserver(keep, [self.logs._levels])
        self.patch(Reloader, "_log", Logger(observer=sink))
        for count, level in enumerate(("error", "info", "error"), 1):
            self.read = Config(log=LogOptions(level))  # type: ignore[arg-type]
            self.reloader.reload()
            self.assertEqual(self.logs.level, level)
            self.assertEqual(len(written), count)

    def test_a_log_that_cannot_be_opened_is_kept(self) -> None:
        """
        The reload goes on, and an error says that the old file is in use.
        """

        def refuse() -> None:
            raise OSError(13, "Permission denied")

        self.patch(self.logs, "reopen", refuse)
        self.read = Config(limits=LimitOptions(in_flight=6))
        self.assertEqual([event["action"] for event in self.reload()], ["log kept", "reloaded"])


class LastResortTests(SynchronousTestCase):
    """
    The end that always comes.
    """

    def ended(self, act: Callable[[LastResort], Any], limit: float) -> bool:
        gone = threading.Event()
        codes: list[int] = []

        def end(code: int) -> None:
            codes.append(code)
            gone.set()

        act(LastResort(limit, 0, end))
        return gone.wait(5.0) and codes == [1]

    def test_a_stop_has_a_limit(self) -> None:
        """
        The process is ended, with an error code, when its time is over.
        """
        self.assertTrue(self.ended(LastResort.stopService, 0.01))

    def test_a_hurry_is_shorter(self) -> None:
        """
        The second signal does not wait for the limit of the first.
        """
        self.patch(lifecycle, "HURRY", 0.01)

        def twice(last: LastResort) -> None:
            last.stopService()
            last.hurry()

        self.assertTrue(self.ended(twice, 600.0))


class DaemonTests(SynchronousTestCase):
    """
    The root of the services.
    """

    def test_an_application_is_given_the_log(self) -> None:
        """
        twistd asks the application for its observer; a logger of the operator's own is left alone.
        """
        application = Application("crqueue")
        logs = Logs("info")
        Daemon(logs).setServiceParent(application)
        self.assertIs(application.getComponent(ILogObserver), logs.observer)
        other = Application("crqueue")
        Daemon(Logs("info", {"logger": "module.observer"})).setServiceParent(other)
        self.assertIsNone(other.getComponent(ILogObserver))
