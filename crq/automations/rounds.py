"""
Phase B: the tenants with open runs, one chunk at a time.

# Note [Fairness]

Each tenant gets one chunk of one of its runs, then goes to the end of the line, until its seconds
or the tick's are used up. A run gets its second chunk after all other runs of its tenant have had
their first. Who was served longest ago is first in the next tick. A call that does not come back is
left behind (see note [Lost calls] in `crq.automations.workers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from crq.automations import limits, runs
from crq.automations.advance import Advancer, Turn
from crq.database import CommitUnknown, is_outage, is_repeatable
from crq.instants import Instant
from crq.pool import Pool


@define
class Ticked:
    """
    What one tick did.
    """

    claimed: int = 0
    taken_over: int = 0
    chunks: int = 0
    purged: int = 0


@define(eq=False)
class _Share:
    """
    A tenant in one tick.

    :ivar token: of its lease, once it has one.
    :ivar deadline: on the monotonic clock, from its first chunk on.
    :ivar run_ids: runs it has not begun; ``turns``: those it has.
    """

    tenant: str
    token: str = ""
    deadline: float = 0.0
    run_ids: deque[int] = field(factory=deque)
    turns: deque[Turn] = field(factory=deque)


@define(eq=False)
class Rounds:
    """
    Serves tenants.

    :ivar at_once: so many tenants are served at once: as many as there are threads.
    """

    pool: Pool
    advancer: Advancer
    clock: IReactorTime
    wall: Callable[[], Instant]
    at_once: int = 4

    _log = Logger()

    async def take_over(self, ticked: Ticked) -> None:
        """
        Take over runs whose worker has let its lease run out.
        """
        now = self.wall()
        for stale in await self.pool.read(runs.get_stale_running, now, limits.STALE_PER_TICK):
            kind = self.advancer.types.get(stale.type)
            repeatable = kind is not None and kind.repeatable
            unknown = await self.pool.transact(runs.take_over, stale, now, repeatable)
            if unknown is not None:
                ticked.taken_over += 1
                self._log.warn(
                    "automation {automation_id}: run {run_id} was left by its worker; taken over,"
                    " {unknown} effects unknown",
                    action="taken over",
                    automation_id=stale.automation_id,
                    run_id=stale.run_id,
                    unknown=unknown,
                )

    async def advance(self, ticked: Ticked, deadline: float, going_on: Callable[[], bool]) -> None:
        """
        Take open runs forward until a deadline on the monotonic clock.

        :param going_on: False once the daemon is to stop.
        :raise Exception: the database is away.
        """
        line = deque(map(_Share, await self.pool.read(runs.open_tenants)))
        faults: list[Exception] = []

        async def serve() -> None:
            while line:
                share = line.popleft()
                try:
                    until = deadline if going_on() else 0.0
                    if await self._serve(share, ticked, until):
                        line.append(share)
                except Exception as error:
                    if not is_away(error):
                        raise
                    line.clear()  # it is away for all of them
                    faults.append(error)

        count = min(self.at_once, len(line))
        # Each is waited for, whatever becomes of the others: ticks do not overlap.
        results: list[tuple[bool, Any]] = await DeferredList(
            [Deferred.fromCoroutine(serve()) for _ in range(count)], consumeErrors=True
        )
        for good, result in results:
            if not good:
                result.raiseException()
        if faults:
            raise faults[0]

    async def _serve(self, share: _Share, ticked: Ticked, deadline: float) -> bool:
        """
        Serve a tenant by one chunk; False: it is done for this tick.
        """
        if not share.token:
            if self.clock.seconds() >= deadline or not await self._lease(share):
                return False
            share.deadline = self.clock.seconds() + limits.TENANT_SECONDS
        try:
            await self._chunk(share, ticked, min(deadline, share.deadline))
        except runs.Lost:
            self._log.warn(
                "automations of {tenant}: a run has gone to another worker",
                action="lease lost",
                tenant=share.tenant,
            )
        except Exception as error:
            # The boundary between tenants.
            if is_away(error):
                raise
            self._log.failure(
                "automations of {tenant}: {error}",
                action="turn failed",
                tenant=share.tenant,
                error=f"{type(error).__name__}: {error}",
            )
        if share.run_ids or share.turns:
            return True
        await self.pool.transact(runs.release_tenant, share.tenant, share.token)
        return False

    async def _chunk(self, share: _Share, ticked: Ticked, until: float) -> None:
        if share.run_ids and self.clock.seconds() < until:
            turn = await self.advancer.begin(share.run_ids.popleft())
        else:
            share.run_ids.clear()
            turn = share.turns.popleft() if share.turns else None
        if turn is None:
            return
        before = turn.chunks
        more = await self.advancer.chunk(turn, until)
        ticked.chunks += turn.chunks - before
        if more:
            share.turns.append(turn)

    async def _lease(self, share: _Share) -> bool:
        token, now = self.advancer.mint(), self.wall()
        until = now + limits.LEASE_SECONDS
        found = await self.pool.transact(
            runs.lease_tenant, share.tenant, token, now, until, limits.RUNS_PER_TENANT
        )
        if found is None:
            return False
        share.token = token
        share.run_ids.extend(found)
        return True


def is_away(error: BaseException) -> bool:
    """
    Whether the database is away for everybody; not a lock that one tenant waited for in vain.
    """
    alone = isinstance(error, CommitUnknown) or is_repeatable(error)
    return is_outage(error) and not alone
