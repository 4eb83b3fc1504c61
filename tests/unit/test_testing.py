"""
`crq.testing`: a whole queue in one process, as those who use crqueue test with it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq.messages import Invalid, Mismatch, NotSent, Rejected
from crq.model import Limits, Reason
from crq.submissions import Refusal
from crq.testing import Execution, NotAdmitted, Queue, Script

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "testing.md"


class QueueTests(SynchronousTestCase):
    """
    `crq.testing.Queue`.
    """

    def queue(self, **given: Any) -> Queue:
        queue = Queue(**given)
        self.addCleanup(queue.close)
        return queue

    def test_the_page(self) -> None:
        """
        Every example of docs/testing.md runs as it stands there.
        """
        found = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
        self.assertGreater(len(found), 2)
        for text in found:
            names: dict[str, Any] = {}
            exec(compile(text, PAGE.name, "exec"), names)
            tests = [value for name, value in names.items() if name.startswith("test_")]
            self.assertTrue(tests, text)
            for test in tests:
                test()

    def test_each_at_its_own_time(self) -> None:
        """
        Two of an account run at once, the third when one has ended; instants are exact.
        """
        queue = self.queue(script=Script(seconds=2.5))
        numbers = [queue.admit() for _ in range(3)]
        self.assertEqual(queue.states(), {"running": 2, "queued": 1})
        self.assertIs(queue.why(numbers[2]), Reason.ACCOUNT_FULL)
        self.assertIsNone(queue.why(numbers[0]))
        queue.advance(2.5)
        self.assertEqual(queue.states(), {"success": 2, "running": 1})
        last = queue.look(numbers[2])
        self.assertEqual(last.started_at, "2026-03-02 12:00:02.500")
        self.assertEqual(queue.drain(), 3.0)
        self.assertEqual(queue.look(numbers[2]).seconds, 2.5)
        self.assertEqual(queue.executor.order, numbers)
        self.assertEqual(queue.executor.most["total"], 2)

    def test_scripts_by_execution(self) -> None:
        """
        What an execution does may depend on what was submitted: all of it is there.
        """
        seen: list[Execution] = []

        def script(execution: Execution) -> Script:
            seen.append(execution)
            return Script(error_code=301, error_message="no") if execution.payload else Script()

        queue = self.queue(script=script)
        good = queue.admit("acme", "secret", source_code="x")
        bad = queue.admit("acme", payload={"card": 7})
        queue.advance(0)
        self.assertEqual(seen[0], Execution(good, "acme", "secret", "x", None))
        self.assertEqual((seen[1].apikey, seen[1].payload), ("key", '{"card":7}'))
        self.assertEqual(queue.look(good).shown, "success")
        failed = queue.look(bad)
        self.assertEqual(
            (failed.shown, failed.error_code, failed.error_message), ("failed", 301, "no")
        )
        self.assertNotIn("secret", repr(seen))

    def test_a_gate(self) -> None:
        """
        A 429 closes the gate of its key; what waits behind it starts when it opens, one first.
        """
        queue = self.queue(
            limits=Limits(in_flight=4, per_account=2),
            script=lambda execution: Script(
                seconds=2, retry_after=30 if execution.execution_id == 1 else None
            ),
        )
        first, second, third = (queue.admit(apikey="k") for _ in range(3))
        other = queue.admit("bravo", "another")
        self.assertEqual(queue.look(other).status, "running")
        queue.advance(34)
        self.assertEqual(queue.look(first).status, "success")
        self.assertEqual({queue.why(each) for each in (second, third)}, {Reason.GATED})
        queue.advance(1)  # 30 s and the margin of 5 are over
        self.assertEqual(queue.look(second).status, "running")
        queue.advance(1)
        self.assertIs(queue.why(third), Reason.HALF_OPEN)
        queue.advance(1)
        self.assertEqual(queue.look(third).status, "running")

    def test_gates_of_others(self) -> None:
        """
        Another program may close a key and open it early.
        """
        queue = self.queue()
        queue.close_gate("k", 3600)
        number = queue.admit(apikey="k")
        queue.advance(60)
        self.assertIs(queue.why(number), Reason.GATED)
        queue.open_gate("k")
        queue.advance(1)
        self.assertEqual(queue.look(number).status, "success")

    def test_what_is_not_admitted(self) -> None:
        """
        The caps, the language, idempotency and the fields are those of production.
        """
        queue = self.queue(
            limits=Limits(queued_per_account=1), script=Script(seconds=9), language="starlark"
        )
        with self.assertRaises(NotAdmitted) as caught:
            for _ in range(4):
                queue.admit(source_code="x = 1")
        self.assertIsInstance(caught.exception.answer, Rejected)
        self.assertEqual(queue.states()["rejected"], 1)
        self.assertIsInstance(queue.submit("bravo", source_code="x ="), Invalid)
        first = queue.admit("carla", source_code="x = 1", idempotency_key="once")
        self.assertEqual(queue.admit("carla", source_code="x = 1", idempotency_key="once"), first)
        self.assertIsInstance(
            queue.submit("carla", source_code="x = 2", idempotency_key="once"), Mismatch
        )
        with self.assertRaises(Refusal):
            queue.submit("")

    def test_a_worker_that_dies(self) -> None:
        """
        An outcome that nobody knows becomes 303, seconds later, and is not tried again.
        """
        queue = self.queue(script=Script(seconds=5, dies=True))
        number = queue.admit()
        queue.advance(10)
        self.assertEqual(queue.look(number).shown, "outcome unknown")
        self.assertEqual(queue.executor.starts[number], 1)

    def test_an_executor_that_is_away(self) -> None:
        """
        While the executor takes no work everything waits; nothing is lost by it.
        """
        queue = self.queue()
        queue.refuse(NotSent("connection refused"))
        number = queue.admit()
        queue.advance(5)
        self.assertEqual(queue.look(number).status, "queued")
        self.assertIs(queue.why(number), Reason.BACKING_OFF)
        queue.refuse(None)
        queue.drain(60)
        self.assertEqual(queue.look(number).status, "success")

    def test_a_killed_drainer(self) -> None:
        """
        Scripts outlive the drainer; the next one starts nothing again and goes on with the rest.
        """
        queue = self.queue(script=Script(seconds=3))
        numbers = [queue.admit() for _ in range(3)]
        queue.advance(1)
        queue.kill()
        queue.advance(10)
        self.assertEqual(queue.states(), {"success": 2, "queued": 1})
        queue.restart()
        queue.drain()
        self.assertEqual(queue.states(), {"success": 3})
        self.assertEqual(sorted(queue.executor.starts.items()), [(each, 1) for each in numbers])

    def test_a_restart_in_the_midst(self) -> None:
        """
        The caps hold over a restart, counted at the executor.
        """
        queue = self.queue(script=Script(seconds=5))
        for _ in range(4):
            queue.admit()
        queue.advance(1)
        queue.restart()
        queue.drain()
        self.assertEqual(queue.states(), {"success": 4})
        self.assertEqual(queue.executor.most["total"], 2)

    def test_cancelling(self) -> None:
        """
        What waits can be cancelled; what runs cannot.
        """
        queue = self.queue(script=Script(seconds=5))
        first, _, third = (queue.admit() for _ in range(3))
        self.assertEqual((queue.cancel(first), queue.cancel(third)), (False, True))
        self.assertEqual(queue.look(third).shown, "cancelled")

    def test_mistakes_are_told(self) -> None:
        """
        What a script raises comes out where time was let pass; a queue that does not drain and a
        row that is not there say so.
        """

        def broken(execution: Execution) -> Script:
            raise ZeroDivisionError(execution.execution_id)

        queue = self.queue(script=broken)
        with self.assertRaises(ZeroDivisionError):
            queue.admit()
        slow = self.queue(script=Script(seconds=100))
        slow.admit()
        with self.assertRaises(TimeoutError):
            slow.drain(10)
        with self.assertRaises(KeyError):
            slow.look(99)
