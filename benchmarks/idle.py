"""
What an empty queue costs: the daemon and its database, while nothing waits and nothing runs.

The daemon is the real ``twistd crqueue`` as it is configured by default: a tick a second, the watch
each ten seconds, the janitor and the automations each minute. CPU time is the kernel's, in
nanoseconds; of the database's, what it costs without a daemon is taken off.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import Work, work
from benchmarks.report import Figure, Measured, Stage
from crq.database import Database
from tests.house import Clocks, House, PlayedExecutor
from tests.installation import Installation
from tests.servers import MariaDB
from tests.support import SynchronousPool

SETTLE = 8.0  # s after a start or a stop, until what goes with it is over

_STATEMENTS = """
    SELECT SELECT_COMMANDS + UPDATE_COMMANDS + OTHER_COMMANDS
      FROM information_schema.USER_STATISTICS WHERE USER = %s
"""


def run(stage: Stage, seconds: int = 60) -> Measured:
    """
    Measure on MariaDB, and the daemon alone on SQLite.

    :param seconds: of each of the three measurements; a whole minute sees all that is periodic.
    """
    with MariaDB(flush_log_at_commit=1, extra=["--userstat=1"]) as server:
        url = server.create_database("idle")
        version = str(server.execute("SELECT VERSION()")[0][0])

        def statements() -> int:
            return int(server.execute(_STATEMENTS, (server.user,))[0][0])

        with _installation(url) as installation:
            daemon = installation.start_daemon()
            time.sleep(SETTLE)
            asked = statements()
            stage("daemon and MariaDB")
            of_daemon, of_server = _watch(seconds, daemon, server.pid)
            asked = statements() - asked
            installation.stop("daemon")
        time.sleep(SETTLE)
        stage("MariaDB alone")
        (alone,) = _watch(seconds, server.pid)
    with _installation(None) as installation:
        daemon = installation.start_daemon()
        time.sleep(SETTLE)
        stage("daemon on SQLite")
        (of_daemon_alone,) = _watch(seconds, daemon)
    percent = 100 / seconds
    return Measured(
        {
            "database_core_percent": Figure((of_server.cpu - alone.cpu) * percent, "%"),
            "database_alone_core_percent": Figure(alone.cpu * percent, "%"),
            "daemon_core_percent": Figure(of_daemon.cpu * percent, "%"),
            "daemon_core_percent_sqlite": Figure(of_daemon_alone.cpu * percent, "%"),
            "database_cpu_s_per_hour": Figure((of_server.cpu - alone.cpu) * 3600 / seconds, "s"),
            "daemon_cpu_s_per_hour": Figure(of_daemon.cpu * 3600 / seconds, "s"),
            "statements_per_tick": Figure(statements_of_a_tick(), "statements"),
            "statements_per_s": Figure(asked / seconds, "1/s"),
            "daemon_wakes_per_s": Figure(of_daemon.wakes / seconds, "1/s"),
            "database_wakes_per_s": Figure((of_server.wakes - alone.wakes) / seconds, "1/s"),
        },
        {"mariadb": version},
    )


def statements_of_a_tick() -> int:
    """
    Count what a tick that finds nothing asks the database.
    """
    seen: list[str] = []
    database = Database("sqlite:///:memory:", observe=seen.append)
    clocks = Clocks()
    pool = SynchronousPool(database)
    house = House(database, clocks, PlayedExecutor(pool.database, clocks), pool=pool).start()
    seen.clear()
    clocks.advance(1.0)
    house.close()
    return len(seen)


@contextmanager
def _installation(url: str | None) -> Iterator[Installation]:
    settings = {} if url is None else {"database": {"url": url}}
    with (
        tempfile.TemporaryDirectory(prefix="crq-benchmark-") as folder,
        Installation(Path(folder), settings) as installation,
    ):
        yield installation


def _watch(seconds: float, *pids: int) -> list[Work]:
    """
    What these processes do in so many seconds.
    """
    before = [work(pid) for pid in pids]
    time.sleep(seconds)
    return [
        Work(after.cpu - then.cpu, after.wakes - then.wakes)
        for after, then in zip(map(work, pids), before, strict=True)
    ]
