"""
What a crash at each named instant leaves behind: rows lost, effects doubled, caps exceeded.

Real twistd, real gunicorn, SQLite and MariaDB; the cases and what is checked are in `tests.crashes`
and `tests.invariants`. 0 violations is the goal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, Measured, Stage
from tests.crashcases import CASES, Case
from tests.crashes import Result
from tests.crashes import run as crash
from tests.servers import MariaDB

SECTION = "crash matrix"
ENGINES = ("sqlite", "mariadb")
NAMES = {"sqlite": "SQLite", "mysql": "MariaDB"}


def run(
    stage: Stage, engines: Collection[str] = ENGINES, cases: Collection[Case] = CASES
) -> tuple[Measured, list[Result]]:
    """
    Go through the cases on each engine; every case has an installation of its own.
    """
    results: list[Result] = []
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        server = stack.enter_context(MariaDB()) if "mariadb" in engines else None
        if server is not None:
            versions["mariadb"] = str(server.execute("SELECT VERSION()")[0][0])
        for engine in engines:
            for case in cases:
                stage(f"{engine}, {case.name}", len(results), len(cases) * len(engines))
                url = None
                if engine == "mariadb" and server is not None:
                    url = server.create_database("crashes")
                with tempfile.TemporaryDirectory(prefix="crq-crash-") as folder:
                    results.append(crash(case, Path(folder), url))
    return Measured(_figures(results), versions), results


def problems(results: Iterable[Result]) -> list[str]:
    """
    What did not hold, with its case.
    """
    return [
        f"{result.engine}, {result.case.name}: {problem}"
        for result in results
        for problem in result.problems
    ]


def section(results: Collection[Result], report: Mapping[str, Any]) -> str:
    """
    The matrix as a table for the page.
    """
    engines = [name for name in NAMES if any(result.engine == name for result in results)]
    found = {(result.case, result.engine): result for result in results}
    lines = [
        "| killed | at | " + " | ".join(NAMES[engine] for engine in engines) + " |",
        "|---|---|" + "---|" * len(engines),
    ]
    for case in dict.fromkeys(result.case for result in results):
        who, _, at = case.name.partition(": ")
        cells = [_cell(found[case, engine]) for engine in engines if (case, engine) in found]
        lines.append(f"| {who} | {at} | " + " | ".join(cells) + " |")
    figures = report["figures"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines += [
        "",
        f"{figures['crashes']['value']} crashes, {figures['executions']['value']} executions,"
        f" {figures['effects']['value']} effects, {figures['unknown']['value']} unknown,"
        f" **{figures['violations']['value']} violations**. {report['at'][:10]}; {versions}.",
    ]
    return "\n".join(lines)


def _cell(result: Result) -> str:
    if result.problems:
        return f"**{len(result.problems)} violations**"
    words = {"303": "unknown", "success": "done"}
    ended = ", ".join(
        f"{count} {words.get(name, name)}" for name, count in sorted(result.ended.items())[::-1]
    )
    return f"{ended}; {result.effects} effects"


def _figures(results: Iterable[Result]) -> dict[str, Figure]:
    results = list(results)
    counts = {
        "crashes": len(results),
        "executions": sum(sum(result.ended.values()) for result in results),
        "effects": sum(result.effects for result in results),
        "unknown": sum(result.ended["303"] for result in results),
        "violations": len(problems(results)),
    }
    longest = max((result.seconds for result in results), default=0.0)
    return {
        **{name: Figure(count, name) for name, count in counts.items()},
        "longest_recovery_s": Figure(longest, "s"),
    }
