"""
Reads for people: automations, runs, items and the audit, in pages.

A page goes on after the number it ended with: numbers are unique, so that no row falls between two
pages however many share an instant.

# Note [Orders]

``ORDER BY number + 0`` instead of ``ORDER BY number``: a page is read by the index of what it is
about, and then sorted. By number alone MariaDB would rather walk the primary key until it has met
enough rows, which is the whole table when the rows are far away. So a page costs what its
automation, or its run, has stored, and never what others have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from attrs import frozen

from crq.automations import limits
from crq.automations.model import (
    Automation,
    Effect,
    Item,
    Json,
    Run,
    RunStatus,
    Unfit,
    Verdict,
)
from crq.automations.promotion import Evidence
from crq.automations.runs import rows
from crq.database import Cursor
from crq.instants import Instant

T = TypeVar("T")


@frozen
class Page(Generic[T]):
    """
    Some rows.

    :ivar after: what the next page goes on after; None: this is the last one.
    """

    rows: tuple[T, ...]
    after: int | None


@frozen
class AuditRow:
    """
    Something that was done to an automation.
    """

    audit_id: int
    automation_id: int
    run_id: int | None
    at: Instant
    actor: str
    action: str
    before: Json
    after: Json


def automations(
    txn: Cursor,
    tenants: Sequence[str] | None = None,
    after: int = 0,
    limit: int = limits.PAGE_ROWS,
) -> Page[Automation]:
    """
    Automations by number, of some tenants or of all.
    """
    where, parameters = "automation_id > ?", [after]
    if tenants is not None:
        where += f" AND tenant IN ({rows.marks(max(1, len(tenants)))})"
        parameters += tenants or [""]  # type: ignore[arg-type]  # nobody is called so
    found = txn.execute(
        f"SELECT {rows.AUTOMATION} FROM automations WHERE {where} ORDER BY automation_id LIMIT ?",
        (*parameters, limit + 1),
    ).all()
    return _page([rows.automation(row) for row in found], limit, lambda one: one.automation_id)


def run(txn: Cursor, run_id: int) -> Run | None:
    """
    Read one run.
    """
    row = txn.execute(f"SELECT {rows.RUN} FROM automation_runs WHERE run_id = ?", (run_id,)).one()
    return None if row is None else rows.run(row)


def latest_runs(
    txn: Cursor,
    automation_id: int,
    before: int | None = None,
    limit: int = limits.PAGE_ROWS,
    status: RunStatus | None = None,
) -> Page[Run]:
    """
    Runs of an automation, newest first (idx_runs_automation).

    :param before: go on after this number.
    """
    where, parameters = ["automation_id = ?"], [automation_id]
    if before is not None:
        where.append("run_id < ?")
        parameters.append(before)
    if status is not None:
        where.append("status = ?")
        parameters.append(status.value)  # type: ignore[arg-type]
    found = txn.execute(
        f"SELECT {rows.RUN} FROM automation_runs JOIN"  # note [Orders]
        f" (SELECT run_id AS number FROM automation_runs WHERE {' AND '.join(where)}"
        " ORDER BY run_id + 0 DESC LIMIT ?) AS page ON run_id = number ORDER BY run_id DESC",
        (*parameters, limit + 1),
    ).all()
    return _page([rows.run(row) for row in found], limit, lambda one: one.run_id)


def items(
    txn: Cursor,
    run_id: int,
    after: int = 0,
    limit: int = limits.PAGE_ROWS,
    verdict: Verdict | None = None,
    effect: Effect | None = None,
    reason: str | None = None,
) -> Page[Item]:
    """
    Items of a run, oldest first, all or those that match.
    """
    where: list[str] = ["run_id = ?", "item_id > ?"]
    parameters: list[object] = [run_id, after]
    for name, value in (
        ("verdict", None if verdict is None else verdict.value),
        ("effect", None if effect is None else effect.value),
        ("reason", reason),
    ):
        if value is not None:
            where.append(f"{name} = ?")
            parameters.append(value)
    found = txn.execute(
        f"SELECT {rows.ITEM} FROM automation_run_items WHERE {' AND '.join(where)}"
        " ORDER BY item_id + 0 LIMIT ?",  # note [Orders]
        (*parameters, limit + 1),
    ).all()
    return _page([rows.item(row) for row in found], limit, lambda one: one.item_id)


def audit(
    txn: Cursor, automation_id: int, before: int | None = None, limit: int = limits.PAGE_ROWS
) -> Page[AuditRow]:
    """
    What was done to an automation, newest first (idx_audit_automation).
    """
    where, parameters = "automation_id = ?", [automation_id]
    if before is not None:
        where, parameters = where + " AND audit_id < ?", [*parameters, before]
    found = txn.execute(
        "SELECT audit_id, automation_id, run_id, at, actor, action, before_json, after_json"
        " FROM automation_audit JOIN"  # note [Orders]
        f" (SELECT audit_id AS number FROM automation_audit WHERE {where}"
        " ORDER BY audit_id + 0 DESC LIMIT ?) AS page ON audit_id = number ORDER BY audit_id DESC",
        (*parameters, limit + 1),
    ).all()
    made = [
        AuditRow(
            row[0],
            row[1],
            row[2],
            rows.instant(row[3]) or 0.0,
            row[4],
            row[5],
            rows.json_of(row[6]),
            rows.json_of(row[7]),
        )
        for row in found
    ]
    return _page(made, limit, lambda one: one.audit_id)


def evidence(txn: Cursor, automation_id: int, revision: int) -> Evidence | None:
    """
    The observe run of a revision that completed last (idx_runs_automation).
    """
    row = txn.execute(
        "SELECT run_id, config_revision, would_count FROM automation_runs"
        " WHERE automation_id = ? AND status = 'completed' AND mode = 'observe'"
        " AND config_revision = ? ORDER BY run_id + 0 DESC LIMIT 1",  # note [Orders]
        (automation_id, revision),
    ).one()
    return None if row is None else Evidence(*row)


def _page(found: Sequence[T], limit: int, number: Any) -> Page[T]:
    if not 1 <= limit <= limits.PAGE_ROWS:
        raise Unfit("limit", f"{limit} is out of range", f"give 1 to {limits.PAGE_ROWS}")
    kept = tuple(found[:limit])
    return Page(kept, number(kept[-1]) if len(found) > limit else None)
