"""
Public traces of functions as a service, in their own formats, as loads to be simulated.

The Azure Functions invocation trace of 2021 has a line for each invocation
(``app,func,end_timestamp,duration``), the one of 2019 a line for each function of a day
(``HashOwner,HashApp,HashFunction,Trigger,1,…,1440``: invocations in each minute). An application is
an account. A function stands for an API key: its name is its own only within its application, and
it is what is throttled alone. Any other file is a trace as ``crq replay`` reads it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from crq.replay import trace
from crq.replay.trace import Arrival, Trace, TraceError

INVOCATIONS = ("app", "func", "end_timestamp", "duration")
COUNTS = ("HashOwner", "HashApp", "HashFunction", "Trigger")
MINUTE = 60.0  # s
SERVICE = 1.6  # s; the counts do not say how long anything took: the healthy mean (brief §6)


def read(path: str | Path) -> Trace:
    """
    Read a trace of any of these formats.

    :raise TraceError: it is none; the text names the line, the column and the remedy.
    :raise OSError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return parse(file)
    except UnicodeDecodeError:
        raise TraceError("the file is not UTF-8 text; save it as UTF-8") from None


def parse(lines: Iterable[str]) -> Trace:
    """
    Read a trace of any of these formats from its lines.

    :raise TraceError: it is none.
    """
    lines = iter(lines)
    first = next(lines, "")
    head = tuple(name.strip() for name in first.split(","))
    if head == INVOCATIONS:
        arrivals = _rows(lines, head, _invocation)
    elif head[: len(COUNTS)] == COUNTS:
        arrivals = _rows(lines, head, _counts)
    else:
        return trace.parse(chain([first], lines))
    return Trace(tuple(sorted(arrivals, key=lambda arrival: arrival.offset)))


def _rows(
    lines: Iterator[str],
    head: tuple[str, ...],
    reader: Callable[[int, dict[str, str]], Iterator[Arrival]],
) -> list[Arrival]:
    found: list[Arrival] = []
    for number, row in enumerate(csv.reader(lines), 2):
        if not row:
            continue
        if len(row) != len(head):
            raise TraceError(
                f"line {number}: it has {len(row)} columns; the first line has {len(head)}"
            )
        found += reader(number, dict(zip(head, (text.strip() for text in row), strict=True)))
    if not found:
        raise TraceError("there is no invocation in it; give at least one line below the first")
    return found


def _invocation(number: int, row: dict[str, str]) -> Iterator[Arrival]:
    ended, duration = _number(row, "end_timestamp", number), _number(row, "duration", number)
    app = _name(row, "app", number)
    key = f"{app}/{_name(row, 'func', number)}"
    yield Arrival(max(0.0, ended - duration), app, key, duration, "success")


def _counts(number: int, row: dict[str, str]) -> Iterator[Arrival]:
    app = _name(row, "HashApp", number)
    key = f"{app}/{_name(row, 'HashFunction', number)}"
    for name, text in row.items():
        if not name.isdecimal() or text in ("", "0"):
            continue
        count = _number(row, name, number)
        if count != int(count):
            raise TraceError(f"line {number}: {name}: {text!r} is no count; write a whole number")
        for each in range(int(count)):  # spread evenly: the file does not say more
            offset = (int(name) - 1 + (each + 0.5) / count) * MINUTE
            yield Arrival(offset, app, key, SERVICE, "success")


def _name(row: dict[str, str], name: str, number: int) -> str:
    if not row[name]:
        raise TraceError(f"line {number}: {name} is empty; name one")
    return row[name]


def _number(row: dict[str, str], name: str, number: int) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise TraceError(f"line {number}: {name}: {row[name][:40]!r} is no number; write 1.5")
    return value
