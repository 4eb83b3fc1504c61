"""
From queued to claimed and back.

# Note [The claim]

The lock row comes first and is *written*: a plain FOR UPDATE does not hold on Galera, and a read
before it could be stale. What is in flight is read again under it, so that a plan may be stale but
the caps may not. The epoch it returns is put on the claimed rows; if the answer to COMMIT is lost,
the rows are looked up by it. Lane reads carry the head's instant as their lower bound: without it a
locking read steps over every delete-marked entry an old read view keeps alive.

A claim is six statements, BEGIN and COMMIT among them, however many rows it takes; see also note
[Few statements].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from crq import controls, policy
from crq.database import Cursor
from crq.executions.reading import state
from crq.executions.rows import marks, not_before, set_instant, take_epoch
from crq.instants import Instant, instant_text
from crq.model import Candidate, Claimed, InFlight, Limits, Plan, RunOne, Take
from crq.sealing import sha256_hex

# One lane of a claim; FOR UPDATE SKIP LOCKED holds inside the parentheses of a union as well.
_LANE_MYSQL = """
    (SELECT ?, execution_id, job_id, queued_at, traceparent FROM codeRunner_executions
      WHERE status = 'queued' AND subdomain_hash = ? AND apikey_hash <=> ? AND queued_at >= ?
      ORDER BY queued_at, execution_id LIMIT ? FOR UPDATE SKIP LOCKED)
"""

_LANE_SQLITE = """
    SELECT * FROM (
        SELECT ?, execution_id, job_id, queued_at, traceparent FROM codeRunner_executions
         WHERE status = 'queued' AND subdomain_hash = ? AND apikey_hash IS ? AND queued_at >= ?
         ORDER BY queued_at, execution_id LIMIT ?)
"""

LANES_AT_ONCE = 64  # lanes of one statement; SQLite joins at most 500 parts


def claim(
    txn: Cursor,
    plan: Plan,
    limits: Limits,
    drainer_id: str,
    now: Instant,
    mint: Callable[[], str],
    unanswered: Iterable[InFlight] = (),
    begun_by: str | None = None,
    slots: int | None = None,
) -> tuple[Claimed, ...]:
    """
    Take from a plan what still fits, oldest first, each row under a fresh nonce.

    See notes [The claim] and [The fence]. What operators have set is read again under the lock, so
    that nothing is claimed any more once a pause or a lower cap has been answered.

    :param unanswered: dispatches whose answer has not come; they hold a slot even if their row is
        finished already.
    :param begun_by: mark of the process that will POST them to a plain endpoint: they are running
        from now on, and no nonce is minted (`crq.plain`); None: they are claimed.
    :param slots: how many may be in flight through this drainer; None: as many as may be at all.
    """
    epoch = take_epoch(txn, "codeRunner_drain")
    standing = state(txn, with_heads=False)
    ours = {flight.execution_id: flight for flight in unanswered}
    flights = ours | {flight.execution_id: flight for flight in standing.in_flight}
    flown = {flight.lane.apikey_hash for flight in flights.values()}
    found = standing.controls
    candidates = _picked(txn, () if found.draining else plan.picks)
    takes = [
        take
        for take in plan.takes
        if found.pause_of(take.lane) is None
        # else another drainer was first with the one that tries a gate that has passed
        and not (take.alone and take.lane.apikey_hash in flown)
    ]
    for one in _waiting_of(txn, takes):
        candidates.setdefault(one.execution_id, one)
    picks = [request.execution_id for request in plan.picks]
    caps = found.over(limits)
    if slots is not None:
        caps = policy.own_share(caps, flights.values(), slots, drainer_id, ours)
    chosen = policy.pick(candidates.values(), flights.values(), caps, first=picks)
    asked = {request.execution_id for request in found.run_one}
    controls.served(txn, [row.execution_id for row in chosen if row.execution_id in asked])
    if not chosen:
        return ()
    claimed = tuple(
        Claimed(
            row.execution_id,
            row.job_id or 0,
            row.lane,
            epoch,
            mint() if begun_by is None else "",
            row.traceparent,
        )
        for row in chosen
    )
    # One instant for all of them; never before any of them was queued (hosts' clocks differ).
    at = max(now, *(row.queued_at for row in chosen))
    values: list[object]
    if begun_by is None:
        cases = "WHEN ? THEN ? " * len(claimed)
        taken = f"status = 'claimed', nonce_hash = CASE execution_id {cases}END"
        values = [v for row in claimed for v in (row.execution_id, sha256_hex(row.nonce))]
    else:
        taken = "status = 'running', worker_id = ?, started_at = ?"
        values = [begun_by, instant_text(at)]
    # +status, because SQLite would rather walk all queued rows by an index on status than seek the
    # few ids.
    txn.execute(
        f"""
        UPDATE codeRunner_executions SET {taken}, claim_epoch = ?, drainer_id = ?, claimed_at = ?
         WHERE execution_id IN ({marks(len(claimed))}) AND +status = 'queued'
        """,
        (*values, epoch, drainer_id, instant_text(at), *(row.execution_id for row in claimed)),
    )
    if txn.rowcount != len(claimed):
        raise RuntimeError(f"claimed {txn.rowcount} of {len(claimed)} locked rows")
    return claimed


def _waiting_of(txn: Cursor, takes: Sequence[Take]) -> Iterator[Candidate]:
    """
    Lock the oldest rows of each of these lanes.
    """
    part = _LANE_SQLITE if txn.dialect == "sqlite" else _LANE_MYSQL
    for first in range(0, len(takes), LANES_AT_ONCE):
        some = takes[first : first + LANES_AT_ONCE]
        values: list[object] = []
        for number, take in enumerate(some):
            lane = take.lane
            values += (number, lane.subdomain_hash, lane.apikey_hash)
            values += (instant_text(take.queued_at), take.at_most)
        for row in txn.execute(" UNION ALL ".join([part] * len(some)), values).all():
            yield Candidate(row[1], row[2], some[row[0]].lane, set_instant(row[3]), row[4])


def _picked(txn: Cursor, picks: Iterable[RunOne]) -> dict[int, Candidate]:
    """
    Lock the executions an operator asked for; a request whose execution waits no more is dropped.
    """
    lock = "" if txn.dialect == "sqlite" else "FOR UPDATE SKIP LOCKED"
    lanes = {request.execution_id: request.lane for request in picks}
    if not lanes:
        return {}
    waiting = f"WHERE execution_id IN ({marks(len(lanes))}) AND +status = 'queued'"
    rows = txn.execute(
        "SELECT execution_id, job_id, queued_at, traceparent FROM codeRunner_executions"
        f" {waiting} {lock}",
        tuple(lanes),
    ).all()
    found = {
        row[0]: Candidate(row[0], row[1], lanes[row[0]], set_instant(row[2]), row[3])
        for row in rows
    }
    if len(found) < len(lanes):
        # Not those that somebody else has locked at this moment: they still wait.
        still = txn.execute(
            f"SELECT execution_id FROM codeRunner_executions {waiting}", tuple(lanes)
        ).all()
        controls.served(txn, lanes.keys() - {row[0] for row in still})
    return found


def release(txn: Cursor, execution_id: int, claim_epoch: int | None) -> bool:
    """
    Put a claimed row back in its place in the queue; its nonce is worth nothing from then on.
    """
    txn.execute(
        "UPDATE codeRunner_executions SET status = 'queued', nonce_hash = NULL, claimed_at = NULL,"
        " claim_epoch = NULL, drainer_id = NULL"
        " WHERE execution_id = ? AND status = 'claimed' AND claim_epoch = ?",
        (execution_id, claim_epoch),
    )
    return txn.rowcount == 1


def fail_dispatch(
    txn: Cursor, execution_id: int, claim_epoch: int, message: str, now: Instant
) -> bool:
    """
    Close a claimed row that cannot be dispatched for a reason of its own (106, never started).
    """
    txn.execute(
        f"""
        UPDATE codeRunner_executions
           SET status = 'failed', error_code = 106, error_message = ?, nonce_hash = NULL,
               finished_at = {not_before("claimed_at")}
         WHERE execution_id = ? AND status = 'claimed' AND claim_epoch = ?
        """,
        (message, *[instant_text(now)] * 2, execution_id, claim_epoch),
    )
    return txn.rowcount == 1


def cancel(txn: Cursor, execution_id: int, now: Instant) -> bool:
    """
    Cancel an execution that has not been claimed.
    """
    txn.execute(
        f"UPDATE codeRunner_executions SET status = 'cancelled',"
        f" finished_at = {not_before('queued_at')}"
        " WHERE execution_id = ? AND status = 'queued'",
        (*[instant_text(now)] * 2, execution_id),
    )
    return txn.rowcount == 1
