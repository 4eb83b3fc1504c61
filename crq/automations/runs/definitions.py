"""
Automations as they are declared, the lock of their tenant, and the audit of what is done to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from crq.automations import limits
from crq.automations.model import Automation, Json, Unfit
from crq.automations.runs import rows
from crq.automations.runs.rows import marks, text_of
from crq.database import Cursor
from crq.instants import Instant

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class NameTaken(Unfit):
    """
    The tenant has an automation of this name.
    """


def lock_tenant(txn: Cursor, tenant: str, wait: bool = True) -> bool:
    """
    Take a tenant's lock until the transaction ends (see note [Tenants]).

    :param wait: False: return False at once if somebody else has it.
    """
    if txn.dialect == "mysql":
        how = "" if wait else "SKIP LOCKED"
        sql = f"SELECT tenant FROM automation_tenants WHERE tenant = ? FOR UPDATE {how}"
        if txn.execute(sql, (tenant,)).one() is not None:
            return True
        if not wait:
            return False
        again = "ON DUPLICATE KEY UPDATE tenant = tenant"
    else:
        again = "ON CONFLICT (tenant) DO NOTHING"  # the transaction has the only lock there is
    txn.execute(f"INSERT INTO automation_tenants (tenant) VALUES (?) {again}", (tenant,))
    return True


def add(txn: Cursor, automation: Automation) -> Automation:
    """
    Store a new automation; its id is given by the database. The tenant is locked already.

    :raise NameTaken: the tenant has one of this name.
    :raise Unfit: the tenant has as many as it may have.
    """
    count = txn.execute(
        "SELECT COUNT(*) FROM automations WHERE tenant = ?", (automation.tenant,)
    ).scalar()
    if count >= limits.AUTOMATIONS_PER_TENANT:
        raise Unfit("tenant", f"has {count} automations", "switch to fewer that do more")
    _name_is_free(txn, automation)
    values = _stored(automation)
    txn.execute(
        f"INSERT INTO automations ({', '.join(values)}) VALUES ({marks(len(values))})",
        tuple(values.values()),
    )
    found = find(txn, txn.lastrowid)
    assert found is not None
    return found


def change(txn: Cursor, before: Automation, after: Automation) -> None:
    """
    Store what has changed of an automation. The tenant is locked since before it was read.

    :raise NameTaken: the tenant has one of the new name.
    """
    if before.name != after.name:
        _name_is_free(txn, after)
    old = _stored(before)
    values = {name: value for name, value in _stored(after).items() if value != old[name]}
    if not values:
        return
    txn.execute(
        f"UPDATE automations SET {', '.join(f'{name} = ?' for name in values)}"
        " WHERE automation_id = ?",
        (*values.values(), before.automation_id),
    )
    if txn.rowcount != 1:
        raise RuntimeError(f"automation {before.automation_id} has vanished under its lock")


def find(txn: Cursor, which: int | str) -> Automation | None:
    """
    Look up an automation by its number, its uuid or ``tenant/name``.
    """
    text = str(which)
    if text.isascii() and text.isdigit():
        where, parameters = "automation_id = ?", (int(text[:18]),)
    elif _UUID.fullmatch(text):
        where, parameters = "automation_uuid = ?", (text,)  # type: ignore[assignment]
    else:
        tenant, _, name = text.partition("/")
        if not tenant.isascii():
            return None  # no tenant's name; and the column could not be compared with it
        where, parameters = "tenant = ? AND name = ?", (tenant, name)  # type: ignore[assignment]
    row = txn.execute(f"SELECT {rows.AUTOMATION} FROM automations WHERE {where}", parameters).one()
    return None if row is None else rows.automation(row)


def every_tenant(txn: Cursor) -> tuple[str, ...]:
    """
    All tenants that have had an automation.
    """
    found = txn.execute("SELECT tenant FROM automation_tenants ORDER BY tenant").all()
    return tuple(row[0] for row in found)


def note(
    txn: Cursor,
    automation: Automation,
    action: str,
    actor: str,
    now: Instant,
    before: Mapping[str, Json] | None = None,
    after: Mapping[str, Json] | None = None,
) -> None:
    """
    Write what was done to an automation into the audit.
    """
    txn.execute(
        "INSERT INTO automation_audit"
        " (automation_id, tenant, at, actor, action, before_json, after_json)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            automation.automation_id,
            automation.tenant,
            text_of(now),
            actor,
            action,
            None if before is None else json.dumps(before),
            None if after is None else json.dumps(after),
        ),
    )


def _name_is_free(txn: Cursor, automation: Automation) -> None:
    taken = txn.execute(
        "SELECT automation_id FROM automations WHERE tenant = ? AND name = ?",
        (automation.tenant, automation.name),
    ).scalar()
    if taken is not None:
        problem = f"{automation.tenant} has an automation {automation.name!r}, number {taken}"
        raise NameTaken("name", problem, "choose another name, or edit that one")


def _stored(automation: Automation) -> dict[str, object]:
    return {
        "automation_uuid": automation.automation_uuid,
        "tenant": automation.tenant,
        "name": automation.name,
        "type": automation.type,
        "config_json": json.dumps(dict(automation.config), sort_keys=True),
        "config_revision": automation.config_revision,
        "mode": automation.mode.value,
        "enabled": int(automation.enabled),
        "cron": automation.cron,
        "zone": automation.zone,
        "next_run_at_utc": text_of(automation.next_run_at_utc),
        "max_items_per_run": automation.max_items_per_run,
        "max_changes_per_run": automation.max_changes_per_run,
        "owner": automation.owner,
        "problem": automation.problem,
        "promoted_by": automation.promoted_by,
        "promoted_at": text_of(automation.promoted_at),
        "promoted_revision": automation.promoted_revision,
        "promoted_run_id": automation.promoted_run_id,
        "promoted_would_count": automation.promoted_would_count,
        "created_at": text_of(automation.created_at),
        "changed_at": text_of(automation.changed_at),
    }
