"""
From rows to values and back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from crq.automations.model import (
    Automation,
    Counts,
    Decision,
    Effect,
    Guard,
    Item,
    Json,
    Mode,
    Run,
    RunStatus,
    Trigger,
    Verdict,
)
from crq.instants import Instant, instant_of, instant_text

AUTOMATION = (
    "automation_id, automation_uuid, tenant, name, type, config_json, config_revision, mode,"
    " enabled, cron, zone, next_run_at_utc, max_items_per_run, max_changes_per_run, owner, problem,"
    " skipped_count, promoted_by, promoted_at, promoted_revision, promoted_run_id,"
    " promoted_would_count, last_run_id, last_run_status, last_run_at, last_run_summary,"
    " created_at, changed_at"
)
RUN = (
    "run_id, automation_id, tenant, idempotency_key, trigger_kind, scheduled_for_utc, skipped,"
    " type, config_json, config_revision, max_items_per_run, max_changes_per_run, mode, status,"
    " why, waits_for, cursor_json, cursor_anchor, cursor_steps, cursor_power, ended, chunk_count,"
    " item_count, declined_count, would_count, intended_count, approved_count, failed_count,"
    " unknown_count, withdrawn_count, reason_counts_json, notices_json, created_at, started_at,"
    " finished_at, duration_ms"
)
ITEM = (
    "item_id, run_id, subject_type, subject_id, verdict, reason, intent_json, effect, detail,"
    " decided_at, applied_at"
)


def marks(count: int) -> str:
    """
    That many placeholders.
    """
    return ", ".join("?" * count)


def text_of(at: Instant | None) -> str | None:
    """
    An instant as it is stored.
    """
    return None if at is None else instant_text(at)


def instant(text: str | None) -> Instant | None:
    """
    An instant that may be NULL; one that cannot be understood counts as the oldest there is.
    """
    if text is None:
        return None
    try:
        return instant_of(text)
    except ValueError:
        return 0.0


def json_of(text: str | None) -> Json:
    """
    A stored JSON value; what cannot be read (SQLite stores any text) is an empty object.

    One damaged row must not stop a tick: an empty configuration is refused by its type.
    """
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}


def mapping_of(text: str | None) -> Mapping[str, Json]:
    """
    A stored JSON object.
    """
    value = json_of(text)
    return value if isinstance(value, dict) else {}


def automation(row: Sequence[Any]) -> Automation:
    """
    An automation out of the columns of `AUTOMATION`.
    """
    return Automation(
        automation_id=row[0],
        automation_uuid=row[1],
        tenant=row[2],
        name=row[3],
        type=row[4],
        config=mapping_of(row[5]),
        config_revision=row[6],
        mode=Mode(row[7]),
        enabled=bool(row[8]),
        cron=row[9],
        zone=row[10],
        next_run_at_utc=instant(row[11]),
        max_items_per_run=row[12],
        max_changes_per_run=row[13],
        owner=row[14],
        problem=row[15],
        skipped_count=row[16],
        promoted_by=row[17],
        promoted_at=instant(row[18]),
        promoted_revision=row[19],
        promoted_run_id=row[20],
        promoted_would_count=row[21],
        last_run_id=row[22],
        last_run_status=row[23],
        last_run_at=instant(row[24]),
        last_run_summary=row[25],
        created_at=instant(row[26]) or 0.0,
        changed_at=instant(row[27]) or 0.0,
    )


def run(row: Sequence[Any]) -> Run:
    """
    A run out of the columns of `RUN`.
    """
    return Run(
        run_id=row[0],
        automation_id=row[1],
        tenant=row[2],
        idempotency_key=row[3],
        trigger_kind=Trigger(row[4]),
        scheduled_for_utc=instant(row[5]) or 0.0,
        skipped=row[6],
        type=row[7],
        config=mapping_of(row[8]),
        config_revision=row[9],
        max_items_per_run=row[10],
        max_changes_per_run=row[11],
        mode=Mode(row[12]),
        status=RunStatus(row[13]),
        why=row[14],
        waits_for=row[15],
        cursor=json_of(row[16]),
        guard=Guard(row[17] or "", row[18], row[19]),
        ended=bool(row[20]),
        chunk_count=row[21],
        counts=Counts(*row[22:30]),
        reason_counts=mapping_of(row[30]),
        notices=tuple(json_of(row[31]) or ()),
        created_at=instant(row[32]) or 0.0,
        started_at=instant(row[33]),
        finished_at=instant(row[34]),
        duration_ms=row[35],
    )


def item(row: Sequence[Any]) -> Item:
    """
    An item out of the columns of `ITEM`.
    """
    return Item(
        item_id=row[0],
        run_id=row[1],
        decision=Decision(row[2], row[3], Verdict(row[4]), row[5], mapping_of(row[6])),
        effect=Effect(row[7]),
        detail=row[8],
        decided_at=instant(row[9]) or 0.0,
        applied_at=instant(row[10]),
    )
