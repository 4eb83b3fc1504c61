"""
A whole drainer before a plain endpoint that a test plays; the endpoint knows nothing of our rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from crq import plain
from crq.messages import Answered, DispatchResult
from crq.plaindispatcher import PlainDispatcher
from tests.house import House

_lives = itertools.count()


class PlainHouse(House):
    """
    `House` with the plain contract.

    `executor.arrived` are POSTs without an answer; `executor.begin_at_once` is off, for nobody but
    the drainer touches the rows.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.executor.begin_at_once = False
        mark = plain.mark(self.drainer.drainer_id, str(next(_lives)))
        self.dispatcher: PlainDispatcher = PlainDispatcher(
            pool=self.pool,
            gates=self.gates,
            transport=self.executor,
            pulse=self.pulse,
            clock=self.dispatcher.clock,
            wall=self.clocks.wall,
            mark=mark,
        )
        self.dispatcher.freed = self.drainer.wake
        self.drainer.dispatcher = self.dispatcher
        self.drainer.begun_by = mark

    def start(self) -> PlainHouse:
        """
        Start the service: its first tick runs at once.
        """
        super().start()
        return self

    def again(self, drainer_id: str = "d1") -> PlainHouse:
        """
        Another process over the same store and endpoint; this one goes on.
        """
        return PlainHouse(
            self.database,
            self.clocks,
            self.executor,
            self.limits,
            self.drainer.suspects.wall_limit,
            drainer_id=drainer_id,
        )

    def restart(self) -> PlainHouse:
        """
        Kill this process and start another over the same store and endpoint.
        """
        self.kill()
        return self.again().start()

    def answer(self, execution_id: int, result: DispatchResult | None = None) -> None:
        """
        Answer a POST, and let the drainer write what comes of it.
        """
        self.executor.answer(execution_id, result or Answered(200))
        self.clocks.advance(0)

    @property
    def posts(self) -> Counter[int]:
        """
        How often each execution was POSTed.
        """
        return Counter(self.executor.dispatches)
