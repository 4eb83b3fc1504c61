"""
How fast drainers on one and on three nodes of Galera claim, when there is always work and room.
"""

from __future__ import annotations

import threading
import time

import pymysql
from attrs import evolve

from benchmarks.report import Figure
from crq import executions, schema
from crq.database import Cursor, Database, is_repeatable
from crq.messages import Outcome
from crq.model import Limits, Status
from tests import rows
from tests.galera.cluster import Cluster
from tests.rows import NOON

SECONDS = 6.0  # of each measurement
LIMITS = Limits(in_flight=12, per_account=4)
LANES = 20
DEPTH = 12_000  # rows; more than are claimed in that time


def figures(cluster: Cluster) -> dict[str, Figure]:
    """
    Claim transactions and rows a second, and how often one was undone by another node's.
    """
    found: dict[str, Figure] = {}
    for count in (1, len(cluster.nodes)):
        cluster.nodes[0].create_database("claims")
        databases = [Database(node.dsn("claims"), galera=True) for node in cluster.nodes]
        schema.upgrade(databases[0])
        _fill(databases[0])
        drainers = [_Drainer(database, f"d{n}") for n, database in enumerate(databases[:count])]
        for each in drainers:
            each.start()
        for each in drainers:
            each.join()
        claims = sum(each.claims for each in drainers)
        taken = sum(each.rows for each in drainers)
        undone = sum(each.undone for each in drainers)
        name = f"claiming_nodes_{count}"
        found[f"{name}_transactions_per_s"] = Figure(round(claims / SECONDS, 1), "1/s")
        found[f"{name}_rows_per_s"] = Figure(round(taken / SECONDS, 1), "1/s")
        given_up = sum(each.given_up for each in drainers)
        found[f"{name}_given_up"] = Figure(given_up, "claims")
        found[f"{name}_undone_per_claim"] = Figure(round(undone / max(1, claims), 3), "ratio")
    return found


def _fill(database: Database) -> None:
    connection = database.connect()

    def fill(txn: Cursor) -> None:
        for lane in range(LANES):
            rows.insert_queued(txn, f"{lane:064d}", None, NOON, DEPTH // LANES)

    database.transact(connection, fill)
    connection.close()


class _Drainer(threading.Thread):
    """
    Claims what fits, and ends it at once, as an executor of no duration would.
    """

    def __init__(self, database: Database, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.claims = self.rows = self.undone = self.given_up = 0
        self._database = evolve(database, repeated=self._repeated)

    def _repeated(self, _error: BaseException) -> None:
        self.undone += 1

    def run(self) -> None:
        connection = self._database.connect()
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                claimed = rows.claim(self._database, connection, NOON + 1, LIMITS, self.name)
            except pymysql.err.OperationalError as error:
                if not is_repeatable(error):
                    raise
                self.given_up += 1  # a drainer comes again with its next tick
                continue
            if claimed:
                self.claims += 1
                self.rows += len(claimed)
                self._database.transact(connection, _end, [row.execution_id for row in claimed])
        connection.close()


def _end(txn: Cursor, execution_ids: list[int]) -> None:
    places = ", ".join("?" * len(execution_ids))
    txn.execute(
        "UPDATE codeRunner_executions SET status = 'running', started_at = claimed_at,"
        f" nonce_hash = NULL WHERE execution_id IN ({places})",
        execution_ids,
    )
    for execution_id in execution_ids:
        executions.finish(txn, execution_id, Outcome(Status.SUCCESS), NOON + 2)
