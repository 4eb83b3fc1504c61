"""
Phase B, one run: take it, record its chunks.

Each function is one transaction, and each begins by renewing the lease (see note [Leases]).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from attrs import evolve, frozen

from crq.automations import policy
from crq.automations.model import (
    Automation,
    Chunk,
    Close,
    Current,
    Decision,
    Effect,
    Guard,
    Mode,
    Run,
    Verdict,
)
from crq.automations.runs import rows
from crq.automations.runs.definitions import find
from crq.automations.runs.rows import marks, text_of
from crq.database import Cursor
from crq.instants import Instant


class Lost(Exception):
    """
    The lease is gone: somebody else goes on with this run. Nothing was written.
    """


class Changed(Exception):
    """
    The automation was demoted or switched off since the run was looked at. Nothing was written.
    """


@frozen
class Lease:
    """
    The right to advance a run.

    :ivar seconds: how long it lasts from each write.
    """

    run_id: int
    automation_id: int
    token: str
    seconds: float


def take(
    txn: Cursor, run_id: int, token: str, seconds: float, now: Instant
) -> tuple[Run, Lease, Automation | None, Mode | Close] | None:
    """
    Take an open run that nobody holds, with its automation, and see what governs it.

    A run without items is given the automation's current mode, and its row says so.
    """
    at = text_of(now)
    txn.execute(
        "UPDATE automation_runs SET status = 'running', lease_token = ?, lease_until = ?,"
        " started_at = COALESCE(started_at, ?)"
        " WHERE run_id = ? AND status IN ('queued', 'running') AND lease_token IS NULL",
        (token, text_of(now + seconds), at, run_id),
    )
    if txn.rowcount != 1:
        return None
    row = txn.execute(f"SELECT {rows.RUN} FROM automation_runs WHERE run_id = ?", (run_id,)).one()
    assert row is not None
    run = rows.run(row)
    automation = find(txn, run.automation_id)
    mode = policy.govern(run, _current_of(automation))
    if isinstance(mode, Mode) and mode is not run.mode:
        txn.execute(
            "UPDATE automation_runs SET mode = ? WHERE run_id = ? AND item_count = 0",
            (mode.value, run_id),
        )
        run = evolve(run, mode=mode)
    return run, Lease(run_id, run.automation_id, token, seconds), automation, mode


def governed(txn: Cursor, run: Run) -> Mode | Close:
    """
    What governs a run now.
    """
    return policy.govern(run, _current(txn, run.automation_id))


def record(
    txn: Cursor,
    lease: Lease,
    run: Run,
    chunk: Chunk,
    cursor_json: str,
    guard: Guard,
    now: Instant,
) -> Run:
    """
    Keep a chunk: its items first, then the cursor and the counts, together or not at all.

    Subjects that this run has decided about already are left out; so are decisions beyond a cap,
    and then the cursor stays.

    :return: the run as it is stored now.
    :raise Lost: somebody else has the run.
    :raise Changed: the automation's mode is another than the chunk was asked for.
    """
    renew(txn, lease, now)
    if governed(txn, run) is not run.mode:
        raise Changed
    new = _undecided(txn, run.run_id, chunk.decisions)
    kept = policy.fitting(run, new)
    if kept:
        _insert(txn, run, kept, now)
    whole = len(kept) == len(new)
    after = evolve(
        run,
        cursor=chunk.next_cursor if whole else run.cursor,
        guard=guard if whole else run.guard,
        ended=whole and not chunk.has_more,
        chunk_count=run.chunk_count + 1,
        counts=policy.tally(run.mode, run.counts, kept),
        reason_counts=policy.reasons(run.reason_counts, kept),
        notices=policy.notices(run.notices, chunk.notices),
    )
    txn.execute(
        """
        UPDATE automation_runs
           SET cursor_json = CASE WHEN ? THEN ? ELSE cursor_json END, cursor_anchor = ?,
               cursor_steps = ?, cursor_power = ?, ended = ?, chunk_count = ?, item_count = ?,
               declined_count = ?, would_count = ?, intended_count = ?, reason_counts_json = ?,
               notices_json = ?, advanced_at = ?, waits_for = NULL
         WHERE run_id = ? AND lease_token = ?
        """,
        (
            int(whole),
            cursor_json,
            after.guard.anchor,
            after.guard.steps,
            after.guard.power,
            int(after.ended),
            after.chunk_count,
            after.counts.items,
            after.counts.declined,
            after.counts.would,
            after.counts.intended,
            json.dumps(dict(after.reason_counts)),
            json.dumps(after.notices),
            text_of(now),
            lease.run_id,
            lease.token,
        ),
    )
    return after


def _undecided(txn: Cursor, run_id: int, decisions: Sequence[Decision]) -> Sequence[Decision]:
    if not decisions:
        return decisions
    found = txn.execute(
        "SELECT subject_type, subject_id FROM automation_run_items"
        f" WHERE run_id = ? AND subject_id IN ({marks(len(decisions))})",
        (run_id, *(decision.subject_id for decision in decisions)),
    ).all()
    decided = {(row[0], row[1]) for row in found}
    return [one for one in decisions if (one.subject_type, one.subject_id) not in decided]


def _insert(txn: Cursor, run: Run, decisions: Sequence[Decision], now: Instant) -> None:
    values: list[object] = []
    for decision in decisions:
        acts = run.mode is Mode.LIVE and decision.verdict is Verdict.APPROVED
        values += (
            run.run_id,
            decision.subject_type,
            decision.subject_id,
            decision.verdict.value,
            decision.reason,
            json.dumps(dict(decision.intent), sort_keys=True) if decision.intent else None,
            (Effect.INTENDED if acts else Effect.NONE).value,
            text_of(now),
        )
    txn.execute(
        "INSERT INTO automation_run_items (run_id, subject_type, subject_id, verdict, reason,"
        f" intent_json, effect, decided_at) VALUES {', '.join([f'({marks(8)})'] * len(decisions))}",
        values,
    )


def renew(txn: Cursor, lease: Lease, now: Instant) -> None:
    """
    Make sure that a run is still this worker's, and for how long (see note [Leases]).

    :raise Lost: it is not.
    """
    txn.execute(
        "UPDATE automation_runs SET lease_until = ?"
        " WHERE run_id = ? AND status = 'running' AND lease_token = ?",
        (text_of(now + lease.seconds), lease.run_id, lease.token),
    )
    if txn.rowcount != 1:
        raise Lost


def _current_of(automation: Automation | None) -> Current:
    if automation is None:  # deleted by hand: nothing may act in its name
        return Current(Mode.OBSERVE, False)
    return Current(automation.mode, automation.enabled)


def _current(txn: Cursor, automation_id: int) -> Current:
    row = txn.execute(
        "SELECT mode, enabled FROM automations WHERE automation_id = ?", (automation_id,)
    ).one()
    return _current_of(None) if row is None else Current(Mode(row[0]), bool(row[1]))
