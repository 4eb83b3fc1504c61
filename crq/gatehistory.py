"""
What became of each gate: when it closed, until when and why, and what it was good for.

# Note [One closing]

A closing lasts from the first refusal to the opening; what refuses meanwhile makes it longer and is
counted in its ``limits``. Whoever closes a gate writes it here (executor, operator); a gate that
only its store knows of is noted by the drainer that sees it. At the opening the drainer counts the
rows that had to wait, and `AFTER` seconds later the refusals that came all the same: many of them
say that the waits are too short, or that somebody else spends the key's quota.

A row is unfinished until then. A drainer that starts takes the keys of unfinished closings for
half-open, since it has not seen them open (ruling 8).

Bounded: `KEPT` closings of a key, and none older than the log of executions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import frozen

from crq import executions
from crq.database import Cursor
from crq.executions.rows import set_instant
from crq.gatevalues import name_of
from crq.instants import Instant, instant_text
from crq.recordvalues import shown_instant, text_of

AFTER = 60.0  # s after an opening in which refusals speak against it: a minute's limit begins anew
KEPT = 1000  # closings of one key: most of a day, if it is refused each minute
BATCH = 100  # rows finished or read at once
CAUSE_LENGTH = 200  # characters

_INSERT = """
    INSERT INTO codeRunner_gate_history
        (apikey_hash, number, closed_at, closed_until, cause, execution_id, limits)
    VALUES (?, ?, ?, ?, ?, ?, ?)
"""
# Assigned from left to right: the first two still see the old count.
_RECORD_MYSQL = f"""{_INSERT}
    ON DUPLICATE KEY UPDATE
        cause = IF(limits = 0 AND VALUES(limits) > 0, VALUES(cause), cause),
        execution_id = IF(limits = 0 AND VALUES(limits) > 0, VALUES(execution_id), execution_id),
        limits = limits + VALUES(limits),
        closed_until = GREATEST(closed_until, VALUES(closed_until))
"""
_RECORD_SQLITE = f"""{_INSERT}
    ON CONFLICT (apikey_hash, number) DO UPDATE SET
        cause = CASE WHEN limits = 0 AND excluded.limits > 0 THEN excluded.cause ELSE cause END,
        execution_id = CASE WHEN limits = 0 AND excluded.limits > 0
                            THEN excluded.execution_id ELSE execution_id END,
        limits = limits + excluded.limits,
        closed_until = MAX(closed_until, excluded.closed_until)
"""


@frozen
class Closing:
    """
    One closing of a gate, as it is shown; instants are the stored text.

    :ivar opened_at: when the opening was noticed, or made by hand; None: it is closed.
    :ivar execution_id: the execution that was refused first, where it was one of ours.
    :ivar limits: refusals (429) that this closing answers; 0: none of ours.
    :ivar held: executions that waited behind it when it opened; None: not counted yet.
    :ivar limits_after: refusals in the first `AFTER` seconds after it; None: not counted yet.
    """

    apikey_hash: str
    number: int
    closed_at: str
    closed_until: str
    opened_at: str | None
    cause: str
    execution_id: int | None
    limits: int
    held: int | None
    limits_after: int | None

    def as_json(self) -> dict[str, Any]:
        """
        The closing for a machine.
        """
        return {
            "key": self.apikey_hash,
            "number": self.number,
            "closedAt": shown_instant(self.closed_at),
            "closedUntil": shown_instant(self.closed_until),
            "openedAt": shown_instant(self.opened_at),
            "cause": self.cause,
            "executionId": self.execution_id,
            "limits": self.limits,
            "held": self.held,
            "limitsAfter": self.limits_after,
        }


def record(
    txn: Cursor,
    key: str,
    until: Instant,
    now: Instant,
    cause: str,
    execution_id: int | None = None,
    limits: int = 1,
) -> None:
    """
    Note that a gate was closed, or would have been had it been open (see note [One closing]).

    :param limits: 1 for a refusal by the API, 0 for what is none.
    """
    name = name_of(key)
    number, standing = _latest(txn, name)
    if standing is None or standing <= instant_text(now):
        number += 1
    txn.execute(
        _RECORD_SQLITE if txn.dialect == "sqlite" else _RECORD_MYSQL,
        (
            name,
            number,
            instant_text(now),
            instant_text(until),
            cause[:CAUSE_LENGTH],
            execution_id,
            limits,
        ),
    )
    if number > KEPT:
        txn.execute(
            "DELETE FROM codeRunner_gate_history WHERE apikey_hash = ? AND number <= ?",
            (name, number - KEPT),
        )


def noted(txn: Cursor, found: Mapping[str, tuple[Instant, str]], now: Instant) -> None:
    """
    Note gates that were found closed, unless their closing is known, and those that are over.

    :param found: until when each is closed, and why as far as the store tells.
    """
    for key, (until, cause) in found.items():
        standing = _latest(txn, name_of(key))[1]
        if standing is None or standing < instant_text(until):
            record(txn, key, until, now, cause, limits=0)
    opened(txn, now)


def opened(txn: Cursor, now: Instant) -> int:
    """
    Note which closings are over, and how many executions waited behind each; returns how many.
    """
    rows = txn.execute(
        "SELECT apikey_hash, number FROM codeRunner_gate_history"
        " WHERE limits_after IS NULL AND closed_until <= ? AND opened_at IS NULL LIMIT ?",
        (instant_text(now), BATCH),
    ).all()
    _open(txn, rows, now)
    return len(rows)


def opened_by_hand(txn: Cursor, key: str, now: Instant) -> bool:
    """
    Note that somebody has opened a gate early; False: no closing of it was known.
    """
    name = name_of(key)
    number, standing = _latest(txn, name)
    if standing is None or standing <= instant_text(now):
        return False
    txn.execute(
        "UPDATE codeRunner_gate_history SET closed_until = ?"
        " WHERE apikey_hash = ? AND number = ? AND closed_until > ?",
        (instant_text(now), name, number, instant_text(now)),
    )
    _open(txn, [(name, number)], now)
    return True


def finish(txn: Cursor, now: Instant) -> int:
    """
    Count the refusals after openings that are `AFTER` seconds old; returns how many it finished.
    """
    rows = txn.execute(
        "SELECT apikey_hash, number, opened_at FROM codeRunner_gate_history"
        " WHERE limits_after IS NULL AND closed_until <= ? AND opened_at <= ? LIMIT ?",
        (*[instant_text(now - AFTER)] * 2, BATCH),
    ).all()
    for key, number, opened_at in rows:
        limits = txn.execute(
            "SELECT COALESCE(SUM(limits), 0) FROM codeRunner_gate_history"
            " WHERE apikey_hash = ? AND number > ? AND closed_at <= ?",
            (key, number, instant_text(set_instant(opened_at) + AFTER)),
        ).scalar()
        txn.execute(
            "UPDATE codeRunner_gate_history SET limits_after = ?"
            " WHERE apikey_hash = ? AND number = ? AND limits_after IS NULL",
            (int(limits), key, number),
        )
    return len(rows)


def unfinished(txn: Cursor) -> dict[str, Instant]:
    """
    Read until when each gate of an unfinished closing is, or was, closed: the latest of them.
    """
    rows = txn.execute(
        "SELECT apikey_hash, MAX(closed_until) FROM codeRunner_gate_history"
        " WHERE limits_after IS NULL GROUP BY apikey_hash LIMIT ?",
        (KEPT,),
    ).all()
    return {key: set_instant(until) for key, until in rows}


def purge(txn: Cursor, closed_before: Instant, batch: int) -> int:
    """
    Delete closings from before an instant: one batch in one transaction (idx_closed_at).
    """
    rows = txn.execute(
        "SELECT apikey_hash, number FROM codeRunner_gate_history WHERE closed_at < ? LIMIT ?",
        (instant_text(closed_before), batch),
    ).all()
    for row in rows:
        txn.execute(
            "DELETE FROM codeRunner_gate_history WHERE apikey_hash = ? AND number = ?", tuple(row)
        )
    return len(rows)


def closings(
    txn: Cursor,
    keys: Collection[str] | None = None,
    limit: int = 100,
    before: Instant | None = None,
) -> tuple[Closing, ...]:
    """
    Read closings, newest first.

    :param keys: of these API keys only (each by its own index range); None: of all.
    :param before: closed before this instant only.
    """
    columns = (
        "apikey_hash, number, closed_at, closed_until, opened_at, cause, execution_id, limits,"
        " held, limits_after"
    )
    rows: list[tuple[Any, ...]] = []
    at = instant_text(before) if before is not None else "9999-12-31 23:59:59.999"
    for key in (None,) if keys is None else keys:
        one = "" if key is None else "AND apikey_hash = ?"
        rows += txn.execute(
            f"SELECT {columns} FROM codeRunner_gate_history WHERE closed_at < ? {one}"  # noqa: S608 - fixed
            " ORDER BY closed_at DESC, apikey_hash, number DESC LIMIT ?",
            (at, limit) if key is None else (at, name_of(key), limit),
        ).all()
    rows.sort(key=lambda row: str(row[2]), reverse=True)
    return tuple(
        Closing(
            *(text_of(row[0]) or "", int(row[1]), text_of(row[2]) or "", text_of(row[3]) or ""),
            *(text_of(row[4]), text_of(row[5]) or "", *row[6:]),
        )
        for row in rows[:limit]
    )


def _latest(txn: Cursor, name: str) -> tuple[int, str | None]:
    row = txn.execute(
        "SELECT number, closed_until FROM codeRunner_gate_history WHERE apikey_hash = ?"
        " ORDER BY number DESC LIMIT 1",
        (name,),
    ).one()
    return (0, None) if row is None else (int(row[0]), str(row[1]))


def _open(txn: Cursor, rows: Sequence[Sequence[Any]], now: Instant) -> None:
    if not rows:
        return
    lanes = [head.lane for head in executions.heads(txn)]
    for name, number in rows:
        held = sum(
            executions.waiting(txn, lane)
            for lane in lanes
            if lane.apikey_hash is not None and name_of(lane.apikey_hash) == name
        )
        txn.execute(
            "UPDATE codeRunner_gate_history SET opened_at = ?, held = ?"
            " WHERE apikey_hash = ? AND number = ? AND opened_at IS NULL",
            (instant_text(now), held, name, number),
        )
