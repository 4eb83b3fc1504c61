"""
The editor of automations: a form made of the type's settings, with what is wrong beside its field,
and the next ten occurrences of the schedule that is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.web.iweb import IRequest

from crq.automations.calls import Preview
from crq.automations.model import Automation, Unfit
from crq.submissions import Refusal
from crq.web import bodies
from crq.web.automations import acting, asking
from crq.web.automations.reading import HIGHEST, coming
from crq.web.door import Door, routes
from crq.web.pages import forms
from crq.web.pages.automations import PATH, about, decided
from crq.web.pages.desk import Elsewhere, Page, Shown, Visitor, filled, page

CHECK, PREVIEW = "check", "preview"  # values of ``do`` that store nothing


@routes.route("/ui/automations/new", methods=["GET"])
@page(acting.SCOPE)
async def new(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Choose a type, then fill in its form.
    """
    given = bodies.names(filled(request.args), ("type",))
    types = door.reception.desk.drafting.types
    if "type" not in given:
        context = {"types": list(types), "faults": types.faults}
        return Page("automation_new.html", context)
    return await _editor(door, _kind(door, given["type"]), {}, None)


@routes.route("/ui/automations/new", methods=["POST"])
@page(acting.SCOPE)
async def add(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Declare what the form says.
    """
    kind = _kind(door, visitor.wanted("type", "choose one"))
    if visitor.given("do") == CHECK:
        return await _editor(door, kind, visitor.form, None)
    tenant = visitor.given("tenant") or ""
    fields = {**forms.given(kind, visitor.form), "type": kind.name}
    who = acting.actor(visitor.caller)
    try:
        if visitor.given("do") == PREVIEW:
            draft = await asking.draft(door, visitor.caller, tenant, fields)
            seen = await asking.preview(door, draft)
            return await _editor(door, kind, visitor.form, None, seen=seen)
        asking.mine(door, visitor.caller, tenant)
        made = await asking.change(
            door, asking.declare, door.reception.desk, tenant, fields, who, door.wall()
        )
    except Refusal as refused:
        return await _editor(door, kind, visitor.form, None, refused)
    visitor.session.notice(
        f"{made.tenant}/{made.name} is declared; preview it, then let it observe"
    )
    return Elsewhere(f"{PATH}/{made.automation_id}")


@routes.route("/ui/automations/<int:automation_id>/edit", methods=["GET"])
@page(acting.SCOPE)
async def edit(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    The form of an automation as it is.
    """
    bodies.names(request.args, ())
    found = await asking.known(door, visitor.caller, automation_id)
    return await _editor(door, _kind(door, found.type), {}, found)


@routes.route("/ui/automations/<int:automation_id>/edit", methods=["POST"])
@page(acting.SCOPE)
async def save(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    Change it to what the form says, unless somebody was quicker.
    """
    found = await asking.known(door, visitor.caller, automation_id)
    kind = _kind(door, found.type)
    if visitor.given("do") == CHECK:
        return await _editor(door, kind, visitor.form, found)
    revision = bodies.number("revision", visitor.wanted("revision", "load the page"), 0, HIGHEST)
    fields = forms.given(kind, visitor.form)
    who, now = acting.actor(visitor.caller), door.wall()
    try:
        if visitor.given("do") == PREVIEW:
            draft = await asking.draft(door, visitor.caller, found.tenant, fields, found)
            seen = await asking.preview(door, draft)
            return await _editor(door, kind, visitor.form, found, seen=seen)
        after = await asking.change(
            door, door.reception.desk.edit, found.automation_id, fields, who, now, revision
        )
    except Refusal as refused:
        return await _editor(door, kind, visitor.form, found, refused)
    told = f"{after.tenant}/{after.name} is saved as revision {after.config_revision}"
    if after.config_revision != found.config_revision:
        told += "; it observes again before it may act"
    visitor.session.notice(told)
    return Elsewhere(f"{PATH}/{after.automation_id}")


def _kind(door: Door, name: str) -> Any:
    try:
        return door.reception.desk.drafting.types.known(name)
    except Unfit as error:
        raise asking.refusal(error) from None


async def _editor(
    door: Door,
    kind: Any,
    form: Mapping[str, str],
    before: Automation | None,
    refused: Refusal | None = None,
    seen: Preview | None = None,
) -> Page:
    """
    The form: empty, as it is stored, or as it was sent with what is wrong, or what it would decide.
    """
    stored = forms.DEFAULTS if before is None else {"cron": before.cron, "zone": before.zone}
    cron, zone = (form.get(name, stored[name]).strip() for name in ("cron", "zone"))
    comes: list[dict[str, str | None]] = []
    try:
        comes = await door.pool.compute(coming, cron, zone, door.wall())
    except Refusal as wrong:
        refused = refused or wrong
    mine, theirs = forms.fields(kind, form, before, refused)
    apart = refused is not None and forms.elsewhere(kind, refused)
    context = {
        **({} if before is None else about(before)),
        "here": PATH,
        "kind": kind,
        "one": before,
        "mine": mine,
        "theirs": theirs,
        "comes": comes,
        "zone": zone,
        "seen": seen,
        "decisions": [] if seen is None else decided(seen),
        "refused": refused if apart else None,
        # What the form was made from, not what it is by now: a second try does not overwrite.
        "revision": form.get("revision", "" if before is None else str(before.config_revision)),
    }
    return Page("automation_edit.html", context, 200 if refused is None else refused.http_status)
