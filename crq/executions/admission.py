"""
Admission: into the queue, or refused with a row that says so.
"""

from __future__ import annotations

from crq import policy
from crq.database import Cursor
from crq.executions.rows import take_lock
from crq.instants import Instant, instant_text
from crq.messages import Admitted, Invalid, Mismatch, Rejected, SealedSubmission
from crq.model import ErrorCode, Limits, Status

REFUSED_ROWS = 100  # refused rows of one account in a minute; then the last one counts (ruling 16)
REFUSED_WINDOW = 60.0  # s


def admit(
    txn: Cursor, submission: SealedSubmission, limits: Limits, now: Instant
) -> Admitted | Rejected | Mismatch:
    """
    Put a submission in the queue, or refuse it for depth with a row that says so.

    The counts are exact under any number of parallel admissions: they run under a written lock row
    of their own, which the claim never waits for.
    """
    if submission.named and (earlier := find(txn, submission)) is not None:
        return earlier
    # Refuse without the lock while the account's queue is plainly full: its flood must not make
    # the others wait for the lock.
    full = _account_full(txn, submission, limits)
    if full is None:
        take_lock(txn, "codeRunner_admit")
        if submission.named and (earlier := find(txn, submission)) is not None:
            return earlier
        full = _full(txn, submission, limits)
    if full is not None:
        limit = limits.queued_per_account if full == "account" else limits.queued_total
        whose = "this account" if full == "account" else "all accounts"
        message = f"queue full: {limit} executions of {whose} are waiting"
        row = _refuse(txn, submission, Status.REJECTED, ErrorCode.QUEUE_FULL, message, now)
        return Rejected(row, full, limit)
    job_id = txn.execute(
        "INSERT INTO codeRunner_jobs (subdomain_hash, apikey, payload, started_at)"
        " VALUES (?, ?, ?, ?)",
        (
            submission.subdomain_hash,
            submission.sealed_apikey,
            submission.payload,
            instant_text(now),
        ),
    ).lastrowid
    txn.execute(
        """
        INSERT INTO codeRunner_executions
            (job_id, subdomain, subdomain_hash, apikey_hash, identifier, status, source_code, debug,
             idempotency_key, traceparent, queued_at)
        VALUES (?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?)
        """,
        (
            job_id,
            submission.subdomain,
            submission.subdomain_hash,
            submission.apikey_hash,
            submission.identifier,
            submission.source_code,
            int(submission.debug),
            submission.idempotency_key,
            submission.traceparent,
            instant_text(now),
        ),
    )
    return Admitted(txn.lastrowid)


def find(txn: Cursor, submission: SealedSubmission) -> Admitted | Mismatch | None:
    """
    Look up what an idempotency key admitted before; also settles an admission's lost COMMIT.
    """
    row = txn.execute(
        """
        SELECT e.execution_id, e.apikey_hash, e.source_code, j.payload
          FROM codeRunner_executions e LEFT JOIN codeRunner_jobs j ON j.job_id = e.job_id
         WHERE e.subdomain_hash = ? AND e.idempotency_key = ?
        """,
        (submission.subdomain_hash, submission.idempotency_key),
    ).one()
    if row is None:
        return None
    same = (submission.apikey_hash, submission.source_code, submission.payload)
    return Admitted(row[0], repeated=True) if tuple(row[1:]) == same else Mismatch(row[0])


def record_invalid(
    txn: Cursor,
    submission: SealedSubmission,
    message: str,
    line: int,
    column: int,
    now: Instant,
) -> Invalid:
    """
    Record a script that does not parse (201): visible in the log, never queued.
    """
    row = _refuse(txn, submission, Status.FAILED, ErrorCode.SCRIPT_INVALID, message, now)
    return Invalid(row, message, line, column)


# Capped counts: at most as many index entries as the cap, at every depth.
_ACCOUNT_DEPTH = """
    SELECT COUNT(*) FROM (
        SELECT 1 FROM codeRunner_executions
         WHERE status = 'queued' AND subdomain_hash = ? LIMIT ?) AS account
"""
_BOTH_DEPTHS = f"""
    SELECT ({_ACCOUNT_DEPTH}), (
        SELECT COUNT(*) FROM (
            SELECT 1 FROM codeRunner_executions WHERE status = 'queued' LIMIT ?) AS total)
"""


def _account_full(txn: Cursor, submission: SealedSubmission, limits: Limits) -> str | None:
    values = (submission.subdomain_hash, limits.queued_per_account)
    return policy.admission(txn.execute(_ACCOUNT_DEPTH, values).scalar(), 0, limits)


def _full(txn: Cursor, submission: SealedSubmission, limits: Limits) -> str | None:
    values = (submission.subdomain_hash, limits.queued_per_account, limits.queued_total)
    depths = txn.execute(_BOTH_DEPTHS, values).one()
    assert depths is not None
    return policy.admission(depths[0], depths[1], limits)


def _refuse(
    txn: Cursor,
    submission: SealedSubmission,
    status: Status,
    code: ErrorCode,
    message: str,
    now: Instant,
) -> int:
    recent = txn.execute(
        "SELECT execution_id, status, error_code FROM codeRunner_executions"
        " WHERE subdomain_hash = ? AND queued_at >= ? AND error_code IN (107, 201)"
        " ORDER BY queued_at DESC, execution_id DESC LIMIT ?",
        (submission.subdomain_hash, instant_text(now - REFUSED_WINDOW), REFUSED_ROWS),
    ).all()
    if len(recent) == REFUSED_ROWS and recent[0][1:] == (status.value, code):
        txn.execute(
            "UPDATE codeRunner_executions SET times = times + 1 WHERE execution_id = ?",
            (recent[0][0],),
        )
        return int(recent[0][0])
    invalid = code == ErrorCode.SCRIPT_INVALID
    return txn.execute(
        """
        INSERT INTO codeRunner_executions
            (subdomain, subdomain_hash, apikey_hash, identifier, status, error_code, error_message,
             source_code, debug, queued_at, finished_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (
            submission.subdomain,
            submission.subdomain_hash,
            submission.apikey_hash,
            submission.identifier,
            status.value,
            int(code),
            message,
            submission.source_code if invalid else None,
            int(submission.debug),
            instant_text(now),
            instant_text(now),
        ),
    ).lastrowid
