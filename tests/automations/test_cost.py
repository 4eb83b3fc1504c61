"""
What a tick costs: nothing due costs the same whatever is stored, and queries follow the tenants.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import evolve

from benchmarks import automations
from benchmarks.claim import _count_rows, _count_steps
from crq.automations import limits, runs
from crq.automations.model import Verdict
from crq.database import Cursor, Database
from tests.automations.house import House
from tests.support import SynchronousPool

LONG = 4_000  # items of one run


def _quietly(text: str, done: int = 0, total: int | None = None) -> None:
    pass


def test_a_tick_with_nothing_due_reads_the_same_whatever_is_stored(database: Database) -> None:
    """
    With 20,000 stored items, 400 ended runs and 200 automations that are not due, a tick reads as
    little as with none.
    """
    reads = automations.idle_reads(database, (0, 200), _quietly)
    assert reads[1] <= reads[0] + 40, reads


def test_a_page_reads_what_its_run_or_automation_has(house: House) -> None:
    """
    Beside 40,000 items of others, a page of a run's items, its runs, its audit and its evidence are
    read by index, though all of it is stored far from where the table begins or ends.
    """
    database, connection = house.database, house.pool.connection
    automations._load(database, 200, 200, house.now + 3600)
    automations._grow(house.pool, 20_000)
    long_run, first = house.do(_long_run)
    automations._grow(house.pool, 20_000)
    if database.dialect != "sqlite":
        for table in ("automation_runs", "automation_run_items", "automation_audit"):
            house.sql(f"ANALYZE TABLE {table}")
    count = _count_steps if database.dialect == "sqlite" else _count_rows
    most = 30 if database.dialect == "sqlite" else 3  # steps, or reads, of one row
    for what, ask, own in (
        ("items", lambda: house.read(runs.items, long_run, 0, 50), LONG),
        ("approved", lambda: house.read(runs.items, long_run, 0, 10, Verdict.APPROVED), LONG),
        ("runs", lambda: house.read(runs.latest_runs, first, None, 40), LONG // 10),
        ("audit", lambda: house.read(runs.audit, first, None, 40), LONG // 10),
    ):
        read = count(connection, ask)[1]
        assert read <= most * own + 2000, (what, read)


def _long_run(txn: Cursor) -> tuple[int, int]:
    """
    A run with many items, and an automation with many runs and much audit, which then ended.
    """
    newest = txn.execute("SELECT MAX(run_id) FROM automation_runs").scalar()
    name = "'r' || item_id" if txn.dialect == "sqlite" else "CONCAT('r', item_id)"
    txn.execute(
        "INSERT INTO automation_run_items (run_id, subject_type, subject_id, verdict, reason,"
        f" effect, decided_at) SELECT ?, 'long', {name}, verdict, reason, effect, decided_at"
        f" FROM automation_run_items ORDER BY item_id LIMIT {LONG}",
        (newest,),
    )
    first = txn.execute("SELECT MIN(automation_id) FROM automations").scalar()
    txn.execute("UPDATE automation_runs SET automation_id = ? WHERE run_id <= ?", (first, newest))
    txn.execute(
        "INSERT INTO automation_audit (automation_id, tenant, at, actor, action)"
        " SELECT automation_id, tenant, created_at, 'x', 'closed' FROM automation_runs"
    )
    return newest, first


def test_queries_follow_tenants_and_not_automations(database: Database) -> None:
    """
    Claiming thirty automations of one tenant takes as many statements as claiming three.
    """
    counts: list[int] = []
    for number in (3, 30):
        statements: Counter[str] = Counter()

        def observe(sql: str, statements: Counter[str] = statements) -> None:
            statements["all"] += 1

        house = House(database)
        for each in range(number):
            house.add(f"tenant{number}", name=f"rule {each}", cron="0 * * * *")
        house.clocks.advance(3600)
        counting = House(
            database,
            house.clocks,
            pool=SynchronousPool(evolve(database, observe=observe)),
        )
        before = statements["all"]
        claimed: Any = counting.do_with_pool(runs.claim_due, f"tenant{number}", house.now, 100)
        counts.append(statements["all"] - before)
        assert len(claimed) == number
        counting.close()
        house.close()
    assert counts[0] == counts[1] <= 10


def test_a_chunk_is_a_few_statements(database: Database) -> None:
    """
    A chunk of a hundred records is one transaction of at most ten statements.
    """
    commits: Counter[str] = Counter()

    def observe(sql: str) -> None:
        commits["all"] += 1
        commits[sql.split(maxsplit=1)[0]] += 1

    house = House(database, pool=SynchronousPool(evolve(database, observe=observe)))
    house.kind.records = list(range(1, 10 * limits.BATCH))
    house.add()
    house.clocks.advance(60)
    house.tick()
    chunks = len(house.kind.evaluated)
    assert chunks == 10
    assert commits["COMMIT"] <= chunks + 12
    assert commits["all"] <= 10 * chunks + 60
    house.close()
