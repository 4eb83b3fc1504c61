"""
One drainer, whole and real, on clocks that are turned by hand, before an executor that is played.

The loop, the claim, the gates' memory and the back-off are the daemon's; what is replaced is what
is not ours: time, the executor behind its seam, the lock that dies with a worker. `crq.testing`
builds on it for the tests of others, `crq.simulate` for questions about load, our own tests for
faults. (`crq.tap` is where a daemon is built.)
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from crq import executions
from crq.database import Cursor, Database
from crq.dispatcher import Dispatcher
from crq.drainer import Drainer
from crq.gatememory import GateMemory
from crq.gatetable import DatabaseGates
from crq.inmemory import SynchronousPool
from crq.interfaces import ITransport
from crq.liveness import Liveness
from crq.messages import Answered, DispatchResult, Outcome
from crq.model import Claimed, Limits, Status
from crq.pulse import Pulse
from crq.suspects import Suspects
from crq.timeline import Clocks

SUCCESS = Outcome(Status.SUCCESS)
_lives = itertools.count()


@implementer(IReactorTime)
class _ProcessClock:
    """
    The monotonic clock as one process has it: its timers end with it.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._calls: list[IDelayedCall] = []

    def seconds(self) -> float:
        return self._clocks.seconds()

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> IDelayedCall:
        call = self._clocks.callLater(delay, callable, *args, **kw)
        self._calls = [each for each in self._calls if each.active()]
        self._calls.append(call)
        return call

    def getDelayedCalls(self) -> list[IDelayedCall]:
        return [each for each in self._calls if each.active()]

    def end(self) -> None:
        for call in self.getDelayedCalls():
            call.cancel()


@implementer(ITransport)
@define(eq=False, slots=False)
class PlayedExecutor:
    """
    An executor whose every move is made by who plays it, on the rows of the real tables.

    :ivar begin_at_once: what arrives begins; else it waits for `begin`.
    :ivar refuse: what a dispatch is answered at once, instead of reaching the executor.
    :ivar arrived: dispatches that have reached the executor and are not answered.
    :ivar alive: executions whose worker lives.
    :ivar starts: how often each execution was started: never more than once.
    :ivar order: the executions in the order of their starts.
    :ivar most: the most executions that lived at once, of each account and in ``total``.
    """

    database: Database
    clocks: Clocks
    begin_at_once: bool = True
    refuse: DispatchResult | Exception | None = None
    arrived: dict[int, tuple[Claimed, Deferred[DispatchResult]]] = field(factory=dict)
    alive: dict[int, Claimed] = field(factory=dict)
    starts: Counter[int] = field(factory=Counter)
    dispatches: list[int] = field(factory=list)
    order: list[int] = field(factory=list)
    most: Counter[str] = field(factory=Counter)
    closed: bool = False

    def __attrs_post_init__(self) -> None:
        self.connection: Any = self.database.connect()

    async def dispatch(self, claimed: Claimed) -> DispatchResult:
        """
        Take a dispatch, and answer when it is answered.
        """
        self.dispatches.append(claimed.execution_id)
        if isinstance(self.refuse, Exception):
            raise self.refuse
        if self.refuse is not None:
            return self.refuse
        answer: Deferred[DispatchResult] = Deferred()
        self.arrived[claimed.execution_id] = (claimed, answer)
        if self.begin_at_once:
            self.begin(claimed)
        return await answer

    async def close(self) -> None:
        """
        Let go of idle connections: there are none.
        """
        self.closed = True

    def begin(self, claimed: Claimed) -> bool:
        """
        Try to start an execution, as a worker does with the nonce it was sent.
        """
        begun = self.database.transact(
            self.connection,
            executions.start,
            claimed.execution_id,
            claimed.nonce,
            "played",
            self.clocks.wall(),
        )
        if begun:
            self.starts[claimed.execution_id] += 1
            self.order.append(claimed.execution_id)
            self.alive[claimed.execution_id] = claimed
            account = claimed.lane.subdomain_hash
            lives = sum(one.lane.subdomain_hash == account for one in self.alive.values())
            self.most["total"] = max(self.most["total"], len(self.alive))
            self.most[account] = max(self.most[account], lives)
        return begun

    def finish(self, execution_id: int, outcome: Outcome = SUCCESS) -> bool:
        """
        End a script and write its outcome; the answer is not given yet.
        """
        self.alive.pop(execution_id)
        return self.database.transact(
            self.connection, executions.finish, execution_id, outcome, self.clocks.wall()
        )

    def answer(self, execution_id: int, result: DispatchResult | None = None) -> None:
        """
        Give the drainer its answer.
        """
        _, answer = self.arrived.pop(execution_id)
        if not answer.called:  # the drainer may have hung up
            answer.callback(Answered(200, SUCCESS) if result is None else result)

    def end(self, execution_id: int) -> None:
        """
        End a script well, and answer.
        """
        self.finish(execution_id)
        self.answer(execution_id)

    def end_all(self) -> None:
        """
        End every script that runs.
        """
        for execution_id in list(self.alive):
            self.end(execution_id)

    def forsake(self) -> None:
        """
        Lose whoever waits for an answer: the drainer's process is gone.
        """
        for execution_id, (claimed, _) in list(self.arrived.items()):
            self.arrived[execution_id] = (claimed, Deferred())


@frozen
class PlayedLiveness(Liveness):
    """
    The locks of workers, as a played executor has them.
    """

    alive: Callable[[], Collection[int]]

    @classmethod
    def of(cls, executor: PlayedExecutor) -> PlayedLiveness:
        """
        The locks of this executor's workers.
        """
        return cls(executor.database, Path(), lambda: executor.alive)

    def held(self, txn: Cursor, execution_ids: Iterable[int]) -> frozenset[int]:
        """
        Tell which of these executions have a living worker.
        """
        return frozenset(execution_ids) & frozenset(self.alive())


class Workbench:
    """
    One drainer process; making a second one over the same parts is a restart.

    :ivar pool: the daemon's transactions.
    :ivar store: the gates as an executor or an operator writes them.
    :ivar gates: the gates as the drainer remembers them.
    """

    def __init__(
        self,
        executor: PlayedExecutor,
        *,
        limits: Limits,
        wall_limit: float | None = None,
        pool: SynchronousPool | None = None,
        drainer_id: str = "d1",
        memory: type[GateMemory] = GateMemory,
        every: float = 1.0,
    ) -> None:
        self.executor = executor
        self.database = executor.database
        self.clocks = executor.clocks
        self.limits = limits
        self.pool = pool or SynchronousPool(self.database, self.clocks.seconds)
        self.store = DatabaseGates(self.database)
        self._clock = _ProcessClock(self.clocks)
        self.gates = memory(self.store, defer.execute, self._clock)
        self.pulse = Pulse(self.clocks.wall())
        self.killed = False
        numbers, life = itertools.count(), next(_lives)
        self.dispatcher = Dispatcher(
            pool=self.pool,
            gates=self.gates,
            transport=executor,
            pulse=self.pulse,
            clock=self._clock,
            wall=self.clocks.wall,
        )
        self.drainer = Drainer(
            pool=self.pool,
            gates=self.gates,
            dispatcher=self.dispatcher,
            liveness=PlayedLiveness.of(executor),
            suspects=Suspects(wall_limit),
            limits=limits,
            drainer_id=drainer_id,
            pulse=self.pulse,
            clock=self._clock,
            wall=self.clocks.wall,
            mint=lambda: f"nonce {life} {next(numbers)}",
            every=every,
        )

    def kill(self) -> None:
        """
        End the process without a farewell: its timers stop, its answers reach nobody.
        """
        if self.killed:
            return
        self.killed = True
        self.drainer.running = False
        self.dispatcher._idle = None  # nobody is told that its stop is over
        self._clock.end()
        self.executor.forsake()
        self.pool.close()
        self.store.disconnect()
