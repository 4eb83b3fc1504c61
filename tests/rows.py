"""
Rows for tests: a test names only what matters to it.
"""

from __future__ import annotations

import itertools
from typing import Any

from cryptography.fernet import Fernet

from crq import executions, policy
from crq.database import Database
from crq.instants import instant_of, instant_text
from crq.messages import Admitted, SealedSubmission, Submission
from crq.model import Claimed, Limits
from crq.sealing import Sealer

SEALER = Sealer("pepper", (Fernet.generate_key().decode(),))
NOON = instant_of("2026-03-02 12:00:00.000")
LIMITS = Limits()
_NONCES = itertools.count()


def submission(account: str = "acme", key: str = "key", **more: Any) -> SealedSubmission:
    """
    A sealed submission.
    """
    given = {"source_code": "x = 1", **more}
    return SEALER.seal(Submission(subdomain=account, apikey=key, **given))


def admit(
    database: Database,
    connection: Any,
    account: str = "acme",
    key: str = "key",
    at: float = NOON,
    limits: Limits = LIMITS,
    **more: Any,
) -> int:
    """
    Admit one execution and return its id.
    """
    answer = database.transact(
        connection, executions.admit, submission(account, key, **more), limits, at
    )
    assert isinstance(answer, Admitted), answer
    return answer.execution_id


def claim(
    database: Database,
    connection: Any,
    at: float = NOON,
    limits: Limits = LIMITS,
    drainer_id: str = "d1",
    gates: dict[str, float] | None = None,
) -> tuple[Claimed, ...]:
    """
    Claim what fits now, as one tick would.
    """
    snapshot = database.read(connection, executions.snapshot, limits.in_flight)
    plan = policy.plan(snapshot, gates or {}, limits, at)
    return database.transact(
        connection,
        executions.claim,
        plan,
        limits,
        drainer_id,
        at,
        lambda: f"nonce {next(_NONCES)}",
    )


def start(database: Database, connection: Any, claimed: Claimed, at: float = NOON) -> bool:
    """
    Start a claimed execution.
    """
    return database.transact(
        connection, executions.start, claimed.execution_id, claimed.nonce, "worker", at
    )


def row(database: Database, connection: Any, execution_id: int) -> dict[str, Any]:
    """
    One row as it is stored.
    """
    names = (
        *("status", "error_code", "error_message", "queued_at", "claimed_at", "started_at"),
        *("finished_at", "nonce_hash", "claim_epoch", "drainer_id", "worker_id", "times"),
        *("source_code", "job_id"),
    )

    def read(txn: Any) -> tuple[Any, ...]:
        found = txn.execute(
            f"SELECT {', '.join(names)} FROM codeRunner_executions WHERE execution_id = ?",
            (execution_id,),
        ).one()
        assert found is not None
        return tuple(found)

    return dict(zip(names, database.read(connection, read), strict=True))


def insert_queued(txn: Any, account: str, key: str | None, at: float, count: int = 1) -> None:
    """
    Insert queued rows by SQL, as another program would.
    """
    for _ in range(count):
        txn.execute(
            "INSERT INTO codeRunner_jobs (subdomain_hash, apikey, started_at) VALUES (?, 'x', ?)",
            (account, instant_text(at)),
        )
        txn.execute(
            "INSERT INTO codeRunner_executions"
            " (job_id, subdomain_hash, apikey_hash, status, queued_at)"
            " VALUES (?, ?, ?, 'queued', ?)",
            (txn.lastrowid, account, key, instant_text(at)),
        )
