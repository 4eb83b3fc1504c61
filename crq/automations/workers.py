"""
Threads for calls of automation types, each call with a deadline.

# Note [Lost calls]

Nothing can end a thread from outside. A call that passes its deadline is not waited for any more:
whoever asked is told, another call may take its place, and what it returns in the end is dropped.
Until it returns, its automation gets no further thread, its tenant at most
`limits.LOST_CALLS_PER_TENANT`, and after `limits.LOST_CALLS` in all no call is made: the daemon is
to be restarted. Claims go on; they need no thread of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from attrs import frozen
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from crq.automations import limits


class Overdue(Exception):
    """
    A call did not come back in time; it may still be at work.
    """


class NoThread(Exception):
    """
    No call is made, because earlier ones never came back; the text says whose.
    """


@frozen
class Caller:
    """
    For whom a call is made.
    """

    tenant: str
    automation_uuid: str


class IWorkers(Protocol):
    """
    Whatever makes calls.
    """

    def call(self, caller: Caller, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """
        Make a call.
        """


class Workers(Service):
    """
    The threads. The Deferred of a call fails with `Overdue` or `NoThread`, or as the call does.

    :ivar lost: calls that have not come back, by caller.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        clock: IReactorTime,
        threads: int,
        seconds: float = limits.CALL_SECONDS,
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._seconds = seconds
        self._free = DeferredSemaphore(threads)
        self._threads = ThreadPool(0, threads + limits.LOST_CALLS, "crqueue-automations")
        self.lost: Counter[Caller] = Counter()

    def startService(self) -> None:
        """
        Start the threads; they end after all services have stopped.
        """
        super().startService()
        self._threads.start()
        self._reactor.addSystemEventTrigger("during", "shutdown", self._threads.stop)

    def refusal(self, caller: Caller) -> str | None:
        """
        Why no call is made for somebody, or None (see note [Lost calls]).
        """
        if self.lost[caller]:
            return "an earlier call of this automation has not come back"
        of_tenant = sum(n for one, n in self.lost.items() if one.tenant == caller.tenant)
        if of_tenant >= limits.LOST_CALLS_PER_TENANT:
            return f"{of_tenant} calls of this tenant have not come back"
        if self.lost.total() >= limits.LOST_CALLS:
            return f"{self.lost.total()} calls have not come back: restart the daemon"
        return None

    def call(self, caller: Caller, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """
        Make a call on a thread, and wait for it until its deadline.
        """
        return Deferred.fromCoroutine(self._call(caller, function, *args))

    async def _call(self, caller: Caller, function: Callable[..., Any], *args: Any) -> Any:
        await self._free.acquire()
        problem = self.refusal(caller)
        if problem is not None:
            self._free.release()
            raise NoThread(problem)
        answer: Deferred[Any] = Deferred()
        timer = self._clock.callLater(self._seconds, self._overdue, caller, answer)
        done = deferToThreadPool(self._reactor, self._threads, function, *args)
        done.addBoth(self._came_back, caller, answer, timer)
        return await answer

    def _overdue(self, caller: Caller, answer: Deferred[Any]) -> None:
        self.lost[caller] += 1
        self._free.release()
        answer.errback(Overdue(f"did not come back within {self._seconds:g} s"))

    def _came_back(self, result: Any, caller: Caller, answer: Deferred[Any], timer: Any) -> None:
        if timer.active():
            timer.cancel()
            self._free.release()
            answer.callback(result)  # a Failure fires it as one
            return
        self.lost[caller] -= 1
        self.lost += Counter()  # drops what has come to zero
        self._log.warn(
            "automation {uuid}: a call that nobody waited for has come back {how}; dropped",
            action="call came back",
            uuid=caller.automation_uuid,
            how="with an error" if isinstance(result, Failure) else "well",
        )
