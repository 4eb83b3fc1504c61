"""
From queued to claimed and back.

# Note [The claim]

The lock row comes first and is *written*: a plain FOR UPDATE does not hold on Galera, and a read
before it could be stale. What is in flight is read again under it, so that a plan may be stale but
the caps may not. The epoch it returns is put on the claimed rows; if the answer to COMMIT is lost,
the rows are looked up by it. Lane reads carry the head's instant as their lower bound: without it a
locking read steps over every delete-marked entry an old read view keeps alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crq import controls, policy
from crq.database import Cursor
from crq.executions.rows import instant, marks, not_before, set_instant, take_lock
from crq.instants import Instant, instant_text
from crq.model import (
    Candidate,
    Claimed,
    InFlight,
    Lane,
    LaneHead,
    Limits,
    Plan,
    RunOne,
    Snapshot,
    Status,
)
from crq.sealing import sha256_hex

_IN_FLIGHT = """
    SELECT execution_id, subdomain_hash, apikey_hash, status, claim_epoch, drainer_id, claimed_at,
           started_at
      FROM codeRunner_executions
     WHERE status IN ('claimed', 'running')
"""

# idx_lane; a loose index scan, only because status is in the GROUP BY ("Using index for group-by").
_HEADS_MYSQL = """
    SELECT status, subdomain_hash, apikey_hash, MIN(queued_at)
      FROM codeRunner_executions
     WHERE status = 'queued'
     GROUP BY status, subdomain_hash, apikey_hash
"""

# idx_lane; SQLite has no loose scan, so two seeks a lane are spelled out.
_HEADS_SQLITE = """
    WITH RECURSIVE lanes (a, k, q) AS (
        SELECT * FROM (
            SELECT subdomain_hash, apikey_hash, queued_at FROM codeRunner_executions
             WHERE status = 'queued' ORDER BY subdomain_hash, apikey_hash, queued_at LIMIT 1)
        UNION ALL
        SELECT n.subdomain_hash, n.apikey_hash, n.queued_at
          FROM lanes JOIN codeRunner_executions n ON n.execution_id = COALESCE(
            (SELECT execution_id FROM codeRunner_executions
              WHERE status = 'queued' AND subdomain_hash = lanes.a
                AND apikey_hash > COALESCE(lanes.k, '')
              ORDER BY apikey_hash, queued_at LIMIT 1),
            (SELECT execution_id FROM codeRunner_executions
              WHERE status = 'queued' AND subdomain_hash > lanes.a
              ORDER BY subdomain_hash, apikey_hash, queued_at LIMIT 1)))
    SELECT 'queued', a, k, q FROM lanes
"""


def in_flight(txn: Cursor) -> tuple[InFlight, ...]:
    """
    Read what holds a slot: at most as many rows as the global cap, counted by the caller.
    """
    return tuple(
        InFlight(
            execution_id=row[0],
            lane=Lane(row[1], row[2]),
            status=Status(row[3]),
            claim_epoch=row[4],
            drainer_id=row[5],
            claimed_at=instant(row[6]),
            started_at=instant(row[7]),
        )
        for row in txn.execute(_IN_FLIGHT).all()
    )


def heads(txn: Cursor) -> tuple[LaneHead, ...]:
    """
    Read the oldest queued instant of each lane, by index seeks alone.
    """
    rows = txn.execute(_HEADS_SQLITE if txn.dialect == "sqlite" else _HEADS_MYSQL).all()
    return tuple(LaneHead(Lane(row[1], row[2]), set_instant(row[3])) for row in rows)


def waits(txn: Cursor) -> bool:
    """
    Tell whether anything is queued, by one index seek.
    """
    row = txn.execute("SELECT 1 FROM codeRunner_executions WHERE status = 'queued' LIMIT 1").one()
    return row is not None


def waiting(txn: Cursor, lane: Lane) -> int:
    """
    Count a lane's queued rows (idx_lane); admission's caps bound how many there are.
    """
    same = "IS" if txn.dialect == "sqlite" else "<=>"
    count = txn.execute(
        "SELECT COUNT(*) FROM codeRunner_executions"
        f" WHERE status = 'queued' AND subdomain_hash = ? AND apikey_hash {same} ?",
        (lane.subdomain_hash, lane.apikey_hash),
    ).scalar()
    return int(count)


def snapshot(txn: Cursor, slots: int) -> Snapshot:
    """
    Read what a plan needs; heads only when fewer than ``slots`` executions are in flight.

    What operators have set is read only where something waits or runs: two statements when idle.

    :param slots: the configured cap, which operators may have changed; 0: look for no work.
    """
    flights = in_flight(txn)
    if not slots:
        return Snapshot((), flights)
    if not flights:
        waiting = heads(txn)
        return Snapshot(waiting, (), controls.read(txn)) if waiting else Snapshot()
    found = controls.read(txn)
    cap = slots if found.in_flight is None else found.in_flight
    return Snapshot(heads(txn) if len(flights) < cap else (), flights, found)


def claim(
    txn: Cursor,
    plan: Plan,
    limits: Limits,
    drainer_id: str,
    now: Instant,
    mint: Callable[[], str],
    unanswered: Iterable[InFlight] = (),
    slots: int | None = None,
) -> tuple[Claimed, ...]:
    """
    Take from a plan what still fits, oldest first, each row under a fresh nonce.

    See notes [The claim] and [The fence]. What operators have set is read again under the lock, so
    that nothing is claimed any more once a pause or a lower cap has been answered.

    :param unanswered: dispatches whose answer has not come; they hold a slot even if their row is
        finished already.
    :param slots: how many may be in flight through this drainer; None: as many as may be at all.
    """
    take_lock(txn, "codeRunner_drain")
    epoch = int(txn.execute("SELECT epoch FROM codeRunner_drain WHERE id = 1").scalar())
    ours = {flight.execution_id: flight for flight in unanswered}
    flights = ours | {flight.execution_id: flight for flight in in_flight(txn)}
    flown = {flight.lane.apikey_hash for flight in flights.values()}
    lock = "" if txn.dialect == "sqlite" else "FOR UPDATE SKIP LOCKED"
    same = "IS" if txn.dialect == "sqlite" else "<=>"
    found = controls.read(txn)
    candidates = _picked(txn, () if found.draining else plan.picks, lock)
    for take in plan.takes:
        if found.pause_of(take.lane) is not None:
            continue
        if take.alone and take.lane.apikey_hash in flown:
            continue  # another drainer was first with the one that tries a gate that has passed
        rows = txn.execute(
            f"""
            SELECT execution_id, job_id, queued_at, traceparent FROM codeRunner_executions
             WHERE status = 'queued' AND subdomain_hash = ? AND apikey_hash {same} ?
               AND queued_at >= ?
             ORDER BY queued_at, execution_id LIMIT ? {lock}
            """,
            (
                take.lane.subdomain_hash,
                take.lane.apikey_hash,
                instant_text(take.queued_at),
                take.at_most,
            ),
        ).all()
        for row in rows:
            one = Candidate(row[0], row[1], take.lane, set_instant(row[2]), row[3])
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
        Claimed(row.execution_id, row.job_id or 0, row.lane, epoch, mint(), row.traceparent)
        for row in chosen
    )
    nonces: list[object] = []
    for taken in claimed:
        nonces += (taken.execution_id, sha256_hex(taken.nonce))
    # One instant for all of them; never before any of them was queued (hosts' clocks differ).
    at = max(now, *(row.queued_at for row in chosen))
    # +status, because SQLite would rather walk all queued rows by an index on status than seek the
    # few ids.
    txn.execute(
        f"""
        UPDATE codeRunner_executions
           SET status = 'claimed', claim_epoch = ?, drainer_id = ?, claimed_at = ?,
               nonce_hash = CASE execution_id {"WHEN ? THEN ? " * len(claimed)} END
         WHERE execution_id IN ({marks(len(claimed))}) AND +status = 'queued'
        """,
        (epoch, drainer_id, instant_text(at), *nonces, *(row.execution_id for row in claimed)),
    )
    if txn.rowcount != len(claimed):
        raise RuntimeError(f"claimed {txn.rowcount} of {len(claimed)} locked rows")
    return claimed


def _picked(txn: Cursor, picks: Iterable[RunOne], lock: str) -> dict[int, Candidate]:
    """
    Lock the executions an operator asked for; a request whose execution waits no more is dropped.
    """
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
