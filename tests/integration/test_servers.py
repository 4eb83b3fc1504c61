"""
The private servers that everything else is tested on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests import servers
from tests.servers import HOST, MariaDB, Memcached, ServerFailed, ServerMissing, free_port


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    # One of our own: it is stopped and killed here.
    with MariaDB() as server:
        yield server


def _alive(pid: int) -> bool:
    # A zombie counts as dead: whoever inherited it reaps it some time.
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _talk(address: tuple[str, int], command: bytes) -> bytes:
    with socket.create_connection(address, timeout=5) as connection:
        connection.sendall(command)
        return connection.recv(1024)


def _connect(server: MariaDB, database: str) -> pymysql.Connection[pymysql.cursors.Cursor]:
    return pymysql.connect(
        host=HOST,
        port=server.port,
        user=server.user,
        password=server.password,
        database=database,
        autocommit=True,
    )


def test_the_application_account_owns_its_database_and_no_other(mariadb: MariaDB) -> None:
    """
    The account over TCP reads and writes in a created database and is refused elsewhere.
    """
    dsn = mariadb.create_database("app_1")
    assert dsn == f"mysql://{mariadb.user}:{mariadb.password}@{HOST}:{mariadb.port}/app_1"
    mariadb.execute("CREATE DATABASE appx1")
    with _connect(mariadb, "app_1") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (i INT)")
        assert cursor.execute("INSERT INTO t VALUES (%s)", (1,)) == 1
    with pytest.raises(pymysql.err.OperationalError):
        _connect(mariadb, "appx1")


def test_a_created_database_starts_empty(mariadb: MariaDB) -> None:
    """
    Creating a database of the same name again leaves nothing of the first.
    """
    mariadb.create_database("again")
    mariadb.execute("CREATE TABLE again.t (i INT)")
    mariadb.create_database("again")
    assert mariadb.execute("SHOW TABLES FROM again") == ()


def test_commits_survive_a_killed_mariadb(mariadb: MariaDB) -> None:
    """
    Rows committed right before SIGKILL are there after a start, on the same port.
    """
    mariadb.create_database("killed")
    mariadb.execute("CREATE TABLE killed.t (i INT)")
    mariadb.execute("INSERT INTO killed.t VALUES (%s)", (7,))
    port, pid = mariadb.port, mariadb.pid
    mariadb.kill()
    assert not mariadb.running
    assert not _alive(pid)
    mariadb.start()
    assert mariadb.port == port
    assert mariadb.execute("SELECT i FROM killed.t") == ((7,),)


def test_mariadb_restarts_in_order(mariadb: MariaDB) -> None:
    """
    A restart is another process with the same databases.
    """
    mariadb.create_database("restarted")
    pid = mariadb.pid
    mariadb.restart()
    assert mariadb.pid != pid
    assert not _alive(pid)
    assert mariadb.execute("SHOW DATABASES LIKE 'restarted'") == (("restarted",),)
    _connect(mariadb, "restarted").close()


def test_settings_reach_mariadb() -> None:
    """
    Character set, durability and further options are what was asked for.
    """
    with MariaDB(charset="latin1", flush_log_at_commit=1, extra=["--max-connections=17"]) as server:
        assert server.execute(
            "SELECT @@character_set_server, @@innodb_flush_log_at_trx_commit, @@max_connections"
        ) == (("latin1", 1, 17),)
        assert server.url_socket("d").startswith("mysql://root@localhost/d?unix_socket=/")
        directory = server.directory
    assert not directory.exists()


def test_a_failed_start_shows_the_log() -> None:
    """
    An option that mariadbd does not know ends the start with what the server said.
    """
    server = MariaDB(extra=["--no-such-option"])
    with pytest.raises(ServerFailed, match="no-such-option"), server:
        pass
    assert not server.directory.exists()


def test_a_missing_program_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without the program a test fails, and names the command that helps; it is never skipped.
    """
    monkeypatch.setattr(servers, "SEARCH_PATH", "/nonexistent")
    for server in (MariaDB(), Memcached()):
        with pytest.raises(ServerMissing, match="scripts/provision servers"), server:
            pass


def test_memcached_keeps_until_it_stops() -> None:
    """
    A value is there until the server restarts, on the same port.
    """
    with Memcached() as server:
        address = server.address
        assert _talk(address, b"set k 0 0 1\r\nv\r\n") == b"STORED\r\n"
        assert _talk(address, b"get k\r\n") == b"VALUE k 0 1\r\nv\r\nEND\r\n"
        server.restart()
        assert server.address == address
        assert _talk(address, b"get k\r\n") == b"END\r\n"
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            _talk(address, b"get k\r\n")
    assert not server.directory.exists()


def test_a_server_dies_with_the_process_that_started_it() -> None:
    """
    When a test run is killed with SIGKILL its servers do not stay behind.
    """
    program = (
        "from tests.servers import Memcached\n"
        "server = Memcached()\n"
        "server.start()\n"
        "print(server.pid, server.directory, flush=True)\n"
        "input()\n"
    )
    root = Path(servers.__file__).parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert _alive(int(pid))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 10
    while _alive(int(pid)):
        assert time.monotonic() < deadline, "memcached outlived its parent"
        time.sleep(0.02)
    for left in Path(directory).iterdir():
        left.unlink()
    Path(directory).rmdir()


def test_free_ports_are_not_ephemeral() -> None:
    """
    A port is taken from below the range that outgoing connections use.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port() < low for _ in range(20))
