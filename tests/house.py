"""
A whole drainer on clocks that a test turns, over a real store, with an executor that a test plays.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import define, field
from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from crq import executions
from crq.database import Database
from crq.dispatcher import Dispatcher
from crq.drainer import Drainer
from crq.gatememory import GateMemory
from crq.gatetable import DatabaseGates
from crq.interfaces import ITransport
from crq.liveness import Liveness
from crq.messages import Answered, DispatchResult, Outcome
from crq.model import Claimed, Limits, Status
from crq.pulse import Pulse
from crq.suspects import Suspects
from tests import rows
from tests.support import SynchronousPool

SUCCESS = Outcome(Status.SUCCESS)


class Clocks(Clock):
    """
    Both clocks: the monotonic one of Twisted, and a wall clock that can be stepped.
    """

    def __init__(self, noon: float = rows.NOON) -> None:
        super().__init__()
        self.step = noon

    def wall(self) -> float:
        """
        The wall clock.
        """
        return self.step + self.seconds()

    def go(self, seconds: float, step: float = 0.25) -> None:
        """
        Let time pass in small steps, so that every timer sees its instant.
        """
        self.pump([step] * round(seconds / step))


@implementer(ITransport)
@define(eq=False, slots=False)
class PlayedExecutor:
    """
    An executor whose every move is made by the test, on rows of the real store.

    :ivar refuse: what a dispatch is answered at once, instead of reaching the executor.
    :ivar arrived: dispatches that have reached the executor and are not answered.
    :ivar alive: executions whose worker lives.
    :ivar starts: how often each execution was started: never more than once.
    :ivar most: the most executions that lived at once, in total and of one account.
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
            lives = Counter(one.lane.subdomain_hash for one in self.alive.values())
            self.most["total"] = max(self.most["total"], len(self.alive))
            for account, count in lives.items():
                self.most[account] = max(self.most[account], count)
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


class PlayedLiveness(Liveness):
    """
    Liveness as the played executor has it.
    """

    def __init__(self, database: Database, executor: PlayedExecutor) -> None:
        super().__init__(database, Path("unused"))
        object.__setattr__(self, "executor", executor)

    def held(self, txn: Any, execution_ids: Any) -> frozenset[int]:
        executor: PlayedExecutor = self.executor  # type: ignore[attr-defined]
        return frozenset(execution_ids) & executor.alive.keys()


class House:
    """
    One drainer process; making a second one over the same parts is a restart.
    """

    def __init__(
        self,
        database: Database,
        clocks: Clocks | None = None,
        executor: PlayedExecutor | None = None,
        limits: Limits = rows.LIMITS,
        wall_limit: float | None = None,
        pool: SynchronousPool | None = None,
        drainer_id: str = "d1",
    ) -> None:
        self.database = database
        self.clocks = clocks or Clocks()
        self.executor = executor or PlayedExecutor(database, self.clocks)
        self.pool = pool or SynchronousPool(database)
        self.store = DatabaseGates(database)
        self.gates = GateMemory(self.store, defer.execute, self.clocks)
        self.pulse = Pulse(self.clocks.wall())
        self.limits = limits
        self.killed = False
        numbers = itertools.count()
        life = id(self)
        dispatcher = Dispatcher(
            pool=self.pool,
            gates=self.gates,
            transport=self.executor,
            pulse=self.pulse,
            clock=self.clocks,
            wall=self.clocks.wall,
        )
        self.drainer = Drainer(
            pool=self.pool,
            gates=self.gates,
            dispatcher=dispatcher,
            liveness=PlayedLiveness(database, self.executor),
            suspects=Suspects(wall_limit),
            limits=limits,
            drainer_id=drainer_id,
            pulse=self.pulse,
            clock=self.clocks,
            wall=self.clocks.wall,
            mint=lambda: f"nonce {life} {next(numbers)}",
        )

    def start(self) -> House:
        """
        Start the service: its first tick runs at once.
        """
        self.drainer.startService()
        return self

    def kill(self) -> None:
        """
        End the process without a farewell: its timers stop, its answers reach nobody.
        """
        if self.killed:
            return
        self.killed = True
        self.drainer.running = False
        for call in self.clocks.getDelayedCalls():
            call.cancel()
        for execution_id, (claimed, _) in list(self.executor.arrived.items()):
            self.executor.arrived[execution_id] = (claimed, Deferred())
        self.pool.close()
        self.store.disconnect()

    def restart(self) -> House:
        """
        Kill this process and start another over the same store and executor.
        """
        self.kill()
        return House(self.database, self.clocks, self.executor, self.limits).start()

    def admit(self, account: str = "acme", key: str = "key", count: int = 1) -> list[int]:
        """
        Admit executions now.
        """
        return [
            rows.admit(
                self.database,
                self.pool.connection,
                account,
                key,
                self.clocks.wall(),
                self.limits,
            )
            for _ in range(count)
        ]

    def status(self, execution_id: int) -> str:
        """
        A row's status.
        """
        return str(rows.row(self.database, self.pool.connection, execution_id)["status"])

    def statuses(self) -> Counter[str]:
        """
        How many rows are in each state.
        """

        def read(txn: Any) -> list[tuple[str, int]]:
            sql = "SELECT status, COUNT(*) FROM codeRunner_executions GROUP BY status"
            return list(txn.execute(sql).all())

        return Counter(dict(self.database.read(self.pool.connection, read)))

    def close(self) -> None:
        """
        End it all, the executor too.
        """
        self.kill()
        self.executor.connection.close()
