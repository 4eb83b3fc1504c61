"""
A process that writes down when it came by its named instants (`crq.crashpoints`).

Python imports this by itself when its directory is on the path; `benchmarks.latency` puts it there.
Each line of the file is an instant of the monotonic clock, in nanoseconds, which is the same for
all processes of a machine, and the point.
"""

from __future__ import annotations

import os
import time

from crq import crashpoints

_file = os.open(
    os.environ["CRQUEUE_BENCHMARK_PROBE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
)


def _reached(point: str, function: object = None) -> None:
    name = getattr(function, "__name__", "").lstrip("_")
    os.write(_file, f"{time.monotonic_ns()} {name} {point}\n".encode())


crashpoints.reached = _reached
