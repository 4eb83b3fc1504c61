"""
One script as it runs: its calls, evenly over its time, and the ladder it climbs when the API
refuses one (brief §10).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from attrs import field, frozen
from twisted.internet.task import deferLater

from crq import policy
from crq.instants import Instant
from crq.messages import Outcome
from crq.model import ErrorCode, Status
from crq.replay.scripts import calls_of
from crq.replay.trace import Arrival
from crq.simulate.api import TOO_MANY, Api
from crq.timeline import Clocks

KEPT_BACK = 0.02  # of the wall, for writing the outcome, as our executor keeps it
METHOD_EVERY = 4  # one call in so many is of the method with a limit of its own


class Killed(Exception):
    """
    The worker was killed in the midst of its script: nobody answers.
    """


@frozen
class Ladder:
    """
    What is done about a refusal.

    :ivar attempts: of one call; None: without end, as before the queue (brief §10).
    :ivar wait_below: a Retry-After of so many seconds ends the script.
    :ivar wait_unauthorized: seconds to wait after a 401.
    :ivar shortest: seconds that any 429 is waited for at least.
    :ivar margin: seconds added to each Retry-After.
    :ivar fits: a wait that does not fit before the wall ends the script at once.
    """

    attempts: int | None = 3
    wait_below: float = 100.0
    wait_unauthorized: float = 60.0
    shortest: int = policy.RETRY_AFTER_MINIMUM
    margin: float = policy.GATE_MARGIN
    fits: bool = True


UNCAPPED = Ladder(attempts=None, fits=False)  # as `BusinessmapConnect::send` was (brief §1)


@frozen
class Work:
    """
    What scripts do, beyond what a trace says.

    :ivar calls: API calls of one execution; None: as many as a replay's script makes.
    :ivar calls_of: accounts with a number of their own.
    :ivar wall: seconds after which a worker is killed (brief §3).
    :ivar seconds: after which a script begins no further call; None: it has no such check.
    """

    calls: int | None = None
    calls_of: Mapping[str, int] = field(factory=dict)
    wall: float = 300.0
    seconds: float | None = 180.0

    def count(self, arrival: Arrival) -> int:
        """
        How many calls an execution makes.
        """
        calls = self.calls_of.get(arrival.account, self.calls)
        return calls_of(arrival)[0] if calls is None else calls


@frozen
class Runner:
    """
    Runs scripts against the API.

    :ivar closed: told until when a refusal closes a key.
    """

    clocks: Clocks
    api: Api
    work: Work
    ladder: Ladder
    closed: Callable[[str, Instant], None] = lambda _key, _until: None

    async def run(self, arrival: Arrival) -> Outcome:
        """
        Run one script to its end. What failed by itself in the trace fails again; who died at the
        wall there dies only if it comes to that here.

        :raise Killed: at the wall.
        """
        begun = self.clocks.seconds()
        calls = self.work.count(arrival)
        for number in range(calls):
            await self._pass(begun, arrival.service / calls)
            if self.work.seconds is not None and self._since(begun) >= self.work.seconds:
                return Outcome(Status.FAILED, ErrorCode.SCRIPT_ERROR, "ran for too long")
            why = await self._call(arrival.key, begun, number % METHOD_EVERY == METHOD_EVERY - 1)
            if why is not None:
                return Outcome(Status.FAILED, ErrorCode.SCRIPT_ERROR, why)
        if not calls:
            await self._pass(begun, arrival.service)
        if arrival.outcome == "error":
            return Outcome(Status.FAILED, ErrorCode.SCRIPT_ERROR, "as in the trace")
        return Outcome(Status.SUCCESS)

    async def _call(self, key: str, begun: float, of_method: bool) -> str | None:
        """
        Make one call; says why the script ends, if it does.
        """
        for attempt in itertools.count(1):
            refusal = self.api.call(key, self.clocks.seconds(), of_method)
            if refusal is None:
                return None
            wait, short = self.ladder.wait_unauthorized, True
            if refusal.status == TOO_MANY:
                now = self.clocks.wall()
                seconds = policy.retry_after(str(refusal.retry_after), now, self.ladder.shortest)
                self.closed(key, policy.gate_until(seconds, now, self.ladder.margin))
                wait, short = seconds + self.ladder.margin, seconds < self.ladder.wait_below
            if not short:
                return f"over the API's limit; a wait of {wait:g} s is too long for a script"
            if self.ladder.attempts is not None and attempt >= self.ladder.attempts:
                return f"over the API's limit; {attempt} attempts"
            left = self.work.wall * (1 - KEPT_BACK) - self._since(begun)
            if self.ladder.fits and wait > left:
                return f"over the API's limit; a wait of {wait:g} s does not fit"
            await self._pass(begun, wait)
        raise AssertionError("unreachable")

    def _since(self, begun: float) -> float:
        return self.clocks.seconds() - begun

    async def _pass(self, begun: float, seconds: float) -> None:
        """
        Let time pass; at the wall the worker is killed.
        """
        left = self.work.wall - self._since(begun)
        await deferLater(self.clocks, min(seconds, max(0.0, left)))
        if seconds > left or math.isclose(seconds, left):
            raise Killed
