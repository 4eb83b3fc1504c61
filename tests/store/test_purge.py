"""
The purge beside live work: it never holds more than a batch, whatever it has to delete (F03).
"""

from __future__ import annotations

import threading
import time
from typing import Any

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from crq import executions
from crq.config import ReaperOptions
from crq.database import Cursor, Database
from crq.instants import instant_text
from crq.messages import Outcome
from crq.model import Status
from crq.reaper import DAY, PAUSE, Reaper
from tests import rows
from tests.rows import NOON
from tests.servers import MariaDB
from tests.support import SynchronousPool

OLD, BATCH = 50_000, 1_000
DONE = Outcome(Status.SUCCESS)


def fill(txn: Cursor) -> None:
    """
    Let many executions have ended long ago.
    """
    if txn.dialect == "mysql":
        txn.execute(f"SET SESSION max_recursive_iterations = {OLD + 1}")
    numbers = (
        "WITH RECURSIVE numbers (n) AS"
        f" (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {OLD})"
    )
    account, key, at = "a" * 64, "b" * 64, instant_text(NOON - 200 * DAY)
    txn.execute(
        "INSERT INTO codeRunner_jobs (job_id, subdomain_hash, apikey, started_at)"
        f" {numbers} SELECT n, ?, 'sealed', ? FROM numbers",
        (account, at),
    )
    txn.execute(
        "INSERT INTO codeRunner_executions (job_id, subdomain_hash, apikey_hash, status, queued_at,"
        f" started_at, finished_at) {numbers} SELECT n, ?, ?, 'success', ?, ?, ? FROM numbers",
        (account, key, at, at, at),
    )


def count(txn: Cursor, status: str) -> int:
    sql = "SELECT COUNT(*) FROM codeRunner_executions WHERE status = ?"
    return int(txn.execute(sql, (status,)).scalar())


class Live:
    """
    Admits, claims and finishes on a connection of its own until it is told to stop.
    """

    def __init__(self, database: Database) -> None:
        self.repeats: list[BaseException] = []
        self.errors: list[BaseException] = []
        self.done = 0
        self._database = evolve(database, repeated=self.repeats.append)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _work(self) -> None:
        connection = self._database.connect()
        impatient = (
            "PRAGMA busy_timeout = 1000"
            if self._database.dialect == "sqlite"
            else "SET SESSION innodb_lock_wait_timeout = 1"
        )
        connection.cursor().execute(impatient)
        try:
            while not self._over.wait(0.05):
                rows.admit(self._database, connection, f"account{self.done % 7}")
                for claimed in rows.claim(self._database, connection):
                    rows.start(self._database, connection, claimed)
                    number = claimed.execution_id
                    self._database.transact(connection, executions.finish, number, DONE, NOON + 1)
                    self.done += 1
        except BaseException as error:
            self.errors.append(error)
        finally:
            connection.close()


def test_a_purge_of_fifty_thousand_rows_disturbs_nobody(
    engine: str, database: Database, mariadb: MariaDB
) -> None:
    """
    While 50,000 old rows are purged nobody waits a second for a lock; a purge that is killed half
    way has done what it had done, and the next round does the rest.
    """
    setup = database.connect()
    database.transact(setup, fill)
    batches = 0

    def kill(sql: str) -> None:
        nonlocal batches
        batches += "DELETE FROM codeRunner_executions" in sql
        if batches == 20 and "DELETE FROM codeRunner_executions" in sql:
            if engine == "sqlite":
                raise RuntimeError("killed")
            mariadb.execute(f"KILL {pool.connection.thread_id()}")
            raise RuntimeError("killed")

    pool = SynchronousPool(evolve(database, observe=kill))
    clock = Clock()
    options = ReaperOptions(batch=BATCH, running_limit=10_000.0)
    reaper = Reaper(pool, options, clock, lambda: NOON)

    def go_round() -> tuple[list[Any], list[Any]]:
        counts: list[Any] = []
        failures: list[Any] = []
        Deferred.fromCoroutine(reaper.run_once()).addCallbacks(counts.append, failures.append)
        while not counts and not failures:
            time.sleep(PAUSE)
            clock.advance(PAUSE)
        return counts, failures

    with Live(database) as live:
        _, failures = go_round()
        assert [failure.value.args for failure in failures] == [("killed",)]
        left = database.read(setup, count, "success") - live.done
        assert OLD - 20 * BATCH <= left <= OLD - 18 * BATCH
        counts, _ = go_round()
        assert counts[0]["purged"] == OLD - 19 * BATCH
    assert live.errors == []
    assert live.repeats == []
    assert live.done > 20
    assert database.read(setup, count, "success") == live.done
    jobs = database.read(
        setup, lambda txn: txn.execute("SELECT COUNT(*) FROM codeRunner_jobs").scalar()
    )
    assert jobs == database.read(setup, count, "success") + database.read(setup, count, "queued")
    pool.close()
    setup.close()
