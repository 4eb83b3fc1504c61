"""
What the pages do to automations: the buttons; each answers with the automation's page.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.web.iweb import IRequest

from crq.automations.model import Automation
from crq.web import bodies
from crq.web.automations import acting, asking
from crq.web.automations.reading import HIGHEST
from crq.web.door import Door, routes
from crq.web.pages.automations import PATH, about, decided, dialog
from crq.web.pages.desk import Elsewhere, Page, Shown, Visitor, page


@routes.route("/ui/automations/<int:automation_id>/observe", methods=["POST"])
@page(acting.SCOPE)
async def observe(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    Switch it on, in observe.
    """
    action = door.reception.desk.observe
    return await _switch(door, visitor, automation_id, action, "observes by its schedule")


@routes.route("/ui/automations/<int:automation_id>/demote", methods=["POST"])
@page(acting.SCOPE)
async def demote(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    Take it back to observe.
    """
    action = door.reception.desk.demote
    return await _switch(door, visitor, automation_id, action, "is demoted: nothing of it acts")


@routes.route("/ui/automations/<int:automation_id>/enable", methods=["POST"])
@page(acting.SCOPE)
async def enable(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    Switch it on again.
    """
    action = door.reception.desk.enable
    return await _switch(door, visitor, automation_id, action, "is switched on")


@routes.route("/ui/automations/<int:automation_id>/disable", methods=["POST"])
@page(acting.SCOPE)
async def disable(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    Switch it off.
    """
    action = door.reception.desk.disable
    return await _switch(door, visitor, automation_id, action, "is switched off")


async def _switch(
    door: Door,
    visitor: Visitor,
    automation_id: int,
    action: Callable[..., Automation],
    told: str,
) -> Shown:
    found = await asking.known(door, visitor.caller, automation_id)
    who = acting.actor(visitor.caller)
    await asking.change(door, action, found.automation_id, who, door.wall())
    visitor.session.notice(f"{found.tenant}/{found.name} {told}")
    return Elsewhere(f"{PATH}/{found.automation_id}")


@routes.route("/ui/automations/<int:automation_id>/run-now", methods=["POST"])
@page(acting.SCOPE)
async def run_now(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    Make a run outside the schedule.
    """
    found = await asking.known(door, visitor.caller, automation_id)
    who = acting.actor(visitor.caller)
    _, claimed = await asking.change(
        door, door.reception.desk.run_now, found.automation_id, who, door.wall()
    )
    visitor.session.notice(f"Run {claimed.run_id} is made; the next minute begins it")
    return Elsewhere(f"{PATH}/{found.automation_id}")


@routes.route("/ui/automations/<int:automation_id>/preview", methods=["POST"])
@page(acting.SCOPE)
async def preview(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    What a run would decide now, with each reason.
    """
    found = await asking.known(door, visitor.caller, automation_id)
    seen = await asking.preview(door, found)
    context = {**about(found), "here": PATH, "seen": seen, "decisions": decided(seen)}
    return Page("preview.html", context)


@routes.route("/ui/automations/<int:automation_id>/promote", methods=["POST"])
@page(acting.PROMOTE)
async def promote(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    Let it act, on the evidence that was seen; or show each reason why not.
    """
    text = visitor.wanted("evidence", "load the page again, and look at the run")
    seen = bodies.number("evidence", text, 1, HIGHEST)
    found = await asking.known(door, visitor.caller, automation_id)
    name = visitor.caller.token.name
    outcome = await asking.change(
        door, door.reception.desk.promote, found.automation_id, name, door.wall(), seen
    )
    if outcome.obstacles:
        return await dialog(door, outcome, 409)
    visitor.session.notice(f"{found.tenant}/{found.name} is live: its next run acts")
    return Elsewhere(f"{PATH}/{found.automation_id}")
