"""
One word for how the queue is, and whether its daemon is ready; pure.

# Note [The six words]

In this order, the first that holds:

* stalled: something could start, a slot is free, and nothing has started for `stalled_after`;
* degraded: the drainer, the executor or the gates are not well, whether or not anything waits;
* idle: nothing waits and nothing runs;
* gated: all that waits is held on purpose, by closed gates or by an operator;
* saturated: every slot is taken and more waits;
* flowing: everything else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum

from attrs import frozen

from crq.instants import Instant
from crq.model import Hold, Limits, Reason
from crq.pulse import Beat, Pulse

STALE_SECONDS = 5.0  # a tick takes milliseconds; a lock wait is given up after this
STALE_TICKS = 5  # for those who tick slowly
STALLED_SECONDS = 10.0  # two lock waits, and ten ticks, in which nothing starts
ON_PURPOSE = (Reason.GATED, Reason.HALF_OPEN, Reason.PAUSED)


class Verdict(Enum):
    """
    How the queue is, in one word.
    """

    FLOWING = "flowing"
    IDLE = "idle"
    SATURATED = "saturated"
    GATED = "gated"
    STALLED = "stalled"
    DEGRADED = "degraded"


@frozen
class Trouble:
    """
    What is not well. Carries no text of others, so that anybody may see it.

    :ivar dependency: ``drainer``, ``executor`` or ``gates``.
    """

    dependency: str
    problem: str


def judge(
    *,
    queued: int,
    in_flight: int,
    limits: Limits,
    holds: Collection[Hold],
    lanes: int,
    unstarted: float | None,
    patience: float,
    troubles: Collection[Trouble],
) -> tuple[Verdict, str]:
    """
    Find the one word, and the reason for it (see note [The six words]).

    :param lanes: lanes with queued work; ``holds`` are those of them that are held.
    :param unstarted: seconds for which something could start and nothing has; None: not so.
    :param patience: seconds of that which are still in order.
    """
    why = "; ".join(f"{trouble.dependency}: {trouble.problem}" for trouble in troubles)
    if queued and unstarted is not None and unstarted >= patience:
        text = f"work could start and none has for {unstarted:.0f} s"
        return Verdict.STALLED, f"{text}; {why}" if why else text
    if troubles:
        return Verdict.DEGRADED, why
    if not queued and not in_flight:
        return Verdict.IDLE, "nothing waits and nothing runs"
    reasons = {hold.reason for hold in holds}
    if lanes and len(holds) == lanes and reasons <= set(ON_PURPOSE):
        return Verdict.GATED, _on_purpose(reasons)
    if queued and in_flight >= limits.in_flight:
        return Verdict.SATURATED, f"all {limits.in_flight} slots are taken and work waits"
    return Verdict.FLOWING, "work is being started" if queued else "work runs and none waits"


def _on_purpose(reasons: Collection[Reason]) -> str:
    if Reason.PAUSED not in reasons:
        return "all that waits is behind a closed gate"
    if set(reasons) == {Reason.PAUSED}:
        return "all that waits was paused by an operator"
    return "all that waits is behind a closed gate, or was paused by an operator"


def of_pulse(
    pulse: Pulse, limits: Limits, monotonic: float, tick: float, waits: bool
) -> tuple[Verdict, str]:
    """
    The one word from what a daemon last saw, without reading the rows.

    :param waits: whether anything is queued; matters only where the last plan has not looked,
        because no slot was free or the executor was left alone.
    """
    lanes = len(pulse.plan.takes) + len(pulse.plan.holds)
    queued = max(lanes, int(waits))
    beat = pulse.beat("", 0.0, monotonic)
    return judge(
        queued=queued,
        in_flight=len(pulse.in_flight),
        limits=limits,
        holds=pulse.plan.holds,
        lanes=lanes,
        unstarted=beat.unstarted,
        patience=stalled_after(tick),
        troubles=tuple(troubles([beat], 0.0, tick, queued > 0)),
    )


def troubles(beats: Collection[Beat], now: Instant, tick: float, waits: bool) -> Iterator[Trouble]:
    """
    What the drainers' beats say is not well.

    :param waits: whether anything is queued: an executor that refused and gates that did not answer
        are no trouble once nothing needs them.
    """
    alive = [beat for beat in beats if beat.alive(now)]
    if not beats:
        yield Trouble("drainer", "none runs: nobody has reported")
    elif not alive:
        age = min(beat.age(now) for beat in beats)
        since = f"for {age:.0f} s" if age < float("inf") else "since the clock was stepped"
        yield Trouble("drainer", f"none has reported {since}: is the daemon running?")
    else:
        for beat in beats:
            if not beat.alive(now):
                yield Trouble("drainer", f"{beat.drainer_id} has not reported any more")
    for beat in alive:
        problem = _unwell(beat.stopping, beat.last_good_age, tick)
        if problem is not None:
            yield Trouble("drainer", problem)
    if waits and any(beat.alarm is not None for beat in alive):
        yield Trouble("executor", "it takes no work; the queue keeps it and tries again")
    if waits and any(not beat.gates_reachable for beat in alive):
        yield Trouble("gates", "their store does not answer; those remembered hold")


def unstarted(
    beats: Collection[Beat], now: Instant, startable_since: Instant | None
) -> float | None:
    """
    Seconds for which something could start and nothing has.

    A living drainer knows; of several, one that starts things speaks for all. Where none lives,
    what the rows say counts.

    :param startable_since: what the rows say; None: nothing could start.
    """
    alive = [beat for beat in beats if beat.alive(now)]
    if startable_since is None:
        return None
    if not alive:
        return max(0.0, now - startable_since)
    # As of the beat: it may have started something since.
    known = [beat.unstarted for beat in alive]
    return None if None in known else min(age for age in known if age is not None)


def stalled_after(tick: float) -> float:
    """
    Seconds for which nothing may start although something could.
    """
    return max(STALLED_SECONDS, STALE_TICKS * tick)


def stale_after(tick: float) -> float:
    """
    Seconds after the last good tick from which a daemon counts as not ready.
    """
    return max(STALE_SECONDS, STALE_TICKS * tick)


def not_ready(pulse: Pulse, monotonic: float, tick: float) -> str | None:
    """
    Why a daemon is not ready; None: it is. Carries no error text, so that anybody may see it.
    """
    good = pulse.last_good_monotonic
    return _unwell(pulse.draining, None if good is None else monotonic - good, tick)


def _unwell(stopping: bool, last_good_age: float | None, tick: float) -> str | None:
    if stopping:
        return "the daemon is stopping"
    if last_good_age is None:
        return "no tick has ended well yet"
    if last_good_age >= stale_after(tick):
        return f"no tick has ended well for {last_good_age:.1f} s"
    return None
