"""
The invariants I1 to I7, told from what is stored, from the journal and from what the API counted.

What rows and their changes show is told by `crq.invariants`, which the simulator uses as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from crq.database import Cursor, Database
from crq.invariants import History, stored
from crq.model import Limits

__all__ = ["History", "accepted", "caps", "effects", "rows", "stored"]

COLUMNS = (
    *("execution_id", "identifier", "subdomain_hash", "apikey_hash", "status", "error_code"),
    *("queued_at", "claimed_at", "started_at", "finished_at", "nonce_hash"),
)


def rows(database: Database, connection: Any) -> list[dict[str, Any]]:
    """
    Read all executions, in order.
    """

    def read(txn: Cursor) -> list[dict[str, Any]]:
        found = txn.execute(
            f"SELECT {', '.join(COLUMNS)} FROM codeRunner_executions ORDER BY execution_id"
        ).all()
        return [dict(zip(COLUMNS, row, strict=True)) for row in found]

    return database.read(connection, read)


def effects(
    found: Iterable[Mapping[str, Any]], counted: Mapping[tuple[int, int], int]
) -> list[str]:
    """
    I2, as the world outside sees it: no effect came twice, and none is missing of a success.

    An execution's identifier is its number at the API and how many effects it has: ``17/2``.
    """
    problems = [f"I2: effect {key} came {n} times" for key, n in counted.items() if n > 1]
    for row in found:
        number, _, steps = str(row["identifier"]).partition("/")
        came = sum(counted.get((int(number), step), 0) > 0 for step in range(1, int(steps) + 1))
        if row["status"] == "success" and came != int(steps):
            problems.append(f"I3: a success with {came} of its effects: {dict(row)}")
        if came and row["started_at"] is None:
            problems.append(f"I2: effects of a row that never started: {dict(row)}")
    return problems


def accepted(found: Iterable[Mapping[str, Any]], answers: Mapping[str, str]) -> list[str]:
    """
    I3: what was accepted is there, once; it has ended; and there is nothing else.

    :param answers: status that the door answered with, by identifier: ``queued`` or ``rejected``.
    """
    problems = []
    seen: Counter[str] = Counter()
    for row in found:
        if row["status"] == "rejected":
            continue
        seen[row["identifier"]] += 1
        if row["status"] not in ("success", "failed", "cancelled"):
            problems.append(f"I3: has not ended: {dict(row)}")
        if answers.get(row["identifier"]) != "queued":
            problems.append(f"I3: nobody was told of it: {dict(row)}")
    for identifier, answer in answers.items():
        if answer == "queued" and seen[identifier] != 1:
            problems.append(f"I3: {seen[identifier]} rows of the accepted {identifier}")
    return problems


def caps(most: Mapping[str, int], limits: Limits) -> list[str]:
    """
    I4, counted by the API: how many scripts ran at once, of each account and in ``total``.
    """
    return [
        f"I4: {count} scripts at once of {name}"
        for name, count in most.items()
        if count > (limits.in_flight if name == "total" else limits.per_account)
    ]
