"""
The command line of the benchmarks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import (
    admission,
    automations,
    claim,
    compare,
    crashes,
    depth,
    drain,
    drainers,
    galera,
    hostile,
    idle,
    latency,
    overview,
    pages,
    simulate,
    startup,
)
from benchmarks.report import Benchmark, Stage, report, show
from benchmarks.soak import run as soak

BENCHMARKS: dict[str, Benchmark] = {
    "claim": claim.run,
    "admission": admission.run,
    "drain": drain.run,
    "latency": latency.run,
    "idle": idle.run,
    "depth": depth.run,
    "startup": startup.run,
    "simulate": simulate.run,
    "hostile": hostile.run,
    "overview": overview.run,
    "automations": automations.run,
}

# What is not measured but proven: they take long, and `all` leaves them out.
PROOFS: dict[str, Callable[..., object]] = {
    "crashes": crashes.run,
    "soak": soak.run,
    "drainers": drainers.run,
    "galera": galera.run,
}


def _run(name: str, load: float, **options: Any) -> dict[str, Any]:
    with _stages(name) as stage:
        return report(name, BENCHMARKS[name](stage, **options), time.time(), load)


def _write(result: object, target: str) -> None:
    text = json.dumps(result, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)


def _meaning(benchmark: Callable[..., object]) -> str:
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
        click.echo("compare    two files of --json beside each other")
        for name, proof in PROOFS.items():
            click.echo(f"{name:10} {_meaning(proof)}")


def _command(name: str, *options: Callable[[Any], Any]) -> None:
    def command(target: str | None, **given: Any) -> None:
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
    _number("--daemons", 1, "How many drain together."),
    click.option(
        "--contract",
        type=click.Choice(["fenced", "plain"]),
        default="fenced",
        show_default=True,
        help="Of the executor.",
    ),
)
_command(
    "latency",
    _number("--count", 400, "Admissions over HTTP.", 100),
    _number("--polls", 40, "Rows inserted by SQL.", 2),
    _number("--cold", 10, "Admissions after a pause.", 2),
)
_command("idle", _number("--seconds", 60, "Of each of the three measurements.", 10))
_command(
    "depth",
    _number("--rows", 1_000_000, "Depth of the deepest queue.", 1000),
    _number("--lanes", 10_000, "The most lanes.", 101),
)
_command(
    "simulate",
    _number("--rounds", 3, "Rounds that the median is taken of."),
    _number("--seed", 1, "Of the load."),
)
_command(
    "overview",
    _number("--history", 1_000_000, "Ended executions in the long log.", 1000),
    _number("--queued", 100_000, "Executions that wait in it.", 1000),
)
_command(
    "automations",
    _number("--tenants", 1000, "Tenants."),
    _number("--automations", 10_000, "Automations of them, all due in one minute."),
    _number("--advance", 500, "Runs that Phase B takes through a chunk."),
    _number("--items", 2_000_000, "Stored items beside which a tick is measured."),
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


@main.command("compare")
@click.argument("before", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(dir_okay=False, path_type=Path))
def comparison(before: Path, after: Path) -> None:
    """
    Show what has changed between two files of --json.
    """
    compare.show(compare.read(before), compare.read(after), Console())


_page_option = click.option(
    "--page", is_flag=True, help="Write the figures into docs/reliability.md as well."
)


@main.command("crashes", help=_meaning(crashes.run))
@_json_option
@_page_option
@click.option(
    "--engine",
    type=click.Choice([*crashes.ENGINES, "both"]),
    default="both",
    show_default=True,
)
def crash_matrix(target: str | None, page: bool, engine: str) -> None:
    load = os.getloadavg()[0]
    with _stages("crashes") as stage:
        measured, results = crashes.run(stage, crashes.ENGINES if engine == "both" else (engine,))
    result = report("crashes", measured, time.time(), load)
    if page:
        pages.put(crashes.SECTION, crashes.section(results, result))
    _tell(result, target, crashes.problems(results))


@main.command("hostile", help=_meaning(hostile.run))
@_json_option
@_page_option
@_number("--count", 400, "Honest admissions of each siege.", 100)
def hostile_callers(target: str | None, page: bool, count: int) -> None:
    result = _run("hostile", os.getloadavg()[0], count=count)
    if page:
        pages.put("hostile callers", pages.figures(result))
    _tell(result, target, ())


@main.command("soak", help=_meaning(soak.run))
@_json_option
@_page_option
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(min=0.05))
@click.option("--seed", type=int, help="Of a soak that is to be repeated; else a new one is drawn.")
@click.option("--engine", type=click.Choice(soak.ENGINES), default="mariadb", show_default=True)
def soaking(target: str | None, page: bool, minutes: float, seed: int | None, engine: str) -> None:
    seed = random.randrange(1_000_000) if seed is None else seed
    click.echo(f"soak of {minutes:g} minutes on {engine} with --seed {seed}", err=True)
    load = os.getloadavg()[0]
    with _stages("soak") as stage:
        soaked = soak.run(stage, minutes, seed, engine)
    result = report("soak", soaked.measured, time.time(), load)
    if page:
        pages.put(f"soak on {engine}", pages.figures(result))
    if soaked.folder is not None:
        click.echo(f"the logs are kept in {soaked.folder}", err=True)
    _tell(result, target, soaked.violations)


@main.command("drainers", help=_meaning(drainers.run))
@_json_option
@_page_option
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(min=0.05))
@click.option("--seed", type=int, help="Of a run that is to be repeated; else a new one is drawn.")
@_number("--count", drainers.COUNT, "Daemons.", 2)
def several(target: str | None, page: bool, minutes: float, seed: int | None, count: int) -> None:
    seed = random.randrange(1_000_000) if seed is None else seed
    click.echo(f"{count} drainers for {minutes:g} minutes with --seed {seed}", err=True)
    load = os.getloadavg()[0]
    with _stages("drainers") as stage:
        soaked = drainers.run(stage, minutes, seed, count)
    result = report("drainers", soaked.measured, time.time(), load)
    if page:
        pages.put("several drainers", pages.figures(result))
    if soaked.folder is not None:
        click.echo(f"the logs are kept in {soaked.folder}", err=True)
    _tell(result, target, soaked.violations)


@main.command("galera", help=_meaning(galera.run))
@_json_option
@_page_option
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(min=1))
@click.option("--seed", default=1, show_default=True, type=int)
def galera_nodes(target: str | None, page: bool, minutes: float, seed: int) -> None:
    load = os.getloadavg()[0]
    with _stages("galera") as stage:
        soaked = galera.run(stage, minutes, seed)
    result = report("galera", soaked.measured, time.time(), load)
    if page:
        pages.put("galera", pages.figures(result))
    if soaked.folder is not None:
        click.echo(f"the logs are kept in {soaked.folder}", err=True)
    _tell(result, target, soaked.violations)


def _tell(result: dict[str, Any], target: str | None, problems: Sequence[str]) -> None:
    """
    Print what a proof has found; a violation is an exit code as well.
    """
    if target is None:
        show(result, Console())
    else:
        _write(result, target)
    for problem in problems:
        click.echo(f"violation: {problem}", err=True)
    if problems:
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
