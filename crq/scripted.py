"""
An executor whose workers do what scripts say, on clocks that are turned by hand.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field, frozen
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from crq.messages import Answered, Lost, Outcome
from crq.model import Claimed, ErrorCode, Status
from crq.workbench import PlayedExecutor


@frozen
class Script:
    """
    What one execution does.

    :ivar seconds: how long it takes.
    :ivar error_code: it fails with this code; None: it ends well.
    :ivar retry_after: the API answers 429 with so many seconds when it begins, which closes the
        gate of its key.
    :ivar dies: its worker dies at the end, so that nobody knows the outcome (303).
    """

    seconds: float = 0.0
    error_code: int | None = None
    error_message: str | None = None
    retry_after: int | None = None
    dies: bool = False


@frozen
class Execution:
    """
    An execution that begins, as its script sees it.
    """

    execution_id: int
    account: str
    apikey: str = field(repr=False)
    source_code: str = field(repr=False)
    payload: str | None = field(repr=False)


@define(eq=False, slots=False)
class ScriptedExecutor(PlayedExecutor):
    """
    An executor whose workers do what scripts say.

    :ivar refuse: what every dispatch is answered instead of reaching a worker, such as
        ``NotSent("connection refused")``; None: the executor is there.
    """

    begun: Callable[[Claimed], Script] = field(default=lambda _: Script())
    failures: list[Failure] = field(factory=list)

    def begin(self, claimed: Claimed) -> bool:
        """
        Start what has arrived, or refuse it as one whose nonce is worth nothing.
        """
        begun = super().begin(claimed)
        if begun:
            Deferred.fromCoroutine(self._work(claimed)).addErrback(self.failures.append)
        else:
            self.answer(claimed.execution_id, Answered(409, error_code=ErrorCode.NONCE_INVALID))
        return begun

    async def _work(self, claimed: Claimed) -> None:
        script = self.begun(claimed)
        await deferLater(self.clocks, script.seconds)
        if script.dies:
            del self.alive[claimed.execution_id]
            self.answer(claimed.execution_id, Lost("the worker died"))
            return
        outcome = Outcome(Status.SUCCESS)
        if script.error_code is not None:
            outcome = Outcome(Status.FAILED, script.error_code, script.error_message)
        self.finish(claimed.execution_id, outcome)
        self.answer(claimed.execution_id, Answered(200, outcome))
