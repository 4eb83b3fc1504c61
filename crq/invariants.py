"""
The invariants that rows and their changes show: told change by change, or of a row as it is stored.

A change is what a trigger of the database saw (in tests and in the simulator): in the transaction
that made it, so that nothing is missed and nothing counts that did not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, field, frozen

from crq.instants import instant_of
from crq.model import Limits

TIMES = ("queued_at", "claimed_at", "started_at", "finished_at")
IN_FLIGHT = frozenset({"claimed", "running"})
ENDED = frozenset({"success", "failed", "cancelled"})
ARROWS = frozenset(
    {
        (None, "queued"),
        (None, "rejected"),
        (None, "failed"),  # does not parse
        ("queued", "claimed"),
        ("queued", "cancelled"),
        ("claimed", "queued"),
        ("claimed", "running"),
        ("claimed", "failed"),  # 106
        ("running", "success"),
        ("running", "failed"),
        ("failed", "success"),  # a real outcome came after "unknown"
    }
)
# Of rows that a plain endpoint runs: the claim is the start, and what did not begin goes back.
PLAIN_ARROWS = frozenset(
    {
        (None, "queued"),
        (None, "rejected"),
        (None, "failed"),
        ("queued", "running"),
        ("queued", "cancelled"),
        ("running", "queued"),
        ("running", "success"),
        ("running", "failed"),
        ("failed", "success"),
    }
)
# s; a plan may be that much older than its claim, when the process is paused or the server slow
STALE = 5.0

_HAVE = {
    "queued": {"queued_at"},
    "claimed": {"queued_at", "claimed_at", "nonce_hash"},
    "running": {"queued_at", "claimed_at", "started_at"},
    "success": set(TIMES),
    "failed": set(TIMES),
    "rejected": {"queued_at", "finished_at"},
    "cancelled": {"queued_at", "finished_at"},
}


@frozen
class Change:
    """
    One change of a status.

    :ivar seq: its place among all changes.
    :ivar old: None: the row was made.
    :ivar at: when its statement ran, in POSIX seconds.
    """

    seq: int
    execution_id: int
    account: str
    apikey: str | None
    old: str | None
    new: str
    epoch: int | None
    queued_at: str
    claimed_at: str | None
    at: float


def stored(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """
    I1: every row is in one state, and its instants agree with it.

    :param found: rows with `TIMES`, ``status``, ``error_code`` and ``nonce_hash``.
    """
    problems = []
    for row in found:
        have = {name for name in (*TIMES, "nonce_hash") if row[name] is not None}
        wanted = _HAVE[row["status"]]
        if row["error_code"] == 106:
            wanted = {"queued_at", "claimed_at", "finished_at"}
        elif row["error_code"] == 201 and row["claimed_at"] is None:
            wanted = {"queued_at", "finished_at"}
        instants = [row[name] for name in TIMES if row[name] is not None]
        if have != wanted or instants != sorted(instants):
            problems.append(f"I1: {dict(row)}")
    return problems


@define
class History:
    """
    What must hold at every moment, told from the changes, one by one.

    :ivar plain: a plain endpoint runs them (`crq.plain`); how often it was asked to, it must count.
    :ivar stale: seconds by which a plan may be older than its claim.
    :ivar problems: what did not hold.
    :ivar most: the most executions that were in flight at once: of each account, and in ``total``.
    """

    limits: Limits
    stale: float = STALE
    plain: bool = False
    problems: list[str] = field(factory=list)
    most: Counter[str] = field(factory=Counter)
    starts: Counter[int] = field(factory=Counter)
    claims: int = 0
    releases: int = 0
    _state: dict[int, str] = field(factory=dict)
    _flights: dict[int, str] = field(factory=dict)
    _waiting: dict[tuple[str, str | None], dict[int, Change]] = field(factory=dict)
    _epoch: int | None = None
    _group: set[int] = field(factory=set)
    _overtaken: list[tuple[Change, Change]] = field(factory=list)

    def tell(self, changes: Iterable[Change]) -> History:
        """
        Go through all changes.
        """
        for change in changes:
            self.note(change)
        self.end_claim()
        return self

    def note(self, change: Change) -> None:
        """
        Take the next change.
        """
        number = change.execution_id
        arrows = PLAIN_ARROWS if self.plain else ARROWS
        if (change.old, change.new) not in arrows or self._state.get(number) != change.old:
            self.problems.append(f"I1: {change} after {self._state.get(number)}")
        self._state[number] = change.new
        lane = self._waiting.setdefault((change.account, change.apikey), {})
        if change.new == ("running" if self.plain else "claimed"):
            self._claimed(change, lane)
        lane.pop(number, None)
        if change.new == "queued":
            lane[number] = change
            self.releases += change.old is not None
            if self.plain and change.old == "running":
                self.starts[number] -= 1
        self._flights.pop(number, None)
        if change.new in IN_FLIGHT:
            self._flights[number] = change.account
            self._count(change)
        if change.new == "running":
            self.starts[number] += 1
            if self.starts[number] > 1:
                self.problems.append(f"I2: started again: {change}")

    def end_claim(self) -> None:
        """
        I6: what a claim took was the oldest of its lane; only one whole claim can say so.
        """
        for taken, left in self._overtaken:
            waited = instant_of(taken.claimed_at or "") - left.at
            if left.execution_id not in self._group and waited > self.stale:
                self.problems.append(f"I6: {taken} overtook {left}")
        self._overtaken.clear()
        self._group.clear()

    def _count(self, change: Change) -> None:
        total = len(self._flights)
        account = sum(1 for each in self._flights.values() if each == change.account)
        self.most["total"] = max(self.most["total"], total)
        self.most[change.account] = max(self.most[change.account], account)
        if total > self.limits.in_flight or account > self.limits.of(change.account):
            self.problems.append(f"I4: {total} in flight, {account} of its account: {change}")

    def _claimed(self, change: Change, lane: Mapping[int, Change]) -> None:
        if change.epoch != self._epoch:
            self.end_claim()
            self._epoch = change.epoch
        self.claims += 1
        self._group.add(change.execution_id)
        self._overtaken += ((change, other) for other in lane.values() if _older(other, change))


def _older(one: Change, other: Change) -> bool:
    return (one.queued_at, one.execution_id) < (other.queued_at, other.execution_id)
