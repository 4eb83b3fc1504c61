"""
Who did what, when, to what, and how it was before and after.

Lines are only added, in the transaction of the change itself, so that neither is without the other;
the janitor takes old ones away.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from attrs import frozen

from crq.database import Cursor
from crq.instants import Instant, instant_text
from crq.recordvalues import shown_instant, text_of

PAGE = 50  # lines of a page
PAGE_LIMIT = 500  # lines of the largest page
NOTE_LENGTH = 500  # characters: the column


class Action(Enum):
    """
    What an operator can do, as the ``action`` column spells it.
    """

    PAUSE = "pause"
    RESUME = "resume"
    CAP = "cap"
    UNCAP = "uncap"
    DRAIN = "drain"
    END_DRAIN = "end drain"
    CLOSE_GATE = "close gate"
    OPEN_GATE = "open gate"
    GATE_FAILED = "gate failed"
    CANCEL = "cancel"
    CANCEL_ALL = "cancel all"
    RUN_ONE = "run one"
    SETTLE = "settle"
    ADD_TOKEN = "add token"  # noqa: S105 - a word, not a secret
    REVOKE_TOKEN = "revoke token"  # noqa: S105


@frozen
class Entry:
    """
    One line.

    :ivar done_at: the stored text.
    :ivar target: ``all``, or a kind and a name: ``account:…``, ``key:…``, ``execution:17``.
    :ivar before: JSON values, as ``after``; None: there was nothing.
    """

    audit_id: int
    done_at: str | None
    who: str
    action: str
    target: str
    note: str | None
    before: Any
    after: Any

    def as_json(self) -> dict[str, Any]:
        """
        The line for a machine.
        """
        return {
            "auditId": self.audit_id,
            "at": shown_instant(self.done_at),
            "who": self.who,
            "action": self.action,
            "target": self.target,
            "note": self.note,
            "before": self.before,
            "after": self.after,
        }


def record(
    txn: Cursor,
    who: str,
    action: Action,
    target: str,
    now: Instant,
    *,
    note: str | None = None,
    before: Any = None,
    after: Any = None,
) -> None:
    """
    Add a line.
    """
    txn.execute(
        "INSERT INTO codeRunner_audit"
        " (done_at, who, action, target, note, before_state, after_state)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (instant_text(now), who, action.value, target, note, _json(before), _json(after)),
    )


def page(
    txn: Cursor, target: str | None = None, below: int | None = None, limit: int = PAGE
) -> tuple[Entry, ...]:
    """
    Read lines, the newest first, by the primary key or by idx_audit_target.

    :param target: only about this.
    :param below: only lines with a smaller number: the last one of the page before.
    """
    conditions: list[str] = []
    values: list[object] = []
    if target is not None:
        conditions.append("target = ?")
        values.append(target)
    if below is not None:
        conditions.append("audit_id < ?")
        values.append(below)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = txn.execute(
        "SELECT audit_id, done_at, who, action, target, note, before_state, after_state"  # noqa: S608 - fixed
        f" FROM codeRunner_audit {where} ORDER BY audit_id DESC LIMIT ?",
        (*values, max(1, min(limit, PAGE_LIMIT))),
    ).all()
    return tuple(_entry(row) for row in rows)


def prune(txn: Cursor, before: Instant, batch: int) -> int:
    """
    Delete the oldest lines before an instant, one batch in one transaction.
    """
    rows = txn.execute(
        "SELECT audit_id FROM codeRunner_audit WHERE done_at < ? ORDER BY done_at LIMIT ?",
        (instant_text(before), batch),
    ).all()
    if rows:
        txn.execute(
            "DELETE FROM codeRunner_audit"  # noqa: S608 - only placeholders are put in
            f" WHERE audit_id IN ({', '.join('?' * len(rows))})",
            tuple(row[0] for row in rows),
        )
    return len(rows)


def _entry(row: tuple[Any, ...]) -> Entry:
    number, done_at, who, action, target, note, before, after = row
    return Entry(
        int(number),
        text_of(done_at),
        text_of(who) or "",
        text_of(action) or "",
        text_of(target) or "",
        text_of(note),
        _value(before),
        _value(after),
    )


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _value(text: Any) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:  # written by hand: shown as it is
        return text_of(text)
