"""
The two clocks of a worker, and its way to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import frozen

from crq.instants import Instant


@frozen
class Clock:
    """
    Given to whatever needs to know the time, so that a test can turn it.

    :ivar wall: POSIX seconds, for what is stored; may be stepped.
    :ivar monotonic: seconds from some instant, for durations and limits.
    :ivar sleep: waits so many seconds.
    """

    wall: Callable[[], Instant] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
