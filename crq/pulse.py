"""
The pulse of a running daemon: what its last ticks saw, for those who look at it; and its beat, the
part of it that is written down for others.

Only what a restart may forget: everything else is read from the database.
"""

from __future__ import annotations

from enum import Enum

from attrs import Factory, define, frozen

from crq.instants import Instant
from crq.model import InFlight, Plan

DEAD_AFTER = 30.0  # s without a beat after which a drainer counts as dead: three beats


class Ended(Enum):
    """
    How a tick ended: well, with an outage of the database, or with a fault of any other kind.
    """

    WELL = "well"
    OUTAGE = "outage"
    BADLY = "badly"


@frozen
class Origin:
    """
    Who a drainer is: which process of which host.

    :ivar incarnation: of this process alone; empty: nobody says (a daemon of an earlier version).
    :ivar lock_of: what tells its lock file from all others (`crq.origin.lock_of`).
    """

    incarnation: str = ""
    host: str = ""
    version: str = ""
    lock_of: str = ""


@frozen
class Beat:
    """
    What one drainer said of itself.

    :ivar last_good_age: seconds since its last tick that ended well, when it said so; None: none.
    :ivar unstarted: seconds for which something could start and nothing had, then; None: not so.
    :ivar alarm: what speaks against the executor.
    """

    drainer_id: str
    started_at: Instant
    beat_at: Instant
    last_good_age: float | None = None
    unstarted: float | None = None
    backing_off_until: Instant | None = None
    alarm: str | None = None
    gates_reachable: bool = True
    stopping: bool = False
    origin: Origin = Origin()

    def age(self, now: Instant) -> float:
        """
        Seconds since it was said; a beat far in the future is of a clock that has been stepped.
        """
        age = now - self.beat_at
        return float("inf") if age < -DEAD_AFTER else max(0.0, age)

    def alive(self, now: Instant) -> bool:
        """
        Whether its drainer counts as alive.
        """
        return self.age(now) < DEAD_AFTER


@define(eq=False)
class Pulse:
    """
    Written by the drainer, read by the status report.

    :ivar last_good_tick: wall instant of the last tick that ended well.
    :ivar last_good_monotonic: the same on the monotonic clock: an age is measured on this one.
    :ivar last_error: the last tick's failure in one line; None once a tick has ended well.
    :ivar skipped_ticks: ticks that the timer left out because one was still running.
    :ivar repeats: transactions that were run again after a deadlock, a lock wait or a lost
        connection.
    :ivar plan: the last plan: what it took and what it held, with reasons.
    :ivar backing_off_until: the executor could not take work; the next try is at this wall instant.
    :ivar unstarted_since: monotonic instant since which something could start, a slot is free, and
        nothing has started; None: that is not so.
    :ivar alarm: what speaks against the executor, in one line; None while it takes work.
    """

    started_at: Instant
    ticks: int = 0
    skipped_ticks: int = 0
    starts: int = 0
    repeats: int = 0
    last_good_tick: Instant | None = None
    last_good_monotonic: float | None = None
    last_error: str | None = None
    last_error_at: Instant | None = None
    plan: Plan = Factory(Plan)
    in_flight: tuple[InFlight, ...] = ()
    backing_off_until: Instant | None = None
    unstarted_since: float | None = None
    alarm: str | None = None
    gates_reachable: bool = True
    draining: bool = False
    origin: Origin = Origin()

    def note(self, startable: bool, refusing: bool, monotonic: float) -> None:
        """
        Keep when it began that something could start and nothing does; only a start ends it.

        :param refusing: the executor takes no work, and what waits could start if only it did.
        """
        if startable:
            if self.unstarted_since is None:
                self.unstarted_since = monotonic
        elif not refusing:
            self.unstarted_since = None

    def beat(self, drainer_id: str, now: Instant, monotonic: float) -> Beat:
        """
        What is to be written down.
        """
        good, unstarted = self.last_good_monotonic, self.unstarted_since
        return Beat(
            drainer_id=drainer_id,
            started_at=self.started_at,
            beat_at=now,
            last_good_age=None if good is None else round(monotonic - good, 3),
            unstarted=None if unstarted is None else round(monotonic - unstarted, 3),
            backing_off_until=self.backing_off_until,
            alarm=self.alarm,
            gates_reachable=self.gates_reachable,
            stopping=self.draining,
            origin=self.origin,
        )
