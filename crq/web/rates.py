"""
How often a token may ask: a bucket for each, in memory, that fills at an even rate.

There is one bucket for each token that is known and one for all that is not, so memory is bounded
by the number of tokens, whatever is sent. A restart forgets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import define, field

SECONDS = 10  # s of its rate that a token may use at once
NOBODY = ""  # whoever has no known token


@define(eq=False)
class Rates:
    """
    The buckets.

    :ivar rate: requests a second, on average over `SECONDS`; 0: any number.
    """

    rate: float
    monotonic: Callable[[], float]
    _buckets: dict[str, tuple[float, float]] = field(init=False, factory=dict)

    def ask(self, name: str) -> int | None:
        """
        Count a request of a token: None: it may be answered; else whole seconds to wait.
        """
        if self.rate <= 0:
            return None
        most = self.rate * SECONDS
        now = self.monotonic()
        left, seen = self._buckets.get(name, (most, now))
        left = min(most, left + (now - seen) * self.rate)
        if left < 1:
            self._buckets[name] = (left, now)
            return max(1, math.ceil((1 - left) / self.rate))
        self._buckets[name] = (left - 1, now)
        return None

    def keep(self, names: frozenset[str]) -> None:
        """
        Forget the buckets of tokens that are not known any more.
        """
        known = names | {NOBODY}
        self._buckets = {name: each for name, each in self._buckets.items() if name in known}
