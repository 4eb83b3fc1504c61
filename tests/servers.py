"""
Private MariaDB and memcached servers, for tests, benchmarks and the demo.

Each is a subprocess on the loopback interface with a port and a temporary directory of its own, so
any number of them run side by side and none touches an installed service. Synchronous, so that they
can be used from anywhere:

    with MariaDB() as mariadb:
        mariadb.create_database("crq")
        connect(mariadb.dsn("crq"))

`start` raises `ServerMissing` when the program is not installed and `ServerFailed`, with the end of
the server's log, when it does not answer in time.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import pymysql

from tests.processes import SEARCH_PATH, spawn

HOST = "127.0.0.1"
START_TIMEOUT = 60.0  # s; a first start takes about one, on a machine with nothing else to do
STOP_TIMEOUT = 30.0  # s, then SIGKILL
LOG_TAIL = 4000  # characters shown when a start fails


class ServerMissing(Exception):
    """
    The program is not installed.
    """


class ServerFailed(Exception):
    """
    The server ended, or did not answer in time.
    """


def free_port() -> int:
    """
    Find a TCP port on the loopback interface that nobody listens on.

    It lies below the kernel's ephemeral range (32768 and up). A port from that range could be taken
    by any outgoing connection while its server restarts, and a client that keeps connecting to it
    can even meet itself: a TCP socket may connect to its own port.
    """
    for _ in range(200):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ServerFailed("no free port found")


def _program(name: str) -> str:
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise ServerMissing(f"{name} is not installed; run: scripts/provision servers")
    return path


def _user_options() -> list[str]:
    # Both servers refuse to run as root unless they are told that it is meant.
    return ["--user=root"] if os.geteuid() == 0 else []


class _Server:
    """
    One server process and its directory; both are gone after `close`.

    `stop`, `kill` and `restart` keep the directory and the port: clients find the server again.

    :ivar port: where it listens; the same over restarts.
    :ivar directory: holds its data, its sockets and its log.
    """

    name: str

    def __init__(self) -> None:
        self.port = free_port()
        self._temporary = tempfile.TemporaryDirectory(prefix=f"crq-{self.name}-")
        self.directory = Path(self._temporary.name)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """
        Whether the process lives.
        """
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """
        The process id of the running server.
        """
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    def log(self) -> str:
        """
        What the server has logged since it was first started.
        """
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """
        Start the server and wait until it answers; nothing happens if it runs already.
        """
        if self.running:
            return
        self._prepare()
        self._process = process = self._spawn(self._command())
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if (code := process.poll()) is not None:
                self._process = None
                raise self._failure(f"ended with code {code}")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"did not answer within {START_TIMEOUT:g} s")
            time.sleep(0.02)

    def stop(self) -> None:
        """
        End the server in order (SIGTERM) and wait for its end.
        """
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """
        End the server at once (SIGKILL), as a crash would.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """
        Stop the server in order and start it again.
        """
        self.stop()
        self.start()

    def close(self) -> None:
        """
        End the server and delete its directory.
        """
        self.kill()  # nobody reads the data again, so it need not be written out
        self._temporary.cleanup()

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return spawn(command, self.directory / "log", self.directory)

    def _failure(self, what: str) -> ServerFailed:
        return ServerFailed(f"{self.name} {what}; its log ends:\n{self.log()[-LOG_TAIL:]}")

    def _prepare(self) -> None:
        """
        Do what must be done before the first start.
        """

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError


class MariaDB(_Server):
    """
    A private MariaDB (mariadbd) with an empty data directory.

    Two accounts exist: ``root`` without a password on the unix socket, and ``crq`` with a password
    over TCP, which may do everything inside the databases of `create_database` and nothing else, as
    the account of an application should.

    :ivar socket: path of the unix socket.
    """

    name = "mariadb"
    user = "crq"
    password = "crq-test"

    def __init__(
        self,
        *,
        flush_log_at_commit: int = 2,
        charset: str = "utf8mb4",
        extra: Sequence[str] = (),
    ) -> None:
        """
        Choose the settings; nothing is started yet.

        :param flush_log_at_commit: ``innodb_flush_log_at_trx_commit``. 2, for tests, writes each
            commit to the kernel and so survives `kill`; 0 would lose up to a second of commits. 1
            also waits for the disk: take it for benchmarks.
        :param charset: the server's default character set, for databases that name none.
        :param extra: further options of mariadbd; they win over ours.
        """
        super().__init__()
        self.socket = self.directory / "socket"
        self._data = self.directory / "data"
        # Its own: in a directory they share, a server that starts deletes what others have open.
        temporary = self.directory / "tmp"
        temporary.mkdir()
        self._files = [  # what must be the same when the files are made and when they are used
            *_user_options(),
            f"--datadir={self._data}",
            f"--tmpdir={temporary}",
            "--innodb-log-file-size=32M",
            "--aria-log-file-size=8M",
            # A server that starts removes the temporary tables it finds: those of others, in /tmp.
            f"--tmpdir={self.directory}",
        ]
        self._options = [
            f"--innodb-flush-log-at-trx-commit={flush_log_at_commit}",
            f"--character-set-server={charset}",
            "--innodb-buffer-pool-size=64M",
            *extra,
        ]

    def dsn(self, database: str) -> str:
        """
        The URL of a database over TCP, as the application's account.
        """
        return f"mysql://{self.user}:{self.password}@{HOST}:{self.port}/{database}"

    def url_socket(self, database: str) -> str:
        """
        The URL of a database over the unix socket, as root.
        """
        return f"mysql://root@localhost/{database}?unix_socket={quote(str(self.socket))}"

    def create_database(self, name: str) -> str:
        """
        Make an empty database, dropping one of that name first, and return its `dsn`.
        """
        # _ is a wildcard in a grant, which a name like crq_1 does not mean.
        pattern = name.replace("_", r"\_")
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")
        self.execute(f"CREATE DATABASE `{name}`")
        self.execute(f"GRANT ALL ON `{pattern}`.* TO '{self.user}'@'%'")
        return self.dsn(name)

    def execute(self, sql: str, args: Sequence[object] = ()) -> tuple[tuple[Any, ...], ...]:
        """
        Run one statement as root, in autocommit mode, and return its rows.
        """
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return cursor.fetchall()

    def _connect(self) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(
            unix_socket=str(self.socket),
            user="root",
            charset="utf8mb4",
            connect_timeout=5,
            autocommit=True,
        )

    def _prepare(self) -> None:
        if self._data.exists():
            return
        install = subprocess.run(
            [
                _program("mariadb-install-db"),
                "--no-defaults",  # nothing of /etc/mysql
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--force",  # even where the machine's own name does not resolve
                *self._files,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if install.returncode:
            shutil.rmtree(self._data, ignore_errors=True)
            raise ServerFailed(f"mariadb-install-db failed:\n{install.stdout}\n{install.stderr}")
        # Run by the server before it accepts a connection, at each start.
        (self.directory / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
        )

    def _command(self) -> list[str]:
        return [
            _program("mariadbd"),
            "--no-defaults",
            "--skip-networking=0",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            f"--socket={self.socket}",
            f"--pid-file={self.directory / 'pid'}",
            f"--init-file={self.directory / 'init.sql'}",
            "--skip-name-resolve",
            *self._files,
            *self._options,
        ]

    def _answers(self) -> bool:
        # Over TCP, since PyMySQL forgets to close a unix socket that refuses it.
        try:
            pymysql.connect(
                host=HOST, port=self.port, user=self.user, password=self.password, connect_timeout=5
            ).close()
        except pymysql.OperationalError:
            return False
        return True


class Memcached(_Server):
    """
    A private memcached; it forgets everything when it stops.
    """

    name = "memcached"

    def __init__(self, *, extra: Sequence[str] = ()) -> None:
        """
        Choose the settings; nothing is started yet.

        :param extra: further options of memcached; they win over ours.
        """
        super().__init__()
        self._extra = list(extra)

    @property
    def address(self) -> tuple[str, int]:
        """
        Host and port.
        """
        return HOST, self.port

    def _command(self) -> list[str]:
        return [
            _program("memcached"),
            f"--listen={HOST}",
            f"--port={self.port}",
            "--udp-port=0",
            *_user_options(),
            *self._extra,
        ]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(self.address, timeout=5) as connection:
                connection.sendall(b"version\r\n")
                return connection.recv(64).startswith(b"VERSION")
        except OSError:
            return False
