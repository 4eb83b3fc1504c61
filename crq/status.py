"""
One report of how the queue is, with one word for it; shown as JSON, as a page, as metrics. What it
holds stands in `crq.statusreport`.

The database says what waits and what runs; the gates say what may not start; the pulse of the
daemon, where this process is the daemon, says whether it ticks. Everything below `read` is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from attrs import evolve, field, frozen

from crq import executions, heartbeat, policy, records, verdict
from crq.database import Cursor
from crq.executions.rows import set_instant
from crq.instants import Instant, instant_text, iso
from crq.model import (
    Controls,
    GateReading,
    Hold,
    InFlight,
    LaneHead,
    Limits,
    Plan,
    Reason,
    Snapshot,
    Status,
)
from crq.pulse import Beat, Pulse
from crq.statusreport import (
    AccountStatus,
    DaemonStatus,
    GateStatus,
    Proof,
    StatusReport,
    as_json,
)
from crq.verdict import Trouble, Verdict

__all__ = ["PROOFS", "Reading", "StatusReport", "as_json", "prove", "read", "report"]

NAMES = 100  # accounts whose name is looked up
PROOFS = 10  # rows, keys and dependencies that a verdict names

_NOTHING = records.Depth(0, False, None, {})


@frozen
class Reading:
    """
    What the database said.

    :ivar names: subdomains by the account's hash, as far as they were looked up.
    :ivar beats: what each drainer said last.
    :ivar last_start: when an execution was last started.
    """

    depth: records.Depth
    heads: tuple[LaneHead, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    names: Mapping[str, str] = field(factory=dict)
    controls: Controls = field(factory=Controls)
    beats: tuple[Beat, ...] = ()
    last_start: Instant | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """
        The API keys whose gates matter now.
        """
        lanes = (*(head.lane for head in self.heads), *(row.lane for row in self.in_flight))
        return tuple(sorted({lane.apikey_hash for lane in lanes if lane.apikey_hash is not None}))


def read(txn: Cursor, names: bool = True) -> Reading:
    """
    Read what a report needs, without a lock; each statement sees what is committed by then.

    The cost follows the lanes with work, and counts end at `records.COUNT_LIMIT`. Where nothing
    waits it is three statements.

    :param names: whether accounts are looked up by name, a statement each.
    """
    state = executions.snapshot(txn)
    depth = records.depth(txn) if state.heads else _NOTHING
    accounts = sorted({*depth.by_account, *(row.lane.subdomain_hash for row in state.in_flight)})
    # The end of idx_started_at, on both databases.
    started = txn.execute("SELECT MAX(started_at) FROM codeRunner_executions").scalar()
    return Reading(
        depth=depth,
        heads=state.heads,
        in_flight=state.in_flight,
        names=records.subdomains(txn, accounts[:NAMES]) if names else {},
        controls=state.controls,
        beats=heartbeat.read(txn),
        last_start=None if started is None else set_instant(started),
    )


def report(
    reading: Reading,
    gates: GateReading,
    limits: Limits,
    now: Instant,
    *,
    half_open: Collection[str] = (),
    pulse: Pulse | None = None,
    drainer_id: str = "",
    monotonic: float = 0.0,
    tick: float = 1.0,
    gates_reachable: bool = True,
) -> StatusReport:
    """
    Put one report together.

    :param gates: the gates of `Reading.keys`, as far as they are known.
    :param limits: the configured caps; what operators have set comes on top.
    :param half_open: keys of which one execution goes first.
    :param pulse: of this process's daemon, if it has one; ``drainer_id``, ``monotonic`` and
        ``tick`` go with it.
    :param gates_reachable: whether the gates' store answered.
    """
    closed = {key: until for key, until in gates.closed.items() if until > now}
    limits = reading.controls.over(limits)
    snapshot = Snapshot(reading.heads, reading.in_flight, reading.controls)
    plan = policy.plan(snapshot, closed, limits, now, half_open=half_open)
    holds = _holds(plan, pulse)
    beats = reading.beats
    if pulse is not None:
        own = pulse.beat(drainer_id, now, monotonic)
        beats = (own, *(beat for beat in beats if beat.drainer_id != drainer_id))
    waits = bool(reading.depth.total)
    found = list(verdict.troubles(beats, now, tick, waits))
    if waits and not gates_reachable and not any(each.dependency == "gates" for each in found):
        found.append(Trouble("gates", "their store does not answer"))
    if unreadable := sorted(gates.unreadable):
        found.append(Trouble("gates", f"{len(unreadable)} cannot be read; those keys are held"))
    word, because = verdict.judge(
        queued=reading.depth.total,
        in_flight=len(reading.in_flight),
        limits=limits,
        holds=holds,
        lanes=len(reading.heads),
        unstarted=verdict.unstarted(beats, now, _startable_since(reading, plan)),
        patience=verdict.stalled_after(tick),
        troubles=found,
    )
    return StatusReport(
        at=now,
        verdict=word,
        because=because,
        depth=reading.depth.total,
        depth_capped=reading.depth.capped,
        oldest_queued_at=reading.depth.oldest_queued_at,
        in_flight=len(reading.in_flight),
        accounts=_accounts(reading),
        gates=_gates(reading, closed),
        gates_reachable=gates_reachable,
        unreadable=tuple(unreadable),
        holds=Counter(hold.reason for hold in holds),
        limits=limits,
        daemon=None if pulse is None else _daemon(pulse, monotonic),
        controls=reading.controls,
        proof=_proof(word, reading, holds, found)[:PROOFS],
        startable=plan.takes,
        drainers=beats,
        last_start=reading.last_start,
    )


def prove(txn: Cursor, report: StatusReport) -> StatusReport:
    """
    Name the rows that could start and do not, for a report that says stalled: one seek a lane.
    """
    if report.verdict is not Verdict.STALLED:
        return report
    same = "IS" if txn.dialect == "sqlite" else "<=>"
    rows: list[Proof] = []
    for take in report.startable[:PROOFS]:
        row = txn.execute(
            "SELECT execution_id FROM codeRunner_executions WHERE status = 'queued'"  # noqa: S608
            f" AND subdomain_hash = ? AND apikey_hash {same} ? AND queued_at >= ?"
            " ORDER BY queued_at, execution_id LIMIT 1",
            (take.lane.subdomain_hash, take.lane.apikey_hash, instant_text(take.queued_at)),
        ).one()
        if row is not None:
            detail = f"could start, waits since {iso(take.queued_at)}"
            rows.append(Proof("execution", str(row[0]), detail, take.lane.subdomain_hash))
    return evolve(report, proof=(*rows, *report.proof)[:PROOFS])


def _holds(plan: Plan, pulse: Pulse | None) -> tuple[Hold, ...]:
    # Which lanes the executor could not take, only the drainer's own plan says.
    takes = {take.lane for take in plan.takes}
    backing_off = (
        hold
        for hold in (pulse.plan.holds if pulse is not None else ())
        if hold.reason is Reason.BACKING_OFF and hold.lane in takes
    )
    return (*plan.holds, *backing_off)


def _startable_since(reading: Reading, plan: Plan) -> Instant | None:
    """
    Since when something could start and nothing has started, as far as the rows say.

    That a gate has opened or a slot was freed a moment ago they do not say: where a drainer lives,
    it knows better.
    """
    if not plan.takes:
        return None
    return max(min(take.queued_at for take in plan.takes), reading.last_start or 0.0)


def _proof(
    word: Verdict, reading: Reading, holds: Collection[Hold], troubles: Collection[Trouble]
) -> tuple[Proof, ...]:
    dependencies = tuple(
        Proof("dependency", trouble.dependency, trouble.problem) for trouble in troubles
    )
    if word in (Verdict.DEGRADED, Verdict.STALLED):
        return dependencies
    if word in (Verdict.SATURATED, Verdict.FLOWING):
        return tuple(
            Proof("execution", str(row.execution_id), _flies(row), row.lane.subdomain_hash)
            for row in reading.in_flight
        )
    if word is not Verdict.GATED:
        return ()
    found: dict[Proof, None] = {}  # in order, each once
    for hold in sorted(holds, key=lambda hold: hold.queued_at):
        if hold.reason is Reason.PAUSED:
            scope = reading.controls.pause_of(hold.lane) or "all"
            account = hold.lane.subdomain_hash if scope == "account" else None
            name = {"account": account, "key": hold.lane.apikey_hash}.get(scope) or scope
            found[Proof("pause", name, f"paused: {scope}", account)] = None
        else:
            until = "one goes first" if hold.until is None else f"closed until {iso(hold.until)}"
            found[Proof("key", hold.lane.apikey_hash or "", until)] = None
    return tuple(found)


def _flies(row: InFlight) -> str:
    since = row.started_at if row.status is Status.RUNNING else row.claimed_at
    return f"{row.status.value} since {iso(since)}"


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
