"""
Server time of the operator's pages and of a scrape, and what each of them reads, with a short log
and with a long one.

The whole way of a request, from its bytes to the bytes of the answer, without sockets: routing, the
reading, the report, the template. The database is a file, as it is after a while of use.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Callable
from urllib.parse import urlencode

from benchmarks.report import Figure, Measured, Stage
from crq import schema
from crq.config import Token
from crq.database import Cursor, Database
from crq.instants import instant_text
from crq.sealing import sha256_hex
from crq.series import Ended, Sample, sample
from tests.door import Door, Wire, request
from tests.rows import NOON, SEALER
from tests.servers import MariaDB
from tests.support import SynchronousPool

SECRET = "crq_benchmark"
ACCOUNTS = 50
SHORT = (1000, 1000)  # rows of history, and queued
THOUSAND = 1000
WARM_UP, REPETITIONS = 3, 15
PATHS = {
    "overview": "/ui",
    "log": "/ui/executions",
    "log_rare_state": "/ui/executions?shown=never+started",
    "execution": "/ui/executions/{queued}",
    "accounts": "/ui/accounts",
    "gates": "/ui/gates",
    "metrics": "/metrics",
}


def run(stage: Stage, history: int = 1_000_000, queued: int = 100_000) -> Measured:
    """
    Measure on both databases.

    :param history: ended executions in the long log; ``queued`` of them wait beside.
    """
    figures = {"history": Figure(history, "rows"), "queued": Figure(queued, "rows")}
    with tempfile.TemporaryDirectory(prefix="crq-benchmark-") as folder:
        figures |= measure(f"sqlite:///{folder}/overview.db", history, queued, stage)
    with MariaDB(flush_log_at_commit=1, extra=["--innodb-buffer-pool-size=2G"]) as server:
        figures |= measure(server.create_database("overview"), history, queued, stage)
        version = str(server.execute("SELECT VERSION()")[0][0])
    return Measured(figures, {"mariadb": version})


def measure(url: str, history: int, queued: int, stage: Stage) -> dict[str, Figure]:
    """
    Measure on one database, which is filled by it.
    """
    database = Database(url)
    name = "sqlite" if database.dialect == "sqlite" else "mariadb"
    reads, unit = ("steps", "VM steps") if name == "sqlite" else ("rows_read", "rows")
    schema.upgrade(database)
    pool = SynchronousPool(database)
    figures: dict[str, Figure] = {}
    loaded = (0, 0)
    try:
        database.transact(pool.connection, _prepare)
        for size, wanted in (("short", SHORT), ("long", (history, queued))):
            for kind in (0, 1):
                for batch in range(loaded[kind] // THOUSAND, wanted[kind] // THOUSAND):
                    stage(f"{name}: loading", batch * THOUSAND, wanted[kind])
                    database.transact(pool.connection, _load, batch, bool(kind))
            loaded = wanted
            if name == "mariadb":
                database.transact(pool.connection, _analyze)
            for page, (milliseconds, read) in _measure(pool, stage, f"{name}: {size}").items():
                figures[f"{page}_ms_{name}_{size}"] = Figure(milliseconds, "ms")
                figures[f"{page}_{reads}_{name}_{size}"] = Figure(read, unit)
    finally:
        pool.close()
    return figures


def _measure(pool: SynchronousPool, stage: Stage, what: str) -> dict[str, tuple[float, float]]:
    token = Token(name="all", sha256=sha256_hex(SECRET), scopes=("admit", "read", "operate"))
    door = Door(tokens=[token], pool=pool)
    cookie = _sign_in(door)
    found = pool.connection.cursor()
    found.execute("SELECT MAX(execution_id) FROM codeRunner_executions WHERE status = 'queued'")
    queued = found.fetchone()[0]
    measured = {}
    for page, path in PATHS.items():
        stage(f"{what}: {page}")
        asked = request("GET", path.format(queued=queued), token=SECRET, headers=[cookie])

        def ask(asked: bytes = asked) -> None:
            wire = Wire(door)
            wire.send(asked)
            answer = wire.answer()
            assert answer.status == 200, (answer.status, answer.body[:2000])
            door.clock.advance(1)

        times = []
        for repetition in range(WARM_UP + REPETITIONS):
            begun = time.perf_counter()
            ask()
            if repetition >= WARM_UP:
                times.append((time.perf_counter() - begun) * 1000)
        measured[page] = (statistics.median(times), float(_reads(pool, ask)))
    return measured


def _sign_in(door: Door) -> tuple[str, str]:
    body = urlencode({"token": SECRET, "next": "/ui"}).encode()
    form = ("Content-Type", "application/x-www-form-urlencoded")
    answer = door.ask("POST", "/ui/login", body, None, [form])
    found = re.match("[^;]+", answer.headers["set-cookie"])
    assert found is not None
    return ("Cookie", found[0])


def _reads(pool: SynchronousPool, ask: Callable[[], None]) -> int:
    """
    Rows that MariaDB reads for a page, or instructions of SQLite's virtual machine.
    """
    if pool.database.dialect == "sqlite":
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        pool.connection.set_progress_handler(step, 1)
        ask()
        pool.connection.set_progress_handler(None, 0)
        return steps

    def counters() -> int:
        with pool.connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _name, value in cursor.fetchall())

    own = -counters() + counters()  # what asking costs
    before = counters()
    ask()
    return counters() - before - own


def _prepare(txn: Cursor) -> None:
    """
    Make the numbers that the load multiplies, the last hours of the series, and two that run.
    """
    text = "VARCHAR(64) CHARACTER SET ascii" if txn.dialect == "mysql" else "TEXT"
    txn.execute(
        f"CREATE TABLE bench_moments (n INT PRIMARY KEY, account {text}, name {text}, at {text},"
        f" later {text})"
    )
    for minute in range(240):
        at = NOON - 60 * (minute + 1)
        sample(txn, Sample(at, "flowing", 100 + minute, 5.0, 3, minute % 9 // 8, Ended()))
    for _ in range(2):
        txn.execute(
            "INSERT INTO codeRunner_executions"
            " (job_id, subdomain, subdomain_hash, apikey_hash, status, queued_at, claimed_at,"
            " started_at) VALUES (1, 'a0', ?, ?, 'running', ?, ?, ?)",
            (SEALER.account("a0"), SEALER.key("a0"), *[instant_text(NOON - 30)] * 3),
        )


def _load(txn: Cursor, batch: int, queued: bool) -> None:
    """
    Add a thousand rows: history as it grows backwards, or what waits.
    """
    txn.execute("DELETE FROM bench_moments")
    values: list[object] = []
    for n in range(THOUSAND):
        number = batch * THOUSAND + n
        at = NOON - 3600 + number / 100 if queued else NOON - 7200 - number * 7
        name = f"a{number % ACCOUNTS}"
        values += (n, SEALER.account(name), name, instant_text(at), instant_text(at + 2))
    marks = ", ".join(["(?, ?, ?, ?, ?)"] * THOUSAND)
    txn.execute(f"INSERT INTO bench_moments (n, account, name, at, later) VALUES {marks}", values)
    if queued:
        txn.execute(
            "INSERT INTO codeRunner_executions (job_id, subdomain, subdomain_hash, apikey_hash,"
            " status, queued_at, source_code)"
            " SELECT 1, name, account, account, 'queued', at, 'x = 1' FROM bench_moments"
        )
    else:
        txn.execute(
            "INSERT INTO codeRunner_executions (job_id, subdomain, subdomain_hash, apikey_hash,"
            " status, queued_at, claimed_at, started_at, finished_at, source_code)"
            " SELECT 1, name, account, account,"
            " CASE WHEN n = 500 THEN 'failed' ELSE 'success' END,"
            " at, at, at, later, 'x = 1' FROM bench_moments"
        )


def _analyze(txn: Cursor) -> None:
    # What the server does by itself once a tenth of a table has changed, but in its own time.
    txn.execute("ANALYZE TABLE codeRunner_executions").all()
