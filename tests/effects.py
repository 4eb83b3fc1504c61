"""
An API whose calls say themselves what they want, so that scripts alone make a history.

``/effects/NUMBER/STEP?wait=SECONDS`` is a side effect: it is counted, and answered after some time.
``/limit/SECONDS`` is answered with 429 and that Retry-After. A key is ``ACCOUNT.ANYTHING``, so that
the API knows whose scripts run.
"""

from __future__ import annotations

from collections import Counter
from urllib.parse import parse_qs, urlsplit

from tests.fake_api import Answer, Call, FakeApi


class EffectsApi(FakeApi):
    """
    Counts side effects, and keeps nothing else of a call.

    :ivar effects: how often each step of each number came: once, in a world without faults.
    :ivar order: numbers in the order of their first effect.
    """

    def __init__(self) -> None:
        super().__init__()
        self.effects: Counter[tuple[int, int]] = Counter()
        self.order: list[int] = []

    def _whose(self, call: Call) -> str:
        return (call.key or "").partition(".")[0]

    def _take(self, call: Call) -> Answer:
        parts = urlsplit(call.path)
        kind, *rest = parts.path.removeprefix("/api/v2").strip("/").split("/")
        if kind == "limit":
            return Answer(429, {}, {"Retry-After": rest[0]})
        number, step = int(rest[0]), int(rest[1])
        with self._lock:
            self.effects[number, step] += 1
            if step == 1:
                self.order.append(number)
        return Answer(delay=float(parse_qs(parts.query).get("wait", ["0"])[0]))


def script(number: int, *waits: float, then: str = "") -> str:
    """
    A script of so many effects, each of so many seconds, and what it does after them.
    """
    lines = [
        f'api.post("/effects/{number}/{step}?wait={wait:.3f}")'
        for step, wait in enumerate(waits, 1)
    ]
    return "\n".join([*lines, then]) + "\n"
