"""
What each drainer last said of itself, in a row of its own: so the verdict is right when it is dead.

A drainer writes its row every `EVERY` seconds, not in every tick: one small committed UPDATE costs
more than all the reading of an idle tick. Whoever has not written for `pulse.DEAD_AFTER` counts as
dead. A drainer that stops in order takes its row away.

A row belongs to the process that wrote it, not to whoever has the same name: `write` says whose it
is, and `take` takes over that of a dead one (`crq.presence`).
"""

from __future__ import annotations

from typing import Any

from crq.database import Cursor
from crq.instants import Instant, instant_text
from crq.pulse import Beat, Origin
from crq.recordvalues import stored_instant, text_of

EVERY = 10.0  # s
FORGET_AFTER = 3600.0  # s after which the row of a dead drainer goes: it has another name by now
ROWS_LIMIT = 100  # drainers that are looked at
ALARM_LENGTH = 400  # characters: the column

_COLUMNS = (
    "started_at, beat_at, last_good_age, unstarted, backing_off_until, alarm, gates_reachable,"
    " stopping, incarnation, host, version, lock_of"
)
_SELECT = f"SELECT {_COLUMNS}, drainer_id FROM codeRunner_drainers"  # noqa: S608 - fixed columns


def write(txn: Cursor, beat: Beat) -> Beat | None:
    """
    Write a drainer's row, unless it is another process's; returns what that one said last.

    A row that does not say whose it is was written by an earlier version: it is taken over.
    """
    if _update(txn, beat, (beat.origin.incarnation, "")):
        return None
    clash = (
        "ON CONFLICT (drainer_id) DO NOTHING"
        if txn.dialect == "sqlite"
        else "ON DUPLICATE KEY UPDATE drainer_id = drainer_id"
    )
    txn.execute(
        f"INSERT INTO codeRunner_drainers ({_COLUMNS}, drainer_id)"  # noqa: S608 - fixed columns
        f" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) {clash}",
        (*_values(beat), beat.drainer_id),
    )
    standing = txn.execute(f"{_SELECT} WHERE drainer_id = ?", (beat.drainer_id,)).one()
    found = None if standing is None else _beat(standing)
    return None if found is None or found.origin == beat.origin else found


def take(txn: Cursor, beat: Beat, before: Beat) -> bool:
    """
    Take over the row of another process, which is dead; False: it has said something since.
    """
    txn.execute(
        "DELETE FROM codeRunner_drainers WHERE drainer_id = ? AND incarnation = ? AND beat_at = ?",
        (beat.drainer_id, before.origin.incarnation, instant_text(before.beat_at)),
    )
    return write(txn, beat) is None


def _update(txn: Cursor, beat: Beat, incarnations: tuple[str, str]) -> bool:
    txn.execute(
        "UPDATE codeRunner_drainers SET started_at = ?, beat_at = ?, last_good_age = ?,"
        " unstarted = ?, backing_off_until = ?, alarm = ?, gates_reachable = ?, stopping = ?,"
        " incarnation = ?, host = ?, version = ?, lock_of = ?"
        " WHERE drainer_id = ? AND incarnation IN (?, ?)",
        (*_values(beat), beat.drainer_id, *incarnations),
    )
    return txn.rowcount == 1


def _values(beat: Beat) -> tuple[object, ...]:
    return (
        instant_text(beat.started_at),
        instant_text(beat.beat_at),
        beat.last_good_age,
        beat.unstarted,
        None if beat.backing_off_until is None else instant_text(beat.backing_off_until),
        None if beat.alarm is None else beat.alarm[:ALARM_LENGTH],
        int(beat.gates_reachable),
        int(beat.stopping),
        beat.origin.incarnation,
        beat.origin.host,
        beat.origin.version,
        beat.origin.lock_of,
    )


def read(txn: Cursor) -> tuple[Beat, ...]:
    """
    Read what the drainers said, the newest first; a handful of rows.
    """
    rows = txn.execute(f"{_SELECT} ORDER BY beat_at DESC LIMIT ?", (ROWS_LIMIT,)).all()
    return tuple(map(_beat, rows))


def _beat(row: tuple[Any, ...]) -> Beat:
    return Beat(
        started_at=_instant(row[0]) or 0.0,
        beat_at=_instant(row[1]) or 0.0,
        last_good_age=row[2],
        unstarted=row[3],
        backing_off_until=_instant(row[4]),
        alarm=text_of(row[5]),
        gates_reachable=bool(row[6]),
        stopping=bool(row[7]),
        origin=Origin(*row[8:12]),
        drainer_id=row[12],
    )


def remove(txn: Cursor, drainer_id: str, incarnation: str = "") -> None:
    """
    Take a drainer's row away: it has stopped in order. Another process's row stays.
    """
    txn.execute(
        "DELETE FROM codeRunner_drainers WHERE drainer_id = ? AND incarnation IN (?, '')",
        (drainer_id, incarnation),
    )


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
