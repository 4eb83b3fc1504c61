"""
Invariants I9 and I10 on stored rows, for `crq doctor` and the tests.
"""

from __future__ import annotations

from crq.automations.model import OPEN, Mode, RunStatus
from crq.database import Cursor

_COUNTS = (
    ("item_count", "1"),
    ("declined_count", "i.verdict = 'declined'"),
    ("approved_count", "i.effect = 'applied'"),
    ("failed_count", "i.effect = 'failed'"),
    ("unknown_count", "i.effect = 'unknown'"),
    ("withdrawn_count", "i.effect = 'withdrawn'"),
    ("would_count + r.intended_count", "i.verdict = 'approved'"),
    ("intended_count", "i.effect <> 'none'"),
)
_QUERY = f"""
    SELECT r.run_id, r.mode,
           {", ".join(f"r.{name}" for name, _ in _COUNTS)},
           {", ".join(f"COUNT(CASE WHEN {which} THEN i.item_id END)" for _, which in _COUNTS)},
           r.would_count, r.status,
           COUNT(CASE WHEN i.effect IN ('intended', 'applying') THEN i.item_id END)
      FROM automation_runs r LEFT JOIN automation_run_items i ON i.run_id = r.run_id
     WHERE r.run_id > ?
     GROUP BY r.run_id
"""


def violations(txn: Cursor, newest: int) -> tuple[str, ...]:
    """
    What is wrong with so many of the newest runs, one line each; reads all their items.

    That an occurrence has one run and a record one decision is held by unique indexes; here it is
    asked whether the counts equal the items and nothing is left of what has ended (I9), and whether
    an observing run has effects (I10).
    """
    last = txn.execute("SELECT MAX(run_id) FROM automation_runs").scalar() or 0
    found: list[str] = []
    for run_id, mode, *numbers, would, status, outstanding in txn.execute(
        _QUERY, (last - newest,)
    ).all():
        stored, counted = numbers[: len(_COUNTS)], numbers[len(_COUNTS) :]
        for (name, _), told, there in zip(_COUNTS, stored, counted, strict=True):
            if told != there:
                found.append(f"I9: run {run_id}: {name} is {told}, its items say {there}")
        if mode == Mode.OBSERVE.value and counted[-1]:
            found.append(f"I10: run {run_id} observes, and has {counted[-1]} effects")
        if mode == Mode.LIVE.value and would:
            found.append(f"I10: run {run_id} is live, and predicts {would} changes")
        if outstanding and RunStatus(status) not in OPEN:
            found.append(f"I9: run {run_id} has ended, and {outstanding} effects have not")
    return tuple(found)
