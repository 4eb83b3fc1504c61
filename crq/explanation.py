"""
What an explanation of one execution is: the rules that may hold it, as values and as JSON.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from attrs import evolve, frozen

from crq.instants import Instant, iso


class Rule(Enum):
    """
    What holds an execution, in the order in which it counts; the last four hold nothing.
    """

    NO_DRAINER = "no drainer ticks"
    DRAINING = "draining"
    PAUSED = "paused"
    GATED = "gated"
    BACKING_OFF = "executor backing off"
    HALF_OPEN = "half open"
    ACCOUNT_FULL = "account at its cap"
    POOL_FULL = "all slots taken"
    BEHIND = "behind older ones"
    STARTABLE = "startable"
    CLAIMED = "claimed"
    RUNNING = "running"
    ENDED = "ended"


BY_HAND = (Rule.NO_DRAINER, Rule.DRAINING, Rule.PAUSED)  # no instant ends them, somebody does


@frozen
class Why:
    """
    One rule and how it applies.

    :ivar until: when it ends, where that is known.
    :ivar by: the executions that hold the slots.
    """

    rule: Rule
    text: str
    until: Instant | None = None
    by: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """
        The rule for a machine.
        """
        return {
            "rule": self.rule.value,
            "text": self.text,
            "until": iso(self.until),
            "executions": list(self.by),
        }


@frozen
class Explanation:
    """
    Why an execution is where it is.

    :ivar why: what holds it, the first rule first; never empty.
    :ivar place_in_lane: 1: the next of its account and key; None: it does not wait.
    :ivar capped: the places are lower bounds.
    :ivar earliest_start: it cannot start before; None: not before somebody does something, or it
        does not wait.
    :ivar expected_start: the same with the work before it; None: nobody can tell.
    """

    execution_id: int
    shown: str
    why: tuple[Why, ...]
    place_in_lane: int | None = None
    ahead_in_account: int | None = None
    capped: bool = False
    earliest_start: Instant | None = None
    expected_start: Instant | None = None

    def as_json(self) -> dict[str, Any]:
        """
        The explanation for a machine.
        """
        return {
            "executionId": self.execution_id,
            "shown": self.shown,
            "because": self.why[0].text,
            "why": [why.as_json() for why in self.why],
            "placeInLane": self.place_in_lane,
            "aheadInAccount": self.ahead_in_account,
            "capped": self.capped,
            "earliestStart": iso(self.earliest_start),
            "expectedStart": iso(self.expected_start),
        }

    def limited(self) -> Explanation:
        """
        What somebody may see who may see this account only: nothing of others, nor what an
        operator wrote (ruling 17).
        """
        return evolve(self, why=tuple(map(_limited, self.why)))


def _limited(why: Why) -> Why:
    if why.rule is Rule.GATED:
        return Why(why.rule, f"its key is closed until {iso(why.until)}", why.until)
    if why.rule is Rule.POOL_FULL:
        return Why(why.rule, "all slots are taken, or older work takes them")
    if why.rule is Rule.HALF_OPEN:
        return Why(why.rule, "its key's gate has just opened: another execution goes first")
    return why
