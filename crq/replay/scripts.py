"""
What the scripts of a replay look like: some calls, which take as long as the service of the trace.
"""

from __future__ import annotations

from collections.abc import Callable

from crq.replay.trace import Arrival

CALL = 0.4  # s of the trace that one call takes at most
MESSAGE = "it failed then, and fails again"

Writer = Callable[[Arrival], str]


def calls_of(arrival: Arrival) -> tuple[int, int]:
    """
    How many calls a script makes, and how many milliseconds each takes.
    """
    calls = max(1, round(arrival.service / CALL))
    return calls, round(arrival.service * 1000 / calls)


def starlark(arrival: Arrival) -> str:
    """
    The script for an executor of ours.
    """
    calls, milliseconds = calls_of(arrival)
    last = f'\nfail("{MESSAGE}")' if arrival.outcome == "error" else ""
    return f'[api.get("/work/{milliseconds}") for _ in range({calls})]{last}\n'


def lines(arrival: Arrival) -> str:
    """
    The script for deploy/php, whose language has one statement a line.
    """
    calls, milliseconds = calls_of(arrival)
    last = f"FAIL {MESSAGE}\n" if arrival.outcome == "error" else ""
    return f"GET /work/{milliseconds}\n" * calls + last


def template(text: str) -> Writer:
    """
    The script for any other executor: a text with ``{calls}`` and ``{milliseconds}`` in it.

    :raise ValueError: one of them is missing.
    """
    for name in ("{calls}", "{milliseconds}"):
        if name not in text:
            raise ValueError(f"the template does not have {name}; each script must say it")

    def write(arrival: Arrival) -> str:
        calls, milliseconds = calls_of(arrival)
        return text.replace("{calls}", str(calls)).replace("{milliseconds}", str(milliseconds))

    return write
