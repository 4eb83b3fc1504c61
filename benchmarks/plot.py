"""
A small plot as SVG: some bands over one time axis, two or three lines in each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from attrs import field, frozen

COLOURS = ("#c0392b", "#1f6f8b", "#6b8e23")
WIDTH, BAND, GAP, LEFT, TOP = 860, 150, 46, 60, 70


@frozen
class Band:
    """
    One band.

    :ivar top: the highest value of its axis; None: a round number above the highest that there is.
    :ivar logarithmic_from: the lowest value of a logarithmic axis; None: the axis is linear from 0.
    :ivar dots: points instead of lines.
    """

    title: str
    top: float | None
    lines: Mapping[str, Sequence[tuple[float, float]]] = field(repr=False)
    logarithmic_from: float | None = None
    dots: bool = False

    def ceiling(self) -> float:
        """
        The highest value of its axis.
        """
        if self.top is not None:
            return self.top
        highest = max((value for line in self.lines.values() for _, value in line), default=0) or 1
        decade = 10.0 ** math.floor(math.log10(highest))
        return next(step * decade for step in (1, 2, 5, 10) if highest <= step * decade)

    def height(self, value: float) -> float:
        """
        Where a value lies, from 0 (the bottom) to 1.
        """
        low = self.logarithmic_from
        if low is None:
            return min(1.0, value / self.ceiling())
        return min(1.0, max(0.0, math.log(max(value, low) / low) / math.log(self.ceiling() / low)))

    def marks(self) -> list[float]:
        """
        The values that are marked on its axis.
        """
        if self.logarithmic_from is None:
            return [0, self.ceiling() / 2, self.ceiling()]
        decades = range(math.ceil(math.log10(self.logarithmic_from)), 10)
        return [10.0**power for power in decades if 10.0**power <= self.ceiling()]


def figure(title: str, seconds: float, bands: Sequence[Band]) -> str:
    """
    The whole plot.

    :param seconds: length of the time axis; it is marked in minutes.
    """
    height = TOP + len(bands) * (BAND + GAP) + 10
    names = list(bands[0].lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}"'
        ' font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{LEFT + WIDTH + 20}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        x = LEFT + number * 180
        parts.append(f'<rect x="{x}" y="36" width="18" height="5" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="{x + 24}" y="43">{escape(name)}</text>')
    for number, band in enumerate(bands):
        parts += _band(band, TOP + number * (BAND + GAP), seconds)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _band(band: Band, top: float, seconds: float) -> list[str]:
    bottom = top + 16 + BAND
    parts = [f'<text x="{LEFT}" y="{top + 8}" fill="#444">{escape(band.title)}</text>']
    for value in band.marks():
        y = bottom - band.height(value) * BAND
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for minute in range(0, math.floor(seconds / 60) + 1, 5):
        x = LEFT + minute * 60 / seconds * WIDTH
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{minute} min</text>'
        )
    for colour, line in zip(COLOURS, band.lines.values(), strict=False):
        points = [
            (LEFT + at / seconds * WIDTH, bottom - band.height(value) * BAND) for at, value in line
        ]
        if band.dots:
            parts += (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in points
            )
        elif points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
            )
    return parts
