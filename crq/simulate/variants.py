"""
Other rules than those of production, to be compared with them.

They stand here and not in `crq.policy`, whose parameters all mean something in production: FIFO is
the ruling (brief §11.2), half-open too (ruling 8). A turn of each account would have to be kept
over restarts and shared by all drainers; the simulator, with one drainer that never restarts, can
keep it in memory and show whether that would be worth anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import define, evolve, field

from crq import policy
from crq.gatememory import GateMemory
from crq.instants import Instant
from crq.model import InFlight, Lane, Limits, Plan, Snapshot, Status

ORDERS = ("fifo", "round-robin")


class NeverHalfOpen(GateMemory):
    """
    Gates that open at once for everything that has waited behind them.
    """

    @property
    def half_open(self) -> frozenset[str]:
        """
        No key at all.
        """
        return frozenset()


@define(eq=False)
class RoundRobin:
    """
    Plans by turns: the account that started longest ago comes first, and inside it its oldest lane.

    A plan gives each account one row at most, so that the claim's own order has nothing left to
    decide; the tick after it goes on where slots are left.

    :ivar more: the last plan took something: there may be more to take.
    """

    more: bool = False
    _turns: dict[str, int] = field(init=False, factory=dict)
    _turn: int = field(init=False, default=0)

    def plan(
        self,
        snapshot: Snapshot,
        gates: Mapping[str, Instant],
        limits: Limits,
        now: Instant,
        *,
        half_open: Collection[str] = (),
        backing_off: Mapping[Lane, Instant] | None = None,
    ) -> Plan:
        """
        Decide as `crq.policy.plan` does, account by account in the order of their turns.
        """
        accounts = sorted(
            {head.lane.subdomain_hash for head in snapshot.heads},
            key=lambda account: (self._turns.get(account, 0), account),
        )
        whole, flights = Plan(), list(snapshot.in_flight)
        for account in accounts:
            heads = tuple(head for head in snapshot.heads if head.lane.subdomain_hash == account)
            part = policy.plan(
                evolve(snapshot, heads=heads, in_flight=tuple(flights)),
                gates,
                limits,
                now,
                half_open=half_open,
                backing_off=backing_off,
            )
            if part.takes:
                take = evolve(part.takes[0], at_most=1)
                whole = evolve(whole, takes=(*whole.takes, take))
                flights.append(InFlight(-len(flights), take.lane, Status.CLAIMED))
                self._turn += 1
                self._turns[account] = self._turn
            whole = evolve(whole, holds=(*whole.holds, *part.holds))
        self.more = bool(whole.takes)
        return whole
