"""
Phase B, one run: it pauses, or it comes to its end.
"""

from __future__ import annotations

import json

from attrs import evolve

from crq.automations import policy
from crq.automations.model import Chunk, Close, Guard, Mode, Run
from crq.automations.runs.advancing import Lease, Lost, record, renew
from crq.automations.runs.claiming import SCHEDULER
from crq.automations.runs.rows import text_of
from crq.automations.runs.serving import settle_begun
from crq.database import Cursor
from crq.instants import Instant


def record_and_finish(
    txn: Cursor,
    lease: Lease,
    run: Run,
    chunk: Chunk,
    cursor_json: str,
    guard: Guard,
    now: Instant,
) -> Run:
    """
    Keep a chunk, and close the run with it if it was the last one and nothing is to be applied.

    See `crq.automations.runs.advancing.record`, which says what is raised.
    """
    after = record(txn, lease, run, chunk, cursor_json, guard, now)
    if after.ended and not policy.outstanding(after.counts):
        return finish(txn, lease, after, policy.NOTHING_LEFT, now)
    return after


def pause(txn: Cursor, lease: Lease, waits_for: str, now: Instant) -> None:
    """
    Leave a run open for a later tick, and give its lease back.
    """
    txn.execute(
        "UPDATE automation_runs SET lease_token = NULL, lease_until = NULL, waits_for = ?,"
        " advanced_at = ? WHERE run_id = ? AND lease_token = ?",
        (waits_for, text_of(now), lease.run_id, lease.token),
    )
    if txn.rowcount != 1:
        raise Lost


def finish(txn: Cursor, lease: Lease, run: Run, close: Close, now: Instant) -> Run:
    """
    Close a run: its row, the automation's summary, the audit; together or not at all.

    Effects that have not begun are withdrawn; one that has and did not end is unknown.
    """
    renew(txn, lease, now)
    counts = run.counts
    if policy.outstanding(counts):
        unknown = settle_begun(txn, run.run_id, "the run was closed before it ended")
        txn.execute(
            "UPDATE automation_run_items SET effect = 'withdrawn'"
            " WHERE run_id = ? AND effect = 'intended'",
            (run.run_id,),
        )
        counts = evolve(
            counts, unknown=counts.unknown + unknown, withdrawn=counts.withdrawn + txn.rowcount
        )
    why = policy.short(close.why)
    lasted = max(0.0, now - (run.started_at if run.started_at is not None else now))
    finished = evolve(
        run,
        status=close.status,
        why=why,
        counts=counts,
        finished_at=now,
        duration_ms=round(lasted * 1000),
    )
    txn.execute(
        """
        UPDATE automation_runs
           SET status = ?, why = ?, waits_for = NULL, finished_at = ?, duration_ms = ?,
               withdrawn_count = ?, lease_token = NULL, lease_until = NULL
         WHERE run_id = ? AND status = 'running' AND lease_token = ?
        """,
        (
            close.status.value,
            why,
            text_of(now),
            finished.duration_ms,
            counts.withdrawn,
            lease.run_id,
            lease.token,
        ),
    )
    _set_last_run(txn, finished, now)
    return finished


def summary(run: Run) -> str:
    """
    What a run did, in one line.
    """
    counts = run.counts
    if run.mode is Mode.OBSERVE:
        parts = [f"{counts.would} would be changed"]
    else:
        parts = [f"{counts.approved} changed"]
        parts += [
            f"{number} {word}"
            for number, word in (
                (counts.failed, "failed"),
                (counts.unknown, "unknown"),
                (counts.withdrawn, "withdrawn"),
            )
            if number
        ]
    return f"{counts.items} decided, {', '.join(parts)}: {run.why or run.status.value}"


def _set_last_run(txn: Cursor, run: Run, now: Instant) -> None:
    text = policy.short(summary(run))
    txn.execute(
        "UPDATE automations SET last_run_id = ?, last_run_status = ?, last_run_at = ?,"
        " last_run_summary = ?"
        " WHERE automation_id = ? AND (last_run_id IS NULL OR last_run_id <= ?)",
        (run.run_id, run.status.value, text_of(now), text, run.automation_id, run.run_id),
    )
    txn.execute(
        "INSERT INTO automation_audit (automation_id, run_id, tenant, at, actor, action,"
        " after_json) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            run.automation_id,
            run.run_id,
            run.tenant,
            text_of(now),
            SCHEDULER,
            "run ended",
            json.dumps({"status": run.status.value, "mode": run.mode.value, "summary": text}),
        ),
    )
