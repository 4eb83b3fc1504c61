"""
The janitor of each minute: overdue rows, aged rows (off by default), API keys, old rows, and the
history of gates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger

from crq import executions, gatehistory
from crq.config import ReaperOptions
from crq.database import is_outage
from crq.executions.running import REAPED
from crq.instants import Instant
from crq.liveness import Liveness
from crq.outages import Outage
from crq.pool import Pool
from crq.suspects import Ages

DAY = 86_400  # s
PAUSE = 0.1  # s between batches; SQLite's writers look for their turn this far apart


@define(eq=False)
class Reaper(Service):
    """
    Keeps the tables in order (rulings 1-3).

    :ivar wall: the wall clock, for what is stored.
    :ivar clock: the monotonic clock, for ages and the timer.
    :ivar liveness: the locks of living workers; None where they are not to be trusted.
    """

    pool: Pool
    options: ReaperOptions
    clock: IReactorTime
    wall: Callable[[], Instant]
    liveness: Liveness | None = None
    _ages: Ages = field(init=False, factory=Ages)
    _loop: LoopingCall = field(init=False)
    _round: Deferred[None] | None = field(init=False, default=None)
    _stopping: bool = field(init=False, default=False)
    _faults: Outage = field(init=False)

    _log = Logger()

    def __attrs_post_init__(self) -> None:
        self._loop = LoopingCall(self._timed)
        self._loop.clock = self.clock
        self._faults = Outage(
            "the janitor", self.clock.seconds, self._log, "reap failed", "reaping"
        )

    def startService(self) -> None:
        """
        Begin the rounds; the first one is due after one interval, not in the rush of a start.
        """
        super().startService()
        self._loop.start(self.options.every, now=False)

    def stopService(self) -> Deferred[None]:
        """
        Begin no new round or batch, and wait for the one that runs.
        """
        super().stopService()
        self._stopping = True
        if self._loop.running:
            self._loop.stop()
        return Deferred.fromCoroutine(self._finish())

    async def _finish(self) -> None:
        if self._round is not None:
            await self._round

    def _timed(self) -> None:
        if self._round is None:
            self._round = Deferred()
            Deferred.fromCoroutine(self._go_round())

    async def _go_round(self) -> None:
        try:
            await self.run_once()
        except Exception as error:  # noqa: BLE001 - the rounds survive any fault
            if not is_outage(error):  # which the pool tells
                self._faults.failed(error)
        else:
            self._faults.went_well()
        done, self._round = self._round, None
        if done is not None:
            done.callback(None)

    async def run_once(self) -> dict[str, int]:
        """
        Do one round; returns how many rows each part touched.

        A part that fails does not keep the others from their work; its error is raised at the end.
        """
        now = self.wall()
        old = now - self.options.keep_days * DAY
        parts: dict[str, Callable[[], Awaitable[int]]] = {
            "reaped": lambda: self._reap(now),
            "aged": lambda: self._age(now),
            "scrubbed": lambda: self._batches(executions.scrub, now - self.options.scrub_after),
            "purged": lambda: self._batches(executions.purge, old),
            "gates": lambda: self._gates(now, old),
        }
        counts = dict.fromkeys(parts, 0)
        errors: list[Exception] = []
        for name, part in parts.items():
            if self._stopping:
                break
            try:
                counts[name] = await part()
            except Exception as error:  # noqa: BLE001 - it is raised below
                errors.append(error)
        if errors:
            raise next((error for error in errors if not is_outage(error)), errors[0])
        del counts["gates"]
        if any(counts.values()):
            self._log.info(
                "reaped {reaped}, aged {aged}, scrubbed {scrubbed}, purged {purged}",
                action="reaped",
                **counts,
            )
        return counts

    async def _age(self, now: Instant) -> int:
        if not self.options.queued_limit:
            return 0
        before = now - self.options.queued_limit
        return await self.pool.transact(executions.reap_queued, before, now)

    async def _gates(self, now: Instant, old: Instant) -> int:
        await self.pool.transact(gatehistory.opened, now)
        await self.pool.transact(gatehistory.finish, now)
        return await self._batches(gatehistory.purge, old)

    async def _reap(self, now: Instant) -> int:
        """
        Close rows that have been running for longer than any script may (the last net).

        All running rows are looked at, so that each is seen early: from there its age counts on the
        monotonic clock, and a stepped wall clock reaps nobody. A row whose worker is known to live
        counts from there alone, also after a restart.
        """
        running, held = await self.pool.read(self._running)
        ages = self._ages.of(running, self.clock.seconds(), now, held)
        reaped = 0
        for execution_id, age in ages.items():
            if age >= self.options.running_limit:
                reaped += await self.pool.transact(executions.died, execution_id, now, REAPED)
        return reaped

    def _running(self, txn: Any) -> tuple[tuple[tuple[int, Instant], ...], frozenset[int]]:
        running = executions.running_since(txn)
        if self.liveness is None:
            return running, frozenset()
        return running, self.liveness.held(txn, [execution_id for execution_id, _ in running])

    async def _batches(self, function: Callable[..., int], before: Instant) -> int:
        """
        Run a batched function until a batch comes back short, each batch in its own transaction.

        After half of the time between two rounds the rest is left to the next one, so that overdue
        rows do not wait for a purge of millions.
        """
        until = self.clock.seconds() + self.options.every / 2
        total = 0
        while True:
            count: int = await self.pool.transact(function, before, self.options.batch)
            total += count
            if count < self.options.batch or self._stopping or self.clock.seconds() >= until:
                return total
            await deferLater(self.clock, PAUSE)
