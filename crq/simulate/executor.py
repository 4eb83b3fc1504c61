"""
The executor of a simulation: what arrives begins at once, and runs as the trace and the API let it.
"""

from __future__ import annotations

from attrs import define, field
from twisted.internet.defer import Deferred

from crq.messages import Answered, Lost
from crq.model import Claimed
from crq.replay.trace import Arrival
from crq.simulate.scripts import Killed, Runner
from crq.workbench import PlayedExecutor


@define(eq=False, slots=False)
class ModelledExecutor(PlayedExecutor):
    """
    :ivar runner: runs the scripts; set before the first dispatch.
    :ivar expected: what each admitted execution is.
    """

    runner: Runner = field(init=False)
    expected: dict[int, Arrival] = field(factory=dict)

    def begin(self, claimed: Claimed) -> bool:
        """
        Start what has arrived: a simulation has no second request for one execution.
        """
        begun = super().begin(claimed)
        assert begun, claimed
        Deferred.fromCoroutine(self._work(claimed.execution_id))
        return begun

    async def _work(self, number: int) -> None:
        try:
            outcome = await self.runner.run(self.expected[number])
        except Killed:
            del self.alive[number]
            self.answer(number, Lost("the worker was killed"))
            return
        self.finish(number, outcome)
        self.answer(number, Answered(200, outcome))
