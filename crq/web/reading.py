"""
What can be read over HTTP: the log, one execution and why it waits, the status, health, accounts,
drainers, gates, the series, the audit.
"""

from __future__ import annotations

from attrs import evolve
from twisted.web.iweb import IRequest

from crq import (
    accounts,
    audit,
    controls,
    drainers,
    explain,
    gatehistory,
    records,
    schema,
    series,
    status,
)
from crq.explanation import Explanation
from crq.instants import iso
from crq.recordvalues import FullRecord
from crq.statusreport import StatusReport
from crq.submissions import Refusal
from crq.verdict import not_ready
from crq.web import answers, bodies
from crq.web.answers import Reply
from crq.web.door import Door, routes
from crq.web.rates import NOBODY
from crq.web.tokens import Caller

HOURS = 4 * 3600.0  # s of the series that are shown when nobody says which


@routes.route("/codeRunner/logs/data", methods=["GET"])
async def logs(door: Door, request: IRequest) -> bytes:
    """
    One page of the log.
    """
    caller = await door.caller(request, "read")
    filters, cursor, limit = bodies.query(request.args, door.sealer)
    filters = evolve(filters, accounts=own_accounts(caller, filters.accounts))
    try:
        page = await door.pool.read(records.page, filters, cursor, limit)
    except ValueError as error:
        raise Refusal("cursor", "is not one", str(error)) from None
    body = {
        "executions": [record.as_json() for record in page.records],
        "cursor": page.cursor,
        "searchedTo": page.searched_to,
    }
    return door.reply(request, Reply(200, body))


@routes.route("/codeRunner/executions/<int:execution_id>", methods=["GET"])
async def execution(door: Door, request: IRequest, execution_id: int) -> bytes:
    """
    One execution.
    """
    caller = await door.caller(request, "read")
    found = await known(door, caller, execution_id)
    return door.reply(request, Reply(200, found.as_json()))


@routes.route("/codeRunner/executions/<int:execution_id>/explain", methods=["GET"])
async def explained(door: Door, request: IRequest, execution_id: int) -> bytes:
    """
    Why one execution waits, and when it can start.
    """
    caller = await door.caller(request, "read")
    await known(door, caller, execution_id)
    explanation = await explanation_of(door, execution_id)
    if caller.accounts is not None:
        explanation = explanation.limited()
    return door.reply(request, Reply(200, explanation.as_json()))


async def explanation_of(door: Door, execution_id: int) -> Explanation:
    """
    Explain one execution, for JSON and pages alike.

    :raise Refusal: there is no such execution.
    """
    reading = await door.pool.read(explain.read, execution_id)
    if reading is None:
        raise _no_execution()
    await door.look_at_gates(reading.keys)
    now = door.wall()
    return explain.explain(
        reading,
        door.gates.closed(now),
        door.limits(),
        now,
        half_open=door.half_open,
        pulse=door.pulse,
        drainer_id=door.config.drainer.id,
        monotonic=door.monotonic(),
        tick=door.config.drainer.tick,
    )


async def known(door: Door, caller: Caller, execution_id: int) -> FullRecord:
    """
    Read an execution that the caller may see.

    :raise Refusal: there is none. What belongs to others is not even there.
    """
    found = await door.pool.read(records.execution, execution_id)
    if found is None or not caller.owns(found.record.subdomain_hash):
        raise _no_execution()
    return found


def _no_execution() -> Refusal:
    return Refusal("execution", "there is none of this number", "take a number out of the log", 404)


def own_accounts(caller: Caller, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """
    The accounts that a question is about, given who asks.

    :raise Refusal: it is about others.
    """
    if caller.accounts is None:
        return wanted
    if wanted is None:
        return tuple(sorted(caller.accounts))
    if not caller.accounts.issuperset(wanted):
        raise Refusal("account", "this token may not read it", "use a token of this account", 403)
    return wanted


def unlimited(caller: Caller) -> None:
    """
    Make sure that the caller is not limited to some accounts.

    :raise Refusal: it is.
    """
    if caller.accounts is not None:
        remedy = "use a token that is not limited to accounts"
        raise Refusal("Authorization", "this token may see its own accounts alone", remedy, 403)


@routes.route("/status", methods=["GET"])
async def status_report(door: Door, request: IRequest) -> bytes:
    """
    How the queue is.
    """
    caller = await door.caller(request, "read")
    report = limited(await door.report(), caller)
    return door.reply(request, Reply(200, status.as_json(report)))


def limited(report: StatusReport, caller: Caller) -> StatusReport:
    """
    What of a report the caller may see.
    """
    return report if caller.accounts is None else report.limited_to(caller.accounts)


@routes.route("/accounts", methods=["GET"])
async def account_list(door: Door, request: IRequest) -> bytes:
    """
    How each account fares.
    """
    caller = await door.caller(request, "read")
    bodies.names(request.args, ())
    only = None if caller.accounts is None else sorted(caller.accounts)
    found = await door.pool.read(accounts.read, door.limits(), door.wall(), only)
    return door.reply(request, Reply(200, {"accounts": [each.as_json() for each in found]}))


@routes.route("/drainers", methods=["GET"])
async def drainer_list(door: Door, request: IRequest) -> bytes:
    """
    Who drains, and what each has in flight.
    """
    caller = await door.caller(request, "read")
    unlimited(caller)
    bodies.names(request.args, ())
    found = await door.pool.read(drainers.read, door.wall())
    return door.reply(request, Reply(200, {"drainers": [each.as_json() for each in found]}))


@routes.route("/gates", methods=["GET"])
async def gate_list(door: Door, request: IRequest) -> bytes:
    """
    Gates that are closed now, and what became of gates before.
    """
    caller = await door.caller(request, "read")
    given = bodies.names(request.args, ("key", "before", "limit"))
    report = limited(await door.report(names=False), caller)
    shown = [gate.apikey_hash for gate in report.gates]
    keys = None if caller.accounts is None else shown
    if "key" in given:
        key = bodies.hash_of("key", given["key"])
        if keys is not None and key not in keys:
            raise Refusal("key", "this token may not read it", "use a token of its account", 403)
        keys = [key]
    limit = bodies.number("limit", given.get("limit"), 1, 500) or 100
    before = bodies.instant("before", given.get("before"))
    closings = await door.pool.read(gatehistory.closings, keys, limit, before)
    body = {
        "closed": status.as_json(report)["gates"],
        "reachable": report.gates_reachable,
        "history": [closing.as_json() for closing in closings],
    }
    return door.reply(request, Reply(200, body))


@routes.route("/series", methods=["GET"])
async def series_list(door: Door, request: IRequest) -> bytes:
    """
    The minutes of a span; of the last hours when nobody says which.
    """
    caller = await door.caller(request, "read")
    unlimited(caller)
    given = bodies.names(request.args, ("since", "until"))
    until = bodies.instant("until", given.get("until")) or door.wall()
    since = bodies.instant("since", given.get("since"))
    since = until - HOURS if since is None else since
    found = await door.pool.read(series.read, since, until)
    body = {
        "since": iso(since),
        "until": iso(until),
        "minutes": [sample.as_json() for sample in found],
    }
    return door.reply(request, Reply(200, body))


@routes.route("/controls", methods=["GET"])
async def control_list(door: Door, request: IRequest) -> bytes:
    """
    What operators have set.
    """
    caller = await door.caller(request, "read")
    unlimited(caller)
    found = await door.pool.read(controls.listed)
    return door.reply(request, Reply(200, {"controls": [each.as_json() for each in found]}))


@routes.route("/audit", methods=["GET"])
async def audit_page(door: Door, request: IRequest) -> bytes:
    """
    Who did what.
    """
    caller = await door.caller(request, "read")
    unlimited(caller)
    given = bodies.names(request.args, ("target", "below", "limit"))
    limit = bodies.number("limit", given.get("limit"), 1, audit.PAGE_LIMIT) or audit.PAGE
    below = bodies.number("below", given.get("below"), 0, 2**62)
    found = await door.pool.read(audit.page, given.get("target"), below, limit)
    return door.reply(request, Reply(200, {"entries": [entry.as_json() for entry in found]}))


# -- health; for load balancers and supervisors, so without a token and without detail


@routes.route("/health/live", methods=["GET"])
def live(door: Door, request: IRequest) -> bytes:
    """
    This process answers.
    """
    return door.reply(request, Reply(200, {"live": True}))


@routes.route("/health/ready", methods=["GET"])
async def ready(door: Door, request: IRequest) -> bytes:
    """
    This process starts work; one that only admits: its database answers.
    """
    if door.pulse is None:
        door.count(request, NOBODY)
        await door.pool.read(schema.check)
        return door.reply(request, Reply(200, {"ready": True}))
    problem = not_ready(door.pulse, door.monotonic(), door.config.drainer.tick)
    if problem is None:
        return door.reply(request, Reply(200, {"ready": True}))
    body = {"ready": False, "problem": problem}
    return door.reply(request, Reply(503, body, answers.RETRY_SOON))


@routes.route("/health/verdict", methods=["GET"])
async def verdict(door: Door, request: IRequest) -> bytes:
    """
    The queue's one word, as a health check: 503 while it is stalled.
    """
    door.count(request, NOBODY)
    report = await door.report(names=False)
    stalled = report.verdict.value == "stalled"
    body = {"verdict": report.verdict.value, "stalled": stalled}
    retry = answers.RETRY_SOON if stalled else None
    return door.reply(request, Reply(503 if stalled else 200, body, retry))
