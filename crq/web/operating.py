"""
What an operator can do over HTTP (scope ``operate``); each is audited under the token's name.

A token that is limited to accounts may pause and resume those, and cancel, start and settle their
executions; keys, caps, gates and the queue as a whole are for tokens without that limit. All of it
is idempotent: asking twice changes nothing the second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve
from twisted.web.iweb import IRequest

from crq import actions
from crq.actions import By, Done
from crq.audit import NOTE_LENGTH
from crq.gatevalues import GatesUnreachable
from crq.instants import iso
from crq.policy import RETRY_AFTER_MAXIMUM
from crq.records import Filters
from crq.submissions import Refusal, visible
from crq.web import bodies
from crq.web.answers import Reply
from crq.web.door import Door, routes
from crq.web.reading import known, own_accounts, unlimited
from crq.web.tokens import Caller

SCOPE = "operate"


@routes.route("/controls/pause/all", methods=["PUT", "DELETE"])
async def pause_all(door: Door, request: IRequest) -> bytes:
    """
    Pause or resume everything.
    """
    caller = await door.caller(request, SCOPE)
    unlimited(caller)
    return await _pause(door, request, caller, "all", "")


@routes.route("/controls/pause/account/<name>", methods=["PUT", "DELETE"])
async def pause_account(door: Door, request: IRequest, name: str) -> bytes:
    """
    Pause or resume an account.
    """
    caller = await door.caller(request, SCOPE)
    account = bodies.account_of(name, door.sealer)
    if not caller.owns(account):
        remedy = "use a token of this account"
        raise Refusal("account", "this token may not act for it", remedy, 403)
    return await _pause(door, request, caller, "account", account)


@routes.route("/controls/pause/key/<key>", methods=["PUT", "DELETE"])
async def pause_key(door: Door, request: IRequest, key: str) -> bytes:
    """
    Pause or resume an API key, whatever accounts use it.
    """
    caller = await door.caller(request, SCOPE)
    unlimited(caller)
    return await _pause(door, request, caller, "key", bodies.hash_of("key", key))


async def _pause(door: Door, request: IRequest, caller: Caller, scope: str, name: str) -> bytes:
    action = actions.pause if request.method == b"PUT" else actions.resume
    by = _by(door, caller, _given(request))
    return await _do(door, request, action, scope, name, by)


@routes.route("/controls/cap/all", methods=["PUT", "DELETE"])
@routes.route("/controls/cap/account/<name>", methods=["PUT", "DELETE"])
async def cap(door: Door, request: IRequest, name: str | None = None) -> bytes:
    """
    Change how many executions may be in flight, or let the configured cap count again.
    """
    caller = await door.caller(request, SCOPE)
    unlimited(caller)
    account = None if name is None else bodies.account_of(name, door.sealer)
    if request.method == b"DELETE":
        by = _by(door, caller, _given(request))
        return await _do(door, request, actions.uncap, account, by)
    given = _given(request, "value")
    value = _whole("value", given.get("value"))
    ceiling = door.config.executor.workers
    by = _by(door, caller, given)
    return await _do(door, request, actions.cap, account, value, door.limits(), ceiling, by)


@routes.route("/controls/drain", methods=["PUT", "DELETE"])
async def drain(door: Door, request: IRequest) -> bytes:
    """
    Start nothing any more, for maintenance; or end that.
    """
    caller = await door.caller(request, SCOPE)
    unlimited(caller)
    action = actions.drain if request.method == b"PUT" else actions.end_drain
    return await _do(door, request, action, _by(door, caller, _given(request)))


@routes.route("/gates/<key>", methods=["PUT", "DELETE"])
async def gate(door: Door, request: IRequest, key: str) -> bytes:
    """
    Close a gate by hand for some seconds or until an instant, or open it.
    """
    caller = await door.caller(request, SCOPE)
    unlimited(caller)
    key = bodies.hash_of("key", key)
    if request.method == b"DELETE":
        by = _by(door, caller, _given(request))
        await open_gate(door, key, by)
        return door.reply(request, Reply(200, {"key": key, "until": None}))
    given = _given(request, "seconds", "until")
    until = await close_gate(door, key, _until(door, given), _by(door, caller, given))
    return door.reply(request, Reply(200, {"key": key, "until": iso(until)}))


async def close_gate(door: Door, key: str, until: float, by: By) -> float:
    """
    Close a gate by hand; returns until when it is closed now: a longer gate stays.
    """
    await door.pool.transact(actions.close_gate, key, until, by)
    until = await door.gates.close(key, until, by.now)
    door.wake()
    return until


async def open_gate(door: Door, key: str, by: By) -> None:
    """
    Open a gate by hand.

    :raise GatesUnreachable: the store did not do it.
    """
    await door.pool.transact(actions.open_gate, key, by)
    try:
        await door.gates.open(key)
    except GatesUnreachable:
        why = "the gates' store does not answer"
        await door.pool.transact(actions.gate_failed, key, why, by)
        raise
    door.wake()


@routes.route("/codeRunner/executions/<int:execution_id>/cancel", methods=["POST"])
async def cancel(door: Door, request: IRequest, execution_id: int) -> bytes:
    """
    Cancel one execution that waits.
    """
    caller = await door.caller(request, SCOPE)
    given = _given(request)
    await known(door, caller, execution_id)
    return await _do(door, request, actions.cancel, execution_id, _by(door, caller, given))


@routes.route("/codeRunner/executions/<int:execution_id>/run-one", methods=["POST"])
async def run_one(door: Door, request: IRequest, execution_id: int) -> bytes:
    """
    Have one execution started although it is paused.
    """
    caller = await door.caller(request, SCOPE)
    given = _given(request)
    await known(door, caller, execution_id)
    return await _do(door, request, actions.run_one, execution_id, _by(door, caller, given))


@routes.route("/codeRunner/executions/<int:execution_id>/settle", methods=["POST"])
async def settle(door: Door, request: IRequest, execution_id: int) -> bytes:
    """
    Say how an execution ended whose outcome is unknown.
    """
    caller = await door.caller(request, SCOPE)
    given = _given(request, "outcome", "errorCode")
    await known(door, caller, execution_id)
    code = given.get("errorCode")
    code = None if code is None else _whole("errorCode", code)
    outcome = given.get("outcome")
    if not isinstance(outcome, str):
        raise Refusal("outcome", "is no text", "give success or failed")
    by = _by(door, caller, given)
    return await _do(door, request, actions.settle, execution_id, outcome, code, by)


@routes.route("/codeRunner/executions/cancel", methods=["POST"])
async def cancel_all(door: Door, request: IRequest) -> bytes:
    """
    Count what waits and fits the filters; with the count that was seen, cancel it.
    """
    caller = await door.caller(request, SCOPE)
    given = _given(request, "filters", "expected")
    filters = given.get("filters", {})
    if not isinstance(filters, dict):
        raise Refusal("filters", "is no object", "give an object with the filters")
    wanted = bodies.selection(filters, door.sealer)
    wanted = evolve(wanted, accounts=own_accounts(caller, wanted.accounts))
    expected = given.get("expected")
    expected = None if expected is None else _whole("expected", expected)
    body = await cancel_matching(door, wanted, expected, _by(door, caller, given))
    return door.reply(request, Reply(200, body))


async def cancel_matching(
    door: Door, filters: Filters, expected: int | None, by: By
) -> Mapping[str, Any]:
    """
    Count what waits and fits, and cancel it if it is no more than was expected.

    What is admitted from now on is never meant: filters without an end end now.

    :raise Refusal: there is more by now than the caller has seen.
    """
    if filters.until is None:
        filters = evolve(filters, until=(math.floor(by.now * 1000) + 1) / 1000)
    count, capped = await door.pool.read(actions.count_waiting, filters)
    cancelled = 0
    if expected is not None:
        if count > expected:
            problem = f"{count} executions wait by now, not {expected}"
            raise Refusal("expected", problem, "look at the count again", 409)
        more = True
        while more and cancelled < count:
            left = count - cancelled
            done, more = await door.pool.transact(actions.cancel_some, filters, left, by)
            cancelled += done
    return {
        "count": count,
        "capped": capped,
        "cancelled": cancelled,
        "filters": actions.filters_json(filters),
    }


async def _do(door: Door, request: IRequest, action: Callable[..., Done], *args: Any) -> bytes:
    done = await door.pool.transact(action, *args)
    if done.changed:
        door.wake()
    return door.reply(request, Reply(200, done.as_json()))


def _given(request: IRequest, *names: str) -> dict[str, object]:
    """
    Read the fields of an action's body; each may carry a note.
    """
    body = request.content.read()
    media = bodies.media_type(request.requestHeaders) if body else ""
    given = bodies.json_object(body, media)
    for name in given:
        if name not in (*names, "note"):
            hint = f"known are {', '.join((*names, 'note'))}"
            raise Refusal(visible(name), "there is no such field", hint)
    return given


def _by(door: Door, caller: Caller, given: Mapping[str, object]) -> By:
    note = given.get("note")
    if note is not None and not isinstance(note, str):
        raise Refusal("note", "is no text", "say in words why, or leave it out")
    if note is not None and len(note) > NOTE_LENGTH:
        raise Refusal("note", "is too long", f"use at most {NOTE_LENGTH} characters")
    try:
        (note or "").encode("utf-8")
    except UnicodeEncodeError:
        raise Refusal("note", "is not valid Unicode", "remove the lone surrogate") from None
    return door.by(caller, note or None)


def _until(door: Door, given: Mapping[str, object]) -> float:
    now = door.wall()
    seconds, until = given.get("seconds"), given.get("until")
    if (seconds is None) == (until is None):
        raise Refusal("until", "is given twice or not at all", "give seconds, or until")
    if until is not None:
        if not isinstance(until, str):
            raise Refusal("until", "is no instant", "write it as 2026-08-28T12:30:00Z")
        at = bodies.instant("until", until) or 0.0
    else:
        at = now + _whole("seconds", seconds)
    if not now < at <= now + RETRY_AFTER_MAXIMUM:
        remedy = f"give an instant within the next {RETRY_AFTER_MAXIMUM} s"
        raise Refusal("until", "is out of range", remedy)
    return at


def _whole(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 2.0 is one to JSON
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise Refusal(name, "is no whole number", "give a whole number")
    return value
