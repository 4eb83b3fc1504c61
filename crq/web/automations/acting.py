"""
What people do to automations over HTTP: scope ``operate``, and ``promote`` for letting one act.

A token that is limited to accounts does it to those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from twisted.web.iweb import IRequest

from crq.automations import shown
from crq.automations.desk import Promotion
from crq.automations.model import Automation, Json
from crq.submissions import Refusal, visible
from crq.web import answers, bodies, problems
from crq.web.answers import Reply
from crq.web.automations import asking
from crq.web.automations.reading import full
from crq.web.door import Door, routes
from crq.web.tokens import Caller

SCOPE, PROMOTE = "operate", "promote"


@routes.route("/automations", methods=["POST"])
async def add(door: Door, request: IRequest) -> bytes:
    """
    Declare an automation. It does nothing until it is told to observe.
    """
    caller = await door.caller(request, SCOPE)
    given, tenant = _declaration(request)
    asking.mine(door, caller, tenant)
    desk, who, now = door.reception.desk, actor(caller), door.wall()
    made = await asking.change(door, asking.declare, desk, tenant, fields(given), who, now)
    request.setHeader(b"Location", b"/automations/%d" % made.automation_id)
    return door.reply(request, Reply(201, full(made, now)))


@routes.route("/automations/preview", methods=["POST"])
async def preview_draft(door: Door, request: IRequest) -> bytes:
    """
    What a run of an automation would decide now that is not declared; keeps nothing.
    """
    caller = await door.caller(request, SCOPE)
    given, tenant = _declaration(request)
    draft = await asking.draft(door, caller, tenant, fields(given))
    return door.reply(request, Reply(200, shown.preview(await asking.preview(door, draft))))


def _declaration(request: IRequest) -> tuple[dict[str, object], str]:
    given = body_of(request, ("tenant", *asking.FIELDS))
    tenant = given.get("tenant")
    if not isinstance(tenant, str):
        raise Refusal("tenant", "is no text", "give the account's subdomain")
    return given, tenant


@routes.route("/automations/<int:automation_id>", methods=["PATCH"])
async def edit(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    Change an automation; what is not given stays as it is.
    """
    caller = await door.caller(request, SCOPE)
    given = body_of(request, (*asking.FIELDS, "revision"))
    revision = _whole("revision", given.get("revision"))
    before = await asking.known(door, caller, automation_id)
    after = await asking.change(
        door,
        door.reception.desk.edit,
        before.automation_id,
        fields(given),
        actor(caller),
        door.wall(),
        revision,
    )
    return door.reply(request, Reply(200, full(after, door.wall())))


@routes.route("/automations/<int:automation_id>/observe", methods=["POST"])
async def observe(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    Switch an automation on, in observe.
    """
    return await _switch(door, request, automation_id, door.reception.desk.observe)


@routes.route("/automations/<int:automation_id>/demote", methods=["POST"])
async def demote(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    Take an automation back to observe, at once.
    """
    return await _switch(door, request, automation_id, door.reception.desk.demote)


@routes.route("/automations/<int:automation_id>/enable", methods=["POST"])
async def enable(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    Switch an automation on again.
    """
    return await _switch(door, request, automation_id, door.reception.desk.enable)


@routes.route("/automations/<int:automation_id>/disable", methods=["POST"])
async def disable(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    Switch an automation off.
    """
    return await _switch(door, request, automation_id, door.reception.desk.disable)


async def _switch(
    door: Door, request: IRequest, automation_id: int, action: Callable[..., Automation]
) -> bytes:
    caller = await door.caller(request, SCOPE)
    body_of(request, ())
    found = await asking.known(door, caller, automation_id)
    now = door.wall()
    after = await asking.change(door, action, found.automation_id, actor(caller), now)
    return door.reply(request, Reply(200, full(after, now)))


@routes.route("/automations/<int:automation_id>/run-now", methods=["POST"])
async def run_now(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    Make a run outside the schedule.
    """
    caller = await door.caller(request, SCOPE)
    body_of(request, ())
    found = await asking.known(door, caller, automation_id)
    _, claimed = await asking.change(
        door, door.reception.desk.run_now, found.automation_id, actor(caller), door.wall()
    )
    body = {"automationId": found.automation_id, "runId": claimed.run_id}
    return door.reply(request, Reply(200, body))


@routes.route("/automations/<int:automation_id>/preview", methods=["POST"])
async def preview(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    What a run would decide now; keeps nothing.
    """
    caller = await door.caller(request, SCOPE)
    body_of(request, ())
    found = await asking.known(door, caller, automation_id)
    return door.reply(request, Reply(200, shown.preview(await asking.preview(door, found))))


@routes.route("/automations/<int:automation_id>/promote", methods=["POST"])
async def promote(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    Let an automation act, if nothing stands in the way.
    """
    caller = await door.caller(request, PROMOTE)
    given = body_of(request, ("evidenceRunId",))
    seen = _whole("evidenceRunId", given.get("evidenceRunId"))
    found = await asking.known(door, caller, automation_id)
    outcome = await asking.change(
        door,
        door.reception.desk.promote,
        found.automation_id,
        caller.token.name,
        door.wall(),
        seen,
    )
    if outcome.obstacles:
        return door.reply(request, refused(outcome))
    return door.reply(request, Reply(200, full(outcome.automation, door.wall())))


def refused(outcome: Promotion) -> Reply:
    """
    Every reason why an automation may not act.
    """
    return answers.problem(
        409,
        "automation",
        "; ".join(one.problem for one in outcome.obstacles),
        "; ".join(one.remedy for one in outcome.obstacles),
        kind=problems.NOT_PROMOTED,
        obstacles=[shown.obstacle(one) for one in outcome.obstacles],
    )


def actor(caller: Caller) -> str:
    """
    Who acts, as the audit names them.
    """
    return f"token:{caller.token.name}"


def body_of(request: IRequest, names: Collection[str]) -> dict[str, object]:
    """
    Read the fields of an action's body.

    :raise Refusal: it is no object of these.
    """
    body = request.content.read()
    media = bodies.media_type(request.requestHeaders) if body else ""
    given = bodies.json_object(body, media)
    for name in given:
        if name not in names:
            hint = f"known are {', '.join(names)}" if names else "this takes none"
            raise Refusal(visible(name), "there is no such field", hint)
    return given


def fields(given: dict[str, Json]) -> dict[str, Any]:
    """
    What is given for an automation, by the desk's names.
    """
    found = {asking.FIELDS[name]: given[name] for name in given if name in asking.FIELDS}
    for name in ("max_items_per_run", "max_changes_per_run"):
        found[name] = _plain(found.get(name))
    return found


def _plain(value: object) -> object:
    # 2.0 is a whole number to JSON.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole(name: str, value: object) -> int | None:
    value = _plain(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise Refusal(name, "is no whole number", "give a whole number")
    return value
