"""
The rules of the queue, pure: the same arguments give the same answer; no I/O and no clock.

# Note [Lanes instead of rows]

A plan looks at the oldest instant of each lane and never at the rows behind it, so its cost follows
the number of lanes. It is exact all the same. Walk the startable heads from old to new and stop
counting a lane in once the free slots, or the account's room, are spoken for: every lane left out
has that many older startable rows in front of it, so no row of it can be among those that a FIFO
walk over all rows would start. `pick` then merges the rows of the chosen lanes. (Lanes whose heads
share a millisecond go by their name: a head does not know its id.)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from attrs import evolve

from crq.instants import Instant
from crq.messages import Answered, DispatchResult, RowState, Settlement
from crq.model import (
    Candidate,
    ErrorCode,
    Hold,
    InFlight,
    Lane,
    LaneHead,
    Limits,
    Plan,
    Reason,
    RunOne,
    Snapshot,
    Status,
    Take,
)

RETRY_AFTER_DEFAULT = 60  # s; nothing usable was said: wait as the API's own 401 ladder does
RETRY_AFTER_MINIMUM = 5  # s; "0" must not become a tight loop
RETRY_AFTER_MAXIMUM = 86_400  # s; no API closes a key for longer than a day in earnest
RETRY_AFTER_EPOCH = 10**9  # an integer above this is an instant, not a duration
GATE_MARGIN = 5.0  # s; the API's clock and ours differ (brief §8)
GATE_TTL_MINIMUM = 300  # s (brief §8)
GATE_TTL_MARGIN = 120  # s (brief §8)
BACK_OFF_FIRST = 0.5  # s
BACK_OFF_LAST = 15.0  # s
ASKS_FOR_A_PAUSE = frozenset({429, 503})  # of an executor, with Retry-After
PAUSE_MAXIMUM = 60.0  # s; a try a minute costs nothing, a wrong header could cost a day
SPEAKS_OF_THE_ROW = frozenset({400, 413, 422})  # of an answer that came before a start


def plan(
    snapshot: Snapshot,
    gates: Mapping[str, Instant],
    limits: Limits,
    now: Instant,
    *,
    half_open: Collection[str] = (),
    backing_off: Mapping[Lane, Instant] | None = None,
) -> Plan:
    """
    Decide which lanes start rows now, and why each other lane waits.

    :param limits: the caps in force, with what operators have set (`Controls.over`).
    :param gates: until when a key is closed; a key that does not appear is open.
    :param half_open: keys whose gate has passed and of which one execution goes first.
    :param backing_off: lanes whose last dispatch met an executor that could not take it.
    """
    controls = snapshot.controls
    backing_off = backing_off or {}
    accounts = Counter(flight.lane.subdomain_hash for flight in snapshot.in_flight)
    keys = Counter(flight.lane.apikey_hash for flight in snapshot.in_flight)
    free = limits.in_flight - len(snapshot.in_flight)

    def held(lane: Lane) -> tuple[Reason, Instant | None] | None:
        # The rules that no operator's request overrides.
        key = lane.apikey_hash
        until = gates.get(key, 0.0) if key is not None else 0.0
        if until > now:
            return Reason.GATED, until
        if backing_off.get(lane, 0.0) > now:
            return Reason.BACKING_OFF, backing_off[lane]
        if key in half_open and keys[key] > 0:
            return Reason.HALF_OPEN, None
        if accounts[lane.subdomain_hash] >= limits.of(lane.subdomain_hash):
            return Reason.ACCOUNT_FULL, None
        return (Reason.POOL_FULL, None) if free <= 0 else None

    picks: list[RunOne] = []
    for request in sorted(controls.run_one, key=_asked):
        if not controls.draining and held(request.lane) is None:
            picks.append(request)
            accounts[request.lane.subdomain_hash] += 1
            keys[request.lane.apikey_hash] += 1
            free -= 1
    slots = free
    takes: list[Take] = []
    holds: list[Hold] = []
    for head in sorted(snapshot.heads, key=_age):
        account, key = head.lane.subdomain_hash, head.lane.apikey_hash
        room = limits.of(account) - accounts[account]
        paused = controls.pause_of(head.lane) is not None
        why = (Reason.PAUSED, None) if paused else held(head.lane)
        if why is not None:
            holds.append(Hold(head.lane, head.queued_at, *why))
        else:
            at_most = 1 if key in half_open else min(slots, room + _taken(takes, account))
            takes.append(Take(head.lane, head.queued_at, at_most, key in half_open))
            accounts[account] += 1
            keys[key] += 1
            free -= 1
    return Plan(tuple(takes), tuple(holds), tuple(picks))


def _asked(request: RunOne) -> tuple[Instant, int]:
    return (request.asked_at, request.execution_id)


def _age(head: LaneHead) -> tuple[Instant, str, str]:
    return (head.queued_at, head.lane.subdomain_hash, head.lane.apikey_hash or "")


def _taken(takes: Iterable[Take], account: str) -> int:
    return sum(1 for take in takes if take.lane.subdomain_hash == account)


def pick(
    candidates: Iterable[Candidate],
    in_flight: Iterable[InFlight],
    limits: Limits,
    first: Collection[int] = (),
) -> tuple[Candidate, ...]:
    """
    Choose, oldest first, what still fits under both caps.

    :param candidates: rows that the claim has locked, at most ``Take.at_most`` of each lane.
    :param in_flight: what is in flight as read under the claim's lock.
    :param first: executions that go before all others, because an operator asked for them.
    """
    accounts = Counter(flight.lane.subdomain_hash for flight in in_flight)
    free = limits.in_flight - sum(accounts.values())
    chosen: list[Candidate] = []

    def turn(row: Candidate) -> tuple[bool, Instant, int]:
        return (row.execution_id not in first, row.queued_at, row.execution_id)

    for row in sorted(candidates, key=turn):
        if len(chosen) >= free:
            break
        if accounts[row.lane.subdomain_hash] < limits.of(row.lane.subdomain_hash):
            accounts[row.lane.subdomain_hash] += 1
            chosen.append(row)
    return tuple(chosen)


def own_share(
    limits: Limits,
    in_flight: Collection[InFlight],
    slots: int,
    drainer_id: str,
    outstanding: Collection[int],
) -> Limits:
    """
    The caps as they are for one of several drainers, which takes no more than its own slots.

    :param outstanding: what it waits for, whatever the rows say.
    """
    own = sum(
        flight.execution_id in outstanding or flight.drainer_id == drainer_id
        for flight in in_flight
    )
    return evolve(limits, in_flight=min(limits.in_flight, len(in_flight) - own + slots))


def admission(account_depth: int, total_depth: int, limits: Limits) -> str | None:
    """
    Say which cap refuses one more row: ``account``, ``total``, or None when it fits.
    """
    if account_depth >= limits.queued_per_account:
        return "account"
    if total_depth >= limits.queued_total:
        return "total"
    return None


def settle(result: DispatchResult, claim_epoch: int, row: RowState | None) -> Settlement:
    """
    Decide what becomes of a row whose dispatch has ended, from the answer and the row itself.

    The row says whether it began; the answer only why it did not. What speaks of the executor never
    costs a row (ruling 5), and a row that has begun is never started again.

    :param claim_epoch: the claim that was dispatched; a row claimed anew since is somebody else's.
    """
    if row is None or (row.status == Status.CLAIMED.value and row.claim_epoch != claim_epoch):
        return Settlement.NOTHING
    if row.status == Status.RUNNING.value:
        if isinstance(result, Answered) and result.outcome is not None:
            return Settlement.FINISH
        return Settlement.ASK_LIVENESS
    if row.status != Status.CLAIMED.value:
        return Settlement.NOTHING
    if isinstance(result, Answered):
        if result.error_code == ErrorCode.NONCE_INVALID:
            return Settlement.RELEASE_AND_BACK_OFF
        if result.http_status in SPEAKS_OF_THE_ROW and result.error_code != ErrorCode.NONCE_MISSING:
            return Settlement.FAIL
    return Settlement.RELEASE_AND_BACK_OFF


def back_off(failures: int) -> float:
    """
    Seconds to wait after the n-th failure in a row (n from 1): 0.5, 1, 2, … 15.
    """
    return float(min(BACK_OFF_LAST, BACK_OFF_FIRST * 2 ** min(failures - 1, 10)))


def pause_asked(result: DispatchResult, now: Instant) -> float | None:
    """
    Seconds for which an executor that took no work asks to be left alone, at most a minute.

    :return: None: it does not ask, and the back-off decides.
    """
    if not isinstance(result, Answered) or result.http_status not in ASKS_FOR_A_PAUSE:
        return None
    if result.retry_after is None:
        return None
    return min(PAUSE_MAXIMUM, float(retry_after(result.retry_after, now)))


_DIGITS = re.compile(r"[0-9]{1,100}\Z")
_FRACTION = re.compile(r"[0-9]{1,100}\.[0-9]{1,100}\Z")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DATES = (  # RFC 9110 §5.6.7: IMF-fixdate, RFC 850, asctime
    re.compile(
        rf"\w{{3}}, (?P<day>\d\d) (?P<month>\w{{3}}) (?P<year>\d{{4}}) {_CLOCK} GMT\Z", re.A
    ),
    re.compile(rf"\w{{6,9}}, (?P<day>\d\d)-(?P<month>\w{{3}})-(?P<year>\d\d) {_CLOCK} GMT\Z", re.A),
    re.compile(rf"\w{{3}} (?P<month>\w{{3}}) (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})\Z", re.A),
)


def retry_after(value: str | None, now: Instant, shortest: int = RETRY_AFTER_MINIMUM) -> int:
    """
    Read a Retry-After value as whole seconds to wait, 5 to 86,400 (ruling 9, RFC 9110 §10.2.3).

    Unreadable never means "no wait": whatever cannot be understood waits the default of 60 s.

    :param shortest: seconds that are waited at least.
    """
    text = (value or "").strip(" \t")
    wait: float
    if _DIGITS.match(text):
        number = int(text)
        wait = number - now if number > RETRY_AFTER_EPOCH else number
    elif _FRACTION.match(text):
        wait = math.ceil(float(text))
    else:
        date = _http_date(text, now)
        wait = -1 if date is None else date - now
    if wait < 0:
        return RETRY_AFTER_DEFAULT
    return min(RETRY_AFTER_MAXIMUM, max(shortest, math.ceil(wait)))


def _http_date(text: str, now: Instant) -> Instant | None:
    for form in _DATES:
        match = form.match(text)
        if match is None or match["month"] not in _MONTHS:
            continue
        year = int(match["year"])
        if year < 100:
            # RFC 9110: a two-digit year more than 50 years ahead is of the past century.
            this_year = datetime.fromtimestamp(now, UTC).year
            year += this_year - this_year % 100
            year -= 100 if year > this_year + 50 else 0
        try:
            moment = datetime(
                year,
                _MONTHS.index(match["month"]) + 1,
                int(match["day"]),
                int(match["hour"]),
                int(match["minute"]),
                min(int(match["second"]), 59),  # a leap second is a legal :60
                tzinfo=UTC,
            )
        except ValueError:
            return None
        return moment.timestamp()
    return None


def gate_until(wait: int, now: Instant, margin: float = GATE_MARGIN) -> int:
    """
    The instant, in whole POSIX seconds, until which a 429 with this wait closes its key (brief §8).

    :param margin: seconds added, since the API's clock and ours differ.
    """
    return math.ceil(now + wait + margin)


def gate_ttl(closed_until: Instant, now: Instant) -> int:
    """
    Seconds for which a gate is kept: max(300, wait + 120), counted from the wait it stands for.
    """
    wait = math.ceil(closed_until - now - GATE_MARGIN)
    return max(GATE_TTL_MINIMUM, wait + GATE_TTL_MARGIN)
