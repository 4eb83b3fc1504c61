"""
Every dependency taken away while real processes work, and given back: nothing is lost, nothing
comes twice, nobody restarts anything, and the log has one line for it.

The rules are those of docs/reliability.md.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from crq.gates import GatesUnreachable, MemcachedGates
from crq.gatetable import DatabaseGates
from crq.instants import instant_of
from crq.pool import QUIET
from tests.servers import HOST, MariaDB, Memcached
from tests.site import Site
from tests.worlds import World

pytestmark = pytest.mark.slow

AGAIN = 10.0  # s from a dependency's return until work goes on: the executor's longest pause is 5 s
WARNINGS = ("warn", "error", "critical")
# What speaks of the queue as a whole, or of a row; not of a dependency.
OTHERS = {"verdict", "released", "no_answer", "died"}

CONNECTIONS = "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = %s"

Make = Callable[..., Site]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    """
    A MariaDB to be ill-treated.
    """
    with MariaDB() as started:
        yield started


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """
    Make the site of a test, over a server or (None) over SQLite; it works when it is returned.
    """
    made: list[Site] = []

    def make(server: MariaDB | None = None, start: bool = True, **settings: Any) -> Site:
        url = None if server is None else server.create_database("dependencies")
        given: dict[str, Any] = {"database": {"timeout": 2.0}, "drainer": {"tick": 0.2}}
        for section, options in settings.items():
            given.setdefault(section, {}).update(options)
        made.append(Site(tmp_path, url, given))
        if start:
            made[-1].installation.start_executor()
            made[-1].installation.start_daemon()
        return made[-1]

    yield make
    for site in made:
        site.close()


def told(site: Site) -> Counter[str]:
    """
    What the daemon has warned of, by action; no tracebacks.
    """
    log = site.installation.log("daemon")
    assert "Traceback" not in log, log
    lines = (line.split(" ", 3) for line in log.splitlines() if not line.startswith("\t"))
    found = Counter(each[2].strip("[]") for each in lines if len(each) > 3 and each[1] in WARNINGS)
    return Counter({name: count for name, count in found.items() if name not in OTHERS})


def said(site: Site, action: str) -> int:
    """
    How often the daemon has said something, at any level.
    """
    return site.installation.log("daemon").count(f"[{action}]")


def ready(site: Site) -> bool:
    return site.installation.get("/health/ready")[0] == 200


def submit(site: Site, number: int) -> tuple[int, float]:
    """
    Submit an execution over HTTP; returns the status and the seconds it took.
    """
    begun = time.monotonic()
    status, _ = site.installation.submit(
        subdomain=f"h{number % 4}",
        apikey=f"h{number % 4}.0",
        source_code=f'api.post("/effects/{number}/1?wait=0.010")\n',
        identifier=f"{number}/1",
        idempotency_key=str(number),
    )
    if status == 202:
        site.answers[f"{number}/1"] = "queued"
    return status, time.monotonic() - begun


def works(site: Site, first: int, count: int = 4) -> None:
    """
    Work that is submitted now is done soon.
    """
    for number in range(first, first + count):
        assert submit(site, number)[0] == 202
    names = [f"{number}/1" for number in range(first, first + count)]
    done = lambda: all(site.row(name)["status"] == "success" for name in names)  # noqa: E731
    assert site.until(done, "does not work again") < AGAIN


def ends(site: Site, **statuses: int) -> None:
    """
    Everything has ended so, and every invariant has held.
    """
    site.until(site.all_ended, "not everything ends")
    assert site.statuses() == statuses
    assert site.problems() == []


def busy(site: Site, seconds: float = 2.5, waiting: int = 6) -> int:
    """
    Let four run and some wait; returns how many there are.
    """
    for number in range(4):
        site.admit(number, "ab"[number % 2], seconds)
    for number in range(4, 4 + waiting):
        site.admit(number, "abcd"[number % 4], 0.01)
    site.until(lambda: site.statuses()["running"] >= 4, "four do not run")
    return 4 + waiting


def kill_all(server: MariaDB) -> None:
    """
    End every connection of the application.
    """
    for (number,) in server.execute(CONNECTIONS, (server.user,)):
        with suppress(pymysql.OperationalError):  # it has ended by itself
            server.execute(f"KILL {number}")


# -- the database


def test_a_database_that_restarts(server: MariaDB, make: Make) -> None:
    """
    In mid-backlog and for longer than a tick: requests are answered with 503 at once, scripts run
    on, and when it is back their outcomes are written and the rest runs.
    """
    site = make(server)
    count = busy(site)
    server.stop()
    status, seconds = submit(site, 90)
    assert (status, seconds < 1) == (503, True)
    site.until(lambda: not ready(site), "it says that it is ready")
    assert site.installation.get("/health/live")[0] == 200
    server.start()
    assert site.until(lambda: ready(site), "not ready again") < AGAIN
    works(site, 50)
    ends(site, success=count + 4)
    time.sleep(QUIET)
    works(site, 60)
    assert told(site) == {"database_away": 1}
    assert said(site, "database_back") == 1


def test_a_read_only_database(server: MariaDB, make: Make) -> None:
    """
    Nothing is taken and nothing started, the log is still readable, scripts that end meanwhile keep
    their outcome, and all goes on once writes are allowed.
    """
    site = make(server)
    count = busy(site, seconds=1)
    server.execute("SET GLOBAL read_only = 1")
    try:
        kill_all(server)
        for number in range(90, 94):
            assert submit(site, number)[0] == 503
        assert site.installation.get("/codeRunner/logs/data")[0] == 200
        time.sleep(3)
    finally:
        server.execute("SET GLOBAL read_only = 0")
    works(site, 50)
    ends(site, success=count + 4)
    assert told(site) == {"database_away": 1}


def test_a_lock_on_the_claim_that_is_not_given_back(server: MariaDB, make: Make) -> None:
    """
    While somebody sits on the claim's lock admissions go on and nothing starts; then it drains.
    """
    site = make(server)
    with held(server, "codeRunner_drain"):
        for number in range(4):
            status, seconds = submit(site, number)
            assert (status, seconds < 1) == (202, True)
        site.until(lambda: not ready(site), "it says that it is ready")
        assert site.statuses() == {"queued": 4}
    works(site, 50)
    ends(site, success=8)
    assert told(site) == {"database_away": 1}


def test_a_lock_on_admission_that_is_not_given_back(server: MariaDB, make: Make) -> None:
    """
    While somebody sits on the admission's lock, a crowd of admissions waits for it in vain; what
    was admitted before is started and finished meanwhile, tick by tick.
    """
    site = make(server)
    count = busy(site, seconds=0.5, waiting=12)
    with held(server, "codeRunner_admit"):
        crowd = [threading.Thread(target=submit, args=(site, number)) for number in range(200, 230)]
        for thread in crowd:
            thread.start()
        site.until(site.all_ended, "the queue stands still behind admissions", within=10)
        assert ready(site)
        assert submit(site, 90)[0] == 503
        for thread in crowd:
            thread.join()
    works(site, 50)
    site.until(site.all_ended, "not everything ends")
    assert site.statuses() == {"success": count + 4}
    assert told(site) == {"database_away": 1}


@contextmanager
def held(server: MariaDB, table: str) -> Iterator[None]:
    """
    A transaction that has a lock row and does not end.
    """
    sitting = pymysql.connect(unix_socket=str(server.socket), user="root", database="dependencies")
    try:
        sitting.cursor().execute(f"SELECT * FROM {table} FOR UPDATE")
        yield
    finally:
        sitting.close()


def test_too_many_connections(server: MariaDB, make: Make) -> None:
    """
    Where the server takes no more connections, those that are open work on; those that were lost
    are opened when there is room again.
    """
    site = make(server)
    works(site, 0)
    others = []
    root = pymysql.connect(unix_socket=str(server.socket), user="root")
    administer = root.cursor().execute
    administer("SET GLOBAL max_connections = 10")
    try:
        while submit(site, 90)[0] != 503:  # whoever is quicker has the place
            cursor = root.cursor()
            cursor.execute(CONNECTIONS, (server.user,))
            for (number,) in cursor.fetchall():
                with suppress(pymysql.OperationalError):
                    administer(f"KILL {number}")
            with suppress(pymysql.OperationalError):
                while True:
                    others.append(
                        pymysql.connect(
                            host=HOST, port=server.port, user=server.user, password=server.password
                        )
                    )
        time.sleep(2)
    finally:
        for other in others:
            other.close()
        administer("SET GLOBAL max_connections = 151")
        root.close()
    site.until(lambda: ready(site), "not ready again")
    works(site, 50)
    site.until(site.all_ended, "not everything ends")
    assert set(site.statuses()) == {"success"}
    assert site.problems() == []
    assert told(site)["database_away"] == 1
    assert sum(told(site).values()) <= 3


def test_a_server_with_settings_of_its_own(make: Make) -> None:
    """
    A zone half a day away, snapshot isolation, another isolation level, an odd sql_mode, latin1,
    rounded fractions, idle connections that end after a second, and every connection killed three
    times under work: sessions are as they must be, nothing fails and nothing is told (F05, F10,
    F11, F14, F18).
    """
    extra = [
        "--default-time-zone=+13:00",
        "--innodb-snapshot-isolation=ON",
        "--transaction-isolation=SERIALIZABLE",
        "--sql-mode=TIME_ROUND_FRACTIONAL",
        "--innodb-rollback-on-timeout=OFF",
        "--wait-timeout=1",
    ]
    with MariaDB(charset="latin1", extra=extra) as server:
        site = make(server)
        begun = time.time()
        count = busy(site, seconds=3, waiting=12)
        for _ in range(3):
            kill_all(server)
            time.sleep(0.4)
        site.until(site.all_ended, "not everything ends")
        time.sleep(1.5)  # all connections that nobody needs have ended
        works(site, 50)
        ends(site, success=count + 4)
        for row in site.rows():
            assert abs(instant_of(row["queued_at"]) - begun) < 60
        assert told(site) == {}


def test_a_database_that_says_nothing(server: MariaDB, make: Make) -> None:
    """
    A server that takes connections and never answers costs its callers the time-out and no more;
    when it speaks again all goes on.
    """
    site = make(server, database={"timeout": 1.0})
    works(site, 0)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        status, seconds = submit(site, 90)
        assert (status, seconds < 4) == (503, True)
        time.sleep(2)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    site.until(lambda: ready(site), "not ready again")
    works(site, 50)
    site.until(site.all_ended, "not everything ends")
    assert told(site)["database_away"] == 1


def test_a_stop_while_the_database_says_nothing(server: MariaDB, make: Make) -> None:
    """
    SIGTERM while a thread waits for an answer that does not come: the process is gone within its
    limit, and the rows are as true as before (F27).
    """
    site = make(server, database={"timeout": 30.0}, drainer={"drain_limit": 0.5, "stop_limit": 2.0})
    works(site, 0)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        time.sleep(0.5)  # a tick is under way
        begun = time.monotonic()
        site.installation.stop("daemon")
        assert time.monotonic() - begun < 5
    finally:
        os.kill(server.pid, signal.SIGCONT)
    site.installation.start_daemon()
    works(site, 50)
    ends(site, success=8)


# -- names


def test_names_that_lead_nowhere_for_a_while(server: MariaDB, make: Make) -> None:
    """
    Database, executor and memcached by names that do not resolve, one after the other, and then do:
    a line for each, and nothing else to be done.
    """
    with Memcached() as memcached:
        site = make(
            server,
            start=False,
            gates={"backend": "memcached", "servers": [f"cache.test:{memcached.port}"]},
        )
        path = site.installation.path
        text = path.read_text().replace(f"@{HOST}:{server.port}/", f"@db.test:{server.port}/")
        executor = f"http://{HOST}:{site.installation.executor_port}"
        text = text.replace(f'url = "{executor}"', f'url = "{executor.replace(HOST, "exec.test")}"')
        assert text.count("db.test") == text.count("exec.test") == 1
        path.write_text(text)
        world = World(site.installation)
        site.installation.start_executor()
        site.installation.start_daemon(wait=False)
        site.until(lambda: site.installation.get("/health/live")[0] == 200, "not alive")
        assert submit(site, 90)[0] == 503
        world.resolve("db.test")
        site.until(lambda: ready(site), "the database's name is not asked for again")
        assert submit(site, 1)[0] == 202
        site.until(lambda: told(site)["backing_off"] == 1, "the executor is not missed")
        world.resolve("db.test", "exec.test")
        site.until(lambda: site.statuses()["success"] == 1, "the executor's name is not asked for")
        assert told(site)["gates_unreachable"] == 1
        world.resolve("db.test", "exec.test", "cache.test")
        works(site, 50)
        assert said(site, "gates_reachable") == 1
        kill_all(server)
        world.resolve("exec.test", "cache.test")
        time.sleep(QUIET + 2)
        world.resolve("db.test", "exec.test", "cache.test")
        works(site, 60)
        ends(site, success=9)
        assert told(site)["backing_off"] == told(site)["gates_unreachable"] == 1
        assert told(site)["database_away"] <= 2


# -- memcached


def test_a_memcached_that_goes_and_comes(server: MariaDB, make: Make) -> None:
    """
    Refused, silent, emptied: a gate that was seen closed stays closed to its time and other keys go
    on; where it comes back empty, one execution of the key goes first, and the rest after it.
    """
    with Memcached() as memcached:
        address = f"{HOST}:{memcached.port}"
        site = make(server, gates={"backend": "memcached", "servers": [address], "timeout": 0.2})
        store = MemcachedGates([address], site.config.gates.prefix, 1.0)
        key = site.config.sealer().key("gated.0")
        store.close(key, time.time() + 600, time.time())
        gated = [site.admit(number, "gated", 0.4) for number in range(3)]
        works(site, 10)
        memcached.kill()
        works(site, 20)
        time.sleep(1)
        assert {site.row(each)["status"] for each in gated} == {"queued"}
        memcached.start()
        store.close(key, time.time() + 600, time.time())
        works(site, 30)
        assert said(site, "gates_reachable") == 1
        with paused(memcached.pid):
            works(site, 40)
            assert {site.row(each)["status"] for each in gated} == {"queued"}
        memcached.restart()
        site.until(site.all_ended, "an empty store holds a key")
        first, second, third = (site.row(each) for each in gated)
        assert first["finished_at"] <= second["started_at"]
        assert third["status"] == "success"
        ends(site, success=19)
        assert set(told(site)) == {"gates_unreachable"}
        assert told(site)["gates_unreachable"] <= 3
        store.disconnect()


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """
    A process that says nothing for a while.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_late_answer_of_memcached_is_nobody_s() -> None:
    """
    What a server says after we have given up is not taken for the answer to the next question
    (F22).
    """
    key, late = "a" * 64, int(time.time()) + 600
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        with listener, suppress(OSError):
            for wait, answer in ((0.4, b"VALUE p%s 0 10\r\n%d\r\nEND\r\n"), (0.0, b"END\r\n")):
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(1024)
                    time.sleep(wait)
                    connection.sendall(answer % (key.encode(), late) if wait else answer)

    thread = threading.Thread(target=serve)
    thread.start()
    store = MemcachedGates([f"{HOST}:{listener.getsockname()[1]}"], "p", 0.2)
    with pytest.raises(GatesUnreachable):
        store.read([key], time.time())
    time.sleep(0.5)
    assert store.read([key], time.time()).closed == {}
    store.disconnect()
    thread.join()


# -- the executor (that is stopped, killed and cut off: test_slots.py)


def test_a_front_that_has_no_backend(make: Make) -> None:
    """
    503 and refused connections before anything was started cost no row: they wait in their order,
    tried ever more rarely, and run when there is an executor (F79).
    """
    site = make(start=False)
    listener = socket.create_server((HOST, site.installation.executor_port))
    requests = 0

    def refuse() -> None:
        nonlocal requests
        page = b"<h1>503</h1>"
        head = (
            b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        )
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.recv(65536)
                requests += 1
                connection.sendall(head % len(page) + page)
                connection.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    names = [site.admit(number, "a", 0.01) for number in range(6)]
    site.installation.start_daemon()
    site.until(lambda: requests >= 3, "not tried")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    time.sleep(1)
    assert site.statuses() == {"queued": 6}
    assert requests <= 6
    site.installation.start_executor()
    ends(site, success=6)
    claims = [site.row(name)["claimed_at"] for name in names]
    assert claims == sorted(claims)
    assert told(site) == {"backing_off": 1}
    assert said(site, "executor_back") == 1


def test_an_executor_whose_ceiling_is_reached(make: Make) -> None:
    """
    With one worker for four slots dispatches wait in the executor's own queue: slow, and nothing
    else.
    """
    site = make(executor={"workers": 1})
    for number in range(8):
        site.admit(number, "abcd"[number % 4], 0.3)
    ends(site, success=8)
    assert site.api.most["total"] == 1
    assert told(site) == {}


# -- the disk


def test_a_disk_that_is_full(make: Make) -> None:
    """
    Where the file may not grow nothing is taken, nothing is lost, and one line says so; when there
    is room again all goes on, without a restart (a limit of the process's stands for the disk).
    """
    site = make()
    works(site, 0)
    pid = site.installation._processes["daemon"].pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    long = {"subdomain": "long", "apikey": "k", "source_code": "x = 1\n" * 15_000}
    longer = {**long, "source_code": "x = 1\n" * 20_000}  # its body is kept in a file
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (65_536, hard))
    try:
        for _ in range(4):
            assert site.installation.submit(**long)[0] == 503
            assert site.installation.submit(**longer)[0] == 503
            time.sleep(0.5)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    works(site, 50)
    assert site.installation.submit(**long)[0] == 202
    assert site.installation.submit(**longer)[0] == 202
    site.until(site.all_ended, "not everything ends")
    assert site.statuses() == {"success": 10}
    assert told(site) == {"database_away": 1, "no_room": 1}


def test_a_database_file_that_is_replaced(make: Make, tmp_path: Path) -> None:
    """
    A backup that is moved into place under the running daemon and executor is what they use from
    then on; nothing is written where nobody will find it.
    """
    site = make()
    works(site, 0)
    database = Path(site.database.path)
    backup = tmp_path / "backup.db"
    site.ask("VACUUM INTO ?", str(backup))
    for name in ("-wal", "-shm"):
        Path(f"{database}{name}").unlink(missing_ok=True)
    backup.rename(database)
    site.connection.close()
    site.connection = site.database.connect()
    works(site, 50)
    ends(site, success=8)
    assert told(site) == {}


# -- the clock


def test_a_clock_that_is_stepped(make: Make) -> None:
    """
    An hour forth, two back, one forth, with work under way: nothing is reaped, nothing freezes,
    durations stay what they were; a gate that opened early is counted (F62).
    """
    site = make(start=False, reaper={"every": 1.0})
    world = World(site.installation)
    site.installation.start_executor()
    site.installation.start_daemon()
    running = [site.admit(number, "ab"[number % 2], 5.0) for number in range(3)]
    site.until(lambda: site.statuses()["running"] == 3, "three do not run")
    gates = DatabaseGates(site.database)
    gates.close(site.config.sealer().key("gated.0"), time.time() + 1800, time.time())
    gates.disconnect()
    gated = site.admit(4, "gated", 0.01)
    time.sleep(1)
    world.step(3600)
    time.sleep(1.5)
    assert {site.row(each)["status"] for each in running} == {"running"}
    world.step(-3600)
    site.until(lambda: site.row(running[0])["status"] == "success", "it freezes")
    works(site, 50)
    world.step(0)
    assert site.row(gated)["status"] == "success"
    works(site, 60)
    ends(site, success=12)
    for each in running:
        row = site.row(each)
        took = instant_of(row["finished_at"]) - instant_of(row["started_at"])
        assert 5 <= took < 6.5
    assert told(site)["clock_stepped"] == 3
    assert "1 gates opened early" in site.installation.log("daemon")
