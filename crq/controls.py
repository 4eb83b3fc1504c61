"""
What operators set while the queue runs, kept in one small table so that a restart keeps it: pauses,
caps, the drain for maintenance, and executions to be started under a pause.

A drainer reads all of it in one statement a tick, and again under the claim's lock; `crq.actions`
writes it. A row that cannot be understood (another program may have written it) counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from attrs import frozen

from crq.database import Cursor
from crq.instants import Instant, instant_text, iso
from crq.model import Controls, Lane, RunOne
from crq.recordvalues import stored_instant, text_of

ROWS_LIMIT = 1000  # each tick reads them all: this many are a millisecond


class Kind(Enum):
    """
    What a row of the table sets, as its ``kind`` column spells it.
    """

    PAUSE_ALL = "pause_all"
    PAUSE_ACCOUNT = "pause_account"
    PAUSE_KEY = "pause_key"
    CAP_TOTAL = "cap_total"
    CAP_ACCOUNT = "cap_account"
    DRAIN = "drain"
    RUN_ONE = "run_one"


@frozen
class Control:
    """
    One thing that is set, with who set it and why.

    :ivar name: the account, the key or the execution it is about; empty where there is but one.
    :ivar value: a cap; None for all others.
    """

    kind: Kind
    name: str
    value: int | None
    set_at: Instant
    set_by: str
    note: str | None

    def as_json(self) -> dict[str, Any]:
        """
        The control for a machine.
        """
        return {
            "kind": self.kind.value,
            "name": self.name,
            "value": self.value,
            "setAt": iso(self.set_at),
            "setBy": self.set_by,
            "note": self.note,
        }


def read(txn: Cursor) -> Controls:
    """
    Read everything that is set, in one statement over one small table.
    """
    return of(
        txn.execute(
            "SELECT kind, name, value, subdomain_hash, apikey_hash, set_at FROM codeRunner_controls"
        ).all()
    )


def of(rows: Iterable[Sequence[Any]]) -> Controls:
    """
    Put together what is set, from rows of kind, name, value, account, key and instant.
    """
    found: dict[str, list[Sequence[Any]]] = {}
    for kind, *row in rows:
        found.setdefault(kind, []).append(row)

    def all_of(kind: Kind) -> list[Sequence[Any]]:
        return found.get(kind.value, [])

    caps = {row[0]: int(row[1]) for row in all_of(Kind.CAP_ACCOUNT) if row[1] is not None}
    total = [int(row[1]) for row in all_of(Kind.CAP_TOTAL) if row[1] is not None]
    return Controls(
        draining=bool(all_of(Kind.DRAIN)),
        everything=bool(all_of(Kind.PAUSE_ALL)),
        accounts=frozenset(row[0] for row in all_of(Kind.PAUSE_ACCOUNT)),
        keys=frozenset(row[0] for row in all_of(Kind.PAUSE_KEY)),
        in_flight=total[0] if total else None,
        per_account=caps,
        run_one=tuple(
            RunOne(int(row[0]), Lane(row[2], row[3]), _instant(row[4]))
            for row in all_of(Kind.RUN_ONE)
            if row[0].isdecimal() and row[2] is not None
        ),
    )


def listed(txn: Cursor) -> tuple[Control, ...]:
    """
    Read everything that is set, with who set it, when and why; the newest first.
    """
    known = {kind.value for kind in Kind}
    rows = txn.execute(
        "SELECT kind, name, value, set_at, set_by, note FROM codeRunner_controls"
        " ORDER BY set_at DESC, kind, name"
    ).all()
    return tuple(_control(row) for row in rows if row[0] in known)


def get(txn: Cursor, kind: Kind, name: str = "") -> Control | None:
    """
    Read one thing that may be set.
    """
    row = txn.execute(
        "SELECT kind, name, value, set_at, set_by, note FROM codeRunner_controls"
        " WHERE kind = ? AND name = ?",
        (kind.value, name),
    ).one()
    return None if row is None else _control(row)


def put(txn: Cursor, control: Control, lane: Lane | None = None) -> None:
    """
    Set something, or set it anew.

    :param lane: of an execution to be started.
    """
    remove(txn, control.kind, control.name)
    txn.execute(
        "INSERT INTO codeRunner_controls"
        " (kind, name, value, subdomain_hash, apikey_hash, set_at, set_by, note)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            control.kind.value,
            control.name,
            control.value,
            None if lane is None else lane.subdomain_hash,
            None if lane is None else lane.apikey_hash,
            instant_text(control.set_at),
            control.set_by,
            control.note,
        ),
    )


def remove(txn: Cursor, kind: Kind, name: str = "") -> bool:
    """
    Set something no more; says whether it was set.
    """
    txn.execute("DELETE FROM codeRunner_controls WHERE kind = ? AND name = ?", (kind.value, name))
    return txn.rowcount == 1


def count(txn: Cursor) -> int:
    """
    Count what is set.
    """
    return int(txn.execute("SELECT COUNT(*) FROM codeRunner_controls").scalar())


def served(txn: Cursor, execution_ids: Iterable[int]) -> None:
    """
    Forget that these executions are to be started.
    """
    names = [str(execution_id) for execution_id in execution_ids]
    if names:
        txn.execute(
            "DELETE FROM codeRunner_controls"  # noqa: S608 - only placeholders are put in
            f" WHERE kind = 'run_one' AND name IN ({', '.join('?' * len(names))})",
            names,
        )


def _control(row: tuple[Any, ...]) -> Control:
    kind, name, value, set_at, set_by, note = row
    return Control(Kind(kind), name, value, _instant(set_at), set_by, note)


def _instant(text: Any) -> Instant:
    return stored_instant(text_of(text)) or 0.0
