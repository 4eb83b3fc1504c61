"""
Phase B, from above: which tenants and runs are to go on, and who may advance them.
"""

from __future__ import annotations

from attrs import frozen

from crq.automations import limits
from crq.automations.model import Effect
from crq.automations.runs.rows import marks, text_of
from crq.database import Cursor
from crq.instants import Instant

NAMES = 500  # of one SELECT; SQLite takes a limited number of parameters
# Of a lease: over, or further ahead than any that is given. The second was given by a clock that
# was wrong, or ours is: nobody has to wait for a future that will not come.
_RUN_OUT = "(lease_until < ? OR lease_until > ?)"


@frozen
class Stale:
    """
    A run that was left by its worker: its lease has run out.
    """

    run_id: int
    automation_id: int
    tenant: str
    type: str
    lease_token: str


def open_tenants(txn: Cursor) -> tuple[str, ...]:
    """
    Tenants with open runs, the one that was served longest ago first (idx_runs_open).
    """
    found = [
        row[0]
        for row in txn.execute(
            "SELECT DISTINCT tenant FROM automation_runs WHERE status IN ('queued', 'running')"
        ).all()
    ]
    served: dict[str, str] = {}
    for first in range(0, len(found), NAMES):
        names = found[first : first + NAMES]
        served |= dict(
            txn.execute(
                "SELECT tenant, COALESCE(served_at, '') FROM automation_tenants"
                f" WHERE tenant IN ({marks(len(names))})",
                names,
            ).all()
        )
    return tuple(sorted(found, key=lambda tenant: (served.get(tenant, ""), tenant)))


def lease_tenant(
    txn: Cursor, tenant: str, token: str, now: Instant, until: Instant, limit: int
) -> tuple[int, ...] | None:
    """
    Take a tenant for this tick, with its open runs; None: another worker has it.
    """
    txn.execute(
        "UPDATE automation_tenants SET lease_token = ?, lease_until = ?, served_at = ?"
        f" WHERE tenant = ? AND (lease_token IS NULL OR {_RUN_OUT})",
        (token, text_of(until), text_of(now), tenant, *_bounds(now)),
    )
    return open_runs(txn, tenant, limit) if txn.rowcount == 1 else None


def release_tenant(txn: Cursor, tenant: str, token: str) -> bool:
    """
    Give a tenant back.
    """
    txn.execute(
        "UPDATE automation_tenants SET lease_token = NULL, lease_until = NULL"
        " WHERE tenant = ? AND lease_token = ?",
        (tenant, token),
    )
    return txn.rowcount == 1


def open_runs(txn: Cursor, tenant: str, limit: int) -> tuple[int, ...]:
    """
    Open runs of a tenant that nobody holds, the one that was advanced longest ago first.
    """
    found = txn.execute(
        "SELECT run_id FROM automation_runs"
        " WHERE status IN ('queued', 'running') AND tenant = ? AND lease_token IS NULL"
        " ORDER BY COALESCE(advanced_at, created_at), run_id LIMIT ?",
        (tenant, limit),
    ).all()
    return tuple(row[0] for row in found)


def get_stale_running(txn: Cursor, now: Instant, limit: int) -> tuple[Stale, ...]:
    """
    Runs whose worker has let the lease run out (idx_runs_lease).
    """
    found = txn.execute(
        "SELECT run_id, automation_id, tenant, type, lease_token FROM automation_runs"
        f" WHERE status = 'running' AND {_RUN_OUT} ORDER BY lease_until, run_id LIMIT ?",
        (*_bounds(now), limit),
    ).all()
    return tuple(Stale(*row) for row in found)


def take_over(txn: Cursor, stale: Stale, now: Instant, repeatable: bool) -> int | None:
    """
    Take a stale run away from its worker; whoever comes to it next goes on with it.

    An effect that had begun stays unknown, unless it may be repeated (ruling 15).

    :return: how many effects are unknown now; None: the worker is back, or another came first.
    """
    txn.execute(
        "UPDATE automation_runs SET lease_token = NULL, lease_until = NULL"
        f" WHERE run_id = ? AND status = 'running' AND lease_token = ? AND {_RUN_OUT}",
        (stale.run_id, stale.lease_token, *_bounds(now)),
    )
    if txn.rowcount != 1:
        return None
    if repeatable:
        return 0
    return settle_begun(txn, stale.run_id, "its worker was gone before it ended")


def settle_begun(txn: Cursor, run_id: int, detail: str) -> int:
    """
    Mark effects that had begun as unknown, with the run's count.
    """
    txn.execute(
        "UPDATE automation_run_items SET effect = ?, detail = ? WHERE run_id = ? AND effect = ?",
        (Effect.UNKNOWN.value, detail, run_id, Effect.APPLYING.value),
    )
    count = txn.rowcount
    if count:
        txn.execute(
            "UPDATE automation_runs SET unknown_count = unknown_count + ? WHERE run_id = ?",
            (count, run_id),
        )
    return count


def _bounds(now: Instant) -> tuple[str | None, str | None]:
    return text_of(now), text_of(now + 2 * limits.LEASE_SECONDS)
