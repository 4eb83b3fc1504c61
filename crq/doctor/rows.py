"""
Reads the rows that may break an invariant. Every query has a bound, however long the log is.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import frozen

from crq import controls, executions
from crq.database import Cursor
from crq.doctor.rowrules import Row, broken
from crq.instants import Instant, instant_text
from crq.model import InFlight, Lane, Limits, Status
from crq.recordvalues import stored_instant, text_of
from crq.sealing import Sealer, Unsealable

LIVE = 5_000  # rows of each live state that are looked at: above every sane cap
NEWEST = 5_000  # of the newest rows of the log
SEALED = 200  # sealed keys that are opened for a trial
EXAMPLES = 5  # rows that are named
WORDS = 50  # statuses that are told apart
LOCKS = ("codeRunner_drain", "codeRunner_admit")

_COLUMNS = (
    "execution_id, status, job_id, subdomain_hash, apikey_hash, nonce_hash, claim_epoch,"
    " queued_at, claimed_at, started_at, finished_at"
)
_JOBS = """
    SELECT e.execution_id, j.job_id, j.apikey
      FROM (SELECT execution_id, job_id FROM codeRunner_executions
             WHERE status = ? ORDER BY queued_at LIMIT ?) AS e
      LEFT JOIN codeRunner_jobs AS j ON j.job_id = e.job_id
"""
_UNSCRUBBED = """
    SELECT e.execution_id
      FROM (SELECT job_id FROM codeRunner_jobs WHERE apikey IS NOT NULL LIMIT ?) AS j
      JOIN codeRunner_executions AS e ON e.job_id = j.job_id
     WHERE e.finished_at < ?
     LIMIT ?
"""


@frozen
class Some:
    """
    How many rows there are of a kind (no more than were looked at), and some of them.
    """

    count: int = 0
    examples: tuple[int, ...] = ()


@frozen
class Broken:
    """
    Rows that contradict their state, by what contradicts it; and how many were looked at.
    """

    looked_at: int
    problems: dict[str, tuple[int, ...]]


@frozen
class Jobs:
    """
    Waiting rows whose job is gone, has no API key, or one that our keys do not open.
    """

    missing: Some
    keyless: Some
    unopened: Some
    tried: int


@frozen
class Found:
    """
    What was read.

    :ivar locks: the lock rows that are there.
    :ivar caps: those in force: the configuration's, with what operators have set.
    :ivar ahead: rows queued in the future.
    :ivar oldest: when the oldest finished row of the log was queued.
    :ivar unscrubbed: finished rows whose API key should have been wiped.
    """

    locks: frozenset[str]
    statuses: frozenset[str]
    broken: Broken
    in_flight: tuple[InFlight, ...]
    lanes: tuple[Lane, ...]
    queued: Counter[str]
    jobs: Jobs
    caps: Limits
    ahead: Some
    oldest: Instant | None
    unscrubbed: Some


def read(
    txn: Cursor,
    limits: Limits,
    sealer: Sealer | None,
    queued_until: Instant,
    scrubbed_before: Instant,
) -> Found:
    """
    Read all of it.

    :param sealer: opens sealed keys; None: they are not tried.
    :param queued_until: no row can have been queued later.
    :param scrubbed_before: no row that finished before it has its API key.
    """
    return Found(
        locks=frozenset(table for table in LOCKS if _has_row(txn, table)),
        statuses=_statuses(txn),
        broken=_broken(txn),
        in_flight=executions.in_flight(txn),
        lanes=tuple(head.lane for head in executions.heads(txn)),
        queued=_queued(txn),
        jobs=_jobs(txn, sealer),
        caps=controls.read(txn).over(limits),
        ahead=_ahead(txn, queued_until),
        oldest=_oldest(txn),
        unscrubbed=some(
            [
                row[0]
                for row in txn.execute(
                    _UNSCRUBBED, (LIVE, instant_text(scrubbed_before), LIVE)
                ).all()
            ]
        ),
    )


def some(execution_ids: list[int]) -> Some:
    """
    Count rows and name the first of them.
    """
    return Some(len(execution_ids), tuple(sorted(execution_ids)[:EXAMPLES]))


def _has_row(txn: Cursor, table: str) -> bool:
    return txn.execute(f"SELECT 1 FROM {table} WHERE id = 1").one() is not None  # noqa: S608


def _statuses(txn: Cursor) -> frozenset[str]:
    # From word to word, each by one seek; GROUP BY would read the whole index now and then.
    words: list[str] = []
    while len(words) < WORDS:
        word = txn.execute(
            "SELECT MIN(status) FROM codeRunner_executions WHERE status > ?",
            (words[-1] if words else "",),
        ).scalar()
        if word is None:
            break
        words.append(text_of(word) or "")
    return frozenset(words)


def _broken(txn: Cursor) -> Broken:
    rows: dict[int, Row] = {}
    for status in (Status.QUEUED, Status.CLAIMED, Status.RUNNING):
        for values in txn.execute(
            f"SELECT {_COLUMNS} FROM codeRunner_executions WHERE status = ? LIMIT ?",  # noqa: S608
            (status.value, LIVE),
        ).all():
            rows[values[0]] = Row(*values)
    for values in txn.execute(
        f"SELECT {_COLUMNS} FROM codeRunner_executions"  # noqa: S608 - columns of our own
        " ORDER BY execution_id DESC LIMIT ?",
        (NEWEST,),
    ).all():
        rows[values[0]] = Row(*values)
    problems: dict[str, list[int]] = {}
    for row in rows.values():
        problem = broken(row)
        if problem is not None:
            problems.setdefault(problem, []).append(row.execution_id)
    return Broken(len(rows), {text: tuple(sorted(ids)) for text, ids in problems.items()})


def _queued(txn: Cursor) -> Counter[str]:
    rows = txn.execute(
        "SELECT subdomain_hash, COUNT(*) FROM (SELECT subdomain_hash FROM codeRunner_executions"
        " WHERE status = 'queued' LIMIT ?) AS waiting GROUP BY subdomain_hash",
        (10 * LIVE,),
    ).all()
    return Counter({text_of(row[0]) or "": int(row[1]) for row in rows})


def _jobs(txn: Cursor, sealer: Sealer | None) -> Jobs:
    missing: list[int] = []
    keyless: list[int] = []
    sealed: list[tuple[int, Any]] = []
    for status in (Status.QUEUED, Status.CLAIMED):
        for execution_id, job_id, apikey in txn.execute(_JOBS, (status.value, LIVE)).all():
            if job_id is None:
                missing.append(execution_id)
            elif apikey is None:
                keyless.append(execution_id)
            else:
                sealed.append((execution_id, apikey))
    unopened: list[int] = []
    tried = sealed[:SEALED] if sealer is not None else []
    for execution_id, apikey in tried:
        try:
            assert sealer is not None
            sealer.unseal(text_of(apikey))
        except Unsealable:
            unopened.append(execution_id)
    return Jobs(some(missing), some(keyless), some(unopened), len(tried))


def _ahead(txn: Cursor, now: Instant) -> Some:
    rows = txn.execute(
        "SELECT execution_id FROM codeRunner_executions WHERE queued_at > ? LIMIT ?",
        (instant_text(now), LIVE),
    ).all()
    return some([row[0] for row in rows])


def _oldest(txn: Cursor) -> Instant | None:
    found: list[Instant] = []
    for status in (Status.SUCCESS, Status.FAILED, Status.REJECTED, Status.CANCELLED):
        text = txn.execute(  # idx_status_queued_at: one seek each
            "SELECT MIN(queued_at) FROM codeRunner_executions WHERE status = ?", (status.value,)
        ).scalar()
        at = stored_instant(text_of(text))
        if at is not None:
            found.append(at)
    return min(found, default=None)
