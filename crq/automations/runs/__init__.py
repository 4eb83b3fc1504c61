"""
All SQL of automations, runs, items and audit: plain functions on a `crq.database.Cursor`.

Called inside `Database.transact`; the daemon reaches them through adbapi, the command line
directly. Every UPDATE names the state it leaves, and the row count says who won.

# Note [Tenants]

Whatever makes runs or changes automations of a tenant takes the row of that tenant first. So a
claim and an edit of the same minute come one after the other, on both databases.

# Note [Leases]

Who advances a run holds its lease: a token on the row. Each of its writes begins by renewing the
lease under that token, and whoever finds the token gone writes nothing more. A lease that has run
out is taken away by `take_over`; so two workers may believe that they hold a run, and only one can
write. Clocks decide when, never whether.
"""

from crq.automations.runs.advancing import (
    Changed,
    Lease,
    Lost,
    governed,
    record,
    take,
)
from crq.automations.runs.checking import violations
from crq.automations.runs.claiming import (
    Claimed,
    behind,
    claim,
    claim_due,
    due_tenants,
    reaim,
    run_now,
)
from crq.automations.runs.closing import finish, pause, record_and_finish, summary
from crq.automations.runs.definitions import (
    NameTaken,
    add,
    change,
    every_tenant,
    find,
    lock_tenant,
    note,
)
from crq.automations.runs.effects import Ended, effect, pending
from crq.automations.runs.keeping import purge
from crq.automations.runs.reading import (
    AuditRow,
    Page,
    audit,
    automations,
    evidence,
    items,
    latest_runs,
    run,
)
from crq.automations.runs.serving import (
    get_stale_running,
    lease_tenant,
    open_runs,
    open_tenants,
    release_tenant,
    take_over,
)

__all__ = [
    "AuditRow",
    "Changed",
    "Claimed",
    "Ended",
    "Lease",
    "Lost",
    "NameTaken",
    "Page",
    "add",
    "audit",
    "automations",
    "behind",
    "change",
    "claim",
    "claim_due",
    "due_tenants",
    "effect",
    "every_tenant",
    "evidence",
    "find",
    "finish",
    "get_stale_running",
    "governed",
    "items",
    "latest_runs",
    "lease_tenant",
    "lock_tenant",
    "note",
    "open_runs",
    "open_tenants",
    "pause",
    "pending",
    "purge",
    "reaim",
    "record",
    "record_and_finish",
    "release_tenant",
    "run",
    "run_now",
    "summary",
    "take",
    "take_over",
    "violations",
]
