"""
The pages of automations that are read: the list, one, its runs, one run with its items, what a
promotion rests on, who did what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.web.iweb import IRequest

from crq.automations import runs, settings, shown
from crq.automations.calls import Preview
from crq.automations.desk import Promotion
from crq.automations.model import Automation, Decision, Effect, Run, RunStatus, Verdict
from crq.web import bodies
from crq.web.automations import asking
from crq.web.automations.reading import HIGHEST, word
from crq.web.door import Door, routes
from crq.web.pages.bars import MOST, chart
from crq.web.pages.desk import Page, Shown, Visitor, filled, link, page
from crq.web.pages.words import EFFECTS, MODES, RUNS, VERDICT, Look, mode_of

PATH = "/ui/automations"
ROWS = 50  # of one page
FIRST = 10  # approved records that the promotion shows


@routes.route("/ui/automations", methods=["GET"])
@page("read")
async def automation_list(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Automations: when they come next, how their last run ended.
    """
    given = bodies.names(filled(request.args), ("tenant", "after"))
    tenant = given.get("tenant")
    after = bodies.number("after", given.get("after"), 0, HIGHEST) or 0
    tenants = asking.tenants(door, visitor.caller, tenant)
    found = await asking.read(door, runs.automations, tenants, after, ROWS)
    more = None if found.after is None else link(PATH, tenant=tenant, after=found.after)
    lines = [(one, mode_of(one), run_look(one.last_run_status)) for one in found.rows]
    looks = tuple(MODES.values())
    context = {"lines": lines, "tenant": tenant or "", "more": more, "modes": looks}
    return Page("automations.html", context)


@routes.route("/ui/automations/<int:automation_id>", methods=["GET"])
@page("read")
async def one(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    One automation: its settings, when it comes next, what its last runs did.
    """
    bodies.names(request.args, ())
    found = await asking.known(door, visitor.caller, automation_id)
    latest = await asking.read(door, runs.latest_runs, found.automation_id, None, MOST)
    comes = await door.pool.compute(shown.occurrences, found.cron, found.zone, door.wall())
    context = {
        **about(found),
        "config": settings.shown(found.config),
        "comes": comes,
        **history(latest.rows[:FIRST]),
        "chart": chart(latest.rows),
        "more": len(latest.rows) > FIRST,
    }
    return Page("automation.html", context)


@routes.route("/ui/automations/<int:automation_id>/runs", methods=["GET"])
@page("read")
async def run_list(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    The runs of an automation, newest first.
    """
    given = bodies.names(filled(request.args), ("status", "before"))
    status = word("status", given.get("status"), RunStatus)
    before = bodies.number("before", given.get("before"), 0, HIGHEST)
    found = await asking.known(door, visitor.caller, automation_id)
    got = await asking.read(door, runs.latest_runs, found.automation_id, before, ROWS, status)
    path = f"{PATH}/{found.automation_id}/runs"
    older = None if got.after is None else link(path, status=given.get("status"), before=got.after)
    context = {
        **about(found),
        **history(got.rows),
        "chart": chart(got.rows),
        "status": given.get("status", ""),
        "statuses": tuple(RUNS),
        "states": tuple(RUNS.values()),
        "older": older,
    }
    return Page("runs.html", context)


@routes.route("/ui/automations/runs/<int:run_id>", methods=["GET"])
@page("read")
async def run(door: Door, request: IRequest, visitor: Visitor, run_id: int) -> Shown:
    """
    One run and what it decided.
    """
    given = bodies.names(filled(request.args), ("verdict", "effect", "reason", "after"))
    verdict = word("verdict", given.get("verdict"), Verdict)
    effect = word("effect", given.get("effect"), Effect)
    after = bodies.number("after", given.get("after"), 0, HIGHEST) or 0
    found = await asking.known_run(door, visitor.caller, run_id)
    automation = await asking.known(door, visitor.caller, found.automation_id)
    reason = given.get("reason")
    items = await asking.read(door, runs.items, run_id, after, ROWS, verdict, effect, reason)
    path = f"{PATH}/runs/{run_id}"
    kept = {name: value for name, value in given.items() if name != "after"}
    context = {
        **about(automation),
        "run": found,
        "look": run_look(found.status.value),
        "config": settings.shown(found.config),
        "reasons": [
            (text, count, link(path, reason=text)) for text, count in found.reason_counts.items()
        ],
        "items": [
            (item, VERDICT[item.decision.verdict.value], EFFECTS[item.effect.value])
            for item in items.rows
        ],
        "filters": {name: given.get(name, "") for name in ("verdict", "effect", "reason")},
        "filtered": bool(kept),
        "verdicts": tuple(VERDICT),
        "effects": tuple(EFFECTS),
        "path": path,
        "more_items": None if items.after is None else link(path, **kept, after=items.after),
    }
    return Page("run.html", context)


@routes.route("/ui/automations/<int:automation_id>/promotion", methods=["GET"])
@page("read")
async def promotion(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    What letting it act would rest on, and what stands in the way.
    """
    bodies.names(request.args, ())
    found = await asking.known(door, visitor.caller, automation_id)
    name = visitor.caller.token.name
    outcome = await asking.read(door, door.reception.desk.promotion, found.automation_id, name)
    return await dialog(door, outcome)


async def dialog(door: Door, outcome: Promotion, code: int = 200) -> Page:
    """
    The promotion's page.
    """
    seen: Run | None = None
    approved: Sequence[Any] = ()
    if outcome.evidence is not None:
        number = outcome.evidence.run_id
        seen = await door.pool.read(runs.run, number)
        page = await asking.read(door, runs.items, number, 0, FIRST, Verdict.APPROVED)
        approved = page.rows
    context = {
        **about(outcome.automation),
        "here": PATH,
        "obstacles": outcome.obstacles,
        "evidence": outcome.evidence,
        "run": seen,
        "approved": approved,
    }
    return Page("promotion.html", context, code)


@routes.route("/ui/automations/<int:automation_id>/audit", methods=["GET"])
@page("read")
async def audit(door: Door, request: IRequest, visitor: Visitor, automation_id: int) -> Shown:
    """
    Who did what to an automation.
    """
    given = bodies.names(filled(request.args), ("before",))
    before = bodies.number("before", given.get("before"), 0, HIGHEST)
    found = await asking.known(door, visitor.caller, automation_id)
    got = await asking.read(door, runs.audit, found.automation_id, before, ROWS)
    path = f"{PATH}/{found.automation_id}/audit"
    older = None if got.after is None else link(path, before=got.after)
    context = {**about(found), "entries": got.rows, "older": older}
    return Page("automation_audit.html", context)


def about(automation: Automation) -> dict[str, Any]:
    """
    What every page about one automation shows.
    """
    return {
        "one": automation,
        "called": f"{automation.tenant}/{automation.name}",
        "mode": mode_of(automation),
        "last": run_look(automation.last_run_status),
        "base": f"{PATH}/{automation.automation_id}",
    }


def history(found: Sequence[Run]) -> dict[str, Any]:
    """
    The lines of some runs.
    """
    return {"runs": [(each, RUNS[each.status.value]) for each in found]}


def decided(seen: Preview) -> list[tuple[Decision, Look]]:
    """
    The decisions of a preview.
    """
    return [(each, VERDICT[each.verdict.value]) for each in seen.decisions]


def run_look(status: str | None) -> Look | None:
    """
    How the state of a run is shown; None: there is none.
    """
    return None if status is None else RUNS[status]
