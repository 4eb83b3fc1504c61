"""
What can be read of automations over HTTP (scope ``read``).
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from twisted.web.iweb import IRequest

from crq.automations import limits, runs, schedule, shown
from crq.automations.model import Automation, Effect, RunStatus, Unfit, Verdict
from crq.instants import Instant
from crq.submissions import Refusal
from crq.web import bodies
from crq.web.answers import Reply
from crq.web.automations import asking
from crq.web.door import Door, routes

SCOPE = "read"
ROWS = 50  # of a page, when nobody says how many
HIGHEST = 2**62  # number of anything

E = TypeVar("E", bound=Enum)


@routes.route("/automations", methods=["GET"])
async def automation_list(door: Door, request: IRequest) -> bytes:
    """
    A page of automations, by number.
    """
    caller = await door.caller(request, SCOPE)
    given = bodies.names(request.args, ("tenant", "after", "limit"))
    tenants = asking.tenants(door, caller, given.get("tenant"))
    after = bodies.number("after", given.get("after"), 0, HIGHEST) or 0
    page = await asking.read(door, runs.automations, tenants, after, rows(given))
    body = {"automations": [shown.automation(one) for one in page.rows], "after": page.after}
    return door.reply(request, Reply(200, body))


@routes.route("/automations/types", methods=["GET"])
async def types(door: Door, request: IRequest) -> bytes:
    """
    The installed types with their settings, and what was left out.
    """
    await door.caller(request, SCOPE)
    bodies.names(request.args, ())
    found = door.reception.desk.drafting.types
    body = {"types": [shown.kind(one) for one in found], "faults": list(found.faults)}
    return door.reply(request, Reply(200, body))


@routes.route("/automations/occurrences", methods=["GET"])
async def occurrences(door: Door, request: IRequest) -> bytes:
    """
    When a schedule comes next, before anybody saves it.
    """
    await door.caller(request, SCOPE)
    given = bodies.names(request.args, ("cron", "zone"))
    cron, zone = given.get("cron", ""), given.get("zone", "UTC")
    found = await door.pool.compute(coming, cron, zone, door.wall())
    return door.reply(request, Reply(200, {"occurrences": found}))


def coming(cron: str, zone: str, now: Instant) -> list[dict[str, str | None]]:
    """
    The next occurrences of a schedule.

    :raise Refusal: it cannot be read, or never comes.
    """
    try:
        cron, zone = schedule.checked(cron, zone, now)
    except Unfit as error:
        raise asking.refusal(error) from None
    return shown.occurrences(cron, zone, now)


@routes.route("/automations/<int:automation_id>", methods=["GET"])
async def automation(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    One automation, with its next occurrences.
    """
    caller = await door.caller(request, SCOPE)
    bodies.names(request.args, ())
    found = await asking.known(door, caller, automation_id)
    return door.reply(request, Reply(200, full(found, door.wall())))


def full(automation: Automation, now: Instant) -> dict[str, Any]:
    """
    An automation and its next occurrences.
    """
    comes = shown.occurrences(automation.cron, automation.zone, now)
    return {**shown.automation(automation), "occurrences": comes}


@routes.route("/automations/<int:automation_id>/runs", methods=["GET"])
async def run_list(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    A page of an automation's runs, newest first.
    """
    caller = await door.caller(request, SCOPE)
    given = bodies.names(request.args, ("status", "before", "limit"))
    status = word("status", given.get("status"), RunStatus)
    before = bodies.number("before", given.get("before"), 0, HIGHEST)
    found = await asking.known(door, caller, automation_id)
    page = await asking.read(
        door, runs.latest_runs, found.automation_id, before, rows(given), status
    )
    body = {"runs": [shown.run(one) for one in page.rows], "before": page.after}
    return door.reply(request, Reply(200, body))


@routes.route("/automations/<int:automation_id>/audit", methods=["GET"])
async def audit(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    Who did what to an automation, newest first.
    """
    caller = await door.caller(request, SCOPE)
    given = bodies.names(request.args, ("before", "limit"))
    before = bodies.number("before", given.get("before"), 0, HIGHEST)
    found = await asking.known(door, caller, automation_id)
    page = await asking.read(door, runs.audit, found.automation_id, before, rows(given))
    body = {"audit": [shown.audit(one) for one in page.rows], "before": page.after}
    return door.reply(request, Reply(200, body))


@routes.route("/automations/<int:automation_id>/promotion", methods=["GET"])
async def promotion(door: Door, request: IRequest, automation_id: int) -> bytes:
    """
    What a promotion by whoever asks would rest on, and what stands in its way.
    """
    caller = await door.caller(request, SCOPE)
    bodies.names(request.args, ())
    found = await asking.known(door, caller, automation_id)
    desk = door.reception.desk
    outcome = await asking.read(door, desk.promotion, found.automation_id, caller.token.name)
    return door.reply(request, Reply(200, shown.promotion(outcome)))


@routes.route("/automations/runs/<int:run_id>", methods=["GET"])
async def run(door: Door, request: IRequest, run_id: int) -> bytes:
    """
    One run.
    """
    caller = await door.caller(request, SCOPE)
    bodies.names(request.args, ())
    found = await asking.known_run(door, caller, run_id)
    return door.reply(request, Reply(200, shown.run(found)))


@routes.route("/automations/runs/<int:run_id>/items", methods=["GET"])
async def items(door: Door, request: IRequest, run_id: int) -> bytes:
    """
    A page of what a run decided, oldest first.
    """
    caller = await door.caller(request, SCOPE)
    given = bodies.names(request.args, ("verdict", "effect", "reason", "after", "limit"))
    verdict = word("verdict", given.get("verdict"), Verdict)
    effect = word("effect", given.get("effect"), Effect)
    after = bodies.number("after", given.get("after"), 0, HIGHEST) or 0
    found = await asking.known_run(door, caller, run_id)
    page = await asking.read(
        door, runs.items, found.run_id, after, rows(given), verdict, effect, given.get("reason")
    )
    body = {"items": [shown.item(one) for one in page.rows], "after": page.after}
    return door.reply(request, Reply(200, body))


def rows(given: dict[str, str]) -> int:
    """
    How many rows a page is to have.
    """
    return bodies.number("limit", given.get("limit"), 1, limits.PAGE_ROWS) or ROWS


def word(name: str, text: str | None, kind: type[E]) -> E | None:
    """
    Read one word of a closed set; None: it was not given.

    :raise Refusal: it is none of them.
    """
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        words = ", ".join(str(each.value) for each in kind)
        raise Refusal(name, "is none", f"give one of {words}") from None
