"""
The clocks: how far others are from this host's.

Every stored instant comes from a process's own clock (ruling 14), so hosts that disagree make waits
look longer, nonces older and gates shorter than they are. Which of two clocks is right is not to be
known from here.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from crq.doctor.findings import Finding, error, note, ok, warning
from crq.instants import Instant
from crq.sealing import NONCE_TTL

NOTICEABLE = 2.0  # s; below it nobody sees a difference
TOO_MUCH = NONCE_TTL / 5  # s; a nonce lives 300 s, of which a dispatch may need a good part

_REMEDY = "run a time service (chrony, systemd-timesyncd) on every host, and look at both"


@frozen
class Skew:
    """
    How far a clock is from ours: seconds it is ahead, give or take.
    """

    ahead: float
    give: float = 0.0


def measure(
    ask: Callable[[], Instant | None],
    wall: Callable[[], Instant],
    monotonic: Callable[[], float],
    coarse: float = 0.0,
) -> Skew | None:
    """
    Ask a clock; it answered somewhere between our question and the answer.

    :param coarse: seconds that its answer is cut to.
    :return: None: it does not tell.
    """
    begun, before = monotonic(), wall()
    answer = ask()
    trip = monotonic() - begun
    if answer is None:
        return None
    return Skew(answer + coarse / 2 - (before + trip / 2), trip / 2 + coarse / 2)


def judge(name: str, whose: str, skew: Skew | None) -> Finding:
    """
    Judge how far a clock is away, in favour of the doubt.
    """
    if skew is None:
        return note(name, f"the {whose} does not tell its time")
    least = max(0.0, abs(skew.ahead) - skew.give)
    which = "ahead of" if skew.ahead > 0 else "behind"
    text = f"the {whose} is {abs(skew.ahead):.1f} s {which} this host (±{skew.give:.1f} s)"
    if least > TOO_MUCH:
        return error(name, text, _REMEDY)
    if least > NOTICEABLE:
        return warning(name, text, _REMEDY)
    return ok(name, f"the {whose} agrees with this host to {least + skew.give:.1f} s")
