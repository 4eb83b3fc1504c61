"""
Phase A: due automations become runs. The run's row first, then the pointer moves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from attrs import evolve, frozen

from crq.automations import contract, policy, schedule
from crq.automations.model import Automation, RunStatus, Trigger, Unfit
from crq.automations.runs import rows
from crq.automations.runs.definitions import change, find, lock_tenant, note
from crq.automations.runs.rows import marks, text_of
from crq.automations.schedule import Due
from crq.database import Cursor
from crq.instants import Instant

SCHEDULER = "scheduler"  # the actor of what nobody asked for


@frozen
class Claimed:
    """
    An occurrence that has its run.

    :ivar status: queued, or overlapped.
    """

    run_id: int
    automation_id: int
    scheduled_for: Instant
    status: str


def due_tenants(txn: Cursor, now: Instant) -> tuple[str, ...]:
    """
    Tenants with due automations, the one that waits longest first (idx_automations_due).

    Reads the entries that are due and no others: with nothing due, none.
    """
    # +tenant, because SQLite would rather walk all automations in the order of their tenants.
    found = txn.execute(
        "SELECT tenant, MIN(next_run_at_utc) AS oldest FROM automations"
        " WHERE next_run_at_utc <= ? GROUP BY +tenant ORDER BY oldest, tenant",
        (text_of(now),),
    ).all()
    return tuple(row[0] for row in found)


def claim_due(
    txn: Cursor, tenant: str, now: Instant, limit: int, wait: bool = False
) -> tuple[Claimed, ...] | None:
    """
    Make the due automations of a tenant into runs, the oldest first, at most so many.

    :param wait: for whoever is at this tenant just now.
    :return: what was claimed; None: somebody is at this tenant.
    """
    if not lock_tenant(txn, tenant, wait):
        return None
    found = txn.execute(
        f"SELECT {rows.AUTOMATION} FROM automations WHERE tenant = ? AND next_run_at_utc <= ?"
        " ORDER BY next_run_at_utc, automation_id LIMIT ?",
        (tenant, text_of(now), limit),
    ).all()
    return claim(txn, [rows.automation(row) for row in found], now)


def claim(txn: Cursor, due: Sequence[Automation], now: Instant) -> tuple[Claimed, ...]:
    """
    Make automations of a locked tenant whose pointer has been reached into runs.

    One whose schedule cannot be understood is switched off, so that it stops nobody else.
    """
    plans: list[tuple[Automation, Due]] = []
    for automation in due:
        assert automation.next_run_at_utc is not None
        try:
            pointer = automation.next_run_at_utc
            plan = schedule.due(automation.cron, automation.zone, pointer, now)
        except Unfit as error:
            _switch_off(txn, automation, f"its schedule cannot be understood: {error}", now)
        else:
            plans.append((automation, plan))
    if not plans:
        return ()
    busy = _with_open_runs(txn, [automation.automation_id for automation, _ in plans])
    claimed = _insert(txn, plans, busy, now)
    _move_pointers(txn, plans)
    for automation, plan in plans:
        if plan.next_at is None:
            _switch_off(txn, automation, "its schedule has no further occurrence", now)
    return claimed


def run_now(txn: Cursor, automation: Automation, actor: str, now: Instant) -> Claimed:
    """
    Make a run outside the schedule. The tenant is locked since before the automation was read.

    :raise Unfit: it is switched off, or has an open run.
    """
    if not automation.enabled:
        raise Unfit("automation", "is switched off", "enable it, or let it observe")
    if _with_open_runs(txn, [automation.automation_id]):
        raise Unfit("automation", "has an open run", "wait for its end")
    due = Due(now - now % 1.0, 0, None)  # the key is of whole seconds
    (claimed,) = _insert(txn, [(automation, due)], set(), now, Trigger.MANUAL)
    note(txn, automation, "run-now", actor, now, after={"run_id": claimed.run_id})
    return claimed


def _insert(
    txn: Cursor,
    plans: Sequence[tuple[Automation, Due]],
    busy: set[int],
    now: Instant,
    trigger: Trigger = Trigger.SCHEDULE,
) -> tuple[Claimed, ...]:
    guard = contract.first_guard()
    keys: dict[str, Automation] = {}
    values: list[object] = []
    for automation, plan in plans:
        key = policy.idempotency_key(automation.automation_uuid, plan.scheduled_for, trigger)
        keys[key] = automation
        open_still = automation.automation_id in busy
        values += (
            automation.automation_id,
            automation.tenant,
            key,
            trigger.value,
            text_of(plan.scheduled_for),
            plan.skipped,
            automation.type,
            json.dumps(dict(automation.config), sort_keys=True),
            automation.config_revision,
            automation.max_items_per_run,
            automation.max_changes_per_run,
            automation.mode.value,
            (RunStatus.OVERLAPPED if open_still else RunStatus.QUEUED).value,
            "the run before it was still open" if open_still else None,
            guard.anchor,
            "{}",
            "[]",
            text_of(now),
            text_of(now) if open_still else None,
            0 if open_still else None,
        )
    if txn.dialect == "sqlite":
        again = "ON CONFLICT (idempotency_key) DO NOTHING"
    else:
        again = "ON DUPLICATE KEY UPDATE run_id = run_id"
    txn.execute(
        f"""
        INSERT INTO automation_runs
            (automation_id, tenant, idempotency_key, trigger_kind, scheduled_for_utc, skipped, type,
             config_json, config_revision, max_items_per_run, max_changes_per_run, mode, status,
             why, cursor_anchor, reason_counts_json, notices_json, created_at, finished_at,
             duration_ms)
        VALUES {", ".join([f"({marks(20)})"] * len(plans))}
        {again}
        """,
        values,
    )
    # Whoever made them: these are the runs of these occurrences.
    found = txn.execute(
        "SELECT run_id, automation_id, scheduled_for_utc, status FROM automation_runs"
        f" WHERE idempotency_key IN ({marks(len(keys))}) ORDER BY run_id",
        tuple(keys),
    ).all()
    if len(found) != len(keys):
        raise RuntimeError(f"{len(found)} of {len(keys)} runs are there after they were made")
    return tuple(Claimed(row[0], row[1], rows.instant(row[2]) or 0.0, row[3]) for row in found)


def _move_pointers(txn: Cursor, plans: Sequence[tuple[Automation, Due]]) -> None:
    """
    Move pointers, whether or not this transaction made the runs: the occurrence is accounted for.
    """
    count = len(plans)
    moves: list[object] = []
    skips: list[object] = []
    olds: list[object] = []
    for automation, plan in plans:
        moves += (automation.automation_id, text_of(plan.next_at))
        skips += (automation.automation_id, plan.skipped)
        olds += (automation.automation_id, text_of(automation.next_run_at_utc))
    whens = "WHEN ? THEN ? " * count
    # The old pointer is named, so that the pointer of an edit is never overwritten.
    txn.execute(
        f"""
        UPDATE automations
           SET skipped_count = skipped_count + CASE automation_id {whens} END,
               next_run_at_utc = CASE automation_id {whens} END
         WHERE automation_id IN ({marks(count)})
           AND next_run_at_utc = CASE automation_id {whens} END
        """,
        (*skips, *moves, *(automation.automation_id for automation, _ in plans), *olds),
    )


def _with_open_runs(txn: Cursor, automation_ids: Sequence[int]) -> set[int]:
    found = txn.execute(
        "SELECT DISTINCT automation_id FROM automation_runs"
        f" WHERE automation_id IN ({marks(len(automation_ids))})"
        " AND status IN ('queued', 'running')",
        tuple(automation_ids),
    ).all()
    return {row[0] for row in found}


def _switch_off(txn: Cursor, automation: Automation, problem: str, now: Instant) -> None:
    current = find(txn, automation.automation_id)
    if current is None:
        return
    off = evolve(current, enabled=False, next_run_at_utc=None, problem=policy.short(problem))
    change(txn, current, off)
    note(txn, current, "switched off", SCHEDULER, now, {"enabled": True}, {"problem": off.problem})


def behind(txn: Cursor, now: Instant) -> int:
    """
    How many automations are due and not claimed.
    """
    return int(
        txn.execute(
            "SELECT COUNT(*) FROM automations WHERE next_run_at_utc <= ?", (text_of(now),)
        ).scalar()
    )


def reaim(txn: Cursor, tenant: str, now: Instant) -> int:
    """
    Aim the pointers of a tenant anew from now, after the wall clock was set back.

    Only those further ahead than their next occurrence from now are moved: without it an
    automation that was claimed in a wrong future would rest until that future comes. Occurrences
    that have run are not run again: their key is taken.
    """
    lock_tenant(txn, tenant)
    found = txn.execute(
        f"SELECT {rows.AUTOMATION} FROM automations WHERE tenant = ? AND next_run_at_utc > ?",
        (tenant, text_of(now)),
    ).all()
    moved = 0
    for automation in map(rows.automation, found):
        try:
            next_at = schedule.next_after(automation.cron, automation.zone, now)
        except Unfit:
            continue  # the claim that comes to it says so
        if next_at is not None and next_at < (automation.next_run_at_utc or 0.0):
            change(txn, automation, evolve(automation, next_run_at_utc=next_at))
            moved += 1
    return moved
