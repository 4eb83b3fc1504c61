"""
One word for how the queue is, and whether its daemon is ready; pure.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from crq.model import Hold, Limits, Reason
from crq.pulse import Pulse

STALE_SECONDS = 5.0  # a tick takes milliseconds; a lock wait is given up after this
STALE_TICKS = 5  # for those who tick slowly
UNSTARTED = 30.0  # s; without a pulse: startable work that waits longer says that nobody starts it


class Verdict(Enum):
    """
    How the queue is, in one word.
    """

    FLOWING = "flowing"
    IDLE = "idle"
    SATURATED = "saturated"
    GATED = "gated"
    STALLED = "stalled"


def judge(
    *,
    queued: int,
    in_flight: int,
    limits: Limits,
    holds: Collection[Hold],
    lanes: int,
    unstarted: float | None,
    not_ready: str | None,
    alarm: bool,
) -> tuple[Verdict, str]:
    """
    Find the one word, and the reason for it.

    :param lanes: lanes with queued work; ``holds`` are those of them that are held.
    :param unstarted: seconds that startable work has waited while nothing is in flight; None where
        a pulse says more.
    :param not_ready: why the daemon is not ready, if it is not.
    :param alarm: the executor takes no work.
    """
    if not_ready is not None:
        return Verdict.STALLED, not_ready
    if not queued and not in_flight:
        return Verdict.IDLE, "nothing waits and nothing runs"
    if queued and alarm:
        return Verdict.STALLED, "the executor takes no work; the queue keeps it"
    if unstarted is not None and unstarted > UNSTARTED:
        return (
            Verdict.STALLED,
            f"startable work has waited {unstarted:.0f} s and nothing runs: is the daemon running?",
        )
    if queued and in_flight >= limits.in_flight:
        return Verdict.SATURATED, f"all {limits.in_flight} slots are taken and work waits"
    if lanes and len(holds) == lanes and _all_gated(holds):
        return Verdict.GATED, "all that waits is behind a closed gate"
    return Verdict.FLOWING, "work is being started"


def stale_after(tick: float) -> float:
    """
    Seconds after the last good tick from which a daemon counts as stalled.
    """
    return max(STALE_SECONDS, STALE_TICKS * tick)


def not_ready(pulse: Pulse, monotonic: float, tick: float) -> str | None:
    """
    Why a daemon is not ready; None: it is. Carries no error text, so that anybody may see it.
    """
    if pulse.draining:
        return "the daemon is stopping"
    if pulse.last_good_monotonic is None:
        return "no tick has ended well yet"
    age = monotonic - pulse.last_good_monotonic
    if age >= stale_after(tick):
        return f"no tick has ended well for {age:.1f} s"
    return None


def _all_gated(holds: Collection[Hold]) -> bool:
    return all(hold.reason in (Reason.GATED, Reason.HALF_OPEN) for hold in holds)
