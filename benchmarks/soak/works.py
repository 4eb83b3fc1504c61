"""
All the parts of a soak, and what is done to them.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import pymysql
from attrs import evolve

from benchmarks.soak.gatewatch import GateWatch
from benchmarks.soak.schedule import ACCOUNTS, KEYS, Action
from tests.installation import Installation, companion
from tests.proxy import Proxy
from tests.servers import HOST, MariaDB, Memcached
from tests.site import Site

GATEWAY_TIMEOUT = (
    b"HTTP/1.1 504 Gateway Time-out\r\nConnection: close\r\nContent-Length: 3\r\n\r\n504"
)
DATABASE = "soak"
SETTINGS: dict[str, dict[str, object]] = {
    # Small enough that refusals happen, and that the end is not far.
    "limits": {"queued_per_account": 25, "queued_total": 80},
    "executor": {"wall": 30.0, "deadline": 35.0, "grace": 5.0, "memory_mb": 256},
    "drainer": {"id": "soak", "tick": 1.0, "drain_limit": 3.0, "stop_limit": 6.0},
    "database": {"timeout": 5.0},
    "api": {"wait_below": 1},  # a 429 ends its script
}


class Works:
    """
    Servers, fronts, daemons and executor; `close` ends all of them.

    :ivar daemons: those that share the queue; the first one's installation has the executor.
    :ivar done: how many actions of each kind were done.
    :ivar problems: what died by itself.
    """

    def __init__(self, folder: Path, engine: str, drainers: int = 1) -> None:
        self.folder = folder
        self._away: dict[Installation, float] = {}  # until which monotonic instant
        self._frozen: dict[Installation, float] = {}
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self.server: MariaDB | None = None
        self.memcached: Memcached | None = None
        self.way: Proxy | None = None  # to the database
        self._log: TextIO = (folder / "soak.log").open("w")
        self._begun = time.monotonic()
        try:
            settings = {name: dict(options) for name, options in SETTINGS.items()}
            if engine == "mariadb":
                self.server, self.memcached = MariaDB(), Memcached()
                self.server.start()
                self.memcached.start()
                self.server.create_database(DATABASE)
                self.way = Proxy((HOST, self.server.port))
                url = self.server.dsn(DATABASE).replace(
                    f":{self.server.port}/", f":{self.way.port}/"
                )
                settings["database"]["url"] = url
                servers = [f"{HOST}:{self.memcached.port}"]
                settings["gates"] = {"backend": "memcached", "servers": servers}
            self.site = Site(folder, None, settings, front=True)
            first = self.site.installation
            others = (f"soak{number}" for number in range(2, drainers + 1))
            self.daemons = [first, *(companion(first, folder / name, name) for name in others)]
            if self.server is not None:
                # We ourselves look at the rows without a front between.
                self.site.database = evolve(
                    self.site.database, url=self.server.dsn(DATABASE), timeout=20.0
                )
                self.reconnect()
        except BaseException:
            self._close_servers()
            raise
        sealer = self.site.config.sealer()
        self.gates = GateWatch(
            self.site, [sealer.key(f"{a}.{k}") for a in ACCOUNTS for k in range(KEYS)]
        )

    def close(self) -> None:
        """
        End everything.
        """
        if self.gates.is_alive():
            self.gates.end()
        for daemon in self.daemons:
            self._thaw(daemon)
            daemon.close()
        self.site.close()
        self._close_servers()

    def _close_servers(self) -> None:
        if self.server is not None:
            with suppress(OSError):
                (self.folder / "mariadb.log").write_text(self.server.log()[-1_000_000:])
        for each in (self.way, self.server, self.memcached):
            if each is not None:
                each.close()
        self._log.close()

    def reconnect(self) -> None:
        """
        Take a new connection of our own, when the server has been away.
        """
        with suppress(Exception):
            self.site.connection.close()
        self.site.connection = self.site.database.connect()

    def note(self, text: str) -> None:
        """
        Write a line into the soak's own log.
        """
        self._log.write(f"{time.monotonic() - self._begun:9.3f} {time.time():.3f} {text}\n")
        self._log.flush()

    # -- what is done

    def do(self, action: Action) -> None:
        """
        Do it, and mend what it left broken.
        """
        self.note(f"{action.kind}, {action.seconds:.2f} s, {action.which}")
        getattr(self, "_" + action.kind.replace(" ", "_"))(action)
        self.done[action.kind] += 1
        self.mend()

    def mend(self) -> None:
        """
        Start whatever does not run.
        """
        if not self.site.installation.runs("executor"):
            self.site.installation.start_executor()
            self.note("executor started")
        now = time.monotonic()
        for daemon in self.daemons:
            if self._frozen.get(daemon, now) < now:
                self._thaw(daemon)
            if not daemon.runs("daemon") and self._away.get(daemon, 0.0) < now:
                self._away.pop(daemon, None)
                daemon.start_daemon(wait=False)
                self.note(f"daemon {daemon.config.drainer.id} started")

    def settle(self) -> None:
        """
        Let nobody be away any more.
        """
        self._away.clear()
        for daemon in self.daemons:
            self._thaw(daemon)
        self.mend()

    def watch(self) -> None:
        """
        Notice what ended although nothing was done to it.
        """
        for daemon in self.daemons:
            if not daemon.runs("daemon") and daemon not in self._away:
                self.problems.append(f"the daemon {daemon.config.drainer.id} has ended by itself")
                daemon.kill("daemon")
        if not self.site.installation.runs("executor"):
            self.problems.append("the executor has ended by itself")
            self.site.installation.kill("executor")
        self.mend()

    def _daemon(self, action: Action) -> Installation:
        """
        The daemon that it is done to: one that is there, if any is.
        """
        here = [daemon for daemon in self.daemons if daemon.runs("daemon")] or self.daemons
        daemon = here[action.which % len(here)]
        if daemon in self._frozen:
            self._thaw(daemon)
        return daemon

    def _thaw(self, daemon: Installation) -> None:
        if self._frozen.pop(daemon, None) is not None:
            with suppress(ProcessLookupError):
                os.kill(daemon.pid("daemon"), signal.SIGCONT)
            self.note(f"daemon {daemon.config.drainer.id} goes on")

    def _daemon_away(self, action: Action) -> None:
        daemon = self._daemon(action)
        if daemon.runs("daemon") and len(self._away) + len(self._frozen) < len(self.daemons) - 1:
            daemon.kill("daemon")
            self._away[daemon] = time.monotonic() + action.seconds

    def _daemon_frozen(self, action: Action) -> None:
        daemon = self._daemon(action)
        if daemon.runs("daemon") and len(self._away) + len(self._frozen) < len(self.daemons) - 1:
            os.kill(daemon.pid("daemon"), signal.SIGSTOP)
            self._frozen[daemon] = time.monotonic() + action.seconds

    def _daemon_killed(self, action: Action) -> None:
        daemon = self._daemon(action)
        if daemon.runs("daemon"):
            daemon.kill("daemon")
        time.sleep(action.seconds)

    def _daemon_stopped(self, action: Action) -> None:
        daemon = self._daemon(action)
        if not daemon.runs("daemon"):
            return
        code = daemon.stop("daemon")
        # The last resort of a stop is 1; that it was needed is no fault while servers are away.
        if code not in (0, 1, -signal.SIGTERM):
            self.problems.append(f"the daemon's stop ended with {code}")
        time.sleep(action.seconds)

    def _executor_killed(self, action: Action) -> None:
        self.site.installation.kill("executor")
        time.sleep(action.seconds)

    def _executor_stopped(self, action: Action) -> None:
        self.site.installation.stop("executor")
        time.sleep(action.seconds)

    def _daemon_and_executor_killed(self, action: Action) -> None:
        daemon = self._daemon(action)
        if daemon.runs("daemon"):
            daemon.kill("daemon")
        self.site.installation.kill("executor")
        time.sleep(action.seconds)

    def _worker_killed(self, action: Action) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._worker(action.which), signal.SIGKILL)

    def _worker_paused(self, action: Action) -> None:
        with paused(self._worker(action.which)):
            time.sleep(action.seconds)

    def _daemon_paused(self, action: Action) -> None:
        daemon = self._daemon(action)
        if daemon.runs("daemon"):
            with paused(daemon.pid("daemon")):
                time.sleep(action.seconds)

    def _answers_reset(self, _: Action) -> None:
        assert self.site.front is not None
        self.note(f"{self.site.front.reset()} connections")

    def _answers_replaced_by_504(self, _: Action) -> None:
        assert self.site.front is not None
        self.note(f"{self.site.front.answer(GATEWAY_TIMEOUT)} connections")

    def _database_killed(self, action: Action) -> None:
        assert self.server is not None
        self.server.kill()
        time.sleep(action.seconds)
        self.server.start()

    def _database_restarted(self, action: Action) -> None:
        assert self.server is not None
        self.server.stop()
        time.sleep(action.seconds)
        self.server.start()

    def _database_paused(self, action: Action) -> None:
        assert self.server is not None
        with paused(self.server.pid):
            time.sleep(action.seconds)

    def _memcached_killed(self, action: Action) -> None:
        assert self.memcached is not None
        gone_at = time.time()
        self.memcached.kill()
        self.gates.forget(gone_at)
        time.sleep(action.seconds)
        self.memcached.start()

    def _memcached_paused(self, action: Action) -> None:
        assert self.memcached is not None
        gone_at = time.time()
        with paused(self.memcached.pid):
            self.gates.forget(gone_at)
            time.sleep(action.seconds)

    def _connections_killed(self, _: Action) -> None:
        assert self.server is not None
        sql = "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = %s"
        numbers = [row[0] for row in self.server.execute(sql, (self.server.user,))]
        for number in numbers:
            with suppress(pymysql.MySQLError):  # it may be gone by itself
                self.server.execute(f"KILL {number}")
        self.note(f"{len(numbers)} connections")

    def _connections_reset(self, _: Action) -> None:
        assert self.way is not None
        self.note(f"{self.way.reset()} connections")

    def _answer_to_a_COMMIT_lost(self, _: Action) -> None:  # noqa: N802 - named by its kind
        assert self.way is not None
        before = self.way.cut
        once = iter([True])
        self.way.lose_answer_to = lambda data: b"COMMIT" in data and next(once, False)
        deadline = time.monotonic() + 2.0
        while self.way.cut == before and time.monotonic() < deadline:
            time.sleep(0.02)
        self.way.lose_answer_to = lambda _: False
        self.note(f"{self.way.cut - before} answers")

    def _worker(self, which: int) -> int:
        """
        One of the executor's workers.
        """
        master = self.site.installation.pid("executor")
        children: list[str] = []
        while not children:  # it is about to fork them
            children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        return int(children[which % len(children)])


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """
    Let a process do nothing for a while.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
