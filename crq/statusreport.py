"""
What a report of the queue is: its values, who may see which of them, and its JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attrs import evolve, field, frozen

from crq.instants import Instant, iso
from crq.model import Controls, Limits, Reason, Take
from crq.pulse import Beat
from crq.verdict import Verdict


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
class Proof:
    """
    One thing that shows why the verdict is what it is.

    :ivar kind: ``execution``, ``key``, ``pause`` or ``dependency``.
    :ivar account: whose it is; None: it speaks of the service.
    """

    kind: str
    name: str
    detail: str
    account: str | None = None

    def as_json(self) -> dict[str, Any]:
        """
        The proof for a machine.
        """
        shown = {"kind": self.kind, "name": self.name, "detail": self.detail}
        return shown if self.account is None else {**shown, "account": self.account}


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
    :ivar proof: the rows, keys or dependencies that prove the verdict, some of them.
    :ivar startable: lanes whose rows could start now.
    :ivar drainers: what each drainer said last.
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
    controls: Controls = field(factory=Controls)
    proof: tuple[Proof, ...] = ()
    startable: tuple[Take, ...] = ()
    drainers: tuple[Beat, ...] = ()
    last_start: Instant | None = None

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
        keys = {
            gate.apikey_hash for gate in self.gates if not set(gate.accounts).isdisjoint(accounts)
        }
        return evolve(
            self,
            controls=evolve(
                self.controls,
                accounts=self.controls.accounts.intersection(accounts),
                keys=frozenset(),
                per_account={
                    name: cap for name, cap in self.controls.per_account.items() if name in accounts
                },
                run_one=(),
            ),
            limits=evolve(
                self.limits,
                accounts={n: cap for n, cap in self.limits.accounts.items() if n in accounts},
            ),
            proof=tuple(
                proof
                for proof in self.proof
                if (proof.account in accounts if proof.account else proof.kind == "dependency")
                or (proof.kind == "key" and proof.name in keys)
            ),
            startable=(),
            drainers=(),
            last_start=None,
            depth=sum(account.queued for account in own),
            oldest_queued_at=None,
            in_flight=sum(account.in_flight for account in own),
            accounts=own,
            gates=tuple(
                evolve(gate, accounts=tuple(a for a in gate.accounts if a in accounts))
                for gate in self.gates
                if gate.apikey_hash in keys
            ),
            unreadable=(),
            holds={},
            daemon=None,
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
            "accounts": dict(report.limits.accounts),
        },
        "lastStartAt": iso(report.last_start),
        "proof": [proof.as_json() for proof in report.proof],
        "controls": _controls_json(report.controls),
        "drainers": [
            {
                "id": beat.drainer_id,
                "startedAt": iso(beat.started_at),
                "reportedAt": iso(beat.beat_at),
                "alive": beat.alive(report.at),
                "stopping": beat.stopping,
            }
            for beat in report.drainers
        ],
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


def _controls_json(controls: Controls) -> dict[str, Any]:
    return {
        "draining": controls.draining,
        "paused": controls.everything,
        "pausedAccounts": sorted(controls.accounts),
        "pausedKeys": sorted(controls.keys),
        "inFlight": controls.in_flight,
        "perAccount": dict(controls.per_account),
        "runOne": [request.execution_id for request in controls.run_one],
    }
