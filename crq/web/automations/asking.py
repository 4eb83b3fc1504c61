"""
How doors ask the desk: what it does not take becomes a refusal, and what belongs to others is not
even there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

from crq.automations import runs
from crq.automations.calls import Preview
from crq.automations.desk import Desk, NotFound
from crq.automations.model import Automation, Json, Run, Unfit
from crq.automations.runs import NameTaken
from crq.automations.workers import Caller as CallsFor
from crq.automations.workers import NoThread, Overdue
from crq.database import Cursor
from crq.instants import Instant
from crq.submissions import Refusal, visible
from crq.web.door import Door
from crq.web.tokens import Caller

T = TypeVar("T")
P = ParamSpec("P")

# What may be given for an automation: the name at the doors, and the desk's.
FIELDS: Mapping[str, str] = {
    "name": "name",
    "type": "type",
    "config": "config",
    "cron": "cron",
    "zone": "zone",
    "maxItemsPerRun": "max_items_per_run",
    "maxChangesPerRun": "max_changes_per_run",
    "owner": "owner",
}
_OUTSIDE = {inside: outside for outside, inside in FIELDS.items()}


def refusal(error: Unfit) -> Refusal:
    """
    What the desk does not take, as a door tells it.
    """
    status = 422
    if isinstance(error, NotFound):
        status = 404
    elif isinstance(error, NameTaken) or error.field == "automation":
        status = 409
    field = _OUTSIDE.get(error.field, error.field)
    return Refusal(visible(field), error.problem, error.remedy or "give another value", status)


async def read(
    door: Door, function: Callable[Concatenate[Cursor, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """
    Read something of the automations.
    """
    try:
        return await door.pool.read(function, *args, **kwargs)
    except Unfit as error:
        raise refusal(error) from None


async def change(
    door: Door, function: Callable[Concatenate[Cursor, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """
    Do something in one transaction.
    """
    try:
        return await door.pool.transact(function, *args, **kwargs)
    except Unfit as error:
        raise refusal(error) from None


async def draft(
    door: Door,
    caller: Caller,
    tenant: str,
    given: Mapping[str, Json],
    before: Automation | None = None,
) -> Automation:
    """
    What would be stored of what somebody gave; nothing is.

    :param before: the automation that would be changed; None: a new one.
    :raise Refusal: something is not as it must be, or belongs to others.
    """
    mine(door, caller, tenant)
    drafting, now = door.reception.desk.drafting, door.wall()
    try:
        if before is None:
            return await door.pool.compute(drafting.drafted, tenant, given, now)
        return await door.pool.compute(drafting.changed, before, given, now)
    except Unfit as error:
        raise refusal(error) from None


def declare(
    txn: Cursor, desk: Desk, tenant: str, given: Mapping[str, Json], actor: str, now: Instant
) -> Automation:
    """
    Check what somebody gave and store it; parsing a script takes a while, so it is done here too.

    :raise Unfit: something is not as it must be.
    """
    return desk.add(txn, desk.drafting.drafted(tenant, given, now), actor, now)


async def known(door: Door, caller: Caller, automation_id: int) -> Automation:
    """
    Read an automation that the caller may see.

    :raise Refusal: there is none.
    """
    found = await door.pool.read(runs.find, automation_id)
    if found is None or not owns(door, caller, found.tenant):
        remedy = "take a number out of the list"
        raise Refusal("automation", "there is none of this number", remedy, 404)
    return found


async def known_run(door: Door, caller: Caller, run_id: int) -> Run:
    """
    Read a run that the caller may see.

    :raise Refusal: there is none.
    """
    found = await door.pool.read(runs.run, run_id)
    if found is None or not owns(door, caller, found.tenant):
        remedy = "take a number out of the list of runs"
        raise Refusal("run", "there is none of this number", remedy, 404)
    return found


def owns(door: Door, caller: Caller, tenant: str) -> bool:
    """
    Whether a caller may see and change automations of a tenant.
    """
    return caller.accounts is None or caller.owns(door.sealer.account(tenant.lower()))


def mine(door: Door, caller: Caller, tenant: str) -> None:
    """
    Make sure that a caller may act for a tenant.

    :raise Refusal: it may not.
    """
    if not owns(door, caller, tenant):
        raise Refusal("tenant", "this token may not act for it", "use a token of this account", 403)


def tenants(door: Door, caller: Caller, wanted: str | None) -> tuple[str, ...] | None:
    """
    The tenants that a question is about, given who asks; None: all.

    :raise Refusal: it is about others.
    """
    if wanted is None:
        own = sorted({name.lower() for name in caller.token.accounts})
        return None if caller.accounts is None else tuple(own)
    if not owns(door, caller, wanted):
        raise Refusal("tenant", "this token may not read it", "use a token of this account", 403)
    return (wanted,)


async def preview(door: Door, automation: Automation) -> Preview:
    """
    Let an automation decide, on a thread, and keep nothing.

    :raise Refusal: its settings do not fit its type, or no answer came in time.
    """
    reception = door.reception
    who = CallsFor(automation.tenant, automation.automation_uuid)
    ask = reception.desk.preview
    try:
        found: Preview = await reception.previews.call(
            who, ask, reception.calls, automation, door.wall()
        )
    except Unfit as error:
        raise refusal(error) from None
    except (NoThread, Overdue) as error:
        remedy = "look at what its type does; nothing was kept"
        raise Refusal("preview", str(error), remedy, 503) from None
    return found
