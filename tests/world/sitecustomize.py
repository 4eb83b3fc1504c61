"""
A process in a world that a test can change: its wall clock is stepped, its names stop resolving.

Python imports this by itself when its directory is on the path; `tests.worlds` puts it there. It
changes what the standard library takes from the system, so that nothing of the program under test
knows of it: the wall clock (`time.time`), and the look-up of names that end in ``.test``. The
monotonic clock is left alone.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

_directory = Path(os.environ["CRQUEUE_TEST_WORLD"])
_time, _time_ns = time.time, time.time_ns
_getaddrinfo = socket.getaddrinfo


def _step() -> float:
    return float((_directory / "step").read_text())


def _stepped() -> float:
    return _time() + _step()


def _stepped_ns() -> int:
    return _time_ns() + round(_step() * 1e9)


def _resolved(host: Any) -> Any:
    name = host.decode("ascii") if isinstance(host, bytes) else host
    if not isinstance(name, str) or not name.endswith(".test"):
        return host
    address = json.loads((_directory / "hosts").read_text()).get(name)
    if address is None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return address


def _looked_up(host: Any, *arguments: Any, **options: Any) -> Any:
    return _getaddrinfo(_resolved(host), *arguments, **options)


time.time, time.time_ns = _stepped, _stepped_ns
socket.getaddrinfo = _looked_up
