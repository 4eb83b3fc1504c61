"""
What an operator can do: each action checked, done and audited in one transaction, and idempotent.

Plain functions on a cursor, for the HTTP door and the command line alike. An action that finds
everything as it is wanted already changes nothing and leaves no line in the audit. What an action
cannot do raises `crq.submissions.Refusal`.

# Note [After the answer]

Pauses, caps and the drain are written under the claim's lock row. A claim that holds it has not
seen them and commits before; one that comes later reads them under the same lock. So once a pause
has been answered, nothing that it holds is claimed any more.

# Note [Gates by hand]

A gate is kept by its store, which may be memcached and knows no transaction. The audit line and the
closing's history are written first, and a line more if the store then fails: an entry without an
effect misleads nobody for long, an effect without an entry does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from crq import audit, controls, executions, gatehistory, records
from crq.audit import Action
from crq.controls import Control, Kind
from crq.database import Cursor
from crq.executions.rows import take_lock
from crq.instants import Instant, iso
from crq.model import ErrorCode, Lane, Limits, Status
from crq.records import Filters
from crq.recordvalues import FullRecord
from crq.submissions import Refusal

PAUSES = {"all": Kind.PAUSE_ALL, "account": Kind.PAUSE_ACCOUNT, "key": Kind.PAUSE_KEY}
BATCH = 500  # rows cancelled in one transaction: its locks stay few
OUTCOMES = {"success": Status.SUCCESS, "failed": Status.FAILED}


@frozen
class By:
    """
    Who acts, when, and why.

    :ivar who: ``token:NAME``, or ``cli:USER@HOST``.
    :ivar note: in their own words.
    """

    who: str
    now: Instant
    note: str | None = None


@frozen
class Done:
    """
    What an action did.

    :ivar changed: False: all was as wanted already.
    """

    changed: bool
    before: Any = None
    after: Any = None

    def as_json(self) -> dict[str, Any]:
        """
        The deed for a machine.
        """
        return {"changed": self.changed, "before": self.before, "after": self.after}


def pause(txn: Cursor, scope: str, name: str, by: By) -> Done:
    """
    Start nothing more of all, of an account or of a key, until it is resumed.

    :param scope: ``all``, ``account`` or ``key``; ``name`` is the hash of the latter two.
    """
    return _set(txn, PAUSES[scope], name, None, Action.PAUSE, _target(scope, name), by)


def resume(txn: Cursor, scope: str, name: str, by: By) -> Done:
    """
    End a pause.
    """
    return _unset(txn, PAUSES[scope], name, Action.RESUME, _target(scope, name), by)


def drain(txn: Cursor, by: By) -> Done:
    """
    Start nothing at all any more, for maintenance; what runs comes to its end.
    """
    return _set(txn, Kind.DRAIN, "", None, Action.DRAIN, "all", by)


def end_drain(txn: Cursor, by: By) -> Done:
    """
    Let work start again.
    """
    return _unset(txn, Kind.DRAIN, "", Action.END_DRAIN, "all", by)


def cap(
    txn: Cursor, account: str | None, value: int, configured: Limits, ceiling: int, by: By
) -> Done:
    """
    Change how many executions may be in flight: over all accounts, or of one.

    :param account: its hash; None: the cap over all.
    :param ceiling: the executor's own limit, which no cap may pass.
    """
    highest = max(ceiling, configured.in_flight)
    if not 1 <= value <= highest:
        why = "use a pause to start nothing" if value < 1 else "raise executor.workers first"
        raise Refusal("value", "is out of range", f"give 1 to {highest}; {why}")
    kind = Kind.CAP_TOTAL if account is None else Kind.CAP_ACCOUNT
    scope = "all" if account is None else "account"
    name = account or ""
    return _set(txn, kind, name, value, Action.CAP, _target(scope, name), by)


def uncap(txn: Cursor, account: str | None, by: By) -> Done:
    """
    Let the configured cap count again.
    """
    kind = Kind.CAP_TOTAL if account is None else Kind.CAP_ACCOUNT
    scope = "all" if account is None else "account"
    return _unset(txn, kind, account or "", Action.UNCAP, _target(scope, account or ""), by)


def cancel(txn: Cursor, execution_id: int, by: By) -> Done:
    """
    Cancel an execution that still waits.
    """
    found = _known(txn, execution_id)
    if executions.cancel(txn, execution_id, by.now):
        before, after = {"status": "queued"}, {"status": "cancelled"}
        target = f"execution:{execution_id}"
        _record(txn, by, Action.CANCEL, target, before, after)
        return Done(True, before, after)
    status = _known(txn, execution_id).record.status
    if status == Status.CANCELLED.value:
        return Done(False, {"status": status}, {"status": status})
    raise Refusal(
        "execution",
        f"does not wait any more: it is {found.record.shown}",
        "what has been claimed or has begun is not stopped",
        409,
    )


def count_waiting(txn: Cursor, filters: Filters) -> tuple[int, bool]:
    """
    Count what `cancel_some` would cancel in the end, up to `records.COUNT_LIMIT`; and whether that
    limit was reached.
    """
    count = executions.count_waiting(
        txn, filters.accounts, filters.apikey_hash, filters.since, filters.until, _limit() + 1
    )
    return min(count, _limit()), count > _limit()


def cancel_some(txn: Cursor, filters: Filters, at_most: int, by: By) -> tuple[int, bool]:
    """
    Cancel the oldest of what waits and fits the filters, at most `BATCH`.

    :return: how many, and whether there may be more.
    """
    cancelled, more = executions.cancel_waiting(
        txn,
        filters.accounts,
        filters.apikey_hash,
        filters.since,
        filters.until,
        min(at_most, BATCH),
        by.now,
    )
    if cancelled:
        after = {"cancelled": cancelled, "filters": filters_json(filters)}
        _record(txn, by, Action.CANCEL_ALL, "queue", None, after)
    return cancelled, more


def run_one(txn: Cursor, execution_id: int, by: By) -> Done:
    """
    Have one execution started although it is paused, as soon as gates and caps let it.
    """
    found = _known(txn, execution_id).record
    if found.status != Status.QUEUED.value or found.subdomain_hash is None:
        problem = f"does not wait any more: it is {found.shown}"
        raise Refusal("execution", problem, "only what waits can be started", 409)
    lane = Lane(found.subdomain_hash, found.apikey_hash)
    held = controls.read(txn).pause_of(lane)
    if held == "drain":
        problem = "nothing is started while the queue drains for maintenance"
        raise Refusal("execution", problem, "end the drain first (`crq drain --end`)", 409)
    if held is None:
        raise Refusal("execution", "is not paused", "it starts by itself in its turn", 409)
    target = f"execution:{execution_id}"
    return _set(txn, Kind.RUN_ONE, str(execution_id), None, Action.RUN_ONE, target, by, lane)


def settle(txn: Cursor, execution_id: int, outcome: str, error_code: int | None, by: By) -> Done:
    """
    Say by hand how an execution ended whose outcome is unknown (303).

    :param outcome: ``success`` or ``failed``.
    :param error_code: of a failure; None: 302, fatal in the executor.
    """
    if outcome not in OUTCOMES:
        raise Refusal("outcome", "is none", f"give one of {', '.join(OUTCOMES)}")
    if outcome == "success" and error_code is not None:
        raise Refusal("errorCode", "does not go with a success", "leave it out")
    code = None if outcome == "success" else int(error_code or ErrorCode.EXECUTOR_FATAL)
    if code not in (None, ErrorCode.SCRIPT_ERROR, ErrorCode.EXECUTOR_FATAL):
        raise Refusal("errorCode", "is none of a script that ran", "give 301 or 302")
    found = _known(txn, execution_id).record
    before = {"status": found.status, "errorCode": found.error_code}
    after = {"status": outcome, "errorCode": code}
    message = f"settled by hand by {by.who}" + (f": {by.note}" if by.note else "")
    if executions.settle_unknown(txn, execution_id, OUTCOMES[outcome], code, message):
        _record(txn, by, Action.SETTLE, f"execution:{execution_id}", before, after)
        return Done(True, before, after)
    now = _known(txn, execution_id).record
    if {"status": now.status, "errorCode": now.error_code} == after:
        return Done(False, after, after)
    problem = f"has no unknown outcome: it is {now.shown}"
    raise Refusal("execution", problem, "only an unknown outcome (303) is settled by hand", 409)


def close_gate(txn: Cursor, key: str, until: Instant, by: By) -> None:
    """
    Note that a gate is about to be closed by hand (see note [Gates by hand]).
    """
    cause = f"closed by hand by {by.who}" + (f": {by.note}" if by.note else "")
    _record(txn, by, Action.CLOSE_GATE, f"key:{key}", None, {"until": iso(until)})
    gatehistory.record(txn, key, until, by.now, cause, limits=0)


def open_gate(txn: Cursor, key: str, by: By) -> None:
    """
    Note that a gate is about to be opened by hand (see note [Gates by hand]).
    """
    _record(txn, by, Action.OPEN_GATE, f"key:{key}", None, None)
    gatehistory.opened_by_hand(txn, key, by.now)


def gate_failed(txn: Cursor, key: str, why: str, by: By) -> None:
    """
    Note that a gate's store did not do what was noted.
    """
    _record(txn, by, Action.GATE_FAILED, f"key:{key}", None, {"problem": why})


def filters_json(filters: Filters) -> Mapping[str, Any]:
    """
    Which rows an action is about, for a machine.
    """
    given = {
        "accounts": None if filters.accounts is None else list(filters.accounts),
        "key": filters.apikey_hash,
        "since": iso(filters.since),
        "until": iso(filters.until),
    }
    return {name: value for name, value in given.items() if value is not None}


def _set(
    txn: Cursor,
    kind: Kind,
    name: str,
    value: int | None,
    action: Action,
    target: str,
    by: By,
    lane: Lane | None = None,
) -> Done:
    take_lock(txn, "codeRunner_drain")  # see note [After the answer]
    known = controls.get(txn, kind, name)
    before = None if known is None else known.as_json()
    if known is not None and known.value == value:
        return Done(False, before, before)
    if known is None and controls.count(txn) >= controls.ROWS_LIMIT:
        problem = f"{controls.ROWS_LIMIT} pauses, caps and requests are set already"
        raise Refusal("control", problem, "take some away first; pause all instead", 409)
    control = Control(kind, name, value, by.now, by.who, by.note)
    controls.put(txn, control, lane)
    _record(txn, by, action, target, before, control.as_json())
    return Done(True, before, control.as_json())


def _unset(txn: Cursor, kind: Kind, name: str, action: Action, target: str, by: By) -> Done:
    take_lock(txn, "codeRunner_drain")
    known = controls.get(txn, kind, name)
    if known is None:
        return Done(False)
    controls.remove(txn, kind, name)
    _record(txn, by, action, target, known.as_json(), None)
    return Done(True, known.as_json())


def _record(txn: Cursor, by: By, action: Action, target: str, before: Any, after: Any) -> None:
    note = None if by.note is None else by.note[: audit.NOTE_LENGTH]
    audit.record(txn, by.who, action, target, by.now, note=note, before=before, after=after)


def _known(txn: Cursor, execution_id: int) -> FullRecord:
    found = records.execution(txn, execution_id)
    if found is None:
        raise Refusal("execution", "there is none of this number", "take one of the log", 404)
    return found


def _limit() -> int:
    return records.COUNT_LIMIT


def _target(scope: str, name: str) -> str:
    return "all" if scope == "all" else f"{scope}:{name}"
