"""
The words of the queue: frozen values and closed sets, with no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum

from attrs import evolve, field, frozen

from crq.instants import Instant


class Status(Enum):
    """
    The state of an execution, as the ``status`` column spells it (design: states and the fence).
    """

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class ErrorCode(IntEnum):
    """
    The error codes a customer may see (brief §3 and §5).
    """

    DISPATCH_FAILED = 106
    QUEUE_FULL = 107
    NONCE_MISSING = 112
    NONCE_INVALID = 113
    SCRIPT_INVALID = 201
    SCRIPT_ERROR = 301
    EXECUTOR_FATAL = 302
    OUTCOME_UNKNOWN = 303


class Reason(Enum):
    """
    Why the head of a lane was left waiting.
    """

    GATED = "gated"
    HALF_OPEN = "half open"
    ACCOUNT_FULL = "account full"
    POOL_FULL = "pool full"
    BACKING_OFF = "backing off"
    PAUSED = "paused"


@frozen(order=False)
class Lane:
    """
    One account's rows for one API key: they are startable or held together.

    :ivar apikey_hash: None for rows without a key; they form a lane of their own.
    """

    subdomain_hash: str
    apikey_hash: str | None


@frozen
class LaneHead:
    """
    The oldest queued instant of a lane.
    """

    lane: Lane
    queued_at: Instant


@frozen
class InFlight:
    """
    A claimed or running execution: it holds a slot.

    :ivar drainer_id: who claimed it; None for a row that was never claimed by a drainer.
    :ivar begun_by: mark of the drainer's process that POSTs it to a plain endpoint; None: an
        executor starts it.
    """

    execution_id: int
    lane: Lane
    status: Status
    claim_epoch: int | None = None
    drainer_id: str | None = None
    claimed_at: Instant | None = None
    started_at: Instant | None = None
    begun_by: str | None = None


@frozen
class Limits:
    """
    The four caps.

    :ivar in_flight: executions at once, over all accounts (brief §4: half the pool's ceiling of 8).
    :ivar per_account: of them, at most this many of one account (brief §7).
    :ivar queued_per_account: depth at which an account is refused (brief §11.1).
    :ivar queued_total: depth at which everybody is refused (brief §11.1).
    :ivar accounts: accounts with a cap of their own instead of ``per_account``.
    """

    in_flight: int = 4
    per_account: int = 2
    queued_per_account: int = 500
    queued_total: int = 2000
    accounts: Mapping[str, int] = field(factory=dict)

    def of(self, account: str) -> int:
        """
        How many executions of an account may be in flight.
        """
        return self.accounts.get(account, self.per_account)


@frozen
class RunOne:
    """
    One execution that an operator wants started although it is paused.

    :ivar lane: of the execution.
    """

    execution_id: int
    lane: Lane
    asked_at: Instant


@frozen
class Controls:
    """
    What operators have set while the queue runs; nothing set: the configuration alone counts.

    :ivar draining: nothing is started at all, for maintenance.
    :ivar everything: all accounts are paused.
    :ivar in_flight: the cap over all accounts instead of the configuration's.
    :ivar per_account: accounts with a cap of their own.
    :ivar run_one: executions to be started under a pause.
    """

    draining: bool = False
    everything: bool = False
    accounts: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    in_flight: int | None = None
    per_account: Mapping[str, int] = field(factory=dict)
    run_one: tuple[RunOne, ...] = ()

    def pause_of(self, lane: Lane) -> str | None:
        """
        What holds a lane: ``drain``, ``all``, ``account`` or ``key``; None: nothing does.
        """
        if self.draining:
            return "drain"
        if self.everything:
            return "all"
        if lane.subdomain_hash in self.accounts:
            return "account"
        return "key" if lane.apikey_hash in self.keys else None

    def over(self, limits: Limits) -> Limits:
        """
        The caps in force: those of the configuration, with what operators have set.
        """
        if self.in_flight is not None:
            limits = evolve(limits, in_flight=self.in_flight)
        return evolve(limits, accounts=self.per_account) if self.per_account else limits


@frozen
class Snapshot:
    """
    What one tick read: the head of each lane with queued rows, what is in flight, what was set.
    """

    heads: tuple[LaneHead, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    controls: Controls = field(factory=Controls)


@frozen
class GateReading:
    """
    What the gates answered for a set of keys.

    :ivar closed: instant until which a key is closed; open keys do not appear.
    :ivar unreadable: keys whose stored value could not be understood, with what was found.
    """

    closed: Mapping[str, Instant] = field(factory=dict)
    unreadable: Mapping[str, str] = field(factory=dict)


@frozen
class Take:
    """
    A lane the plan starts rows of.

    :ivar queued_at: the head as it was read: the lower bound of the lane read (claim, tombstones).
    :ivar at_most: how many rows of it may start.
    :ivar alone: only if nothing of its key is in flight: its gate has passed, and one goes first.
    """

    lane: Lane
    queued_at: Instant
    at_most: int
    alone: bool = False


@frozen
class Hold:
    """
    A lane the plan left waiting, and why.

    :ivar until: when the reason ends, where that is known.
    """

    lane: Lane
    queued_at: Instant
    reason: Reason
    until: Instant | None = None


@frozen
class Plan:
    """
    What one tick decided: every head is either taken or held with a reason.

    :ivar picks: executions to start one by one, before the lanes, because an operator asked.
    """

    takes: tuple[Take, ...] = ()
    holds: tuple[Hold, ...] = ()
    picks: tuple[RunOne, ...] = ()


@frozen
class Candidate:
    """
    A queued row that a claim has locked and may take.
    """

    execution_id: int
    job_id: int | None
    lane: Lane
    queued_at: Instant
    traceparent: str | None = None


@frozen
class Claimed:
    """
    A row this drainer has claimed, with the nonce only this claim knows.

    :ivar traceparent: the caller's trace (W3C), passed on to the executor.
    """

    execution_id: int
    job_id: int
    lane: Lane
    claim_epoch: int
    nonce: str = field(repr=False)
    traceparent: str | None = None


def shown_as(status: str, error_code: int | None, started_at: Instant | None) -> str:
    """
    The one word a customer sees for a state (design: states and the fence).

    An unknown status is shown as it is: a stored row is never hidden because it is odd.
    """
    if status == Status.CLAIMED.value:
        return Status.QUEUED.value
    if status == Status.FAILED.value and error_code == ErrorCode.OUTCOME_UNKNOWN and started_at:
        return "outcome unknown"
    if status == Status.FAILED.value and started_at is None:
        return "never started"
    return status
