"""
The life of the real daemon: started, watched, signalled, rotated, stopped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crq import actions, tap
from crq.actions import By
from tests.fake_api import FakeApi
from tests.installation import BIN, CHECKOUT, Installation
from tests.processes import end, kill, spawn
from tests.servers import MariaDB

WITHIN = 30.0  # s
CLOEXEC = 0o2000000  # in the flags of /proc/PID/fdinfo


class Manager:
    """
    The socket of a service manager, and what was said to it.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def hear(self, within: float = WITHIN) -> dict[str, str]:
        """
        Wait for the next message.
        """
        self._socket.settimeout(within)
        text = self._socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in text.split("\n"))

    def until(self, name: str, within: float = WITHIN) -> list[dict[str, str]]:
        """
        Wait for a message with a name; returns all up to it.
        """
        messages = []
        deadline = time.monotonic() + within
        while True:
            messages.append(self.hear(max(0.01, deadline - time.monotonic())))
            if name in messages[-1]:
                return messages

    def silent(self, name: str, seconds: float) -> bool:
        """
        Whether a name is not said for so long.
        """
        try:
            self.until(name, seconds)
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        """
        Listen no more.
        """
        self._socket.close()

    def supervise(self, installation: Installation) -> None:
        """
        Be the manager of its daemon, with a watchdog.
        """
        watched = {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": "60000000"}
        installation.environment["daemon"] = watched


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """
    A manager on each kind of socket.
    """
    kinds = {"path": str(tmp_path / "notify"), "abstract": f"@crq-test-{os.getpid()}"}
    made = Manager(kinds[request.param])
    yield made
    made.close()


only_path = pytest.mark.parametrize("manager", ["path"], indirect=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Installation]:
    """
    An installation on SQLite that has no executor.
    """
    with Installation(tmp_path) as made:
        yield made


def until(condition: Callable[[], bool], what: str, within: float = WITHIN) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def add(installation: Installation, text: str) -> None:
    installation.path.write_text(installation.path.read_text() + "\n" + text + "\n")


def limits(installation: Installation) -> dict[str, int]:
    found: dict[str, int] = json.loads(installation.get("/status")[1])["limits"]
    return found


@contextmanager
def daemon(installation: Installation, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """
    A daemon under other options of twistd than the usual ones.
    """
    clean = {name: value for name, value in os.environ.items() if name[:4] != "CRQ_"}
    command = [str(BIN / "twistd"), "--nodaemon", "--pidfile=", *options]
    process = spawn(
        [*command, "crqueue", "--config", str(installation.path)],
        installation.directory / "daemon.log",
        installation.directory,
        {**clean, "PYTHONPATH": str(CHECKOUT)},
    )
    try:
        until(lambda: installation.get("/health/ready")[0] == 200, installation.log("daemon"))
        yield process
    finally:
        kill(process)


# -- what systemd is told


def test_a_life_as_its_manager_sees_it(manager: Manager, small: Installation) -> None:
    """
    READY, pings and a line of status, a reload with its end, STOPPING; on either kind of socket.
    """
    manager.supervise(small)
    pid = small.start_daemon()
    before = manager.until("READY")
    assert before[0] == {"STATUS": "starting"}
    assert before[-1] == {"READY": "1", "WATCHDOG": "1"}
    assert manager.until("STATUS")[-1] == {"STATUS": "idle: nothing waits and nothing runs"}
    assert manager.hear() == {"WATCHDOG": "1"}
    os.kill(pid, signal.SIGHUP)
    reloading = manager.until("RELOADING")[-1]
    assert abs(int(reloading["MONOTONIC_USEC"]) / 1e6 - time.monotonic()) < WITHIN
    assert manager.until("READY")[-1] == {"READY": "1"}
    assert small.stop("daemon") == -signal.SIGTERM
    assert manager.until("STOPPING")[-1]["STATUS"] == "stopping, 0 in flight"
    assert manager.silent("WATCHDOG", 0.01)


@only_path
@pytest.mark.slow
def test_an_outage_is_waited_for_and_a_hang_is_not(manager: Manager, tmp_path: Path) -> None:
    """
    Without its database the daemon is not ready, asks for time and pings; READY comes with the
    database; an outage later on pings as well. A server that holds on to a tick for longer than the
    watchdog waits stops the pings, although the reactor turns and answers.
    """
    with MariaDB() as server:
        server.create_database("life")
        settings: dict[str, dict[str, object]] = {
            "database": {"url": server.dsn("life"), "timeout": 60.0},
        }
        with Installation(tmp_path, settings) as installation:
            manager.supervise(installation)
            server.stop()
            installation.start_daemon(wait=False)
            early = manager.until("WATCHDOG") + manager.until("WATCHDOG")
            assert all("READY" not in message for message in early)
            assert early[-1]["EXTEND_TIMEOUT_USEC"] == "60000000"
            assert installation.get("/health/ready")[0] == 503
            server.start()
            manager.until("READY")
            server.stop()
            until(lambda: installation.get("/health/ready")[0] == 503, "no outage")
            assert manager.until("WATCHDOG")[-1] == {"WATCHDOG": "1"}
            assert manager.until("WATCHDOG")
            server.start()
            until(lambda: installation.get("/health/ready")[0] == 200, "does not recover")
            os.kill(server.pid, signal.SIGSTOP)
            try:
                time.sleep(1.5)  # what was under way has been said by then
                while not manager.silent("WATCHDOG", 0.01):
                    pass
                assert manager.silent("WATCHDOG", 5.0)
                assert installation.get("/health/live")[0] == 200
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert manager.until("WATCHDOG")


# -- signals


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_waiting(small: Installation, second: signal.Signals) -> None:
    """
    An executor that never answers: the first signal waits, the second does not; the row is true,
    and the next daemon goes on with it.
    """
    with socket.create_server(("127.0.0.1", small.executor_port)):
        with daemon(small) as process:
            small.submit(subdomain="acme", apikey="k", source_code="print(1)")
            until(lambda: "dispatched" in small.log("daemon"), "not dispatched")
            process.terminate()
            until(lambda: "waiting for 1 answers" in small.log("daemon"), "does not drain")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            begun = time.monotonic()
            process.send_signal(second)
            assert process.wait(WITHIN) == -signal.SIGTERM  # the first one's
            assert time.monotonic() - begun < 1.5
        log = small.log("daemon")
        assert "not waiting any more; 1 answers are due" in log
        assert "Traceback" not in log
        small.start_daemon()
        assert json.loads(small.get("/status")[1])["inFlight"] == 1
        small.kill("daemon")


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_a_thread(tmp_path: Path) -> None:
    """
    A database that holds a thread for a minute (F27): the second signal ends the process all the
    same, and with an exit code that says so.
    """
    with MariaDB() as server:
        server.create_database("hung")
        settings: dict[str, dict[str, object]] = {
            "database": {"url": server.dsn("hung"), "timeout": 60.0},
        }
        with Installation(tmp_path, settings) as installation, daemon(installation) as process:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                time.sleep(1.5)  # a tick has begun and hangs
                process.terminate()
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1.0)
                begun = time.monotonic()
                process.terminate()
                assert process.wait(WITHIN) == 1
                assert 1.0 < time.monotonic() - begun < 4.0
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert "ending now" in installation.log("daemon")


def test_a_hangup_reloads_limits_and_level(small: Installation) -> None:
    """
    New caps and another level are in force without a restart; what needs one is named; a broken
    file leaves all of it as it was, with one error.
    """
    pid = small.start_daemon()
    add(small, '[limits]\nin_flight = 6\nqueued_per_account = 1\n\n[log]\nlevel = "warn"')
    add(small, "[reaper]\nevery = 30.0")
    os.kill(pid, signal.SIGHUP)
    until(lambda: limits(small)["inFlight"] == 6, "not reloaded")
    database = small.config.open_database()
    rows = (
        database.connect()
    )  # all is paused: what is admitted waits, and is never just being tried
    database.transact(rows, actions.pause, "all", "", By("token:ops", 0.0))
    rows.close()
    assert small.submit(subdomain="acme", apikey="k", source_code="x = 1")[0] == 202
    assert small.submit(subdomain="acme", apikey="k", source_code="x = 1")[0] == 429
    log = small.log("daemon")
    assert "limits.in_flight 4 -> 6" in log
    assert "need a restart: reaper.every" in log
    good = small.path.read_text()
    small.path.write_text(good.replace("in_flight = 6", "in_flight = many"))
    os.kill(pid, signal.SIGHUP)
    until(lambda: "was not reloaded" in small.log("daemon"), "no error")
    assert limits(small)["inFlight"] == 6
    small.path.write_text(good.replace("in_flight = 6", "in_flight = 3").replace("warn", "info"))
    os.kill(pid, signal.SIGHUP)
    until(lambda: limits(small)["inFlight"] == 3, "not reloaded after the fault")
    assert small.stop("daemon") == -signal.SIGTERM
    after = small.log("daemon")[len(log) :]
    assert after.count("was not reloaded") == 1
    assert "in_flight 6 -> 3" in after
    assert "Traceback" not in after


def test_a_taken_address_is_one_line(small: Installation) -> None:
    """
    A port that somebody has ends the start with the option's name, instead of a daemon without a
    door.
    """
    with socket.create_server(("127.0.0.1", small.web_port)):
        pid = small.start_daemon(wait=False)
        until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] not in "SR", "runs")
    assert small.stop("daemon") == 1
    log = small.log("daemon")
    assert "crqueue: web.listen: Couldn't listen on" in log
    assert "Traceback" not in log


# -- the log


def test_debug_is_off_until_it_is_asked_for(small: Installation) -> None:
    """
    A settled dispatch has a line at debug, and by default there is none.
    """
    with FakeApi():
        small.start_executor()
        for level, lines in (("info", 0), ("debug", 1)):
            add(small, f'[log]\nlevel = "{level}"') if level == "debug" else None
            small.start_daemon()
            done = small.log("executor").count(" ended: success")
            small.submit(subdomain="acme", apikey="k", source_code="x = 1")
            until(lambda done=done: small.log("executor").count("ended: success") > done, "waits")  # type: ignore[misc]
            assert small.stop("daemon") == -signal.SIGTERM
            assert small.log("daemon").count("settled:") == lines


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_rotated_log_loses_no_line(small: Installation, number: signal.Signals) -> None:
    """
    The file is renamed under a busy daemon, ten times, and then the daemon is signalled: each line
    is in one of the files, once.
    """
    small.start_executor()
    log = small.directory / "rotated.log"
    count = 60
    with daemon(small, f"--logfile={log}") as process:
        for turn in range(10):
            for _ in range(count // 10):
                small.submit(subdomain=f"account{turn}", apikey="k", source_code="x = 1")
            log.rename(f"{log}.{turn}")
            time.sleep(0.05)  # lines between the rename and the signal
            process.send_signal(number)
            until(log.exists, "not opened again")
        until(lambda: json.loads(small.get("/status")[1])["depth"] == 0, "does not drain")
        assert end(process, WITHIN) == -signal.SIGTERM
    files = sorted(small.directory.glob("rotated.log*"))
    assert len(files) == 11
    lines = [line for file in files for line in file.read_text().splitlines()]
    dispatched = [found[1] for line in lines if (found := re.search(r"n (\d+) dispatched", line))]
    assert sorted(map(int, dispatched)) == list(range(1, count + 1))
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in lines)


# -- what a child would get


def test_a_child_inherits_nothing(small: Installation) -> None:
    """
    Every descriptor of the daemon, its lock, its listening socket and its database among them, is
    closed in whatever the process might execute.
    """
    with daemon(small) as process:
        open_files = {}
        process.send_signal(signal.SIGSTOP)  # it opens and closes nothing under our eyes
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            if int(entry.name) > 2:
                flags = Path(f"/proc/{process.pid}/fdinfo/{entry.name}").read_text()
                open_files[os.readlink(entry)] = int(re.findall(r"flags:\s*(\d+)", flags)[0], 8)
    assert str(small.directory / "crqueue.lock") in open_files
    assert any(name.startswith("socket:") for name in open_files)
    assert any(name.endswith("crqueue.db") for name in open_files)
    assert {name for name, flags in open_files.items() if not flags & CLOEXEC} == set()


def test_the_lock_ends_with_its_holder_and_not_with_a_child(tmp_path: Path) -> None:
    """
    A child that outlives the daemon does not keep the next one from starting.
    """
    path = tmp_path / "lock"
    lock = tap.take_lock(path)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with pytest.raises(SystemExit, match="another daemon holds"):
            tap.take_lock(path)
        os.close(lock)
        os.close(tap.take_lock(path))
    finally:
        child.kill()
        child.wait()
