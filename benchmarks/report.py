"""
What a benchmark says: figures with units, the machine and the versions they hold for.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen
from rich.console import Console
from rich.table import Table

import crq
from crq.instants import Instant, iso

PACKAGES = ("Twisted", "PyMySQL", "gunicorn")


@frozen
class Figure:
    """
    One measured number.

    :ivar unit: of the value: ``ms``, ``s``, ``MB``, ``1/s`` (per second), ``rows``, ``ratio``, …
    """

    value: float
    unit: str


@frozen
class Measured:
    """
    What one benchmark found.

    :ivar versions: of what it started, beside the packages that every report names.
    """

    figures: Mapping[str, Figure]
    versions: Mapping[str, str]


class Stage(Protocol):
    """
    Tells whoever waits what is being done.
    """

    def __call__(self, text: str, done: int = 0, total: int | None = None) -> None:
        """
        Show what is done now, and how much of it.
        """


Benchmark = Callable[..., Measured]


def report(name: str, measured: Measured, at: Instant, load: float) -> dict[str, Any]:
    """
    The one object that ``--json`` prints.

    :param load: the load average before the benchmark: what else the machine had to do.
    """
    return {
        "benchmark": name,
        "at": iso(at),
        "machine": {**machine(), "load_before": round(load, 1)},
        "versions": {**versions(), **measured.versions},
        "figures": {
            name: {"value": _short(figure.value), "unit": figure.unit}
            for name, figure in measured.figures.items()
        },
    }


def _short(value: float) -> float:
    return int(value) if value == int(value) else round(value, 4)


def show(result: Mapping[str, Any], console: Console) -> None:
    """
    Print a report for people.
    """
    table = Table(title=str(result["benchmark"]), title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("unit")
    for name, figure in result["figures"].items():
        table.add_row(
            name,
            f"{figure['value']:,.4g}" if figure["value"] % 1 else f"{figure['value']:,.0f}",
            figure["unit"],
        )
    console.print(table)
    box = result["machine"]
    console.print(
        f"{result['at']}; {box['cores']} cores of {box['cpu']}, {box['memory_gb']} GB,"
        f" {box['system']}, load {box['load_before']} before; "
        + ", ".join(f"{k} {v}" for k, v in result["versions"].items()),
        style="dim",
    )


def machine() -> dict[str, Any]:
    """
    The machine, as far as a figure depends on it; nothing that names it.
    """
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(pages / 2**30),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions() -> dict[str, str]:
    """
    What every report names: the interpreter and the packages.
    """
    return {
        "crqueue": crq.__version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name.lower(): version(name) for name in PACKAGES},
    }


def median(values: Iterable[float]) -> float:
    """
    The median, as a float.
    """
    return float(statistics.median(values))
