"""
The pulse of a running daemon: what its last ticks saw, for those who look at it.

Only what a restart may forget: everything else is read from the database.
"""

from __future__ import annotations

from attrs import Factory, define

from crq.instants import Instant
from crq.model import InFlight, Plan


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
    alarm: str | None = None
    gates_reachable: bool = True
    draining: bool = False
