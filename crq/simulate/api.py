"""
The API as it limits its callers: so many calls of each key in windows of fixed length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from attrs import define, field, frozen

MINUTE, HOUR = 60.0, 3600.0  # s
TOO_MANY = 429
UNAUTHORIZED = 401  # "API limit reached for this method" (brief §10)


@frozen
class Window:
    """
    So many calls of a key in each window of so many seconds; all windows begin with the load.
    """

    calls: int
    seconds: float


@frozen
class Quota:
    """
    What the API grants.

    :ivar windows: limits of every key; none: without end.
    :ivar keys: keys with limits of their own instead.
    :ivar method: limit, of each key, of the one method that has one of its own.
    """

    windows: tuple[Window, ...] = ()
    keys: Mapping[str, tuple[Window, ...]] = field(factory=dict)
    method: Window | None = None

    def of(self, key: str) -> tuple[Window, ...]:
        """
        The limits of a key.
        """
        return self.keys.get(key, self.windows)


@frozen
class Refused:
    """
    A call that the API did not take.

    :ivar retry_after: seconds, as the header says it; None: it says nothing (401).
    """

    status: int
    retry_after: int | None = None


@define(eq=False)
class Api:
    """
    The API with its quota.

    :ivar calls: calls that were taken.
    :ivar refused: calls that were not, by status.
    """

    quota: Quota
    calls: int = 0
    refused: Counter[int] = field(factory=Counter)
    _used: dict[tuple[str, Window], list[int]] = field(init=False, factory=dict)

    def call(self, key: str, now: float, of_method: bool = False) -> Refused | None:
        """
        Make one call with a key; None: it was taken.

        :param now: seconds since the load began.
        :param of_method: whether it is of the method that has a limit of its own.
        """
        windows = self.quota.of(key)
        wait = max([0.0, *(self._wait(key, window, now) for window in windows)])
        if wait:
            return self._refuse(Refused(TOO_MANY, math.ceil(wait)))
        if of_method and self.quota.method is not None:
            windows = (*windows, self.quota.method)
            if self._wait(key, self.quota.method, now):
                return self._refuse(Refused(UNAUTHORIZED))
        for window in windows:
            self._used[key, window][1] += 1
        self.calls += 1
        return None

    def _wait(self, key: str, window: Window, now: float) -> float:
        """
        Seconds until there is a call left; 0: there is one.
        """
        number = int(now // window.seconds)
        used = self._used.setdefault((key, window), [number, 0])
        if used[0] != number:
            used[:] = [number, 0]
        return 0.0 if used[1] < window.calls else (number + 1) * window.seconds - now

    def _refuse(self, refusal: Refused) -> Refused:
        self.refused[refusal.status] += 1
        return refusal
