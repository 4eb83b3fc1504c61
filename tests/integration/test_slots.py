"""
Slots under faults of real processes: they come back as soon as the truth is known, and not before.

At most 4 scripts run, and 2 of an account, as the API counts them, whatever is killed or cut; no
effect comes twice; and what a worker has to say counts, however late (F42, F44, F45, F48, F75, F76,
F78, F82, F83).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from crq.instants import instant_of
from crq.liveness import GRACE
from tests.fake_api import HELD
from tests.servers import MariaDB
from tests.site import TICK, Site

pytestmark = pytest.mark.slow

SOON = GRACE + 4.0  # s to know that a worker is dead: the grace, two looks, a busy machine
GATEWAY_TIMEOUT = (
    b"HTTP/1.1 504 Gateway Time-out\r\nContent-Type: text/html\r\nConnection: close\r\n"
    b"Content-Length: 12\r\n\r\n<h1>504</h1>"
)
Make = Callable[..., Site]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """
    Make the site of a test: ``make("mariadb", front=True)``.
    """
    made: list[Site] = []

    def make(engine: str, **how: object) -> Site:
        if request.config.getoption("--engine") not in (engine, "both"):
            pytest.skip(f"--engine leaves {engine} out")
        url = None
        if engine == "mariadb":
            server: MariaDB = request.getfixturevalue("mariadb")
            url = server.create_database("slots")
        made.append(Site(tmp_path, url, **how))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for site in made:
        site.close()


on_both = pytest.mark.parametrize("engine", ["sqlite", "mariadb"])


def running(site: Site, count: int) -> None:
    site.until(lambda: site.statuses()["running"] >= count, f"{count} do not run")


def four(site: Site, seconds: float = HELD) -> list[str]:
    """
    Let two accounts keep all four slots busy, until the API lets go of them.
    """
    started = [site.admit(n, "ab"[n % 2], seconds) for n in range(4)]
    site.installation.start_executor()
    site.installation.start_daemon()
    running(site, 4)
    return started


def ends(site: Site, **statuses: int) -> None:
    """
    Let everything end: so it ended, and every invariant held.
    """
    site.api.released.set()
    site.until(site.all_ended, "not everything ends")
    site.until(lambda: site.statuses() == statuses, f"not {statuses}")
    assert site.problems() == []


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """
    A process that does nothing for a while.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


# -- workers and executors


@on_both
def test_a_killed_worker_frees_its_slot(engine: str, make: Make) -> None:
    """
    A worker that is killed: its row says so within seconds, the next of its account takes the
    slot, and nobody else notices (F45).
    """
    site = make(engine)
    first, *others = four(site)
    waiting = site.admit(4, "a", 0.1)
    os.kill(site.worker(first), signal.SIGKILL)
    assert site.until(lambda: site.row(first)["error_code"] == 303, "not closed") < SOON
    site.until(lambda: site.row(waiting)["status"] == "success", "its slot is not used")
    assert [site.row(each)["status"] for each in others] == ["running"] * 3
    ends(site, success=4, **{"303": 1})


def test_an_executor_that_is_stopped_in_order(make: Make) -> None:
    """
    SIGTERM in mid-backlog: what runs ends, what waits stays and runs afterwards, no row is spent
    and the refusing port is not hammered (F78).
    """
    site = make("mariadb")
    four(site, 1.0)
    for number in range(4, 24):
        site.admit(number, "abcd"[number % 4], 0.02)
    assert site.installation.stop("executor") == 0
    assert site.statuses()["running"] == 0
    time.sleep(2.0)  # an executor that is away
    site.installation.start_executor()
    ends(site, success=24)
    # A pause of 0.5 s, doubled each time: few tries, each of one row.
    assert sum(site.dispatched().values()) < 24 + 10


def test_an_executor_that_is_killed_as_a_whole(make: Make) -> None:
    """
    All connections reset and new ones refused for three seconds: the four that ran are unknown and
    never sent again, the fifty that waited run (F78).
    """
    site = make("sqlite")
    started = four(site)
    for number in range(4, 54):
        site.admit(number, "abcd"[number % 4], 0.01)
    site.installation.kill("executor")
    time.sleep(3.0)
    site.installation.start_executor()
    ends(site, success=50, **{"303": 4})
    sent = site.dispatched()
    assert [sent[site.row(each)["execution_id"]] for each in started] == [1] * 4
    assert sum(sent.values()) < 54 + 10


def test_a_master_that_is_killed_alone(make: Make) -> None:
    """
    Without their master the workers end what they are at: their outcomes count, their slots stay
    taken until then, and a new executor goes on.
    """
    site = make("mariadb")
    started = four(site)
    waiting = site.admit(4, "a", 0.1)
    workers = [site.worker(each) for each in started]
    os.kill(os.getpgid(workers[0]), signal.SIGKILL)
    time.sleep(1.0)  # an idle worker sees at once that it is alone, a busy one afterwards
    site.api.released.set()
    site.until(lambda: site.statuses()["success"] >= 4, "their outcomes are lost")
    site.until(lambda: not any(map(_lives, workers)), "orphans stay")
    site.installation.kill("executor")
    site.installation.start_executor()
    site.until(lambda: site.row(waiting)["status"] == "success", "does not go on")
    ends(site, success=5)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


# -- fronts


@on_both
def test_a_gateway_that_gives_up(engine: str, make: Make) -> None:
    """
    504 while the workers live: no slot is given away, nothing is sent again, and the outcomes are
    the workers' own (F75, F48).
    """
    site = make(engine, front=True)
    started = four(site)
    waiting = site.admit(4, "a", 0.1)
    assert site.front is not None
    assert site.front.answer(GATEWAY_TIMEOUT) == 4
    time.sleep(GRACE + 1)  # longer than it takes to find a dead worker
    assert [site.row(each)["status"] for each in started] == ["running"] * 4
    assert site.row(waiting)["status"] == "queued"
    ends(site, success=5)
    assert set(site.dispatched().values()) == {1}


BROKEN = {
    "reset": None,
    "nothing": b"",
    "a page of 502": GATEWAY_TIMEOUT.replace(b"504 Gateway Time-out", b"502 Bad Gateway"),
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
}


@pytest.mark.parametrize(
    ("engine", "how"), [*(("sqlite", how) for how in BROKEN), ("mariadb", "reset")]
)
def test_an_answer_that_is_broken(engine: str, how: str, make: Make) -> None:
    """
    Whatever a front makes of the answers: a living worker's outcome counts, a dead one's row is
    unknown within seconds, at a time that the daemon measured, and neither is sent again (F76).
    """
    site = make(engine, front=True)
    lives, dies = site.admit(0, "a", HELD), site.admit(1, "a", HELD)
    site.installation.start_executor()
    site.installation.start_daemon()
    running(site, 2)
    assert site.front is not None
    data = BROKEN[how]
    assert (site.front.reset() if data is None else site.front.answer(data)) == 2
    os.kill(site.worker(dies), signal.SIGKILL)
    killed_at = time.time()
    site.until(lambda: site.row(dies)["error_code"] == 303, "not closed")
    assert site.row(lives)["status"] == "running"
    ends(site, success=1, **{"303": 1})
    assert site.row(lives)["status"] == "success"
    row = site.row(dies)
    assert row["error_code"] == 303
    assert killed_at - 1 <= instant_of(row["finished_at"]) <= killed_at + SOON
    assert set(site.dispatched().values()) == {1}


@on_both
def test_a_front_that_sends_everything_twice(engine: str, make: Make) -> None:
    """
    The same POST reaches two workers: one of them starts it, the other is refused, and the outcome
    is that of the one (F83).
    """
    site = make(engine, front=True)
    assert site.front is not None
    site.front.also = site.front.address
    for number in range(8):
        site.admit(number, "abcd"[number % 4], 0.3)
    site.installation.start_executor()
    site.installation.start_daemon()
    ends(site, success=8)


# -- daemons


@on_both
def test_a_daemon_killed_with_every_slot_busy(engine: str, make: Make) -> None:
    """
    The next daemon knows from the rows what runs: no slot is given twice, nothing is sent again,
    however often it is killed (F44, F48).
    """
    site = make(engine)
    four(site)
    for number in range(4, 8):
        site.admit(number, "abcd"[number % 4], 0.1)
    for _ in range(3):
        site.installation.kill("daemon")
        site.installation.start_daemon()
        time.sleep(3 * TICK)
        assert site.api.most["total"] == 4
    ends(site, success=8)
    assert set(site.dispatched().values()) == {1}


def test_daemon_and_executor_killed_together(make: Make) -> None:
    """
    After a power cut the slots are free within seconds of the start, and what waited runs (F45).
    """
    site = make("mariadb")
    started = four(site)
    for number in range(4, 10):
        site.admit(number, "ab"[number % 2], 0.1)
    site.installation.kill("daemon")
    site.installation.kill("executor")
    site.installation.start_executor()
    site.installation.start_daemon()
    took = site.until(lambda: site.statuses()["303"] == 4, "slots stay taken")
    assert took < SOON
    ends(site, success=6, **{"303": 4})
    assert all(site.row(each)["error_code"] == 303 for each in started)


def test_a_daemon_that_is_stopped_in_order(make: Make) -> None:
    """
    SIGTERM with four in flight and fifty waiting: the connections stay until the answers are there,
    nothing is sent after the signal, and the next daemon does the rest (F42, F82).
    """
    site = make(
        "sqlite", settings={"drainer": {"drain_limit": 10.0, "stop_limit": 12.0}}, front=True
    )
    four(site, 2.0)
    for number in range(4, 54):
        site.admit(number, "abcd"[number % 4], 0.01)
    before = site.dispatched()
    assert site.installation.stop("daemon") == -signal.SIGTERM
    assert site.dispatched() == before
    assert site.statuses() == {"success": 4, "queued": 50}
    site.installation.start_daemon()
    ends(site, success=54)


# -- locks that are lost while their workers live


@on_both
def test_a_real_outcome_after_unknown(engine: str, make: Make, mariadb: MariaDB) -> None:
    """
    A worker that lost its lock while it could not move is taken for dead; when it goes on, and
    ends, its outcome replaces "unknown".
    """
    site = make(engine, front=True)
    number = site.admit(0, "a", HELD)
    site.installation.start_executor()
    site.installation.start_daemon()
    running(site, 1)
    assert site.front is not None
    with stopped(site.worker(number)):
        site.front.reset()  # while an answer is awaited nobody looks at the lock
        if engine == "mariadb":
            name = f"crq:slots:{site.row(number)['execution_id']}"
            ((holder,),) = mariadb.execute("SELECT IS_USED_LOCK(%s)", (name,))
            mariadb.execute(f"KILL {holder}")
        else:
            (site.installation.directory / "locks" / "1.lock").unlink()
        site.until(lambda: site.row(number)["error_code"] == 303, "not taken for dead")
    site.api.released.set()
    site.until(lambda: site.row(number)["status"] == "success", "its outcome does not count")
    ends(site, success=1)


def cut_answers(site: Site) -> None:
    """
    Lose what is awaited: from now on the locks alone say who lives.
    """
    assert site.front is not None
    assert site.front.reset() == 4
    site.until(lambda: site.installation.log("daemon").count("gave no answer") == 4, "not noticed")


def test_connections_that_are_killed(make: Make, mariadb: MariaDB) -> None:
    """
    No answer will come, and every connection to the database is killed, the locks' own too, again
    and again: the scripts go on, keep their slots, and end with their outcomes.
    """
    site = make("mariadb", front=True)
    four(site)
    site.admit(4, "a", 0.1)
    cut_answers(site)
    assert kill_connections(mariadb) >= 4
    for _ in range(3):
        time.sleep(0.9)  # the keepers look each second: at another instant each time
        assert kill_connections(mariadb) > 0
    time.sleep(GRACE)
    assert site.statuses() == {"running": 4, "queued": 1}
    ends(site, success=5)
    assert set(site.dispatched().values()) == {1}


def test_connections_that_are_killed_under_everything(make: Make, mariadb: MariaDB) -> None:
    """
    Connections die at any instant of claim, start, finish and settle: everything ends well.
    """
    site = make("mariadb")
    for number in range(60):
        site.admit(number, "abcd"[number % 4], 0.02)
    site.installation.start_executor()
    site.installation.start_daemon()
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.05):
            kill_connections(mariadb)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        time.sleep(4.0)
    finally:
        over.set()
        killing.join()
    ends(site, success=60)


def kill_connections(mariadb: MariaDB) -> int:
    """
    Kill every connection of the application; returns how many there were.
    """
    sql = "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = %s"
    numbers = [row[0] for row in mariadb.execute(sql, (mariadb.user,))]
    for number in numbers:
        with suppress(Exception):  # it may be gone by itself
            mariadb.execute(f"KILL {number}")
    return len(numbers)


@pytest.mark.parametrize("away", [0.0, GRACE + 1.5])
def test_a_server_that_restarts(away: float, tmp_path: Path) -> None:
    """
    No answer will come, and the database is restarted in mid-script, or stays away for longer than
    the grace: no living worker is taken for dead, and no outcome is lost.
    """
    with MariaDB() as server:
        site = Site(tmp_path, server.create_database("slots"), front=True)
        try:
            four(site)
            site.admit(4, "a", 0.1)
            cut_answers(site)
            site.connection.close()
            server.stop()
            time.sleep(away)
            server.start()
            site.connection = site.database.connect()
            site.until(lambda: site.installation.get("/health/ready")[0] == 200, "not ready")
            time.sleep(GRACE + 1)
            assert site.statuses() == {"running": 4, "queued": 1}
            ends(site, success=5)
            assert set(site.dispatched().values()) == {1}
        finally:
            site.close()
