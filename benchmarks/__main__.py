"""
The command line of the benchmarks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import admission, claim, drain, startup
from benchmarks.report import Benchmark, Stage, report, show

BENCHMARKS: dict[str, Benchmark] = {
    "claim": claim.run,
    "admission": admission.run,
    "drain": drain.run,
    "startup": startup.run,
}


def _run(name: str, load: float, **options: int) -> dict[str, Any]:
    with _stages(name) as stage:
        return report(name, BENCHMARKS[name](stage, **options), time.time(), load)


def _write(result: object, target: str) -> None:
    text = json.dumps(result, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)


def _meaning(benchmark: Benchmark) -> str:
    """
    The first sentence of a benchmark's module.
    """
    text = sys.modules[benchmark.__module__].__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


@contextmanager
def _stages(name: str) -> Iterator[Stage]:
    """
    Show on a terminal's standard error what is being done; a file or a pipe gets nothing.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(name)

        def stage(text: str, done: int = 0, total: int | None = None) -> None:
            progress.update(task, description=f"{name}: {text}", completed=done, total=total)

        yield stage


_json_option = click.option(
    "--json",
    "target",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Print JSON instead of a table; into FILE if one is named.",
)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """
    Measure crqueue with servers of its own.
    """
    if context.invoked_subcommand is None:
        for name, benchmark in BENCHMARKS.items():
            click.echo(f"{name:10} {_meaning(benchmark)}")
        click.echo("all        one after the other")


def _command(name: str, *options: Callable[[Any], Any]) -> None:
    def command(target: str | None, **given: int) -> None:
        result = _run(name, os.getloadavg()[0], **given)
        if target is None:
            show(result, Console())
        else:
            _write(result, target)

    for option in (_json_option, *options):
        command = option(command)
    main.command(name, help=_meaning(BENCHMARKS[name]))(command)


def _number(name: str, default: int, meaning: str, least: int = 1) -> Callable[[Any], Any]:
    return click.option(
        name, default=default, show_default=True, type=click.IntRange(min=least), help=meaning
    )


_command("claim", _number("--rows", 1_000_000, "Depth of the deep queue.", claim.SHALLOW))
_command("admission", _number("--rounds", 7, "Rounds that the medians are taken of."))
_command(
    "drain",
    _number("--count", 2000, "Executions of one round."),
    _number("--in-flight", 64, "The global cap.", 2),
    _number("--rounds", 3, "Rounds that the medians are taken of."),
)
_command("startup", _number("--rounds", 7, "Starts that the median is taken of."))


@main.command("all")
@_json_option
def everything(target: str | None) -> None:
    """
    Run all of them, one after the other.
    """
    load = os.getloadavg()[0]  # once: the next benchmark is not burdened by the last one
    results = []
    for name in BENCHMARKS:
        results.append(_run(name, load))
        if target is None:
            show(results[-1], Console())
    if target is not None:
        _write(results, target)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
