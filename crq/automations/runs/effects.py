"""
Phase B, one run: its effects begin and end.

# Note [Effects]

Approved while live, an item is recorded as ``intended``, in the transaction that moves the cursor.
`effect` makes it ``applying`` in a transaction of its own before the type is called, and
``applied``, ``failed`` or ``unknown`` after. So what is still ``intended`` after a crash has
provably not begun, and only what is ``applying`` is in doubt (ruling 15).
"""

from __future__ import annotations

from attrs import evolve, frozen

from crq.automations.model import Effect, Item, Run
from crq.automations.runs import rows
from crq.automations.runs.advancing import Lease, governed, renew
from crq.automations.runs.rows import text_of
from crq.database import Cursor
from crq.instants import Instant

_STATUS = {Effect.APPLIED: "approved", Effect.FAILED: "failed", Effect.UNKNOWN: "unknown"}


@frozen
class Ended:
    """
    How an effect has ended, to be noted with the next transaction.

    :ivar effect: applied, failed or unknown; intended: it was not begun after all.
    """

    item_id: int
    effect: Effect
    detail: str | None


def pending(txn: Cursor, run_id: int, repeatable: bool, limit: int) -> tuple[Item, ...]:
    """
    Effects of a run that are still to be applied, oldest first (idx_items_effect).

    :param repeatable: those that had begun, too.
    """
    found = txn.execute(
        f"SELECT {rows.ITEM} FROM automation_run_items"
        f" WHERE run_id = ? AND effect IN {_startable(repeatable)} ORDER BY item_id LIMIT ?",
        (run_id, limit),
    ).all()
    return tuple(rows.item(row) for row in found)


def _startable(repeatable: bool) -> str:
    return "('intended', 'applying')" if repeatable else "('intended')"


def effect(
    txn: Cursor,
    lease: Lease,
    run: Run,
    ended: Ended | None,
    begun: int | None,
    repeatable: bool,
    now: Instant,
) -> tuple[Run, bool]:
    """
    Note how one effect has ended, and that the next one begins (see note [Effects]).

    :return: the run as it is stored now; whether the next one may be applied: False when the
        automation was demoted or switched off meanwhile.
    :raise Lost: somebody else has the run. What has ended is in doubt then, and will be settled
        by whoever has it.
    """
    renew(txn, lease, now)
    if ended is not None:
        run = _end(txn, run, ended, now)
    if begun is None:
        return run, True
    if governed(txn, run) is not run.mode:
        return run, False
    txn.execute(
        "UPDATE automation_run_items SET effect = 'applying'"
        f" WHERE item_id = ? AND run_id = ? AND effect IN {_startable(repeatable)}",
        (begun, lease.run_id),
    )
    return run, txn.rowcount == 1


def _end(txn: Cursor, run: Run, ended: Ended, now: Instant) -> Run:
    done = ended.effect is not Effect.INTENDED
    txn.execute(
        "UPDATE automation_run_items SET effect = ?, detail = ?, applied_at = ?"
        " WHERE item_id = ? AND effect = 'applying'",
        (
            ended.effect.value,
            ended.detail,
            text_of(now) if done else None,
            ended.item_id,
        ),
    )
    if txn.rowcount != 1 or not done:
        return run
    name = _STATUS[ended.effect]
    txn.execute(
        f"UPDATE automation_runs SET {name}_count = {name}_count + 1, advanced_at = ?"
        " WHERE run_id = ?",
        (text_of(now), run.run_id),
    )
    counts = evolve(run.counts, **{name: getattr(run.counts, name) + 1})
    return evolve(run, counts=counts)
