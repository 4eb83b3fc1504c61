"""
Submits without end, over HTTP, one after the other; asks again until there is an answer.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Sequence

from benchmarks.soak.schedule import work
from tests.installation import Installation

AGAIN = 0.2  # s until an unanswered submission is sent again, with the same idempotency key
ANSWER_WITHIN = 120.0  # s for the last one, when all is mended
WORDS = {200: "queued", 202: "queued", 429: "rejected"}


class Load(threading.Thread):
    """
    The callers.

    :ivar answers: what the door said, by identifier.
    :ivar counts: submissions by answer, and ``again`` for each that had to be sent once more.
    :ivar problem: why it ended early; None: it did not.
    """

    def __init__(self, daemons: Sequence[Installation], seed: int) -> None:
        super().__init__(name="soak-load", daemon=True)
        self.answers: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.problem: str | None = None
        self._daemons = daemons
        self._seed = seed
        self._over = threading.Event()
        self._abandoned = threading.Event()

    def run(self) -> None:
        """
        Submit until `end` is called, and then the last one to its answer.
        """
        number = turn = 0
        while not self._over.is_set():
            number += 1
            one = work(self._seed, number)
            fields = {
                "subdomain": one.account,
                "apikey": f"{one.account}.{one.key}",
                "source_code": one.source_code,
                "identifier": one.identifier,
            }
            while not self._abandoned.is_set():
                turn += 1  # as a balancer would: whoever does not answer is passed over
                try:
                    status, answer = self._daemons[turn % len(self._daemons)].submit(
                        str(number), **fields
                    )
                except (OSError, http.client.HTTPException, ValueError):
                    status, answer = 0, {}
                if status in WORDS:
                    self.answers[one.identifier] = WORDS[status]
                    self.counts[WORDS[status]] += 1
                    break
                if 400 <= status < 500:
                    self.problem = f"submission {number} was refused with {status}: {answer}"
                    return
                self.counts["again"] += 1
                self._abandoned.wait(AGAIN)
            self._over.wait(one.rest)

    def end(self) -> None:
        """
        Submit no more; returns when the last one is answered.
        """
        self._over.set()
        self.join(ANSWER_WITHIN)
        if self.is_alive():
            self.problem = "the last submission is not answered"

    def abandon(self) -> None:
        """
        Submit no more, whatever is unanswered.
        """
        self._abandoned.set()
        self._over.set()
