"""
The plot of the last hours as shapes in the coordinates of an SVG; pure.

Three panels share one time axis: what waits, what is in flight, what was started and refused in
each minute. Minutes with a closed gate are bands behind all of them; a minute without a sample is a
gap, and marked: nobody was there to take one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from attrs import frozen

from crq.instants import Instant, instant_text
from crq.series import MINUTE, Sample

WIDTH, LEFT, RIGHT = 960, 44, 8
HEIGHT, GAP, TOP = 72, 24, 20
PANELS = 3
BOTTOM = 20
FULL_HEIGHT = TOP + PANELS * HEIGHT + (PANELS - 1) * GAP + BOTTOM
HOURS = 6  # labels of the axis, at most


@frozen
class Band:
    """
    A stretch of time, from one abscissa on.
    """

    x: float
    width: float


@frozen
class Panel:
    """
    One panel.

    :ivar y: of its upper edge; ``top`` is the value there.
    :ivar lines: paths, one for each stretch without a gap, by the class of what they show.
    """

    title: str
    y: float
    top: int
    lines: tuple[tuple[str, str], ...]


@frozen
class Plot:
    """
    All that is drawn.

    :ivar hours: abscissas and labels of the axis.
    :ivar summary: the same in words.
    """

    panels: tuple[Panel, ...]
    gates: tuple[Band, ...]
    gaps: tuple[Band, ...]
    hours: tuple[tuple[float, str], ...]
    summary: str
    width: int = WIDTH
    height: int = FULL_HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    panel_height: int = HEIGHT


def plot(samples: Sequence[Sample], since: Instant, until: Instant) -> Plot:
    """
    Draw the minutes of a span.
    """
    known = {math.floor(sample.minute / MINUTE): sample for sample in samples}
    first, last = math.floor(since / MINUTE), math.floor(until / MINUTE)
    scale = (WIDTH - LEFT - RIGHT) / max(1, last - first)

    def x(minute: float) -> float:
        return round(LEFT + (minute - first) * scale, 1)

    def bands(wanted: Callable[[int], bool]) -> tuple[Band, ...]:
        found: list[Band] = []
        begun: int | None = None
        for minute in range(first, last + 1):
            if minute < last and wanted(minute):
                begun = minute if begun is None else begun
            elif begun is not None:
                found.append(Band(x(begun), round(x(minute) - x(begun), 1)))
                begun = None
        return tuple(found)

    def panel(number: int, title: str, *series: tuple[str, Callable[[Sample], int]]) -> Panel:
        y = TOP + number * (HEIGHT + GAP)
        highest = max((read(each) for each in samples for _, read in series), default=0)
        top = round_up(highest)
        lines = []
        for css, read in series:
            points = {
                minute: round(y + HEIGHT - read(each) / top * HEIGHT, 1)
                for minute, each in known.items()
                if first <= minute < last
            }
            lines.append((css, _path(points, x)))
        return Panel(title, y, top, tuple(lines))

    # The minute that is going on has no sample yet.
    gaps = bands(lambda minute: minute not in known and minute < last - 1)
    return Plot(
        (
            panel(0, "waiting", ("depth", lambda each: each.depth)),
            panel(1, "in flight", ("flight", lambda each: each.in_flight)),
            panel(
                2,
                "per minute",
                ("starts", lambda each: each.ended.starts),
                ("rejections", lambda each: each.ended.rejected),
            ),
        ),
        bands(lambda minute: minute in known and known[minute].gates_closed > 0),
        gaps,
        _hours(since, until, x),
        _summary(samples),
    )


def _path(points: dict[int, float], x: Callable[[float], float]) -> str:
    """
    A line of steps through the minutes; it is broken where a minute is missing.
    """
    parts: list[str] = []
    before: int | None = None
    for minute in sorted(points):
        move = "L" if before == minute - 1 else "M"
        parts.append(f"{move}{x(minute)} {points[minute]}H{x(minute + 1)}")
        before = minute
    return "".join(parts)


def round_up(value: int) -> int:
    """
    The least of 4, 10, 20, 50, 100, … that is not below a value: the upper edge of a panel.
    """
    if value <= 4:
        return 4
    power = int(10 ** (len(str(value)) - 1))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value)


def _hours(
    since: Instant, until: Instant, x: Callable[[float], float]
) -> tuple[tuple[float, str], ...]:
    step = 3600 * max(1, math.ceil((until - since) / 3600 / HOURS))
    at = math.ceil(since / step) * step
    found = []
    while at < until:
        found.append((x(at / MINUTE), instant_text(at)[11:16]))
        at += step
    return tuple(found)


def _summary(samples: Sequence[Sample]) -> str:
    if not samples:
        return "No minute of the last hours was sampled: no drainer ran."
    deepest = max(samples, key=lambda each: each.depth)
    starts = sum(each.ended.starts for each in samples)
    rejected = sum(each.ended.rejected for each in samples)
    gated = sum(1 for each in samples if each.gates_closed)
    return (
        f"{len(samples)} minutes: {starts} starts, {rejected} rejections; deepest {deepest.depth}"
        f" at {instant_text(deepest.minute)[11:16]}; a gate was closed in {gated} minutes."
    )
