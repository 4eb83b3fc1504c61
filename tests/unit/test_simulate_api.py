"""
The modelled API, and how a script gets along with it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from crq.executor import interpret
from crq.messages import Outcome
from crq.model import ErrorCode, Status
from crq.replay.trace import Arrival
from crq.simulate import scripts
from crq.simulate.api import MINUTE, Api, Quota, Refused, Window
from crq.simulate.scripts import UNCAPPED, Killed, Ladder, Runner, Work
from crq.timeline import Timeline

NOON = 1_772_452_800.0
A_MINUTE = Window(3, MINUTE)


class ApiTests(SynchronousTestCase):
    """
    `crq.simulate.api.Api`.
    """

    def test_a_window(self) -> None:
        """
        So many calls are taken in a window; the next is told when the window ends, rounded up.
        """
        api = Api(Quota((A_MINUTE,)))
        self.assertEqual([api.call("k", 10.5) for _ in range(4)], [None] * 3 + [Refused(429, 50)])
        self.assertEqual(api.call("k", 59.999), Refused(429, 1))
        self.assertIsNone(api.call("k", 60.0))
        self.assertEqual((api.calls, api.refused), (4, {429: 2}))

    def test_the_longest_wait_is_told(self) -> None:
        """
        With a minute's and an hour's limit the one that holds longer is what a refusal says, and a
        refused call costs nothing of the other.
        """
        api = Api(Quota((A_MINUTE, Window(4, 3600.0))))
        for at in (0.0, 0.0, 0.0, 61.0):
            self.assertIsNone(api.call("k", at))
        self.assertEqual(api.call("k", 62.0), Refused(429, 3538))
        self.assertIsNone(api.call("k", 3600.0))

    def test_each_key_has_its_own(self) -> None:
        """
        What one key spends is not another's; a key may have limits of its own, or none.
        """
        api = Api(Quota((A_MINUTE,), {"free": (), "tight": (Window(1, 10.0),)}))
        for key in ("a", "b"):
            self.assertEqual([api.call(key, 0) is None for _ in range(4)], [True] * 3 + [False])
        self.assertTrue(all(api.call("free", 0) is None for _ in range(100)))
        self.assertEqual([api.call("tight", 1) for _ in range(2)], [None, Refused(429, 9)])

    def test_one_method_has_a_limit_of_its_own(self) -> None:
        """
        Beyond it the API says 401 and no wait; other calls are still taken.
        """
        api = Api(Quota(method=Window(1, MINUTE)))
        self.assertIsNone(api.call("k", 0, of_method=True))
        self.assertEqual(api.call("k", 1, of_method=True), Refused(401))
        self.assertIsNone(api.call("k", 1))
        self.assertIsNone(api.call("k", 60, of_method=True))


class RunnerTests(SynchronousTestCase):
    """
    `crq.simulate.scripts.Runner`.
    """

    def run_script(
        self,
        quota: Quota,
        *,
        service: float = 1.0,
        spent: int = 0,
        ladder: Ladder | None = None,
        outcome: str = "success",
        **work: Any,
    ) -> tuple[Outcome | None, float]:
        """
        Run one script to its end; gives its outcome (None: killed), and the seconds it took.

        :param spent: calls that somebody has made with the key before.
        """
        clocks = Timeline(NOON)
        api = Api(quota)
        for _ in range(spent):
            api.call("k", 0)
        self.closed: list[tuple[str, float]] = []
        runner = Runner(
            clocks,
            api,
            Work(**{"calls": 2, **work}),
            ladder or Ladder(),
            lambda key, until: self.closed.append((key, until - NOON)),
        )
        arrival = Arrival(0.0, "acme", "k", service, outcome)

        async def timed() -> tuple[Outcome | None, float]:
            try:
                return await runner.run(arrival), clocks.seconds()
            except Killed:
                return None, clocks.seconds()

        done = Deferred.fromCoroutine(timed())
        clocks.run(100_000)
        return self.successResultOf(done)

    def code(self, outcome: Outcome | None) -> int | None:
        assert outcome is not None
        return outcome.error_code

    def test_nothing_in_its_way(self) -> None:
        """
        A script takes its service time, and closes no gate.
        """
        outcome, seconds = self.run_script(Quota(), service=1.6)
        self.assertEqual((outcome, round(seconds, 9)), (Outcome(Status.SUCCESS), 1.6))
        self.assertEqual(self.closed, [])

    def test_a_script_without_calls(self) -> None:
        """
        It takes its time all the same.
        """
        outcome, seconds = self.run_script(Quota(), service=1.6, calls=0)
        self.assertEqual((self.code(outcome), seconds), (None, 1.6))

    def test_what_failed_by_itself_fails_again(self) -> None:
        """
        An error of the trace is a 301; a death at the wall is not repeated for its own sake.
        """
        self.assertEqual(self.code(self.run_script(Quota(), outcome="error")[0]), 301)
        self.assertIsNone(self.code(self.run_script(Quota(), outcome="wall")[0]))

    def test_a_short_wait_is_waited_for(self) -> None:
        """
        A refusal below the limit closes the gate and is waited for, with the margin; then the call
        is made again.
        """
        outcome, seconds = self.run_script(Quota((A_MINUTE,)), spent=3)
        self.assertIsNone(self.code(outcome))
        # Refused at 0.5: 60 s to the window's end, 5 s of margin; another 0.5 s to the next call.
        self.assertEqual((self.closed, seconds), ([("k", 66.0)], 66.0))

    def test_a_long_wait_ends_the_script(self) -> None:
        """
        From 100 s on a refusal closes the gate and the script fails (301) at once.
        """
        outcome, seconds = self.run_script(Quota((Window(3, 3600.0),)), spent=3)
        self.assertEqual((self.code(outcome), seconds), (ErrorCode.SCRIPT_ERROR, 0.5))
        self.assertEqual(self.closed, [("k", 3606.0)])

    def test_attempts_are_bounded(self) -> None:
        """
        A call that is refused at each attempt is made three times and no more.
        """
        outcome, seconds = self.run_script(Quota((Window(0, 30.0),)))
        self.assertEqual(self.code(outcome), 301)
        self.assertEqual(len(self.closed), 3)
        # At 0.5, 30 s and the margin later, and 25 s (to the second window's end) and it again.
        self.assertEqual(seconds, 65.5)

    def test_a_wait_that_does_not_fit(self) -> None:
        """
        What would not end before the wall, less what is kept for the outcome, is not begun.
        """
        outcome, seconds = self.run_script(Quota((A_MINUTE,)), spent=3, wall=66.0)
        self.assertEqual((self.code(outcome), seconds), (301, 0.5))
        self.assertIsNone(self.code(self.run_script(Quota((A_MINUTE,)), spent=3, wall=68.0)[0]))

    def test_the_401_ladder(self) -> None:
        """
        A 401 waits its own time, closes no gate, and is bounded alike.
        """
        outcome, seconds = self.run_script(Quota(method=Window(0, MINUTE)), service=4.0, calls=4)
        self.assertEqual((self.code(outcome), seconds), (301, 124.0))
        self.assertEqual(self.closed, [])

    def test_the_wall(self) -> None:
        """
        A script that is still at it is killed at the wall, and not before.
        """
        self.assertEqual(self.run_script(Quota(), service=400.0, seconds=None), (None, 300.0))
        outcome, _ = self.run_script(Quota(), service=299.0, seconds=None)
        self.assertIsNone(self.code(outcome))

    def test_no_call_begins_late(self) -> None:
        """
        A script that has run for its time begins no further call.
        """
        outcome, seconds = self.run_script(Quota(), service=400.0, calls=10)
        self.assertEqual((self.code(outcome), seconds), (301, 200.0))

    def test_a_ladder_without_an_end(self) -> None:
        """
        As it was before the queue, refusals are waited for until the wall kills the worker.
        """
        outcome, seconds = self.run_script(Quota((Window(0, 30.0),)), ladder=UNCAPPED, seconds=None)
        self.assertEqual((outcome, seconds), (None, 300.0))
        self.assertGreater(len(self.closed), 8)

    def test_calls_of_accounts(self) -> None:
        """
        An account may have a number of calls of its own; without any, a script makes as many as in
        a replay: one for each 0.4 s.
        """
        arrival = Arrival(0.0, "acme", "k", 1.6, "success")
        self.assertEqual(Work().count(arrival), 4)
        self.assertEqual(Work(calls=7).count(arrival), 7)
        self.assertEqual(Work(calls=7, calls_of={"acme": 9}).count(arrival), 9)

    def test_what_is_kept_back(self) -> None:
        """
        As much of the wall is kept for the outcome as our executor keeps.
        """
        self.assertEqual(scripts.KEPT_BACK, interpret.KEPT_BACK)
