"""
The pages that are read: overview, log, one execution, accounts, gates, who did what.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve
from twisted.web.iweb import IRequest

from crq import accounts as account_figures
from crq import actions, audit, controls, gatehistory, records, series
from crq.submissions import Refusal
from crq.web import bodies
from crq.web.door import Door, routes
from crq.web.pages import views
from crq.web.pages.desk import Page, Shown, Visitor, fields, filled, link, page
from crq.web.reading import HOURS, explanation_of, known, limited, own_accounts, unlimited

CLOSINGS = 50  # of one page of the gates


@routes.route("/ui", methods=["GET"])
@page("read")
async def overview(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    How the queue is, and how it was in the last hours.
    """
    bodies.names(request.args, ())
    report = limited(await door.report(), visitor.caller)
    since = report.at - HOURS
    samples: Sequence[series.Sample] | None = None
    settings: Sequence[controls.Control] = ()
    if visitor.unlimited:
        samples = await door.pool.read(series.read, since, report.at)
        settings = await door.pool.read(controls.listed)
    return Page("overview.html", views.overview(report, samples, since, settings))


@routes.route("/ui/executions", methods=["GET"])
@page("read")
async def log(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    One page of the log.
    """
    filters, cursor, limit = bodies.query(filled(request.args), door.sealer)
    filters = evolve(filters, accounts=own_accounts(visitor.caller, filters.accounts))
    try:
        rows = await door.pool.read(records.page, filters, cursor, limit)
    except ValueError as error:
        raise Refusal("cursor", "is not one", str(error)) from None
    return Page("log.html", views.log(rows, fields(request.args), visitor.operates))


@routes.route("/ui/executions/<int:execution_id>", methods=["GET"])
@page("read")
async def execution(door: Door, request: IRequest, visitor: Visitor, execution_id: int) -> Shown:
    """
    One execution: what became of it, and why it waits.
    """
    found = await known(door, visitor.caller, execution_id)
    why = await explanation_of(door, execution_id)
    done: tuple[audit.Entry, ...] = ()
    if visitor.unlimited:
        done = await door.pool.read(audit.page, f"execution:{execution_id}")
    else:
        why = why.limited()
    context = views.execution(found, why, visitor.operates)
    return Page("execution.html", {**context, "done": done})


@routes.route("/ui/executions/cancel", methods=["GET"])
@page("operate")
async def cancel_count(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Count what would be cancelled, before anybody says so.
    """
    given = bodies.names(filled(request.args), bodies.SELECTION)
    wanted = bodies.selection(given, door.sealer)
    wanted = evolve(wanted, accounts=own_accounts(visitor.caller, wanted.accounts))
    count, capped = await door.pool.read(actions.count_waiting, wanted)
    context = {"count": count, "capped": capped, "given": given, "back": link(views.LOG, **given)}
    return Page("cancel.html", context)


@routes.route("/ui/accounts", methods=["GET"])
@page("read")
async def accounts(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    How each account fares.
    """
    bodies.names(request.args, ())
    owned = visitor.caller.accounts
    only = None if owned is None else sorted(owned)
    found = await door.pool.read(account_figures.read, door.limits(), door.wall(), only)
    return Page("accounts.html", views.accounts(found))


@routes.route("/ui/gates", methods=["GET"])
@page("read")
async def gates(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Gates that are closed now, and what became of gates before.
    """
    given = bodies.names(filled(request.args), ("key", "before"))
    report = limited(await door.report(), visitor.caller)
    keys = None if visitor.unlimited else [gate.apikey_hash for gate in report.gates]
    if "key" in given:
        key = bodies.hash_of("key", given["key"])
        if keys is not None and key not in keys:
            raise Refusal("key", "this token may not read it", "use a token of its account", 403)
        keys = [key]
    before = bodies.instant("before", given.get("before"))
    history = await door.pool.read(gatehistory.closings, keys, CLOSINGS, before)
    return Page("gates.html", views.gates(report, history, CLOSINGS, given))


@routes.route("/ui/audit", methods=["GET"])
@page("read")
async def audit_page(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Who did what, and why.
    """
    unlimited(visitor.caller)
    given = bodies.names(filled(request.args), ("target", "below"))
    below = bodies.number("below", given.get("below"), 0, 2**62)
    target = given.get("target")
    found = await door.pool.read(audit.page, target, below)
    full = len(found) == audit.PAGE
    older = link("/ui/audit", target=target, below=found[-1].audit_id) if full else None
    return Page("audit.html", {"entries": found, "target": target, "older": older})
