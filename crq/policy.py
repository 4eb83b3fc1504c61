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
    Snapshot,
    Status,
    Take,
)

RETRY_AFTER_DEFAULT = 60  # s; nothing usable was said: wait as the API's own 401 ladder does
RETRY_AFTER_MINIMUM = 5  # s; "0" must not become a tight loop
RETRY_AFTER_MAXIMUM = 86_400  # s; no API closes a key for longer than a day in earnest
RETRY_AFTER_EPOCH = 10**9  # an integer above this is an instant, not a duration
GATE_MARGIN = 5  # s; the API's clock and ours differ (brief §8)
GATE_TTL_MINIMUM = 300  # s (brief §8)
GATE_TTL_MARGIN = 120  # s (brief §8)
BACK_OFF_FIRST = 0.5  # s
BACK_OFF_LAST = 15.0  # s
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

    :param gates: until when a key is closed; a key that does not appear is open.
    :param half_open: keys whose gate has passed and of which one execution goes first.
    :param backing_off: lanes whose last dispatch met an executor that could not take it.
    """
    backing_off = backing_off or {}
    accounts = Counter(flight.lane.subdomain_hash for flight in snapshot.in_flight)
    keys = Counter(flight.lane.apikey_hash for flight in snapshot.in_flight)
    free = limits.in_flight - len(snapshot.in_flight)
    spoken_for = 0
    takes: list[Take] = []
    holds: list[Hold] = []
    for head in sorted(snapshot.heads, key=_age):
        account, key = head.lane.subdomain_hash, head.lane.apikey_hash
        room = limits.per_account - accounts[account]
        until = gates.get(key, 0.0) if key is not None else 0.0
        if until > now:
            holds.append(Hold(head.lane, head.queued_at, Reason.GATED, until))
        elif backing_off.get(head.lane, 0.0) > now:
            until = backing_off[head.lane]
            holds.append(Hold(head.lane, head.queued_at, Reason.BACKING_OFF, until))
        elif key in half_open and keys[key] > 0:
            holds.append(Hold(head.lane, head.queued_at, Reason.HALF_OPEN))
        elif room <= 0:
            holds.append(Hold(head.lane, head.queued_at, Reason.ACCOUNT_FULL))
        elif free - spoken_for <= 0:
            holds.append(Hold(head.lane, head.queued_at, Reason.POOL_FULL))
        else:
            at_most = 1 if key in half_open else min(free, room + _taken(takes, account))
            takes.append(Take(head.lane, head.queued_at, at_most))
            accounts[account] += 1
            keys[key] += 1
            spoken_for += 1
    return Plan(tuple(takes), tuple(holds))


def _age(head: LaneHead) -> tuple[Instant, str, str]:
    return (head.queued_at, head.lane.subdomain_hash, head.lane.apikey_hash or "")


def _taken(takes: Iterable[Take], account: str) -> int:
    return sum(1 for take in takes if take.lane.subdomain_hash == account)


def pick(
    candidates: Iterable[Candidate], in_flight: Iterable[InFlight], limits: Limits
) -> tuple[Candidate, ...]:
    """
    Choose, oldest first, what still fits under both caps.

    :param candidates: rows that the claim has locked, at most ``Take.at_most`` of each lane.
    :param in_flight: what is in flight as read under the claim's lock.
    """
    accounts = Counter(flight.lane.subdomain_hash for flight in in_flight)
    free = limits.in_flight - sum(accounts.values())
    chosen: list[Candidate] = []
    for row in sorted(candidates, key=lambda row: (row.queued_at, row.execution_id)):
        if len(chosen) >= free:
            break
        if accounts[row.lane.subdomain_hash] < limits.per_account:
            accounts[row.lane.subdomain_hash] += 1
            chosen.append(row)
    return tuple(chosen)


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


def retry_after(value: str | None, now: Instant) -> int:
    """
    Read a Retry-After value as whole seconds to wait, 5 to 86,400 (ruling 9, RFC 9110 §10.2.3).

    Unreadable never means "no wait": whatever cannot be understood waits the default of 60 s.
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
    return min(RETRY_AFTER_MAXIMUM, max(RETRY_AFTER_MINIMUM, math.ceil(wait)))


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


def gate_until(wait: int, now: Instant) -> int:
    """
    The instant, in whole POSIX seconds, until which a 429 with this wait closes its key (brief §8).
    """
    return math.ceil(now) + wait + GATE_MARGIN


def gate_ttl(closed_until: Instant, now: Instant) -> int:
    """
    Seconds for which a gate is kept: max(300, wait + 120), counted from the wait it stands for.
    """
    wait = math.ceil(closed_until - now) - GATE_MARGIN
    return max(GATE_TTL_MINIMUM, wait + GATE_TTL_MARGIN)
