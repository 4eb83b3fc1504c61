"""
What each role constructs, and the poke between them.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError
from twisted.logger import capturedLogs
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from crq import schema
from crq.poke import Poke, PokeListener
from tests import door
from tests.door import ADMITTER
from tests.rows import SEALER
from tests.unit.test_tap import TapCase

DRAINS = {"drainer", "reaper", "watch", "supervision", "automations", "automation threads"}
BOTH = {"previews", "last resort", "signals", "gates", "http"}


class RoleTests(TapCase):
    """
    ``twistd crqueue --roles``.
    """

    def names(self, roles: str, *more: str) -> set[str]:
        """
        The services of a role, and the lock given back.
        """
        if not Path(self.database.path).exists():
            schema.upgrade(self.database)
        root = self.make("--roles", roles, *more)
        return {str(service.name) for service in root}

    def test_what_each_role_constructs(self) -> None:
        """
        Admission is a door alone; draining is everything that moves rows, and a door to look
        through; all is both.
        """
        self.assertEqual(self.names("admit"), BOTH)
        self.assertEqual(self.names("drain"), BOTH | DRAINS)

    def test_all_is_what_it_was(self) -> None:
        """
        Without the option a daemon does everything; with a wake socket it listens for pokes.
        """
        path = self.folder / "wake"
        more = ("--set", f"drainer.wake_socket={path}")
        self.assertEqual(self.names("all", *more), BOTH | DRAINS | {"wake"})

    def test_both_run_side_by_side(self) -> None:
        """
        Each has a lock of its own; two of the same role do not start.
        """
        self.names("admit")
        self.names("drain")
        self.assertEqual(
            sorted(path.name for path in self.folder.glob("lock*")), ["lock", "lock.admit"]
        )
        for roles in ("admit", "drain", "all"):
            with self.assertRaisesRegex(SystemExit, "another daemon holds"):
                self.names(roles)

    def test_other_words_are_no_roles(self) -> None:
        """
        A usage error names the ones there are.
        """
        with self.assertRaisesRegex(UsageError, "--roles: 'both' is none; use one of admit, drain"):
            self.options("--roles", "both")


class DoorTests(SynchronousTestCase):
    """
    The doors of processes that do one of the two.
    """

    def make(self, **options: Any) -> door.Door:
        """
        A door that is closed in the end.
        """
        made = door.Door(**options)
        self.addCleanup(made.close)
        return made

    def test_who_only_drains_refuses_admission(self) -> None:
        """
        404 that says why and where; everything else is there.
        """
        made = self.make(admits=False)
        answer = made.submit()
        self.assertEqual((answer.status, answer.json["field"]), (404, "path"))
        self.assertIn("--roles admit", answer.json["remedy"])
        self.assertEqual(made.ask("POST", "/wake", token=ADMITTER).status, 200)
        self.assertEqual(made.ask("GET", "/status").json["verdict"], "idle")

    def test_who_only_admits_has_no_drainer_to_speak_of(self) -> None:
        """
        It admits, and reports by what the rows, the beats and the gates' store say; it is ready
        while its database answers; its metrics are those it knows.
        """
        made = self.make(drains=False)
        self.assertEqual(made.submit().status, 202)
        self.assertEqual(made.woken, 1)
        self.assertEqual(made.ask("GET", "/health/ready", token=None).status, 200)
        report = made.ask("GET", "/status").json
        self.assertEqual((report["verdict"], report["daemon"]), ("degraded", None))
        made.clock.advance(11)
        self.assertEqual(made.ask("GET", "/status").json["verdict"], "stalled")
        key = SEALER.key("k")
        made.stored_gates.stored[key] = made.wall() + 60
        report = made.ask("GET", "/status").json
        self.assertEqual([gate["key"] for gate in report["gates"]], [key])
        why = made.ask("GET", "/codeRunner/executions/1/explain").json["why"]
        self.assertIn("gated", [each["rule"] for each in why])
        text = made.ask("GET", "/metrics").body.decode()
        self.assertIn("crqueue_drainers_alive 0.0", text)
        self.assertNotIn("crqueue_ticks_skipped", text)

    def test_who_only_admits_does_not_guess_who_goes_first(self) -> None:
        """
        It never hears that an execution has ended, so a gate that has passed holds nothing in what
        it says; a drainer, which waits for the first one to end, says so.
        """
        for drains, held in ((False, 0), (True, 1)):
            made = self.make(drains=drains)
            made.submit()
            made.submit()
            key = SEALER.key("k")
            made.stored_gates.stored[key] = made.wall() + 5
            self.successResultOf(made_gates(made, key))
            made.clock.advance(6)
            made.stored_gates.stored.clear()
            self.successResultOf(made_gates(made, key))

            def claim(txn: Any) -> None:
                txn.execute(
                    "UPDATE codeRunner_executions SET status = 'claimed',"
                    " claimed_at = queued_at WHERE execution_id = 1"
                )

            self.successResultOf(made.pool.transact(claim))
            holds = made.ask("GET", "/status").json["holds"]
            self.assertEqual(holds.get("half open", 0), held, holds)

    def test_who_only_admits_is_not_ready_without_its_database(self) -> None:
        """
        503, so that a balancer asks another one.
        """

        def away(statement: str) -> None:
            if faults:
                raise sqlite3.OperationalError("unable to open database file")

        faults: list[bool] = []
        made = self.make(drains=False, observe=away)
        self.assertEqual(made.ask("GET", "/health/ready", token=None).status, 200)
        faults.append(True)
        self.assertEqual(made.ask("GET", "/health/ready", token=None).status, 503)


def made_gates(made: door.Door, key: str) -> Deferred[Any]:
    """
    Read a gate, as ticks do, and reports where there are none.
    """
    return Deferred.fromCoroutine(made.gates.read([key], made.wall()))


class PokeTests(SynchronousTestCase):
    """
    The datagram.
    """

    def test_nobody_listens(self) -> None:
        """
        No file, no socket behind the file, a full one: never an error, and never a wait.
        """
        path = self.mktemp()
        Poke(path)()
        deaf = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(deaf.close)
        deaf.bind(path)
        for _ in range(1000):
            Poke(path)()
        deaf.close()
        Poke(path)()

    def test_a_listener_cleans_up(self) -> None:
        """
        What a killed one has left is replaced, each poke is told, and an ordered stop leaves no
        file.
        """
        path, poked = self.mktemp(), []
        Path(path).touch()
        reactor = _Reactor()
        listener = PokeListener(path, reactor, lambda: poked.append(1))
        listener.startService()
        self.assertEqual((reactor.path, reactor.mode), (path, 0o660))
        self.assertFalse(os.path.exists(path))
        reactor.protocol.datagramReceived(b"whatever")
        self.assertEqual(poked, [1])
        Path(path).touch()
        stopped = listener.stopService()
        assert stopped is not None
        self.successResultOf(stopped)
        self.assertFalse(os.path.exists(path))

    def test_a_place_that_cannot_be_is_told(self) -> None:
        """
        The daemon goes on, and the log says that work is found by the tick.
        """
        reactor = _Reactor(CannotListenError(None, None, OSError(2, "No such file or directory")))
        listener = PokeListener("/nonexistent/wake", reactor, lambda: None)
        with capturedLogs() as events:
            listener.startService()
        (line,) = [each for each in events if each.get("action") == "no wake socket"]
        self.assertEqual(line["path"], "/nonexistent/wake")
        self.assertIsNone(listener.stopService())


class _Reactor:
    """
    Listens without a socket.
    """

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.path = ""
        self.mode = 0
        self.protocol: Any = None

    def listenUNIXDatagram(self, path: str, protocol: Any, mode: int) -> Any:  # noqa: N802
        if self.fault is not None:
            raise self.fault
        self.path, self.protocol, self.mode = path, protocol, mode
        return self

    def stopListening(self) -> Deferred[None]:  # noqa: N802
        return succeed(None)
