"""
What a tick costs: nothing due costs the same whatever is stored, and queries follow the tenants.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import evolve

from benchmarks import automations
from crq.automations import limits
from crq.database import Database
from tests.automations.house import House
from tests.support import SynchronousPool


def _quietly(text: str, done: int = 0, total: int | None = None) -> None:
    pass


def test_a_tick_with_nothing_due_reads_the_same_whatever_is_stored(database: Database) -> None:
    """
    With 20,000 stored items, 400 ended runs and 200 automations that are not due, a tick reads as
    little as with none.
    """
    reads = automations.idle_reads(database, (0, 200), _quietly)
    assert reads[1] <= reads[0] + 40, reads


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
        from crq.automations import runs

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
