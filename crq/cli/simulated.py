"""
What ``crq simulate`` shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crq.simulate.measures import Result, Waits

SHOWN = 3  # accounts of the comparison, unless others are named
WIDEST = 120  # columns of a curve
OUTCOMES = {"success": "success", "301": "failed (301)", "303": "worker died (303)"}


def draw(results: Sequence[Result], path: str) -> None:
    """
    Write the curves of all results into one picture.
    """
    from crq.simulate import plot

    names = [_name(result) for result in results]
    waiting = [(name, each.depth) for name, each in zip(names, results, strict=True)]
    busy = [(name, each.busy) for name, each in zip(names, results, strict=True)]
    Path(path).write_text(plot.svg([("waiting", waiting), ("running", busy)]), "utf-8")


def _name(result: Result) -> str:
    rules = result.policy
    if rules.get("inline"):
        return f"no queue, {rules['workers']} workers"
    half = "half-open" if rules["halfOpen"] else "not half-open"
    return f"{rules['perAccount']} of {rules['global']}, {half}, {rules['order']}"


def print_one(result: Result) -> None:
    """
    Print one result in full.
    """
    from rich.text import Text

    from crq.cli import tables
    from crq.simulate import plot

    spent = f"{result.slots_mean:.4f} in the mean, {result.slots_most} at most"
    pairs: list[tuple[str, object]] = [
        ("rules", _name(result)),
        ("executions", result.executions),
        *((OUTCOMES.get(name, name), count) for name, count in result.outcomes.items()),
        ("slots used", f"{spent}, of {result.slots}; all of them for {result.full_seconds:.0f} s"),
        ("API calls", f"{result.calls}; refused: {_refused(result)}"),
        ("caps fired", _fired(result)),
        *_beside(result),
        ("waiting at most", result.depth_most),
        ("simulated", f"{result.seconds:.0f} s; {result.ticks} ticks, {result.events} events"),
        ("invariants", f"checked {result.checks} times, {len(result.problems)} did not hold"),
    ]
    rows = [(name, *_waits(waits)) for name, waits in result.accounts.items()]
    columns = ("account", "started", "wait p50", "p95", "max", "p95, worst hour")
    width = max(20, min(WIDEST, tables.console().width - 12))
    curves = [
        Text(f"waiting |{plot.line(result.depth, width)}|"),
        Text(f"running |{plot.line(result.busy, width)}|"),
    ]
    tables.show(tables.pairs(pairs), tables.table(columns, rows), *curves)


def _beside(result: Result) -> Iterator[tuple[str, object]]:
    if result.health is not None:
        p95, longest = result.health["p95"], result.health["max"]
        yield "health check", f"waits {p95:.0f} s (p95 of the worst hour), {longest:.0f} s at most"
        yield "nobody served", result.lost
    else:
        gates = result.gates
        yield (
            "gates",
            f"{gates['closings']:.0f} closings, {gates['seconds']:.0f} s,"
            f" {gates['longest']:.0f} s the longest",
        )


def _refused(result: Result) -> str:
    found = sorted(result.api_refused.items())
    return ", ".join(f"{count} ({status})" for status, count in found) or "none"


def _fired(result: Result) -> str:
    return ", ".join(f"{count} ({cap})" for cap, count in result.refused.items()) or "none"


def _waits(waits: Waits) -> tuple[object, ...]:
    values = (waits.p50, waits.p95, waits.max, waits.p95_worst_hour)
    return (waits.count, *(f"{value:.1f} s" for value in values))


def print_all(results: Sequence[Result], accounts: Iterable[str]) -> None:
    """
    Print results side by side.

    :param accounts: whose waits are shown; empty: those with the most executions.
    """
    from crq.cli import tables

    shown = list(accounts) or list(results[0].accounts)[:SHOWN]
    columns = ["rules"]
    for name in shown:
        columns += [f"{name} p95", "worst hour"]
    columns += ["waiting", "running", "429", "301", "303", "caps fired", "health check"]
    rows = []
    for result in results:
        row: list[object] = [_name(result)]
        for name in shown:
            waits = result.accounts.get(name)
            row += (
                [None, None]
                if waits is None
                else [f"{waits.p95:.1f} s", f"{waits.p95_worst_hour:.1f} s"]
            )
        health = result.health
        row += [
            result.depth_most,
            result.slots_most,
            result.api_refused.get(429, 0),
            result.outcomes.get("301", 0),
            result.outcomes.get("303", 0),
            _fired(result),
            None if health is None else f"{health['p95']:.0f} s",
        ]
        rows.append(row)
    tables.show(tables.table(columns, rows))
