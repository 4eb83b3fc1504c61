"""
Two reports beside each other: what has changed between them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from rich.console import Console
from rich.table import Table

NOTABLE = 0.1  # a change of a tenth is shown boldly; less is what a machine does by itself


@frozen
class Change:
    """
    One figure of both reports.

    :ivar before: None: only the second report has it; ``after`` is None the other way round.
    """

    benchmark: str
    figure: str
    unit: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """
        After by before; None where that says nothing.
        """
        if self.before is None or self.after is None or not self.before:
            return None
        return self.after / self.before


def read(path: Path) -> dict[str, dict[str, Any]]:
    """
    Read the reports in a file of ``--json``, of one benchmark or of all, by the benchmark's name.

    :raise click.ClickException: it is no such file.
    """
    try:
        found = json.loads(path.read_text())
        reports = found if isinstance(found, list) else [found]
        read = {report["benchmark"]: report for report in reports}
        for report in reports:
            for figure in report["figures"].values():
                figure["value"] + 0, figure["unit"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise click.ClickException(
            f"{path}: no report of a benchmark ({type(error).__name__}: {error});"
            " make one with --json FILE"
        ) from None
    return read


def changes(
    before: Mapping[str, dict[str, Any]], after: Mapping[str, dict[str, Any]]
) -> list[Change]:
    """
    Put the figures of two readings side by side, in the order of the first; what only the second
    has comes last.
    """
    found = []
    for name in dict.fromkeys([*before, *after]):
        old = before.get(name, {"figures": {}})["figures"]
        new = after.get(name, {"figures": {}})["figures"]
        for figure in dict.fromkeys([*old, *new]):
            first, second = old.get(figure), new.get(figure)
            found.append(
                Change(
                    name,
                    figure,
                    (second or first)["unit"],
                    None if first is None else first["value"],
                    None if second is None else second["value"],
                )
            )
    return found


def show(
    before: Mapping[str, dict[str, Any]], after: Mapping[str, dict[str, Any]], console: Console
) -> None:
    """
    Print what has changed, and on which machines and versions if they differ.
    """
    table = Table()
    for column in ("benchmark", "figure"):
        table.add_column(column)
    for column in ("before", "after", "after / before"):
        table.add_column(column, justify="right")
    table.add_column("unit")
    for change in changes(before, after):
        ratio = change.ratio
        notable = ratio is not None and abs(ratio - 1) >= NOTABLE
        table.add_row(
            change.benchmark,
            change.figure,
            *(_number(value) for value in (change.before, change.after)),
            "" if ratio is None else f"{ratio:.2f}",
            change.unit,
            style="bold" if notable else "",
        )
    console.print(table)
    for name in before.keys() & after.keys():
        for what in ("machine", "versions"):
            old, new = before[name].get(what, {}), after[name].get(what, {})
            for each in dict.fromkeys([*old, *new]):
                if old.get(each) != new.get(each):
                    console.print(
                        f"{name}: {each} {old.get(each, 'unknown')} before,"
                        f" {new.get(each, 'unknown')} after",
                        style="dim",
                    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if value % 1 else f"{value:,.0f}"
