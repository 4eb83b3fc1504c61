"""
The runs of an automation as bars in the coordinates of an SVG; pure.

Each run is one bar, oldest on the left: what it would have changed while it observed (an outline),
what it has changed live (filled), and on top of that what failed or ended unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from crq.automations.model import Mode, Run
from crq.instants import instant_text
from crq.web.pages.plot import round_up

WIDTH, LEFT, RIGHT = 960, 44, 8
TOP, HEIGHT, BOTTOM = 12, 110, 22
MOST = 40  # runs in one chart
FEWEST = 16  # places there are even if there are fewer runs
LABEL = 104  # width of a label; on a phone the letters are larger
LEAST = 2.0  # height of a bar that stands for nothing: a run was there


@frozen
class Part:
    """
    One piece of a bar.

    :ivar css: ``would``, ``changed``, ``failed`` or ``nothing``.
    """

    css: str
    y: float
    height: float


@frozen
class Bar:
    """
    One run.
    """

    x: float
    width: float
    parts: tuple[Part, ...]
    text: str
    run_id: int


@frozen
class Chart:
    """
    All that is drawn.

    :ivar labels: abscissas and texts of the axis.
    :ivar summary: the same in words.
    """

    bars: tuple[Bar, ...]
    labels: tuple[tuple[float, str], ...]
    top: int
    summary: str
    width: int = WIDTH
    height: int = TOP + HEIGHT + BOTTOM
    left: int = LEFT
    right: int = WIDTH - RIGHT
    upper: int = TOP
    lower: int = TOP + HEIGHT


def chart(runs: Sequence[Run]) -> Chart:
    """
    Draw runs, given newest first.
    """
    shown = list(reversed(runs[:MOST]))
    top = round_up(max((sum(size for _, size in _sizes(run)) for run in shown), default=0))
    place = (WIDTH - LEFT - RIGHT) / max(FEWEST, len(shown))
    every = math.ceil(LABEL / place)
    bars = []
    labels = []
    for number, run in enumerate(shown):
        x = LEFT + number * place
        bars.append(
            Bar(
                round(x + place * 0.15, 1),
                round(place * 0.7, 1),
                _parts(run, top),
                _said(run),
                run.run_id,
            )
        )
        if number % every == 0:
            when = instant_text(run.scheduled_for_utc)
            labels.append((round(x + place / 2, 1), when[5:16]))
    return Chart(tuple(bars), tuple(labels), top, _summary(shown))


def _sizes(run: Run) -> tuple[tuple[str, int], ...]:
    counts = run.counts
    if run.mode is Mode.OBSERVE:
        return (("would", counts.would),)
    return (("changed", counts.approved), ("failed", counts.failed + counts.unknown))


def _parts(run: Run, top: int) -> tuple[Part, ...]:
    found: list[Part] = []
    y = float(TOP + HEIGHT)
    for css, size in _sizes(run):
        if size:
            height = size / top * HEIGHT
            y -= height
            found.append(Part(css, round(y, 1), round(height, 1)))
    return tuple(found) or (Part("nothing", TOP + HEIGHT - LEAST, LEAST),)


def _said(run: Run) -> str:
    when = instant_text(run.scheduled_for_utc)[:16]
    counts = run.counts
    if run.mode is Mode.OBSERVE:
        what = f"would change {counts.would} of {counts.items}"
    else:
        what = f"changed {counts.approved} of {counts.items}"
        if counts.failed + counts.unknown:
            what += f", {counts.failed + counts.unknown} failed or unknown"
    return f"run {run.run_id}, {when} UTC, {run.mode.value}, {run.status.value}: {what}"


def _summary(shown: Sequence[Run]) -> str:
    would = sum(run.counts.would for run in shown)
    changed = sum(run.counts.approved for run in shown)
    bad = sum(run.counts.failed + run.counts.unknown for run in shown)
    return (
        f"{len(shown)} runs: {would} records would have been changed, {changed} were,"
        f" {bad} failed or ended unknown."
    )
