"""
What a tick costs by the depth of the queue and by its lanes: 1,000 to 1,000,000 rows that wait in
3, 100 and 10,000 lanes, behind closed gates all but one.

The lane that may start has the youngest rows. A tick is what the drainer does: what it asks of the
database, the narrowing, the plan, and the claim of two rows. Gates are remembered, as in a drainer
that has seen them. The first tick, which knows nothing yet, is told apart.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection
from typing import Any

from attrs import define, evolve, field

from benchmarks.report import Figure, Measured, Stage, median
from crq import executions, policy, schema
from crq.database import Cursor, Database
from crq.instants import instant_text
from crq.lanes import Lanes
from crq.model import Claimed, Lane, Limits
from crq.sealing import new_nonce, sha256_hex
from tests.rows import NOON
from tests.servers import MariaDB

LIMITS = Limits()
FREE = Lane("f" * 64, "f" * 64)
BATCH = 10_000  # rows of one statement
REPETITIONS = 25


def run(stage: Stage, rows: int = 1_000_000, lanes: int = 10_000) -> Measured:
    """
    Measure on both databases, in one copy of each for each number of lanes.

    :param rows: the deepest queue; ``lanes`` the most lanes.
    """
    depths = sorted({1000, min(100_000, rows), rows})
    figures: dict[str, Figure] = {}
    for count in sorted({3, 100, lanes}):
        with tempfile.TemporaryDirectory(prefix="crq-benchmark-") as folder:
            database = Database(f"sqlite:///{folder}/depth.db")
            figures |= measure(database, "sqlite", count, depths, stage)
    with MariaDB(flush_log_at_commit=1, extra=["--innodb-buffer-pool-size=2G"]) as server:

        def pages() -> int:
            found = server.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'")
            return int(found[0][1])

        for count in sorted({3, 100, lanes}):
            database = Database(server.create_database("depth"))
            figures |= measure(database, "mariadb", count, depths, stage, pages)
        version = str(server.execute("SELECT VERSION()")[0][0])
    return Measured(figures, {"mariadb": version})


@define(eq=False)
class Ticker:
    """
    A drainer's tick, without its clocks, its threads and its executor.

    :ivar gates: until when each key is closed, as it is remembered.
    """

    database: Database
    connection: Any
    gates: dict[str, float]
    lanes: Lanes = field(init=False, factory=Lanes)
    now: float = 0.0

    def tick(self) -> tuple[Claimed, ...]:
        """
        Read, decide, claim.
        """
        self.now += 0.001
        question = self.lanes.question(self.now)
        snapshot, news = self.database.read(self.connection, executions.news, question)
        self.lanes.learn(question, news, self.now)
        if self.lanes.many:
            heads = self.lanes.narrowed(snapshot, LIMITS, self.gates, (), ())
            self.lanes.turn(self.gates)
        else:
            heads = self.lanes.heads()
        plan = policy.plan(evolve(snapshot, heads=heads), self.gates, LIMITS, NOON)
        self.lanes.touch(take.lane for take in plan.takes)
        return self.database.transact(
            self.connection, executions.claim, plan, LIMITS, "benchmark", NOON, new_nonce
        )


def measure(
    database: Database,
    name: str,
    lanes: int,
    depths: Collection[int],
    stage: Stage,
    pages: Callable[[], int] | None = None,
) -> dict[str, Figure]:
    """
    Measure one number of lanes at each depth; the database is filled by it.
    """
    schema.upgrade(database)
    connection = database.connect()
    figures: dict[str, Figure] = {}
    try:
        gated = [Lane(sha256_hex(f"a{n}"), sha256_hex(f"k{n}")) for n in range(lanes - 1)]
        gates = {lane.apikey_hash or "": NOON + 3600 for lane in gated}
        loaded = 0
        for depth in depths:
            if depth < lanes:
                continue
            while loaded < depth:
                stage(f"{name}, {lanes} lanes: loading", loaded, depth)
                some = min(BATCH, depth - loaded)
                database.transact(connection, _load, gated, loaded, some)
                loaded += some
            if database.dialect == "mysql":
                cursor = connection.cursor()
                cursor.execute("ANALYZE TABLE codeRunner_executions")
                cursor.fetchall()
            stage(f"{name}, {lanes} lanes: {depth} rows")
            what = f"{name}_{_short(depth)}_{lanes}"
            for figure, value in _ticks(Ticker(database, connection, gates), pages).items():
                unit = "ms" if figure.endswith("ms") else _UNITS[name, figure]
                figures[f"{figure}_{what}"] = Figure(value, unit)
    finally:
        connection.close()
    return figures


_UNITS = {
    ("sqlite", "reads"): "VM steps",
    ("mariadb", "reads"): "rows",
    ("mariadb", "pages"): "pages",
}


def _ticks(ticker: Ticker, pages: Callable[[], int] | None) -> dict[str, float]:
    times = []
    for _ in range(REPETITIONS + 3):
        begun = time.perf_counter()
        claimed = ticker.tick()
        times.append((time.perf_counter() - begun) * 1000)
        _put_back(ticker, claimed)
    reads, touched = [], []
    for _ in range(5):
        before = 0 if pages is None else pages()
        claimed, read = _reads(ticker)
        reads.append(read)
        touched.append(0 if pages is None else pages() - before)
        _put_back(ticker, claimed)
    found = {"first_ms": times[0], "ms": median(times[3:]), "reads": median(reads)}
    if pages is not None:
        found["pages"] = median(touched)
    return found


def _put_back(ticker: Ticker, claimed: tuple[Claimed, ...]) -> None:
    if [row.lane for row in claimed] != [FREE] * LIMITS.per_account:
        raise RuntimeError(f"a tick claimed {len(claimed)} rows instead of two of the open lane")
    for row in claimed:
        ticker.database.transact(
            ticker.connection, executions.release, row.execution_id, row.claim_epoch
        )


def _reads(ticker: Ticker) -> tuple[tuple[Claimed, ...], int]:
    connection = ticker.connection
    if ticker.database.dialect == "sqlite":
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        connection.set_progress_handler(step, 1)
        try:
            return ticker.tick(), steps
        finally:
            connection.set_progress_handler(None, 0)

    def counters() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _name, value in cursor.fetchall())

    own = -counters() + counters()  # what asking costs
    before = counters()
    claimed = ticker.tick()
    return claimed, counters() - before - own


def _load(txn: Cursor, gated: list[Lane], loaded: int, count: int) -> None:
    """
    Add rows behind closed gates; the first time, some of the lane that is open as well.
    """
    rows: list[tuple[Lane, float]] = []
    if not loaded:
        rows += [(FREE, NOON - 60 + n) for n in range(10)]
    rows += [
        (gated[n % len(gated)], NOON - 86_400 + n / 1000)
        for n in range(loaded, loaded + count - len(rows))
    ]
    for first in range(0, len(rows), 1000):
        some = rows[first : first + 1000]
        values: list[object] = []
        for lane, at in some:
            values += (lane.subdomain_hash, lane.apikey_hash, instant_text(at))
        marks = ", ".join(["(1, ?, ?, 'queued', 'x = 1', ?)"] * len(some))
        txn.execute(
            "INSERT INTO codeRunner_executions"
            " (job_id, subdomain_hash, apikey_hash, status, source_code, queued_at)"
            f" VALUES {marks}",
            values,
        )


def _short(depth: int) -> str:
    return f"{depth // 1000}k"
