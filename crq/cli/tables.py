"""
Tables for people, by rich: coloured on a terminal, plain and whole in a pipe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crq.cli.base import visible

PIPE_WIDTH = 10_000  # columns: nothing is cut where somebody greps
LEAST = 8  # columns that are left of what is cut
STYLES = {
    "success": "green",
    "flowing": "green",
    "idle": "green",
    "failed": "red",
    "rejected": "red",
    "never started": "red",
    "outcome unknown": "red",
    "alive": "green",
    "dead": "bold red",
    "stalled": "bold red",
    "gated": "yellow",
    "saturated": "yellow",
    "running": "cyan",
    "warning": "yellow",
    "error": "bold red",
}


def cell(value: object) -> Text:
    """
    One value; nothing is a dash, and a state has its colour.
    """
    text = "-" if value is None or value == "" else visible(str(value))
    return Text(text, style=STYLES.get(text, ""))


def table(
    columns: Iterable[str], rows: Iterable[Iterable[object]], flexible: Collection[str] = ()
) -> Table:
    """
    A table with a line under its head.

    :param flexible: the columns that are cut when the terminal is narrow; the others never are.
    """
    cells = [[cell(value) for value in row] for row in rows]
    names = list(columns)
    widths = [
        max([len(name), *(row[index].cell_len for row in cells)])
        for index, name in enumerate(names)
    ]
    # rich would shrink all columns alike, the numbers too.
    spare = console().width - sum(widths) - 2 * (len(names) + 1)
    for index in sorted(range(len(names)), key=lambda index: -widths[index]):
        if spare < 0 and names[index] in flexible:
            cut = min(-spare, max(0, widths[index] - LEAST))
            widths[index] -= cut
            spare += cut
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name, width in zip(names, widths, strict=True):
        made.add_column(name, no_wrap=True, overflow="ellipsis", width=width)
    for row in cells:
        made.add_row(*row)
    return made


def pairs(rows: Iterable[tuple[str, object]]) -> Table:
    """
    Names and values, one pair a line.
    """
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, cell(value))
    return made


def console() -> Console:
    """
    The terminal, or the pipe.
    """
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def show(*parts: Any) -> None:
    """
    Print tables and texts, one below the other.
    """
    out = console()
    if out.is_terminal:
        _print(out, parts)
        return
    with out.capture() as written:
        _print(out, parts)
    # rich fills each line up; who reads a pipe wants no blanks at its end.
    for line in written.get().splitlines():
        click.echo(line.rstrip())


def _print(out: Console, parts: Iterable[Any]) -> None:
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, (str, Text)))
