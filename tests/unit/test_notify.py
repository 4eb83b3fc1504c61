"""
What the environment says of a service manager, and words that go nowhere.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from crq.notify import Notify, watchdog_seconds


class WatchdogTests(SynchronousTestCase):
    """
    WATCHDOG_USEC and WATCHDOG_PID.
    """

    def test_microseconds_are_seconds(self) -> None:
        """
        The manager speaks of microseconds.
        """
        self.assertEqual(watchdog_seconds({"WATCHDOG_USEC": "60000000"}, 7), 60.0)
        self.assertEqual(watchdog_seconds({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "7"}, 7), 0.5)

    def test_none_is_none(self) -> None:
        """
        Without the variable, with a zero, with nonsense or for another process nothing watches us.
        """
        for environment in (
            {},
            {"WATCHDOG_USEC": ""},
            {"WATCHDOG_USEC": "0"},
            {"WATCHDOG_USEC": "-5"},
            {"WATCHDOG_USEC": "soon"},
            {"WATCHDOG_USEC": "²"},
            {"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "8"},
        ):
            self.assertIsNone(watchdog_seconds(environment, 7), environment)


class NotifyTests(SynchronousTestCase):
    """
    The address.
    """

    def test_only_sockets_of_this_machine(self) -> None:
        """
        A path and an abstract name are addresses; whatever else the variable holds is not.
        """
        for text in ("/run/systemd/notify", "@abstract"):
            self.assertEqual(Notify.of({"NOTIFY_SOCKET": text}).address, text)
        for text in ("", "@", "/", "vsock:2:1", "relative"):
            self.assertIsNone(Notify.of({"NOTIFY_SOCKET": text}).address, text)
        self.assertIsNone(Notify.of({}).address)

    def test_nobody_listens(self) -> None:
        """
        Without a manager nothing is sent, and a manager that is gone is no fault of ours.
        """
        self.assertFalse(Notify(None).send("READY=1"))
        gone = Notify("/nonexistent/nobody")
        self.addCleanup(gone.close)
        self.assertFalse(gone.send("READY=1"))
        too_long = Notify("/" + "x" * 200)
        self.addCleanup(too_long.close)
        self.assertFalse(too_long.send("READY=1"))
