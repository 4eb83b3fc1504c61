"""
The liveness lock: held by a living worker, free when it is dead, on both databases.
"""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crq import liveness
from crq.database import Database
from crq.liveness import Liveness, LockBusy
from tests.servers import MariaDB

HOLDER = """
import sys, time
from pathlib import Path
from crq.database import Database
from crq.liveness import Liveness
with Liveness(Database(sys.argv[1]), Path(sys.argv[2])).hold(7):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["sqlite", "mariadb"])
def locks(request: pytest.FixtureRequest, tmp_path: Path) -> Liveness:
    engine: str = request.param
    if request.config.getoption("--engine") not in (engine, "both"):
        pytest.skip(f"--engine leaves {engine} out")
    path = tmp_path / "rows.db"
    path.touch()
    url = f"sqlite:///{path}"
    if engine == "mariadb":
        server: MariaDB = request.getfixturevalue("mariadb")
        url = server.create_database("liveness")
    return Liveness(Database(url), tmp_path / "locks")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "TAKE_WITHIN", 1)
    monkeypatch.setattr(liveness, "KEEP_EVERY", 0.05)


def held(locks: Liveness, *execution_ids: int) -> frozenset[int]:
    connection = locks.database.connect()
    try:
        return locks.database.read(connection, locks.held, execution_ids or (7,))
    finally:
        connection.close()


def eventually(what: Callable[[], bool], within: float = 15.0) -> None:
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def holders(mariadb: MariaDB, name: str = "crq:liveness:7") -> int | None:
    number: int | None = mariadb.execute("SELECT IS_USED_LOCK(%s)", (name,))[0][0]
    return number


def test_held_and_free(locks: Liveness) -> None:
    """
    A lock is held exactly as long as its holder holds it, and each execution has its own.
    """
    assert held(locks, 7, 8) == frozenset()
    with locks.hold(7):
        assert held(locks, 7, 8) == {7}
        with locks.hold(8):
            assert held(locks, 7, 8) == {7, 8}
        assert held(locks, 7, 8) == {7}
    assert held(locks, 7, 8) == frozenset()


def test_a_second_holder_is_told(locks: Liveness) -> None:
    """
    A lock that somebody holds is given to nobody else, and asking does not take it away.
    """
    with locks.hold(7):
        with pytest.raises(LockBusy), locks.hold(7):
            pytest.fail("held twice")
        assert held(locks) == {7}
    with locks.hold(7):
        assert held(locks) == {7}


def test_who_waited_holds_it_visibly(locks: Liveness) -> None:
    """
    A worker that waited for the lock until another gave it back is seen to hold it.
    """
    seen: list[frozenset[int]] = []

    def wait() -> None:
        with locks.hold(7):
            seen.append(held(locks))

    waiting = threading.Thread(target=wait)
    with locks.hold(7):
        waiting.start()
        time.sleep(0.2)
    waiting.join()
    assert seen == [{7}]


def test_a_file_removed_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A lock on a file that its last holder removes between our opening and our locking is no lock.
    """
    locks = Liveness(Database("sqlite:///unused.db"), tmp_path)
    real = fcntl.flock
    removals = iter([tmp_path / "7.lock"])

    def flock(descriptor: int, operation: int) -> None:
        for path in removals:
            path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locks.hold(7):
        assert locks._file_is_held(7)


def test_it_dies_with_its_process(locks: Liveness) -> None:
    """
    A worker that is killed leaves its lock free, without a farewell.
    """
    command = [sys.executable, "-c", HOLDER, locks.database.url, str(locks.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert held(locks) == {7}
        process.send_signal(signal.SIGKILL)
    eventually(lambda: held(locks) == frozenset())


def test_a_lock_that_was_lost_is_taken_again(mariadb: MariaDB, tmp_path: Path) -> None:
    """
    When the server ends the connection of a living worker, the worker takes its lock again.
    """
    locks = Liveness(Database(mariadb.create_database("liveness")), tmp_path)
    with locks.hold(7):
        for _ in range(3):
            first = holders(mariadb)
            assert first is not None
            mariadb.execute(f"KILL {first}")
            eventually(lambda first=first: holders(mariadb) not in (None, first))  # type: ignore[misc]
    assert held(locks) == frozenset()


def test_a_lock_that_was_lost_is_back_after_one_look(
    mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The look that finds a lock lost takes it again: it does not wait for the next one.
    """
    monkeypatch.setattr(liveness, "KEEP_EVERY", 1.0)
    locks = Liveness(Database(mariadb.create_database("liveness")), tmp_path)
    with locks.hold(7):
        first = holders(mariadb)
        mariadb.execute(f"KILL {first}")
        eventually(lambda: holders(mariadb) not in (None, first), within=1.8)


def test_a_lock_that_is_not_free_yet_is_waited_for(mariadb: MariaDB, tmp_path: Path) -> None:
    """
    A keeper that finds its lock still taken, by a session the server has not given up yet, goes on
    trying instead of believing that it has it.
    """
    locks = Liveness(Database(mariadb.create_database("liveness")), tmp_path)
    other = locks.database.connect()
    number = other.thread_id()
    with locks.hold(7), ThreadPoolExecutor(1) as pool:
        first = holders(mariadb)
        cursor = other.cursor()
        waiting = pool.submit(cursor.execute, "SELECT GET_LOCK('crq:liveness:7', 10)")
        eventually(lambda: _state(mariadb, number) == "User lock")
        mariadb.execute(f"KILL {first}")  # the one that waits has it now
        waiting.result()
        assert holders(mariadb) == number
        time.sleep(0.5)  # ten looks of the keeper
        other.close()
        eventually(lambda: holders(mariadb) not in (None, first, number))
    assert held(locks) == frozenset()


def _state(mariadb: MariaDB, number: int) -> str:
    sql = "SELECT STATE FROM information_schema.PROCESSLIST WHERE ID = %s"
    return str(mariadb.execute(sql, (number,))[0][0])


@pytest.mark.slow
def test_a_restarted_server(tmp_path: Path) -> None:
    """
    After a restart of the server the lock is there again, within the seconds an asker waits.
    """
    with MariaDB() as server:
        locks = Liveness(Database(server.create_database("liveness")), tmp_path)
        with locks.hold(7):
            server.restart()
            eventually(lambda: held(locks) == {7}, within=liveness.GRACE)


def test_installations_on_one_server(mariadb: MariaDB, tmp_path: Path) -> None:
    """
    The same execution number in another database is another lock.
    """
    ours = Liveness(Database(mariadb.create_database("liveness")), tmp_path)
    theirs = Liveness(Database(mariadb.create_database("liveness_2")), tmp_path)
    with ours.hold(7):
        assert held(theirs) == frozenset()
        with theirs.hold(7):
            assert held(theirs) == {7}
        assert held(ours) == {7}
