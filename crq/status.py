"""
One report of how the queue is, with one word for it; shown as JSON, as a page, as metrics.

The database says what waits and what runs; the gates say what may not start; the pulse of the
daemon, where this process is the daemon, says whether it ticks. Everything below `read` is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from attrs import evolve, field, frozen

from crq import executions, policy, records
from crq.database import Cursor
from crq.instants import Instant, iso
from crq.model import GateReading, Hold, InFlight, LaneHead, Limits, Plan, Reason, Snapshot
from crq.pulse import Pulse
from crq.verdict import Verdict, judge, not_ready

NAMES = 100  # accounts whose name is looked up


@frozen
class Reading:
    """
    What the database said.

    :ivar names: subdomains by the account's hash, as far as they were looked up.
    """

    depth: records.Depth
    heads: tuple[LaneHead, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    names: Mapping[str, str] = field(factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """
        The API keys whose gates matter now.
        """
        lanes = (*(head.lane for head in self.heads), *(row.lane for row in self.in_flight))
        return tuple(sorted({lane.apikey_hash for lane in lanes if lane.apikey_hash is not None}))


@frozen
class AccountStatus:
    """
    One account with work.
    """

    subdomain_hash: str
    subdomain: str | None
    queued: int
    in_flight: int


@frozen
class GateStatus:
    """
    One closed gate.

    :ivar accounts: who waits behind it, or has work in flight under that key.
    """

    apikey_hash: str
    until: Instant
    accounts: tuple[str, ...]


@frozen
class DaemonStatus:
    """
    What only the daemon knows of itself.

    :ivar last_good_age: seconds since the last tick that ended well, on the monotonic clock.
    """

    started_at: Instant
    ticks: int
    skipped_ticks: int
    starts: int
    repeats: int
    last_good_tick: Instant | None
    last_good_age: float | None
    last_error: str | None
    last_error_at: Instant | None
    alarm: str | None
    backing_off_until: Instant | None
    draining: bool


@frozen
class StatusReport:
    """
    How the queue is at one instant.

    :ivar because: why the verdict is what it is, in a sentence.
    :ivar depth_capped: the depth is a lower bound.
    :ivar holds: lanes that wait, counted by reason.
    :ivar gates_reachable: False: the closed gates are those remembered.
    :ivar unreadable: keys whose gate could not be understood.
    :ivar daemon: None when this process is not the daemon.
    """

    at: Instant
    verdict: Verdict
    because: str
    depth: int
    depth_capped: bool
    oldest_queued_at: Instant | None
    in_flight: int
    accounts: tuple[AccountStatus, ...]
    gates: tuple[GateStatus, ...]
    gates_reachable: bool
    unreadable: tuple[str, ...]
    holds: Mapping[Reason, int]
    limits: Limits
    daemon: DaemonStatus | None

    @property
    def oldest_queued_age(self) -> float | None:
        """
        Seconds that the oldest queued execution has waited.
        """
        if self.oldest_queued_at is None:
            return None
        return max(0.0, round(self.at - self.oldest_queued_at, 3))

    def limited_to(self, accounts: Collection[str]) -> StatusReport:
        """
        What somebody may see who may see only these accounts (ruling 17).

        The verdict stays: it speaks of the service. What belongs to others, and the daemon's own
        affairs, are left out; the oldest age is not known for single accounts.
        """
        own = tuple(account for account in self.accounts if account.subdomain_hash in accounts)
        return evolve(
            self,
            depth=sum(account.queued for account in own),
            oldest_queued_at=None,
            in_flight=sum(account.in_flight for account in own),
            accounts=own,
            gates=tuple(
                evolve(gate, accounts=tuple(a for a in gate.accounts if a in accounts))
                for gate in self.gates
                if not set(gate.accounts).isdisjoint(accounts)
            ),
            unreadable=(),
            holds={},
            daemon=None,
        )


def read(txn: Cursor) -> Reading:
    """
    Read what a report needs, without a lock; each statement sees what is committed by then.
    """
    depth = records.depth(txn)
    in_flight = executions.in_flight(txn)
    accounts = sorted({*depth.by_account, *(row.lane.subdomain_hash for row in in_flight)})
    return Reading(
        depth=depth,
        heads=executions.heads(txn),
        in_flight=in_flight,
        names=records.subdomains(txn, accounts[:NAMES]),
    )


def report(
    reading: Reading,
    gates: GateReading,
    limits: Limits,
    now: Instant,
    *,
    half_open: Collection[str] = (),
    pulse: Pulse | None = None,
    monotonic: float = 0.0,
    tick: float = 1.0,
    gates_reachable: bool = True,
) -> StatusReport:
    """
    Put one report together.

    :param gates: the gates of `Reading.keys`, as far as they are known.
    :param half_open: keys of which one execution goes first.
    :param pulse: of this process's daemon, if it has one; ``monotonic`` and ``tick`` go with it.
    :param gates_reachable: whether the gates' store answered.
    """
    closed = {key: until for key, until in gates.closed.items() if until > now}
    snapshot = Snapshot(reading.heads, reading.in_flight)
    plan = policy.plan(snapshot, closed, limits, now, half_open=half_open)
    holds = _holds(plan, pulse)
    verdict, because = judge(
        queued=reading.depth.total,
        in_flight=len(reading.in_flight),
        limits=limits,
        holds=holds,
        lanes=len(reading.heads),
        unstarted=None
        if pulse is not None or reading.in_flight
        else max((now - take.queued_at for take in plan.takes), default=None),
        not_ready=None if pulse is None else not_ready(pulse, monotonic, tick),
        alarm=pulse is not None and pulse.alarm is not None,
    )
    return StatusReport(
        at=now,
        verdict=verdict,
        because=because,
        depth=reading.depth.total,
        depth_capped=reading.depth.capped,
        oldest_queued_at=reading.depth.oldest_queued_at,
        in_flight=len(reading.in_flight),
        accounts=_accounts(reading),
        gates=_gates(reading, closed),
        gates_reachable=gates_reachable,
        unreadable=tuple(sorted(gates.unreadable)),
        holds=Counter(hold.reason for hold in holds),
        limits=limits,
        daemon=None if pulse is None else _daemon(pulse, monotonic),
    )


def as_json(report: StatusReport) -> dict[str, Any]:
    """
    The report for a machine; instants in RFC 3339, ages in seconds.
    """
    daemon = report.daemon
    return {
        "at": iso(report.at),
        "verdict": report.verdict.value,
        "because": report.because,
        "depth": report.depth,
        "depthCapped": report.depth_capped,
        "oldestQueuedAt": iso(report.oldest_queued_at),
        "oldestQueuedAge": report.oldest_queued_age,
        "inFlight": report.in_flight,
        "accounts": [
            {
                "account": account.subdomain_hash,
                "subdomain": account.subdomain,
                "queued": account.queued,
                "inFlight": account.in_flight,
            }
            for account in report.accounts
        ],
        "gates": [
            {"key": gate.apikey_hash, "until": iso(gate.until), "accounts": list(gate.accounts)}
            for gate in report.gates
        ],
        "gatesReachable": report.gates_reachable,
        "unreadableGates": list(report.unreadable),
        "holds": {reason.value: count for reason, count in report.holds.items()},
        "limits": {
            "inFlight": report.limits.in_flight,
            "perAccount": report.limits.per_account,
            "queuedPerAccount": report.limits.queued_per_account,
            "queuedTotal": report.limits.queued_total,
        },
        "daemon": None
        if daemon is None
        else {
            "startedAt": iso(daemon.started_at),
            "ticks": daemon.ticks,
            "skippedTicks": daemon.skipped_ticks,
            "starts": daemon.starts,
            "repeats": daemon.repeats,
            "lastGoodTick": iso(daemon.last_good_tick),
            "lastGoodAge": daemon.last_good_age,
            "lastError": daemon.last_error,
            "lastErrorAt": iso(daemon.last_error_at),
            "alarm": daemon.alarm,
            "backingOffUntil": iso(daemon.backing_off_until),
            "draining": daemon.draining,
        },
    }


def _holds(plan: Plan, pulse: Pulse | None) -> tuple[Hold, ...]:
    # Which lanes the executor could not take, only the drainer's own plan says.
    takes = {take.lane for take in plan.takes}
    backing_off = (
        hold
        for hold in (pulse.plan.holds if pulse is not None else ())
        if hold.reason is Reason.BACKING_OFF and hold.lane in takes
    )
    return (*plan.holds, *backing_off)


def _accounts(reading: Reading) -> tuple[AccountStatus, ...]:
    running = Counter(row.lane.subdomain_hash for row in reading.in_flight)
    queued = reading.depth.by_account
    return tuple(
        AccountStatus(account, reading.names.get(account), queued.get(account, 0), running[account])
        for account in sorted({*queued, *running}, key=lambda name: (-queued.get(name, 0), name))
    )


def _gates(reading: Reading, closed: Mapping[str, Instant]) -> tuple[GateStatus, ...]:
    lanes = {head.lane for head in reading.heads} | {row.lane for row in reading.in_flight}
    return tuple(
        GateStatus(
            key,
            until,
            tuple(sorted(lane.subdomain_hash for lane in lanes if lane.apikey_hash == key)),
        )
        for key, until in sorted(closed.items())
    )


def _daemon(pulse: Pulse, monotonic: float) -> DaemonStatus:
    good = pulse.last_good_monotonic
    return DaemonStatus(
        started_at=pulse.started_at,
        ticks=pulse.ticks,
        skipped_ticks=pulse.skipped_ticks,
        starts=pulse.starts,
        repeats=pulse.repeats,
        last_good_tick=pulse.last_good_tick,
        last_good_age=None if good is None else round(monotonic - good, 3),
        last_error=pulse.last_error,
        last_error_at=pulse.last_error_at,
        alarm=pulse.alarm,
        backing_off_until=pulse.backing_off_until,
        draining=pulse.draining,
    )
