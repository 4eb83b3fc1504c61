"""
How fast the daemon drains a backlog, and what an execution costs it.

2,000 executions of 100 accounts, at a global cap of 64, against an executor that runs nothing
(`benchmarks.noop`): by the contract with the fence, or at a plain endpoint. The daemon is the real
``twistd crqueue`` on MariaDB. The time is taken from the rows, from the first claim to the last
end; the daemon's statements are counted by the server, for which the daemon has an account of its
own.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.processes import cpu_seconds, resident_mb
from benchmarks.report import Figure, Measured, Stage, median
from crq.database import Cursor, Database
from crq.instants import instant_of
from crq.sealing import sha256_hex
from tests.installation import CHECKOUT, Installation, companion
from tests.processes import kill, spawn
from tests.rows import insert_queued
from tests.servers import MariaDB

ACCOUNTS = 100
POOL = 4  # the default
WITHIN = 300.0  # s for one round

_STATEMENTS = """
    SELECT SELECT_COMMANDS + UPDATE_COMMANDS + OTHER_COMMANDS
      FROM information_schema.USER_STATISTICS WHERE USER = %s
"""


def run(
    stage: Stage,
    count: int = 2000,
    in_flight: int = 64,
    rounds: int = 3,
    contract: str = "fenced",
    daemons: int = 1,
) -> Measured:
    """
    Measure on MariaDB; where there are several daemons, each has its share of the slots.

    :param count: executions of one round.
    :param in_flight: the global cap.
    :param contract: of the executor.
    :param daemons: how many drain together; their costs are added up.
    """
    per_account = max(1, -(-2 * in_flight // ACCOUNTS))  # so that only the global cap binds
    samples: dict[str, list[float]] = {
        name: []
        for name in ("executions_per_s", "cpu_s_per_1000", "statements", "executor_cpu_s_per_1000")
    }
    with (
        MariaDB(flush_log_at_commit=1, extra=["--userstat=1"]) as server,
        tempfile.TemporaryDirectory(prefix="crq-benchmark-") as folder,
        Installation(
            Path(folder),
            {
                "database": {"url": server.create_database("drain"), "pool": POOL},
                "limits": {"in_flight": in_flight, "per_account": per_account},
                "executor": {"contract": contract},
                "drainer": {"slots": -(-in_flight // daemons)},
            },
        ) as installation,
        _noop(installation, server.url_socket("drain"), contract) as executor,
        ExitStack() as others,
    ):
        pids = [installation.start_daemon()]
        for number in range(2, daemons + 1):
            name = f"d{number}"
            other = companion(installation, Path(folder) / name, name)
            pids.append(others.enter_context(other).start_daemon())
        database = Database(server.url_socket("drain"))
        connection = database.connect()

        def costs() -> tuple[float, float, float]:
            (statements,) = server.execute(_STATEMENTS, (server.user,))[0]
            return sum(map(cpu_seconds, pids)), float(statements), cpu_seconds(executor)

        for done in range(rounds):
            before = costs()
            first = database.transact(connection, _enqueue, count)
            deadline = time.monotonic() + WITHIN
            while left := database.read(connection, _left):
                stage(f"round {done + 1} of {rounds}", count - left, count)
                installation.check()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{left} executions are left after {WITHIN:g} s")
                time.sleep(0.2)
            cpu, statements, executor_cpu = (
                after - earlier for after, earlier in zip(costs(), before, strict=True)
            )
            ended, seconds = database.read(connection, _ended, first)
            if ended != count:
                raise RuntimeError(f"{count - ended} of {count} executions did not succeed")
            samples["executions_per_s"].append(count / seconds)
            samples["cpu_s_per_1000"].append(cpu / count * 1000)
            samples["statements"].append(statements / count)
            samples["executor_cpu_s_per_1000"].append(executor_cpu / count * 1000)
        memory = sum(map(resident_mb, pids))
        version = str(server.execute("SELECT VERSION()")[0][0])
        connection.close()
    return Measured(
        {
            "executions_per_s": Figure(median(samples["executions_per_s"]), "1/s"),
            "cpu_s_per_1000": Figure(median(samples["cpu_s_per_1000"]), "s"),
            "statements_per_execution": Figure(median(samples["statements"]), "statements"),
            "rss_mb": Figure(memory, "MB"),
            "executor_cpu_s_per_1000": Figure(median(samples["executor_cpu_s_per_1000"]), "s"),
        },
        {"mariadb": version},
    )


@contextmanager
def _noop(installation: Installation, url: str, contract: str) -> Iterator[int]:
    port = installation.executor_port
    rows = [url] if contract == "fenced" else []
    process = spawn(
        [sys.executable, "-m", "benchmarks.noop", str(port), *rows],
        installation.directory / "noop.log",
        CHECKOUT,
        {**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    try:
        yield process.pid
    finally:
        kill(process)


def _enqueue(txn: Cursor, count: int) -> int:
    """
    Let so many executions wait; returns the id of the first.
    """
    now = time.time()
    for n in range(count):
        account = sha256_hex(f"account {n % ACCOUNTS}")
        insert_queued(txn, account, sha256_hex(f"key {n % ACCOUNTS}"), now)
    return txn.lastrowid - count + 1


def _left(txn: Cursor) -> int:
    return int(
        txn.execute(
            "SELECT COUNT(*) FROM codeRunner_executions"
            " WHERE status IN ('queued', 'claimed', 'running')"
        ).scalar()
    )


def _ended(txn: Cursor, first: int) -> tuple[int, float]:
    """
    How many of a round succeeded, and the seconds from the first claim to the last end.
    """
    row = txn.execute(
        "SELECT COUNT(*), MIN(claimed_at), MAX(finished_at) FROM codeRunner_executions"
        " WHERE execution_id >= ? AND status = 'success'",
        (first,),
    ).one()
    assert row is not None
    return int(row[0]), instant_of(row[2]) - instant_of(row[1])
