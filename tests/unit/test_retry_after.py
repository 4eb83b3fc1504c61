"""
The one rule for Retry-After against the vectors that PHP runs too (F54, F56, F59, F60).
"""

from __future__ import annotations

import json
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from crq import policy
from crq.messages import Answered, Lost, NotSent

VECTORS = json.loads(
    (Path(__file__).resolve().parent.parent / "vectors" / "retry_after.json").read_text("utf-8")
)


class VectorTests(SynchronousTestCase):
    """
    `policy.retry_after`, `policy.gate_until` and `policy.gate_ttl`.
    """

    def test_waits(self) -> None:
        """
        Each value waits as long as the vector says; unreadable never means "no wait".
        """
        self.assertGreater(len(VECTORS["waits"]), 60)
        for vector in VECTORS["waits"]:
            found = policy.retry_after(vector["value"], VECTORS["now"])
            self.assertEqual((found, type(found)), (vector["wait"], int), vector)
            self.assertTrue(5 <= found <= 86_400)

    def test_gates(self) -> None:
        """
        A gate is the wait plus its margin, rounded up, and is kept as long as it must.
        """
        for vector in VECTORS["gates"]:
            until = policy.gate_until(vector["wait"], vector["now"])
            self.assertEqual(until, vector["until"], vector)
            self.assertEqual(policy.gate_ttl(until, vector["now"]), vector["ttl"], vector)

    def test_what_an_executor_may_ask_for(self) -> None:
        """
        429 and 503 with Retry-After ask for a pause, by the same rule and for a minute at most;
        nothing else does.
        """
        now = float(VECTORS["now"])
        for result, pause in (
            (Answered(503, retry_after="20"), 20.0),
            (Answered(429, retry_after="20"), 20.0),
            (Answered(503, retry_after="0"), 5.0),
            (Answered(503, retry_after="86400"), 60.0),
            (Answered(503, retry_after=""), 60.0),
            (Answered(503, retry_after="Sat, 29 Aug 2026 10:40:30 GMT"), 30.0),
            (Answered(503), None),
            (Answered(500, retry_after="20"), None),
            (Answered(200, retry_after="20"), None),
            (NotSent("refused"), None),
            (Lost("reset"), None),
        ):
            self.assertEqual(policy.pause_asked(result, now), pause, result)

    def test_other_limits(self) -> None:
        """
        The shortest wait and the margin are the configuration's.
        """
        self.assertEqual(policy.retry_after("0", 0.0, 1), 1)
        self.assertEqual(policy.retry_after("2", 0.0, 30), 30)
        self.assertEqual(policy.retry_after("soon", 0.0, 1), 60)
        self.assertEqual(policy.gate_until(1, 100.0, 0.25), 102)
        self.assertEqual(policy.gate_until(1, 100.0, 0.0), 101)
