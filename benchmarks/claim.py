"""
What one tick costs in the store, at 1,000 and at 1,000,000 waiting executions of 100 lanes.

The worst case on purpose: 50 lanes are behind closed gates, 49 belong to an account that is full,
and the one lane that may start has the youngest rows of all. A tick is what the drainer does:
snapshot, plan, claim. It claims two rows, which are put back outside the measurement.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import frozen

from benchmarks.report import Figure, Measured, Stage, median
from crq import executions, policy, schema
from crq.database import Cursor, Database
from crq.instants import instant_of, instant_text
from crq.model import Claimed, Lane, Limits
from crq.sealing import new_nonce, sha256_hex
from tests.servers import MariaDB

GATED, FULL = 50, 49
SHALLOW = 1000
BATCH = 500  # moments in one transaction of the load; each is a row in every lane
REPETITIONS, WARM_UP = 101, 10
LIMITS = Limits()
NOON = instant_of("2026-03-02 12:00:00.000")

_FREE = Lane(sha256_hex("account free"), sha256_hex("key free"))
_BUSY = Lane(sha256_hex("account full"), sha256_hex("key full"))
_CLOSED = [
    Lane(sha256_hex(f"account {n % 25}"), sha256_hex(f"key gated {n}")) for n in range(GATED)
]
_LANES = [
    *_CLOSED,
    *(Lane(_BUSY.subdomain_hash, sha256_hex(f"key full {n}")) for n in range(FULL)),
    _FREE,
]
_GATES = {lane.apikey_hash: NOON + 3600 for lane in _CLOSED if lane.apikey_hash is not None}

_LOAD = """
    INSERT INTO codeRunner_executions
        (job_id, subdomain, subdomain_hash, apikey_hash, status, source_code, queued_at)
    SELECT m.n, 'benchmark', l.account, l.apikey, 'queued', l.source,
           CASE l.is_last WHEN 1 THEN m.late ELSE m.early END
      FROM bench_moments m CROSS JOIN bench_lanes l
     WHERE m.n >= ? AND m.n < ?
     ORDER BY m.n
"""


_Claims: TypeAlias = tuple[Claimed, ...]


@frozen
class _Store:
    """
    One database under measurement.

    :ivar count: ticks, and tells what was claimed and how much it read.
    """

    database: Database
    connection: Any
    count: Callable[[Callable[[], _Claims]], tuple[_Claims, int]]


@frozen
class _Cost:
    """
    The cost of a tick: medians.

    :ivar reads: rows (MariaDB) or steps of the virtual machine (SQLite).
    """

    milliseconds: float
    reads: float


def run(stage: Stage, rows: int = 1_000_000) -> Measured:
    """
    Measure on both databases.

    :param rows: depth of the deep queue, over all lanes.
    """
    figures = {
        "lanes": Figure(len(_LANES), "lanes"),
        "rows_shallow": Figure(SHALLOW, "rows"),
        "rows_deep": Figure(rows // len(_LANES) * len(_LANES), "rows"),
    }
    with MariaDB(flush_log_at_commit=1, extra=["--innodb-buffer-pool-size=2G"]) as server:
        figures |= measure(Database(server.create_database("claim")), rows, stage)
        version = str(server.execute("SELECT VERSION()")[0][0])
    with tempfile.TemporaryDirectory(prefix="crq-benchmark-") as folder:
        figures |= measure(Database(f"sqlite:///{folder}/claim.db"), rows, stage)
    return Measured(figures, {"mariadb": version})


def measure(database: Database, rows: int, stage: Stage) -> dict[str, Figure]:
    """
    Measure on one database, which is filled by it.
    """
    mysql = database.dialect == "mysql"
    name, reads, unit = (
        ("mariadb", "rows_read", "rows") if mysql else ("sqlite", "steps", "VM steps")
    )
    costs: dict[str, _Cost] = {}
    with _open(database) as store:
        stage(f"{name}: empty queue")
        costs["empty"] = _measure(store, claims=0)
        database.transact(store.connection, _prepare, rows // len(_LANES))
        loaded = 0
        for depth, moments in (("shallow", SHALLOW // len(_LANES)), ("deep", rows // len(_LANES))):
            while loaded < moments:
                stage(f"{name}: loading", loaded * len(_LANES), rows)
                upper = min(loaded + BATCH, moments)
                database.transact(store.connection, _load, loaded, upper)
                loaded = upper
            stage(f"{name}: {depth} queue")
            costs[depth] = _measure(store, claims=LIMITS.per_account)
    figures: dict[str, Figure] = {}
    for depth, cost in costs.items():
        figures[f"tick_ms_{name}_{depth}"] = Figure(cost.milliseconds, "ms")
        figures[f"{reads}_{name}_{depth}"] = Figure(cost.reads, unit)
    deep, shallow = costs["deep"], costs["shallow"]
    figures[f"depth_ratio_{name}"] = Figure(deep.reads / shallow.reads, "ratio")
    figures[f"time_ratio_{name}"] = Figure(deep.milliseconds / shallow.milliseconds, "ratio")
    return figures


@contextmanager
def _open(database: Database) -> Iterator[_Store]:
    schema.upgrade(database)
    connection = database.connect()
    try:
        count = _count_steps if database.dialect == "sqlite" else _count_rows
        yield _Store(database, connection, lambda tick: count(connection, tick))
    finally:
        connection.close()


def _prepare(txn: Cursor, moments: int) -> None:
    """
    Make the lanes and the moments that the load multiplies, and fill the one account.
    """
    text = "VARCHAR(64) CHARACTER SET ascii" if txn.dialect == "mysql" else "TEXT"
    txn.execute(
        f"CREATE TEMPORARY TABLE bench_lanes (account {text}, apikey {text}, source TEXT,"
        " is_last INT)"
    )
    txn.execute(
        f"CREATE TEMPORARY TABLE bench_moments (n INT PRIMARY KEY, early {text}, late {text})"
    )
    for lane in _LANES:
        txn.execute(
            "INSERT INTO bench_lanes (account, apikey, source, is_last) VALUES (?, ?, ?, ?)",
            (lane.subdomain_hash, lane.apikey_hash, "x = 1\n" * 33, int(lane is _FREE)),
        )
    for first in range(0, moments, 1000):
        values: list[object] = []
        for n in range(first, min(first + 1000, moments)):
            early = NOON - 86_400 + n / 1000
            values += (n, instant_text(early), instant_text(early + 3600))
        marks = ", ".join(["(?, ?, ?)"] * (len(values) // 3))
        txn.execute(f"INSERT INTO bench_moments (n, early, late) VALUES {marks}", values)
    for _ in range(LIMITS.per_account):
        txn.execute(
            "INSERT INTO codeRunner_executions"
            " (job_id, subdomain_hash, apikey_hash, status, queued_at, claimed_at, started_at)"
            " VALUES (1, ?, ?, 'running', ?, ?, ?)",
            (_BUSY.subdomain_hash, _BUSY.apikey_hash, *[instant_text(NOON)] * 3),
        )


def _load(txn: Cursor, first: int, upper: int) -> None:
    txn.execute(_LOAD, (first, upper))


def _measure(store: _Store, claims: int) -> _Cost:
    """
    Measure ticks of which each must claim so many rows.
    """
    if store.database.dialect == "mysql" and claims:
        # What the server does by itself once a tenth of a table has changed, but in its own time.
        cursor = store.connection.cursor()
        cursor.execute("ANALYZE TABLE codeRunner_executions")
        cursor.fetchall()
    times, reads = [], []
    for repetition in range(WARM_UP + REPETITIONS):
        begun = time.perf_counter()
        claimed = _tick(store)
        took = time.perf_counter() - begun
        _put_back(store, claimed, claims)
        if repetition >= WARM_UP:
            times.append(took * 1000)
    for _ in range(5):  # counted apart: counting costs time
        claimed, read = store.count(lambda: _tick(store))
        reads.append(read)
        _put_back(store, claimed, claims)
    return _Cost(median(times), median(reads))


def _tick(store: _Store) -> _Claims:
    database, connection = store.database, store.connection
    snapshot = database.read(connection, executions.snapshot, LIMITS.in_flight)
    plan = policy.plan(snapshot, _GATES, LIMITS, NOON)
    if not plan.takes:
        return ()
    return database.transact(
        connection, executions.claim, plan, LIMITS, "benchmark", NOON, new_nonce
    )


def _put_back(store: _Store, claimed: _Claims, claims: int) -> None:
    if len(claimed) != claims or any(row.lane != _FREE for row in claimed):
        raise RuntimeError(f"a tick claimed {len(claimed)} rows instead of {claims} of the lane")
    for row in claimed:
        store.database.transact(
            store.connection, executions.release, row.execution_id, row.claim_epoch
        )


def _count_rows(connection: Any, tick: Callable[[], _Claims]) -> tuple[_Claims, int]:
    """
    Count the rows and index entries that MariaDB reads: its Handler_read counters.
    """

    def counters() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _name, value in cursor.fetchall())

    own = -counters() + counters()  # what asking costs
    before = counters()
    claimed = tick()
    return claimed, counters() - before - own


def _count_steps(connection: Any, tick: Callable[[], _Claims]) -> tuple[_Claims, int]:
    """
    Count the instructions of SQLite's virtual machine: it has no counter of rows.
    """
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(step, 1)
    try:
        return tick(), steps
    finally:
        connection.set_progress_handler(None, 0)
