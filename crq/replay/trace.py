"""
Traces: who submitted what, and when. A CSV file, with remarks and quotas in lines of ``#``.

    # anything
    # quota KEY CALLS SECONDS          so many calls of this key in each window of so many seconds
    offset,account,key,service,outcome
    0.000,acme,key-1,1.6,success

``offset`` and ``service`` are seconds: since the trace begins, and of work that the script has
to do if nobody makes it wait. ``outcome`` is what happened then: ``success``; ``error``: the script
failed by itself, and does so again; ``wall``: its worker was killed at the wall.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import evolve, field, frozen

COLUMNS = ("offset", "account", "key", "service", "outcome")
OUTCOMES = ("success", "error", "wall")


class TraceError(ValueError):
    """
    The file is no trace; the text names the line, the column and the remedy.
    """


@frozen
class Arrival:
    """
    One execution as it was submitted.
    """

    offset: float
    account: str
    key: str
    service: float
    outcome: str


@frozen
class Quota:
    """
    What the API grants a key: so many calls in each window, all windows alike and fixed.
    """

    key: str
    calls: int
    seconds: float


@frozen
class Trace:
    """
    A whole trace, in the order of arrival.

    :ivar remarks: its lines of ``#`` that are no quotas.
    """

    arrivals: tuple[Arrival, ...]
    quotas: tuple[Quota, ...] = ()
    remarks: tuple[str, ...] = field(default=(), repr=False)

    @property
    def length(self) -> float:
        """
        Seconds from its begin to its last arrival.
        """
        return self.arrivals[-1].offset if self.arrivals else 0.0

    def between(self, since: float, until: float) -> Trace:
        """
        The arrivals of a part of it; its begin becomes 0.
        """
        return evolve(
            self,
            arrivals=tuple(
                evolve(one, offset=one.offset - since)
                for one in self.arrivals
                if since <= one.offset < until
            ),
        )

    def squeezed(self, longest: float) -> Trace:
        """
        The same arrivals without the longer pauses: none is above so many seconds.

        What comes together stays together, and quiet hours need not be waited for.
        """
        shift, before, arrivals = 0.0, 0.0, []
        for one in self.arrivals:
            shift += max(0.0, one.offset - before - longest)
            before = one.offset
            arrivals.append(evolve(one, offset=one.offset - shift))
        return evolve(self, arrivals=tuple(arrivals))


def read(path: str | Path) -> Trace:
    """
    Read a trace.

    :raise TraceError: it is none.
    :raise OSError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return parse(file)
    except UnicodeDecodeError:
        raise TraceError("the file is not UTF-8 text; save it as UTF-8") from None


def parse(lines: Iterable[str]) -> Trace:
    """
    Read a trace from its lines.

    :raise TraceError: it is none.
    """
    remarks: list[str] = []
    quotas: list[Quota] = []
    arrivals: list[Arrival] = []
    head: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            words = line[1:].split()
            if words[:1] == ["quota"]:
                quotas.append(_quota(words[1:], number))
            else:
                remarks.append(line[1:].strip())
        elif line.strip():
            row = next(csv.reader([line]))
            if head is None:
                head = row
                if tuple(row) != COLUMNS:
                    raise TraceError(f"line {number}: the first line must be {','.join(COLUMNS)}")
            else:
                arrivals.append(_arrival(row, number))
    if not arrivals:
        raise TraceError("there is no arrival in it; give at least one line below the first")
    return Trace(tuple(sorted(arrivals, key=lambda one: one.offset)), tuple(quotas), tuple(remarks))


def lines_of(trace: Trace) -> Iterator[str]:
    """
    Write a trace as the lines of its file.
    """
    yield from (f"# {remark}".rstrip() for remark in trace.remarks)
    yield from (f"# quota {one.key} {one.calls} {one.seconds:g}" for one in trace.quotas)
    yield ",".join(COLUMNS)
    for one in trace.arrivals:
        yield f"{one.offset:.3f},{one.account},{one.key},{one.service:.3f},{one.outcome}"


def _arrival(row: list[str], number: int) -> Arrival:
    if len(row) != len(COLUMNS):
        raise TraceError(f"line {number}: it has {len(row)} columns; write {','.join(COLUMNS)}")
    offset, account, key, service, outcome = (text.strip() for text in row)
    for name, text in (("account", account), ("key", key)):
        if not text:
            raise TraceError(f"line {number}: {name} is empty; name one")
    if outcome not in OUTCOMES:
        raise TraceError(f"line {number}: outcome: {outcome!r}; write {', '.join(OUTCOMES)}")
    return Arrival(
        _seconds(offset, "offset", number),
        account,
        key,
        _seconds(service, "service", number),
        outcome,
    )


def _quota(words: list[str], number: int) -> Quota:
    if len(words) != 3 or not words[1].isascii() or not words[1].isdecimal():
        raise TraceError(f"line {number}: write # quota KEY CALLS SECONDS")
    seconds = _seconds(words[2], "quota", number)
    if seconds <= 0:
        raise TraceError(f"line {number}: quota: a window has more than 0 seconds")
    return Quota(words[0], int(words[1]), seconds)


def _seconds(text: str, name: str, number: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise TraceError(f"line {number}: {name}: {text!r} is no number of seconds; write 1.5")
    return value
