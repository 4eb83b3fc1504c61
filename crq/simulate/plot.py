"""
Curves over time: as a picture (SVG), and as one line of a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from crq.simulate.measures import Curve

BLOCKS = "▁▂▃▄▅▆▇█"
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
WIDTH, LEFT, RIGHT = 960, 60, 20  # px
HEIGHT, GAP, TOP = 200, 60, 40  # px of one panel, between two, above the first
MARKS = 6  # on the axis of time, at most


def line(curve: Curve, width: int) -> str:
    """
    A curve in so many characters; each shows the highest of its part, and nothing is a blank.
    """
    points = curve.most
    highest = max(points, default=0) or 1
    shown = []
    for column in range(min(width, len(points))):
        first = column * len(points) // width if width < len(points) else column
        last = (column + 1) * len(points) // width if width < len(points) else column + 1
        value = max(points[first:last])
        step = min(len(BLOCKS) - 1, int(value / highest * len(BLOCKS)))
        shown.append(BLOCKS[step] if value else " ")
    return "".join(shown)


def svg(panels: Sequence[tuple[str, Sequence[tuple[str, Curve]]]]) -> str:
    """
    A picture of panels, one below the other.

    :param panels: each with its title and its curves, which have a name each.
    """
    legend = [name for name, _ in panels[0][1]] if panels else []
    height = TOP + len(panels) * (HEIGHT + GAP) + 18 * len(legend)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (title, curves) in enumerate(panels):
        parts += _panel(title, curves, TOP + number * (HEIGHT + GAP))
    below = TOP + len(panels) * (HEIGHT + GAP)
    for number, name in enumerate(legend):
        y = below + 18 * number
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{LEFT}" y="{y - 9}" width="12" height="9" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 18}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, curves: Sequence[tuple[str, Curve]], top: int) -> list[str]:
    highest = max((max(curve.most, default=0) for _, curve in curves), default=0) or 1
    seconds = max((curve.seconds for _, curve in curves), default=0) or 1
    wide, floor = WIDTH - LEFT - RIGHT, top + HEIGHT
    parts = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = floor - share * HEIGHT
        parts.append(
            f'<line x1="{LEFT}" y1="{y:g}" x2="{WIDTH - RIGHT}" y2="{y:g}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:g}" text-anchor="end">{share * highest:g}</text>'
        )
    unit, name = (
        (86_400, "d") if seconds > 3 * 86_400 else (3600, "h") if seconds > 7200 else (60, "min")
    )
    step = max(1, -(-int(seconds / unit) // MARKS))
    for mark in range(0, int(seconds / unit) + 1, step):
        x = LEFT + mark * unit / seconds * wide
        parts.append(
            f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{mark} {name}</text>'
        )
    for number, (_, curve) in enumerate(curves):
        count = len(curve.most)
        points = " ".join(
            f"{LEFT + place / count * curve.seconds / seconds * wide:.1f},"
            f"{floor - value / highest * HEIGHT:.1f}"
            for place, value in enumerate(curve.most)
        )
        parts.append(
            f'<polyline fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="1.5"'
            f' points="{points}"/>'
        )
    return parts
