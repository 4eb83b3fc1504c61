"""
What each drainer last said of itself, in a row of its own: so the verdict is right when it is dead.

A drainer writes its row every `EVERY` seconds, not in every tick: one small committed UPDATE costs
more than all the reading of an idle tick. Whoever has not written for `pulse.DEAD_AFTER` counts as
dead. A drainer that stops in order takes its row away.
"""

from __future__ import annotations

from typing import Any

from crq.database import Cursor
from crq.instants import Instant, instant_text
from crq.pulse import Beat
from crq.recordvalues import stored_instant, text_of

EVERY = 10.0  # s
FORGET_AFTER = 3600.0  # s after which the row of a dead drainer goes: it has another name by now
ROWS_LIMIT = 20  # drainers that are looked at
ALARM_LENGTH = 400  # characters: the column


def write(txn: Cursor, beat: Beat) -> None:
    """
    Write a drainer's row.
    """
    values = (
        instant_text(beat.started_at),
        instant_text(beat.beat_at),
        beat.last_good_age,
        beat.unstarted,
        None if beat.backing_off_until is None else instant_text(beat.backing_off_until),
        None if beat.alarm is None else beat.alarm[:ALARM_LENGTH],
        int(beat.gates_reachable),
        int(beat.stopping),
        beat.drainer_id,
    )
    txn.execute(
        "UPDATE codeRunner_drainers SET started_at = ?, beat_at = ?, last_good_age = ?,"
        " unstarted = ?, backing_off_until = ?, alarm = ?, gates_reachable = ?, stopping = ?"
        " WHERE drainer_id = ?",
        values,
    )
    if txn.rowcount == 0:
        txn.execute(
            "INSERT INTO codeRunner_drainers (started_at, beat_at, last_good_age, unstarted,"
            " backing_off_until, alarm, gates_reachable, stopping, drainer_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )


def read(txn: Cursor) -> tuple[Beat, ...]:
    """
    Read what the drainers said, the newest first; a handful of rows.
    """
    rows = txn.execute(
        "SELECT drainer_id, started_at, beat_at, last_good_age, unstarted, backing_off_until,"
        " alarm, gates_reachable, stopping FROM codeRunner_drainers"
        " ORDER BY beat_at DESC LIMIT ?",
        (ROWS_LIMIT,),
    ).all()
    return tuple(
        Beat(
            drainer_id=row[0],
            started_at=_instant(row[1]) or 0.0,
            beat_at=_instant(row[2]) or 0.0,
            last_good_age=row[3],
            unstarted=row[4],
            backing_off_until=_instant(row[5]),
            alarm=text_of(row[6]),
            gates_reachable=bool(row[7]),
            stopping=bool(row[8]),
        )
        for row in rows
    )


def remove(txn: Cursor, drainer_id: str) -> None:
    """
    Take a drainer's row away: it has stopped in order.
    """
    txn.execute("DELETE FROM codeRunner_drainers WHERE drainer_id = ?", (drainer_id,))


def forget(txn: Cursor, now: Instant) -> int:
    """
    Take the rows of long dead drainers away.
    """
    txn.execute(
        "DELETE FROM codeRunner_drainers WHERE beat_at < ?", (instant_text(now - FORGET_AFTER),)
    )
    return txn.rowcount


def _instant(text: Any) -> Instant | None:
    return stored_instant(text_of(text))
