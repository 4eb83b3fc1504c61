"""
What automations cost: a minute in which all are due, chunks, a tick with nothing due.

10,000 automations of 1,000 tenants are due in the same minute. Phase A makes a run of each; Phase B
takes some of them through one full chunk of a type that does nothing. Then a tick with nothing due
is counted, with few and with many items stored.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import evolve, frozen
from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from benchmarks.claim import _count_rows, _count_steps
from benchmarks.report import Figure, Measured, Stage, median
from crq import schema
from crq.automations import contract, limits
from crq.automations.advance import Advancer
from crq.automations.calls import Calls
from crq.automations.interfaces import Context, IAutomation
from crq.automations.model import Chunk, Decision, Json, Verdict
from crq.automations.rounds import Rounds, Ticked
from crq.automations.scheduler import Scheduler
from crq.automations.types import Types
from crq.database import Cursor, Database
from crq.instants import instant_of, instant_text
from crq.sealing import sha256_hex
from tests.servers import MariaDB
from tests.support import SynchronousPool

NOON = instant_of("2026-03-02 12:00:00.000")
ROWS = 500  # of one INSERT
ITEMS_PER_RUN = 50  # of the stored history
REPETITIONS = 11


@frozen
class _Settings:
    pass


@implementer(IAutomation)
class _Noop:
    """
    A type that decides about a full chunk of records at once, and reads nothing.
    """

    name = "noop"
    summary = "for the benchmark"
    settings = _Settings
    subject_types = ("record",)
    acts = False
    repeatable = True
    chunk = Chunk(
        tuple(
            Decision("record", f"record {number}", Verdict.DECLINED, "nothing to do")
            for number in range(limits.BATCH)
        ),
        1,
        has_more=False,
    )

    def evaluate(self, context: Context, config: Any, cursor: Json, limit: int) -> Chunk:
        return self.chunk

    def apply(self, context: Context, decision: Decision) -> str | None:
        return None


class _AtOnce:
    """
    Calls without threads: they are not what is measured.
    """

    def call(self, caller: Any, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        return defer.execute(function, *args)


@frozen
class _Daemon:
    """
    A scheduler at a moment that stands still.

    :ivar statements: how often each kind of statement was sent.
    """

    scheduler: Scheduler
    pool: SynchronousPool
    statements: Counter[str]


@contextmanager
def _daemon(database: Database, now: float) -> Iterator[_Daemon]:
    statements: Counter[str] = Counter()

    def observe(sql: str) -> None:
        statements["all"] += 1
        statements[sql.split(maxsplit=1)[0]] += 1

    pool = SynchronousPool(evolve(database, observe=observe))
    clock = Clock()
    advancer = Advancer(
        pool=pool,
        types=Types([_Noop()]),
        calls=Calls(database, clock.seconds),
        workers=_AtOnce(),
        unseal=str,
        authority=lambda txn, promoter, tenant: None,
        clock=clock,
        wall=lambda: now,
    )
    rounds = Rounds(pool, advancer, clock, lambda: now, 1)
    try:
        yield _Daemon(Scheduler(pool, rounds, clock, lambda: now), pool, statements)
    finally:
        pool.close()


def run(
    stage: Stage,
    tenants: int = 1000,
    automations: int = 10_000,
    advance: int = 500,
    items: int = 2_000_000,
) -> Measured:
    """
    Measure on MariaDB.

    :param advance: runs that Phase B takes through a chunk.
    :param items: stored items that a tick must not feel.
    """
    with MariaDB(flush_log_at_commit=1, extra=["--innodb-buffer-pool-size=1G"]) as server:
        database = Database(server.create_database("automations"), timeout=300)
        schema.upgrade(database)
        figures = _minute(database, tenants, automations, advance, stage)
        figures |= _history(database, items, stage)
        version = str(server.execute("SELECT VERSION()")[0][0])
    return Measured(figures, {"mariadb": version})


def _minute(
    database: Database, tenants: int, automations: int, advance: int, stage: Stage
) -> dict[str, Figure]:
    """
    A minute in which everybody is due.
    """
    stage("declaring")
    _load(database, tenants, automations, NOON)
    with _daemon(database, NOON + 1) as daemon:
        ticked = Ticked()
        stage("Phase A")
        begun = time.perf_counter()
        _now(daemon.scheduler._claim(ticked, limits.PHASE_A_SECONDS))
        claiming = time.perf_counter() - begun
        if ticked.claimed != automations:
            raise RuntimeError(f"{ticked.claimed} of {automations} were claimed")
        queries = daemon.statements["all"] / automations
        commits = daemon.statements["COMMIT"]
        _keep(daemon, advance)
        daemon.statements.clear()
        stage("Phase B")
        begun = time.perf_counter()
        _now(daemon.scheduler.rounds.advance(ticked, limits.PHASE_B_SECONDS, lambda: True))
        advancing = time.perf_counter() - begun
        if ticked.chunks != advance:
            raise RuntimeError(f"{ticked.chunks} of {advance} runs had their chunk")
        chunk_commits = daemon.statements["COMMIT"] / advance
        chunk_statements = daemon.statements["all"] / advance
    return {
        "automations": Figure(automations, "automations"),
        "tenants": Figure(tenants, "tenants"),
        "phase_a_s": Figure(claiming, "s"),
        "phase_a_rows_per_s": Figure(automations / claiming, "1/s"),
        "phase_a_queries_per_run": Figure(queries, "statements"),
        "phase_a_commits": Figure(commits, "commits"),
        "phase_b_chunks_per_s": Figure(advance / advancing, "1/s"),
        "phase_b_items_per_s": Figure(advance * limits.BATCH / advancing, "1/s"),
        "phase_b_commits_per_chunk": Figure(chunk_commits, "commits"),
        "phase_b_statements_per_chunk": Figure(chunk_statements, "statements"),
    }


def _history(database: Database, items: int, stage: Stage) -> dict[str, Figure]:
    """
    A tick beside a little and beside a long history: what it reads, and how long it takes.
    """
    figures: dict[str, Figure] = {}
    with _daemon(database, NOON + 2) as daemon:
        _idle(daemon)  # its first tick has a clock to look at
        figures |= _beside(daemon, "shallow", stage)
        stored = _stored(daemon.pool)
        while stored < items:
            stage("storing items", stored, items)
            _grow(daemon.pool, min(items - stored, 200_000))
            stored = _stored(daemon.pool)
        for table in ("automation_runs", "automation_run_items"):
            with daemon.pool.connection.cursor() as cursor:
                cursor.execute(f"ANALYZE TABLE {table}")
                cursor.fetchall()
        figures["items_stored"] = Figure(stored, "rows")
        figures |= _beside(daemon, "deep", stage)
    return figures


def _beside(daemon: _Daemon, depth: str, stage: Stage) -> dict[str, Figure]:
    """
    An idle tick, and one that makes a run and takes it to its end: reads counted, times as medians.
    """
    stage(f"ticks, {depth} history")
    connection = daemon.pool.connection
    idle, busy = [], []
    for _ in range(REPETITIONS):
        begun = time.perf_counter()
        _idle(daemon)
        idle.append((time.perf_counter() - begun) * 1000)
        daemon.pool.database.transact(connection, _make_due)
        begun = time.perf_counter()
        _busy(daemon)
        busy.append((time.perf_counter() - begun) * 1000)
    idle_rows = _count_rows(connection, lambda: _idle(daemon))[1]
    daemon.pool.database.transact(connection, _make_due)
    busy_rows = _count_rows(connection, lambda: _busy(daemon))[1]
    return {
        f"idle_reads_{depth}": Figure(idle_rows, "rows"),
        f"busy_reads_{depth}": Figure(busy_rows, "rows"),
        f"idle_ms_{depth}": Figure(median(idle), "ms"),
        f"busy_ms_{depth}": Figure(median(busy), "ms"),
    }


def idle_reads(database: Database, sizes: Sequence[int], stage: Stage) -> list[int]:
    """
    What a tick with nothing due reads, beside so many automations that are not due, each with two
    ended runs of fifty items: rows on MariaDB, steps of the virtual machine on SQLite.
    """
    found: list[int] = []
    count = _count_steps if database.dialect == "sqlite" else _count_rows
    with _daemon(database, NOON) as daemon:
        _idle(daemon)  # its first tick has a clock to look at
        for size in sizes:
            stage(f"{size} automations")
            if size:
                _load(database, size, size, NOON + 3600)
                _grow(daemon.pool, 2 * size * ITEMS_PER_RUN)
            found.append(count(daemon.pool.connection, lambda: _idle(daemon))[1])
    return found


def _idle(daemon: _Daemon) -> tuple[()]:
    ticked: Ticked = _now(daemon.scheduler.run_once())
    if ticked.claimed or ticked.chunks or ticked.purged:
        raise RuntimeError(f"the tick was not idle: {ticked}")
    return ()


def _busy(daemon: _Daemon) -> tuple[()]:
    ticked: Ticked = _now(daemon.scheduler.run_once())
    if (ticked.claimed, ticked.chunks) != (1, 1):
        raise RuntimeError(f"the tick was not busy: {ticked}")
    return ()


def _make_due(txn: Cursor) -> None:
    """
    One automation is due, for a minute that has no run yet.
    """
    oldest = txn.execute("SELECT MIN(scheduled_for_utc) FROM automation_runs").scalar()
    txn.execute(
        "UPDATE automations SET next_run_at_utc = ?, cron = '0 0 1 1 *'"
        " WHERE automation_id = (SELECT number FROM (SELECT MIN(automation_id) AS number"
        " FROM automations) AS first)",
        (instant_text(instant_of(oldest) - 60),),
    )


def _now(coroutine: Any) -> Any:
    """
    The result of what never waits.
    """
    done: list[Any] = []
    Deferred.fromCoroutine(coroutine).addBoth(done.append)
    if isinstance(done[0], Failure):
        done[0].raiseException()
    return done[0]


def _load(database: Database, tenants: int, automations: int, due: float) -> None:
    """
    Declare automations, by SQL: each tenant has as many.
    """
    connection = database.connect()

    def tenants_of(txn: Cursor, first: int, last: int) -> None:
        names = [f"tenant{number}" for number in range(first, last)]
        marks = ", ".join(["(?)"] * len(names))
        txn.execute(f"INSERT INTO automation_tenants (tenant) VALUES {marks}", names)

    def automations_of(txn: Cursor, first: int, last: int) -> None:
        values: list[object] = []
        for number in range(first, last):
            values += (
                f"{number:08x}-0000-4000-8000-{int(due):012x}",
                f"tenant{number % tenants}",
                f"rule {number}",
                instant_text(due),
                *[instant_text(NOON - 86_400)] * 2,
            )
        marks = ", ".join(
            ["(?, ?, ?, 'noop', '{}', 1, '* * * * *', 'UTC', ?, 1000, 25, ?, ?)"] * (last - first)
        )
        txn.execute(
            "INSERT INTO automations (automation_uuid, tenant, name, type, config_json, enabled,"
            " cron, zone, next_run_at_utc, max_items_per_run, max_changes_per_run, created_at,"
            f" changed_at) VALUES {marks}",
            values,
        )

    for function, count in ((tenants_of, tenants), (automations_of, automations)):
        for first in range(0, count, ROWS):
            database.transact(connection, function, first, min(first + ROWS, count))
    connection.close()


def _keep(daemon: _Daemon, count: int) -> None:
    """
    Leave so many runs open, of as many tenants as there are; the others have ended.
    """

    def end(txn: Cursor) -> None:
        txn.execute(
            "UPDATE automation_runs SET status = 'completed', finished_at = ?"
            " WHERE status = 'queued' AND run_id > ?",
            (
                instant_text(NOON),
                txn.execute("SELECT MIN(run_id) FROM automation_runs").scalar() + count - 1,
            ),
        )

    daemon.pool.database.transact(daemon.pool.connection, end)


def _stored(pool: SynchronousPool) -> int:
    return int(
        pool.database.read(
            pool.connection,
            lambda txn: txn.execute("SELECT COUNT(*) FROM automation_run_items").scalar(),
        )
    )


def _grow(pool: SynchronousPool, items: int) -> None:
    """
    Store ended runs with their items, so many items in all.
    """
    guard = contract.first_guard()
    ended = instant_text(NOON - 3600)

    def grow(txn: Cursor) -> None:
        last = txn.execute("SELECT MAX(run_id) FROM automation_runs").scalar() or 0
        count = max(1, items // ITEMS_PER_RUN)
        for first in range(0, count, ROWS):
            values: list[object] = []
            for number in range(first, min(first + ROWS, count)):
                key = sha256_hex(f"history {last} {number}")
                values += (number % 1000 + 1, f"tenant{number % 1000}", key, ended, guard.anchor)
            marks = ", ".join(
                [
                    f"(?, ?, ?, 'schedule', ?, 'noop', '{{}}', 1, 1000, 25, 'observe', 'completed',"
                    f" ?, '{{}}', '[]', '{ended}', '{ended}', 0)"
                ]
                * (len(values) // 5)
            )
            txn.execute(
                "INSERT INTO automation_runs (automation_id, tenant, idempotency_key, trigger_kind,"
                " scheduled_for_utc, type, config_json, config_revision, max_items_per_run,"
                " max_changes_per_run, mode, status, cursor_anchor, reason_counts_json,"
                f" notices_json, created_at, finished_at, duration_ms) VALUES {marks}",
                values,
            )
        numbers = " UNION ALL ".join(f"SELECT {number} AS n" for number in range(ITEMS_PER_RUN))
        name = "'record ' || k.n" if txn.dialect == "sqlite" else "CONCAT('record ', k.n)"
        txn.execute(
            "INSERT INTO automation_run_items (run_id, subject_type, subject_id, verdict, reason,"
            f" effect, decided_at) SELECT r.run_id, 'record', {name}, 'declined',"
            f" 'nothing to do', 'none', '{ended}' FROM automation_runs r CROSS JOIN ({numbers}) k"
            " WHERE r.run_id > ? AND r.status = 'completed'",
            (last,),
        )

    pool.database.transact(pool.connection, grow)
