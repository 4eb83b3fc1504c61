"""
The forms of the pages: every action of `crq.actions`, for tokens with the scope ``operate``.

What a token may act on is what it may act on over the API (`crq.web.operating`). An action answers
with the page it was asked on, which then says what was done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve
from twisted.web.iweb import IRequest

from crq import actions, records
from crq.actions import By, Done
from crq.audit import NOTE_LENGTH
from crq.instants import instant_text
from crq.policy import RETRY_AFTER_MAXIMUM
from crq.submissions import Refusal
from crq.web import bodies, operating
from crq.web.door import Door, routes
from crq.web.pages.desk import Elsewhere, Shown, Visitor, inside, page
from crq.web.reading import known, own_accounts, unlimited

SCOPE = operating.SCOPE
UNDO = "undo"  # the value of ``do`` that takes something back


@routes.route("/ui/do/pause", methods=["POST"])
@page(SCOPE)
async def pause(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Pause or resume everything, an account or a key.
    """
    scope = visitor.given("scope") or ""
    name = visitor.given("name") or ""
    if scope == "account":
        name = bodies.account_of(name, door.sealer)
        if not visitor.caller.owns(name):
            remedy = "use a token of this account"
            raise Refusal("account", "this token may not act for it", remedy, 403)
    else:
        unlimited(visitor.caller)
        if scope == "key":
            name = bodies.hash_of("key", name)
        elif scope != "all":
            raise Refusal("scope", "is none", "give all, account or key")
    action, word = (actions.resume, "Resumed") if _undo(visitor) else (actions.pause, "Paused")
    by = _by(door, visitor)
    text = f"{word}: {await _named(door, scope, name)}"
    return await _do(door, visitor, text, action, scope, name, by)


@routes.route("/ui/do/cap", methods=["POST"])
@page(SCOPE)
async def cap(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Change how many executions may be in flight, or let the configured cap count again.
    """
    unlimited(visitor.caller)
    name = visitor.given("name")
    account = None if name is None else bodies.account_of(name, door.sealer)
    whose = await _named(door, "all" if account is None else "account", account or "")
    by = _by(door, visitor)
    if _undo(visitor):
        text = f"The configured cap counts again: {whose}"
        return await _do(door, visitor, text, actions.uncap, account, by)
    value = _number(visitor, "value")
    ceiling = door.config.executor.workers
    text = f"At most {value} in flight: {whose}"
    return await _do(door, visitor, text, actions.cap, account, value, door.limits(), ceiling, by)


@routes.route("/ui/do/drain", methods=["POST"])
@page(SCOPE)
async def drain(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Start nothing any more, for maintenance; or end that.
    """
    unlimited(visitor.caller)
    by = _by(door, visitor)
    if _undo(visitor):
        return await _do(door, visitor, "The drain is over", actions.end_drain, by)
    return await _do(door, visitor, "Draining: nothing is started any more", actions.drain, by)


@routes.route("/ui/do/gate", methods=["POST"])
@page(SCOPE)
async def gate(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Close a gate by hand for some minutes, or open it.
    """
    unlimited(visitor.caller)
    key = bodies.hash_of("key", visitor.wanted("key", "give the hash of the API key"))
    by = _by(door, visitor)
    if _undo(visitor):
        await operating.open_gate(door, key, by)
        visitor.session.notice(f"Opened the gate of key {key[:10]}…")
        return _back(visitor)
    seconds = _number(visitor, "minutes") * 60
    if not 0 < seconds <= RETRY_AFTER_MAXIMUM:
        remedy = f"give 1 to {RETRY_AFTER_MAXIMUM // 60} minutes"
        raise Refusal("minutes", "is out of range", remedy)
    until = await operating.close_gate(door, key, door.wall() + seconds, by)
    visitor.session.notice(f"Key {key[:10]}… is closed until {instant_text(until)[:19]} UTC")
    return _back(visitor)


@routes.route("/ui/executions/<int:execution_id>/cancel", methods=["POST"])
@page(SCOPE)
async def cancel(door: Door, request: IRequest, visitor: Visitor, execution_id: int) -> Shown:
    """
    Cancel one execution that waits.
    """
    await known(door, visitor.caller, execution_id)
    text = f"Cancelled execution {execution_id}"
    return await _do(door, visitor, text, actions.cancel, execution_id, _by(door, visitor))


@routes.route("/ui/executions/<int:execution_id>/run-one", methods=["POST"])
@page(SCOPE)
async def run_one(door: Door, request: IRequest, visitor: Visitor, execution_id: int) -> Shown:
    """
    Have one execution started although it is paused.
    """
    await known(door, visitor.caller, execution_id)
    text = f"Execution {execution_id} starts as soon as gates and caps let it"
    return await _do(door, visitor, text, actions.run_one, execution_id, _by(door, visitor))


@routes.route("/ui/executions/<int:execution_id>/settle", methods=["POST"])
@page(SCOPE)
async def settle(door: Door, request: IRequest, visitor: Visitor, execution_id: int) -> Shown:
    """
    Say how an execution ended whose outcome is unknown.
    """
    await known(door, visitor.caller, execution_id)
    outcome = visitor.wanted("outcome", "give success, or failed with its code")
    outcome, _, code = outcome.partition(" ")
    number = bodies.number("errorCode", code or None, 0, 999)
    text = f"Settled execution {execution_id} as {outcome}"
    by = _by(door, visitor)
    return await _do(door, visitor, text, actions.settle, execution_id, outcome, number, by)


@routes.route("/ui/executions/cancel", methods=["POST"])
@page(SCOPE)
async def cancel_all(door: Door, request: IRequest, visitor: Visitor) -> Shown:
    """
    Cancel what waits and fits the filters, if it is no more than was shown.
    """
    given = {name: visitor.form[name] for name in bodies.SELECTION if visitor.given(name)}
    wanted = bodies.selection(given, door.sealer)
    wanted = evolve(wanted, accounts=own_accounts(visitor.caller, wanted.accounts))
    expected = _number(visitor, "expected")
    done = await operating.cancel_matching(door, wanted, expected, _by(door, visitor))
    visitor.session.notice(f"Cancelled {done['cancelled']} executions")
    return _back(visitor)


async def _do(
    door: Door, visitor: Visitor, text: str, action: Callable[..., Done], *given: Any
) -> Shown:
    done = await door.pool.transact(action, *given)
    if done.changed:
        door.wake()
    visitor.session.notice(text if done.changed else f"{text} (it was so already)")
    return _back(visitor)


def _back(visitor: Visitor) -> Elsewhere:
    return Elsewhere(inside(visitor.form.get("back")))


def _by(door: Door, visitor: Visitor) -> By:
    note = visitor.given("note")
    if note is not None and len(note) > NOTE_LENGTH:
        raise Refusal("note", "is too long", f"use at most {NOTE_LENGTH} characters")
    return door.by(visitor.caller, note)


def _undo(visitor: Visitor) -> bool:
    return visitor.given("do") == UNDO


def _number(visitor: Visitor, name: str) -> int:
    text = visitor.wanted(name, "give a whole number")
    return bodies.number(name, text, 0, 10**9) or 0


async def _named(door: Door, scope: str, name: str) -> str:
    if scope == "all":
        return "the whole queue"
    known = await door.pool.read(records.subdomains, [name]) if scope == "account" else {}
    return f"{scope} {known.get(name) or name[:10] + '…'}"
