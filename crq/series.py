"""
The series of the last days: one row a minute, so that a plot reads minutes and never executions.

What waits and runs is seen when the minute is over; what began and ended in it is counted from the
rows by ranges of idx_started_at and idx_finished_at, so whoever takes the sample counts the same.
The first drainer to store a minute wins. A minute that is missing is one in which none ran.
"""

from __future__ import annotations

from typing import Any

from attrs import asdict, evolve, fields, frozen

from crq.database import Cursor
from crq.instants import Instant, instant_text, iso
from crq.model import shown_as
from crq.recordvalues import stored_instant, text_of

MINUTE = 60  # s
ROWS_LIMIT = 2880  # rows of one reading: two days


@frozen
class Ended:
    """
    What began and ended in a span of time.

    :ivar rejected: refusals, each counted, also those that share a row (ruling 16).
    """

    starts: int = 0
    rejected: int = 0
    success: int = 0
    failed: int = 0
    outcome_unknown: int = 0
    never_started: int = 0
    cancelled: int = 0


@frozen
class Sample:
    """
    One minute.

    :ivar minute: its first instant.
    :ivar verdict: the queue's one word at its end.
    :ivar oldest_age: seconds that the oldest had waited then; None: nothing waited.
    """

    minute: Instant
    verdict: str
    depth: int
    oldest_age: float | None
    in_flight: int
    gates_closed: int
    ended: Ended

    def as_json(self) -> dict[str, Any]:
        """
        The minute for a machine.
        """
        return {
            "minute": iso(self.minute),
            "verdict": self.verdict,
            "depth": self.depth,
            "oldestAge": self.oldest_age,
            "inFlight": self.in_flight,
            "gatesClosed": self.gates_closed,
            "starts": self.ended.starts,
            "rejected": self.ended.rejected,
            "success": self.ended.success,
            "failed": self.ended.failed,
            "outcomeUnknown": self.ended.outcome_unknown,
            "neverStarted": self.ended.never_started,
            "cancelled": self.ended.cancelled,
        }


_COUNTS = tuple(attribute.name for attribute in fields(Ended))
_COLUMNS = ("minute", "verdict", "depth", "oldest_age", "in_flight", "gates_closed", *_COUNTS)


def minute_of(at: Instant) -> Instant:
    """
    The first instant of the minute that an instant lies in.
    """
    return at - at % MINUTE


def count(txn: Cursor, since: Instant, until: Instant) -> Ended:
    """
    Count what began and ended from one instant up to another.
    """
    span = (instant_text(since), instant_text(until))
    starts = txn.execute(
        "SELECT COUNT(*) FROM codeRunner_executions WHERE started_at >= ? AND started_at < ?", span
    ).scalar()
    found = dict.fromkeys(_COUNTS, 0) | {"starts": int(starts)}
    rows = txn.execute(
        """
        SELECT status, error_code, CASE WHEN started_at IS NULL THEN 0 ELSE 1 END AS began,
               SUM(times)
          FROM codeRunner_executions
         WHERE finished_at >= ? AND finished_at < ?
         GROUP BY status, error_code, began
        """,
        span,
    ).all()
    for status, error_code, began, times in rows:
        name = shown_as(status, error_code, float(began) or None).replace(" ", "_")
        if name in found:
            found[name] += int(times)
    return Ended(**found)


def sample(txn: Cursor, seen: Sample) -> bool:
    """
    Count what began and ended in a minute and keep it, unless it is kept already.
    """
    known = txn.execute(
        "SELECT 1 FROM codeRunner_series WHERE minute = ?", (instant_text(seen.minute),)
    ).one()
    if known is not None:
        return False
    seen = evolve(seen, ended=count(txn, seen.minute, seen.minute + MINUTE))
    clash = (
        "ON CONFLICT (minute) DO NOTHING"
        if txn.dialect == "sqlite"
        else "ON DUPLICATE KEY UPDATE minute = minute"
    )
    values = (
        instant_text(seen.minute),
        seen.verdict,
        seen.depth,
        seen.oldest_age,
        seen.in_flight,
        seen.gates_closed,
        *asdict(seen.ended).values(),
    )
    txn.execute(
        f"INSERT INTO codeRunner_series ({', '.join(_COLUMNS)})"  # noqa: S608 - fixed columns
        f" VALUES ({', '.join('?' * len(_COLUMNS))}) {clash}",
        values,
    )
    return True


def read(
    txn: Cursor, since: Instant, until: Instant, limit: int = ROWS_LIMIT
) -> tuple[Sample, ...]:
    """
    Read the minutes of a span, the oldest first; of a span that is too long, the newest ones.
    """
    rows = txn.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM codeRunner_series"  # noqa: S608 - fixed columns
        " WHERE minute >= ? AND minute < ? ORDER BY minute DESC LIMIT ?",
        (instant_text(since), instant_text(until), max(1, min(limit, ROWS_LIMIT))),
    ).all()
    return tuple(_sample(row) for row in reversed(rows))


def prune(txn: Cursor, before: Instant, batch: int) -> int:
    """
    Delete the oldest minutes before an instant, one batch in one transaction.
    """
    rows = txn.execute(
        "SELECT minute FROM codeRunner_series WHERE minute < ? ORDER BY minute LIMIT ?",
        (instant_text(before), batch),
    ).all()
    if rows:
        txn.execute(
            "DELETE FROM codeRunner_series"  # noqa: S608 - only placeholders are put in
            f" WHERE minute IN ({', '.join('?' * len(rows))})",
            tuple(row[0] for row in rows),
        )
    return len(rows)


def _sample(row: tuple[Any, ...]) -> Sample:
    minute, verdict, depth, oldest_age, in_flight, gates_closed, *counts = row
    return Sample(
        stored_instant(text_of(minute)) or 0.0,
        verdict,
        depth,
        oldest_age,
        in_flight,
        gates_closed,
        Ended(*counts),
    )
