"""
Why one execution waits, where it stands, and when it can start.

`read` is one bounded reading: seeks, counts up to `records.COUNT_LIMIT`, the heads of the lanes.
`explain` is pure and asks the very `policy.plan` that a tick asks, so what it says is what a tick
would do. What it says is made of the values of `crq.explanation`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from statistics import median
from typing import Any

from attrs import evolve, field, frozen

from crq import controls, executions, gatehistory, heartbeat, policy, records, verdict
from crq.database import Cursor
from crq.explanation import BY_HAND, Explanation, Rule, Why
from crq.gatehistory import Closing
from crq.instants import Instant, instant_text, iso
from crq.model import Controls, InFlight, Lane, LaneHead, Limits, Reason, Snapshot, Status
from crq.pulse import Beat, Pulse
from crq.recordvalues import FullRecord, shown_instant, stored_instant, text_of
from crq.search import along

LANES = 100  # lanes of one account that are counted
RECENT = 50  # executions of an account that tell how long one takes


@frozen
class Reading:
    """
    What the database said of one execution and of what decides about it.

    :ivar ahead_in_lane: older executions of its account and key, up to `records.COUNT_LIMIT`.
    :ivar ahead_in_account: older executions of its account, the same.
    :ivar closing: the last closing of its key's gate.
    :ivar service: how long executions of its account take, the median of the last few that went
        well; None: none did.
    """

    found: FullRecord
    lane: Lane | None = None
    heads: tuple[LaneHead, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    controls: Controls = field(factory=Controls)
    beats: tuple[Beat, ...] = ()
    ahead_in_lane: int = 0
    ahead_in_account: int = 0
    closing: Closing | None = None
    service: float | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """
        The API keys whose gates matter: all that a plan looks at.
        """
        keys = {head.lane.apikey_hash for head in self.heads}
        return tuple(sorted(key for key in keys if key is not None))


def read(txn: Cursor, execution_id: int) -> Reading | None:
    """
    Read what an explanation needs; None: there is no such execution.
    """
    found = records.execution(txn, execution_id)
    if found is None:
        return None
    row = found.record
    at = stored_instant(row.queued_at)
    if row.status != Status.QUEUED.value or row.subdomain_hash is None or at is None:
        return Reading(found)
    lane = Lane(row.subdomain_hash, row.apikey_hash)
    heads = executions.heads(txn)
    others = [head.lane for head in heads if head.lane.subdomain_hash == lane.subdomain_hash]
    ahead = {one: _ahead(txn, one, at, execution_id) for one in (lane, *others[:LANES])}
    closings = gatehistory.closings(txn, [row.apikey_hash], 1) if row.apikey_hash else ()
    return Reading(
        found=found,
        lane=lane,
        heads=heads,
        in_flight=executions.in_flight(txn),
        controls=controls.read(txn),
        beats=heartbeat.read(txn),
        ahead_in_lane=ahead[lane],
        ahead_in_account=sum(ahead.values()),
        closing=closings[0] if closings else None,
        service=_service(txn, lane.subdomain_hash),
    )


def _ahead(txn: Cursor, lane: Lane, at: Instant, execution_id: int) -> int:
    # A range of idx_lane; the number at its end settles ties within a millisecond.
    same = "IS" if txn.dialect == "sqlite" else "<=>"
    count = txn.execute(
        "SELECT COUNT(*) FROM (SELECT 1 FROM codeRunner_executions"  # noqa: S608 - fixed
        f" WHERE status = 'queued' AND subdomain_hash = ? AND apikey_hash {same} ?"
        " AND queued_at <= ? AND (queued_at < ? OR execution_id < ?) LIMIT ?) AS ahead",
        (
            lane.subdomain_hash,
            lane.apikey_hash,
            *[instant_text(at)] * 2,
            execution_id,
            records.COUNT_LIMIT,
        ),
    ).scalar()
    return int(count)


def _service(txn: Cursor, account: str) -> float | None:
    rows = txn.execute(
        "SELECT status, started_at, finished_at"  # noqa: S608 - fixed
        f" FROM codeRunner_executions {along(txn, ('subdomain_hash = ?',))}"
        " WHERE subdomain_hash = ? ORDER BY queued_at DESC, execution_id DESC LIMIT ?",
        (account, RECENT),
    ).all()
    spans = (
        (stored_instant(text_of(started)), stored_instant(text_of(finished)))
        for status, started, finished in rows
        if status == Status.SUCCESS.value
    )
    # Wall clocks go back now and then, and a service time is never less than nothing.
    seconds = [
        max(0.0, end - begin) for begin, end in spans if begin is not None and end is not None
    ]
    return median(seconds) if seconds else None


def explain(
    reading: Reading,
    gates: Mapping[str, Instant],
    limits: Limits,
    now: Instant,
    *,
    half_open: Collection[str] = (),
    pulse: Pulse | None = None,
    drainer_id: str = "",
    monotonic: float = 0.0,
    tick: float = 1.0,
) -> Explanation:
    """
    Explain one execution.

    :param gates: until when each key of `Reading.keys` is closed.
    :param limits: the configured caps; what operators have set comes on top.
    :param pulse: of this process's daemon, if it has one; the other arguments go with it.
    """
    row, lane = reading.found.record, reading.lane
    if lane is None:
        return Explanation(row.execution_id, row.shown, (_past(reading.found),))
    if pulse is not None:
        own = pulse.beat(drainer_id, now, monotonic)
        beats = (own, *(beat for beat in reading.beats if beat.drainer_id != drainer_id))
        reading = evolve(reading, beats=beats)
    limits = reading.controls.over(limits)
    closed = {key: until for key, until in gates.items() if until > now}
    lanes = {
        hold.lane: hold.until
        for hold in (pulse.plan.holds if pulse is not None else ())
        if hold.reason is Reason.BACKING_OFF and hold.until is not None and hold.until > now
    }
    snapshot = Snapshot(reading.heads, reading.in_flight, reading.controls)
    plan = policy.plan(snapshot, closed, limits, now, half_open=half_open, backing_off=lanes)
    why = [*_service_wide(reading, now, tick), *_paused(reading, lane)]
    until = closed.get(lane.apikey_hash or "")
    if until is not None:
        why.append(_gated(reading, until))
    back_off = [beat.backing_off_until for beat in reading.beats if beat.alive(now)]
    later = [at for at in (*back_off, lanes.get(lane)) if at is not None and at > now]
    if later:
        text = f"the executor took no work; it is tried again at {iso(max(later))}"
        why.append(Why(Rule.BACKING_OFF, text, max(later)))
    hold = next((hold for hold in plan.holds if hold.lane == lane), None)
    if hold is not None and hold.reason in _HELD_BY:
        why.append(_HELD_BY[hold.reason](reading, limits))
    if reading.ahead_in_lane:
        text = f"{reading.ahead_in_lane} older executions of its account and key go first"
        why.append(Why(Rule.BEHIND, text))
    if not why:
        why.append(Why(Rule.STARTABLE, "nothing holds it: it starts with the next tick"))
    earliest = _earliest(why, now)
    return Explanation(
        row.execution_id,
        row.shown,
        tuple(why),
        place_in_lane=reading.ahead_in_lane + 1,
        ahead_in_account=reading.ahead_in_account,
        capped=reading.ahead_in_account >= records.COUNT_LIMIT,
        earliest_start=earliest,
        expected_start=_expected(reading, limits, earliest),
    )


def _past(found: FullRecord) -> Why:
    row = found.record
    if row.status == Status.CLAIMED.value:
        text = f"claimed at {shown_instant(row.claimed_at)}, on its way to the executor"
        return Why(Rule.CLAIMED, text)
    if row.status == Status.RUNNING.value:
        return Why(Rule.RUNNING, f"running since {shown_instant(row.started_at)}")
    said = "" if row.error_code is None else f", {row.error_code}"
    text = f"ended at {shown_instant(row.finished_at)}: {row.shown}{said}"
    return Why(Rule.ENDED, text)


def _service_wide(reading: Reading, now: Instant, tick: float) -> Iterable[Why]:
    ready = any(
        beat.alive(now)
        and beat.last_good_age is not None
        and beat.last_good_age < verdict.stale_after(tick)
        and not beat.stopping
        for beat in reading.beats
    )
    if not ready:
        said = verdict.troubles(reading.beats, now, tick, False)
        problem = "; ".join(trouble.problem for trouble in said)
        yield Why(Rule.NO_DRAINER, f"nobody starts work: {problem}")


def _paused(reading: Reading, lane: Lane) -> Iterable[Why]:
    scope = reading.controls.pause_of(lane)
    number = reading.found.record.execution_id
    asked = any(request.execution_id == number for request in reading.controls.run_one)
    if scope == "drain":
        yield Why(Rule.DRAINING, "the queue drains for maintenance: nothing is started")
    elif scope is not None and not asked:
        whose = {"all": "everything is", "account": "its account is", "key": "its key is"}[scope]
        yield Why(Rule.PAUSED, f"{whose} paused by an operator")


def _gated(reading: Reading, until: Instant) -> Why:
    text = f"its key is closed until {iso(until)}"
    closing = reading.closing
    if closing is not None and closing.opened_at is None:
        text += f"; {closing.cause} (at {shown_instant(closing.closed_at)})"
    return Why(
        Rule.GATED,
        text,
        until,
        () if closing is None or closing.execution_id is None else (closing.execution_id,),
    )


def _half_open(reading: Reading, _limits: Limits) -> Why:
    by = _flying(reading, lambda lane: lane.apikey_hash == _lane(reading).apikey_hash)
    text = f"its key's gate has just opened: {_named(by)} goes first"
    return Why(Rule.HALF_OPEN, text, None, by)


def _account_full(reading: Reading, limits: Limits) -> Why:
    account = _lane(reading).subdomain_hash
    by = _flying(reading, lambda lane: lane.subdomain_hash == account)
    cap = limits.of(account)
    if len(by) < cap:
        text = "older work of its account takes the slot that is free"
    else:
        text = f"its account has {len(by)} of {cap} in flight: {_named(by)}"
    return Why(Rule.ACCOUNT_FULL, text, None, by)


def _pool_full(reading: Reading, limits: Limits) -> Why:
    by = _flying(reading, lambda _: True)
    if len(by) < limits.in_flight:
        text = "older work takes the slots that are free"
    else:
        text = f"all {limits.in_flight} slots are taken: {_named(by)}"
    return Why(Rule.POOL_FULL, text, None, by)


_HELD_BY = {
    Reason.HALF_OPEN: _half_open,
    Reason.ACCOUNT_FULL: _account_full,
    Reason.POOL_FULL: _pool_full,
}


def _lane(reading: Reading) -> Lane:
    assert reading.lane is not None
    return reading.lane


def _flying(reading: Reading, which: Any) -> tuple[int, ...]:
    return tuple(sorted(row.execution_id for row in reading.in_flight if which(row.lane)))


def _named(by: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, by[:8]))
    return f"executions {shown}" if len(by) > 1 else f"execution {shown}" if by else "another one"


def _earliest(why: Collection[Why], now: Instant) -> Instant | None:
    if any(each.rule in BY_HAND for each in why):
        return None
    return max([now, *(each.until for each in why if each.until is not None)])


def _expected(reading: Reading, limits: Limits, earliest: Instant | None) -> Instant | None:
    if earliest is None or reading.service is None:
        return None
    at_once = min(limits.of(_lane(reading).subdomain_hash), limits.in_flight)
    account = _lane(reading).subdomain_hash
    busy = len(_flying(reading, lambda lane: lane.subdomain_hash == account))
    rounds = (reading.ahead_in_account + busy) // at_once
    return earliest + rounds * reading.service
