"""
The invariants at every step: each change of a row is seen by a trigger in the database itself, and
before time passes nothing that could start may be left waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from attrs import define, field

from crq.database import Cursor
from crq.invariants import ENDED, IN_FLIGHT, TIMES, Change, History, stored
from crq.model import Lane, Limits
from crq.workbench import Workbench

SOON = 0.001  # s; the drainer sets no timer for less, and floats miss an opening by less
MOST = 20  # problems that are kept: the first ones say what is wrong

_SEEN = (
    *("execution_id", "subdomain_hash", "apikey_hash", "status", "error_code", "claim_epoch"),
    *("nonce_hash", *TIMES),
)
_NEW = ", ".join(f"NEW.{name}" for name in _SEEN)
_TRIGGERS = f"""
    CREATE TEMP TRIGGER seen_insert AFTER INSERT ON codeRunner_executions BEGIN
        SELECT crq_seen(NULL, {_NEW});
    END;
    CREATE TEMP TRIGGER seen_update AFTER UPDATE ON codeRunner_executions
    WHEN OLD.status IS NOT NEW.status BEGIN
        SELECT crq_seen(OLD.status, {_NEW});
    END;
"""


@define(eq=False)
class Watch:
    """
    Checks I1 to I7 of one queue in memory, whose wall clock is never stepped.

    :ivar told: called with each change after it was checked, and its error code.
    :ivar checks: changes and moments that were checked.
    :ivar states: how many rows are in each state.
    """

    bench: Workbench
    limits: Limits
    told: Callable[[Change, int | None], None] = lambda _change, _code: None
    checks: int = field(init=False, default=0)
    states: Counter[str] = field(init=False, factory=Counter)
    history: History = field(init=False)
    _problems: list[str] = field(init=False, factory=list)
    _queued: Counter[Lane] = field(init=False, factory=Counter)
    _unseen: Counter[Lane] = field(init=False, factory=Counter)
    _flights: dict[int, Lane] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.history = History(self.limits, stale=0.0)
        connection = self.bench.pool.connection
        connection.create_function("crq_seen", 1 + len(_SEEN), self._seen)
        connection.executescript(_TRIGGERS)

    def problems(self) -> list[str]:
        """
        What did not hold so far: the first ones.
        """
        return [*self.history.problems, *self._problems][:MOST]

    def open(self) -> int:
        """
        How many rows have not ended.
        """
        return sum(self.states[status] for status in ("queued", *IN_FLIGHT))

    def ticked(self) -> None:
        """
        Take note that a tick has seen everything.
        """
        self._unseen.clear()
        error = self.bench.pulse.last_error
        if error is not None:
            self._problems.append(f"a tick failed: {error}")

    def moving(self, seconds: float) -> None:
        """
        I6, second half: before time passes, no lane that a tick has seen could start a row.
        """
        if seconds < SOON or not self.states["queued"]:
            return
        if len(self._flights) >= self.limits.in_flight:
            return
        self.checks += 1
        gates = self.bench.gates
        closed, half_open = gates.closed(self.bench.clocks.wall()), gates.half_open
        flights = list(self._flights.values())
        for lane, count in self._queued.items():
            if count <= self._unseen[lane] or lane.apikey_hash in closed:
                continue
            account = lane.subdomain_hash
            mine = sum(flight.subdomain_hash == account for flight in flights)
            alike = any(flight.apikey_hash == lane.apikey_hash for flight in flights)
            if mine < self.limits.of(account) and not (lane.apikey_hash in half_open and alike):
                at = self.bench.clocks.seconds()
                self._problems.append(f"I6: {count} rows of {lane} could start at {at:.3f}")

    def ended(self, txn: Cursor, accepted: int) -> None:
        """
        I3: what was accepted is there and has ended, and the rows say the same as their changes.
        """
        self.history.end_claim()
        sql = "SELECT status, COUNT(*) FROM codeRunner_executions GROUP BY status"
        found = Counter(dict(txn.execute(sql).all()))
        ended = sum(found[status] for status in ENDED)
        # In front of the others: it says more than they.
        if found != +self.states:
            self._problems.insert(0, f"I3: rows {dict(found)}, changes {dict(self.states)}")
        if ended != accepted:
            self._problems.insert(0, f"I3: {accepted} accepted, {ended} ended: {dict(found)}")

    def _seen(self, old: str | None, *values: Any) -> None:
        row = dict(zip(_SEEN, values, strict=True))
        self.checks += 1
        change = Change(
            seq=self.checks,
            execution_id=row["execution_id"],
            account=row["subdomain_hash"],
            apikey=row["apikey_hash"],
            old=old,
            new=row["status"],
            epoch=row["claim_epoch"],
            queued_at=row["queued_at"],
            claimed_at=row["claimed_at"],
            at=self.bench.clocks.wall(),
        )
        self._problems += stored([row])
        self.history.note(change)
        self._note(change, Lane(change.account, change.apikey))
        self.told(change, row["error_code"])

    def _note(self, change: Change, lane: Lane) -> None:
        if change.old is None:
            self._check_depth(change)
            self._unseen[lane] += change.new == "queued"
        else:
            self.states[change.old] -= 1
        self.states[change.new] += 1
        self._queued[lane] += (change.new == "queued") - (change.old == "queued")
        if not self._queued[lane]:
            del self._queued[lane]
        self._flights.pop(change.execution_id, None)
        if change.new in IN_FLIGHT:
            self._flights[change.execution_id] = lane
        if change.new == "claimed" and change.apikey in self.bench.gates.closed(change.at):
            self._problems.append(f"I5: claimed behind a closed gate: {change}")

    def _check_depth(self, change: Change) -> None:
        """
        I7: what was admitted had room, and what was refused for depth had none.
        """
        mine = sum(
            count for lane, count in self._queued.items() if lane.subdomain_hash == change.account
        )
        fits = (
            mine < self.limits.queued_per_account
            and self.states["queued"] < self.limits.queued_total
        )
        if fits != (change.new == "queued"):
            self._problems.append(f"I7: {mine} of its account waited: {change}")
