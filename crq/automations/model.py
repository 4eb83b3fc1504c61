"""
The words of automations: frozen values and closed sets, with no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

from attrs import field, frozen

from crq.instants import Instant

Json: TypeAlias = Any  # None, bool, int, float, str, list or dict of these


class Unfit(ValueError):
    """
    Something given that cannot be taken as it is. Giving it again unchanged cannot help.

    :ivar field: what it is about.
    :ivar problem: what is wrong; a secret is not repeated.
    :ivar remedy: what to do about it.
    """

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{field}: {problem}" + (f"; {remedy}" if remedy else ""))
        self.field = field
        self.problem = problem
        self.remedy = remedy


class Mode(Enum):
    """
    Whether a run only decides, or decides and applies.
    """

    OBSERVE = "observe"
    LIVE = "live"


class Trigger(Enum):
    """
    What made a run: its schedule, or a person.
    """

    SCHEDULE = "schedule"
    MANUAL = "manual"


class RunStatus(Enum):
    """
    The state of a run; all after the first two are ends.
    """

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"  # the type said that nothing is left
    CAPPED = "capped"  # a cap of the automation was reached
    FAILED = "failed"  # the type broke its contract, raised, or did not answer
    STOPPED = "stopped"  # switched off, or demoted after it had begun to act
    REFUSED = "refused"  # live, and a precondition of live does not hold any more
    OVERLAPPED = "overlapped"  # the one before it was still open: never begun


OPEN = (RunStatus.QUEUED, RunStatus.RUNNING)


class Verdict(Enum):
    """
    What was decided about a subject.
    """

    APPROVED = "approved"
    DECLINED = "declined"


class Effect(Enum):
    """
    How far the effect of an item has come. Of an observed or declined item: ``none``.
    """

    NONE = "none"
    INTENDED = "intended"  # recorded, provably not begun
    APPLYING = "applying"  # begun
    APPLIED = "applied"
    FAILED = "failed"  # apply said so
    UNKNOWN = "unknown"  # begun, and nobody came back to say how it ended (ruling 15)
    WITHDRAWN = "withdrawn"  # the run ended before it was begun


@frozen
class Decision:
    """
    What a type decided about one subject.

    :ivar subject_type: one of the type's `subject_types`.
    :ivar subject_id: which one; stable, as it tells a repetition.
    :ivar reason: a short phrase that many subjects share; it is counted by its text.
    :ivar intent: what applying it needs to know, JSON; stored before anything is applied.
    """

    subject_type: str
    subject_id: str
    verdict: Verdict
    reason: str
    intent: Mapping[str, Json] = field(factory=dict)


@frozen
class Chunk:
    """
    A piece of a run.

    :ivar next_cursor: where to go on: any JSON value. It comes back to `evaluate` as it is.
    :ivar has_more: False only when it is known that nothing is left.
    :ivar notices: lines for whoever looks at the run.
    """

    decisions: tuple[Decision, ...]
    next_cursor: Json
    has_more: bool
    notices: tuple[str, ...] = ()


@frozen
class Automation:
    """
    A declared automation, as it is stored. Attributes that are columns have the column's name.

    :ivar config: the configuration; what is secret in it is sealed.
    :ivar next_run_at_utc: its next occurrence; None while it is switched off.
    :ivar problem: why the scheduler has switched it off.
    :ivar promoted_would_count: how many changes the observe run predicted that it was promoted on.
    """

    automation_id: int
    automation_uuid: str
    tenant: str
    name: str
    type: str
    config: Mapping[str, Json] = field(repr=False)
    config_revision: int
    mode: Mode
    enabled: bool
    cron: str
    zone: str
    next_run_at_utc: Instant | None
    max_items_per_run: int
    max_changes_per_run: int
    owner: str
    problem: str | None
    skipped_count: int
    promoted_by: str | None
    promoted_at: Instant | None
    promoted_revision: int | None
    promoted_run_id: int | None
    promoted_would_count: int | None
    last_run_id: int | None
    last_run_status: str | None
    last_run_at: Instant | None
    last_run_summary: str | None
    created_at: Instant
    changed_at: Instant


@frozen
class Guard:
    """
    What is remembered of a run's cursors (see note [Cursors] in `crq.automations.policy`).
    """

    anchor: str
    steps: int = 0
    power: int = 1


@frozen
class Counts:
    """
    The counts of a run; they equal its items (invariant I9).

    :ivar would: approved while observing: a prediction.
    :ivar intended: approved while live: to be applied.
    :ivar approved: applied: a record was changed.
    """

    items: int = 0
    declined: int = 0
    would: int = 0
    intended: int = 0
    approved: int = 0
    failed: int = 0
    unknown: int = 0
    withdrawn: int = 0


@frozen
class Run:
    """
    One run, as it is stored.

    :ivar config: the configuration as it was when the occurrence became due.
    :ivar skipped: earlier occurrences that were missed and that this run stands for.
    :ivar why: why it ended as it did.
    :ivar waits_for: what it waits for while it is open.
    :ivar cursor: where the next chunk begins.
    :ivar ended: the type has said that nothing is left.
    """

    run_id: int
    automation_id: int
    tenant: str
    idempotency_key: str
    trigger_kind: Trigger
    scheduled_for_utc: Instant
    skipped: int
    type: str
    config: Mapping[str, Json] = field(repr=False)
    config_revision: int
    max_items_per_run: int
    max_changes_per_run: int
    mode: Mode
    status: RunStatus
    why: str | None
    waits_for: str | None
    cursor: Json
    guard: Guard
    ended: bool
    chunk_count: int
    counts: Counts
    reason_counts: Mapping[str, int]
    notices: tuple[str, ...]
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    duration_ms: int | None


@frozen
class Item:
    """
    One decision of a run, as it is stored.
    """

    item_id: int
    run_id: int
    decision: Decision
    effect: Effect
    detail: str | None
    decided_at: Instant
    applied_at: Instant | None


@frozen
class Current:
    """
    What governs a run, read anew before each chunk and each effect.
    """

    mode: Mode
    enabled: bool


@frozen
class Take:
    """
    The run goes on with a chunk of at most so many decisions.
    """

    limit: int


@frozen
class Pause:
    """
    The run stays open and goes on in a later tick. Unfinished is not failed.
    """

    why: str


@frozen
class Close:
    """
    The run is over.
    """

    status: RunStatus
    why: str


Step: TypeAlias = Take | Pause | Close
