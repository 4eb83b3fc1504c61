"""
``POST /wake`` and ``GET /drainers``.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq import heartbeat
from crq.pulse import Beat, Origin
from crq.web import openapi
from tests.door import ACME, ADMITTER, READER, Door
from tests.rows import NOON


class WakeTests(SynchronousTestCase):
    """
    With a door.
    """

    def setUp(self) -> None:
        self.statements: list[str] = []
        self.door = Door(observe=self.statements.append)
        self.addCleanup(self.door.close)

    def test_it_wakes_the_drainer(self) -> None:
        """
        Whoever may admit; each call asks for a tick, and a body is not read.
        """
        for body in (b"", b"{}", b"anything"):
            answer = self.door.ask("POST", "/wake", body, token=ADMITTER)
            self.assertEqual((answer.status, answer.json), (200, {"woken": True}))
        self.assertEqual(self.door.woken, 3)

    def test_it_costs_no_statement(self) -> None:
        """
        Once the token is known nothing is asked of the database.
        """
        self.door.ask("POST", "/wake", token=ADMITTER)
        before = len(self.statements)
        self.door.ask("POST", "/wake", token=ADMITTER)
        self.assertEqual(self.statements[before:], [])

    def test_not_everybody_may(self) -> None:
        """
        No token, or one that only reads: 401, 403; and nobody is woken. GET is not it.
        """
        for token, status in ((None, 401), ("wrong", 401), (READER, 403)):
            self.assertEqual(self.door.ask("POST", "/wake", token=token).status, status)
        self.assertEqual(self.door.ask("GET", "/wake", token=ADMITTER).status, 405)
        self.assertEqual(self.door.woken, 0)

    def test_it_counts_against_the_rate(self) -> None:
        """
        A thousand at once are a token's ten seconds; then 429 with Retry-After.
        """
        answers = [self.door.ask("POST", "/wake", token=ADMITTER) for _ in range(1001)]
        self.assertEqual({each.status for each in answers[:1000]}, {200})
        self.assertEqual(answers[-1].status, 429)
        self.assertEqual(answers[-1].headers["retry-after"], "1")

    def test_the_drainers_are_listed(self) -> None:
        """
        As they are stored; for tokens of all accounts alone; as the description says.
        """
        beat = Beat(
            "d1", NOON - 60, NOON - 3, 0.1, alarm="refused", origin=Origin("a", "web1", "1")
        )

        def write(txn: Any) -> None:
            heartbeat.write(txn, beat)

        self.successResultOf(self.door.pool.transact(write))
        answer = self.door.ask("GET", "/drainers", token=READER)
        self.assertEqual(
            answer.json,
            {
                "drainers": [
                    {
                        "id": "d1",
                        "state": "alive",
                        "alive": True,
                        "host": "web1",
                        "version": "1",
                        "startedAt": "2026-03-02T11:59:00.000Z",
                        "reportedAt": "2026-03-02T11:59:57.000Z",
                        "reportedAge": 3.0,
                        "claimed": 0,
                        "running": 0,
                        "alarm": "refused",
                    }
                ]
            },
        )
        self.assertEqual(self.door.ask("GET", "/drainers", token=ACME).status, 403)
        self.assertEqual(self.door.ask("GET", "/drainers?x=1", token=READER).status, 422)
        described = openapi.document()["components"]["schemas"]["Drainers"]
        shown = described["properties"]["drainers"]["items"]["properties"]
        self.assertEqual(set(shown), set(answer.json["drainers"][0]))
