"""
Fail when a module is covered less than its floor in ``pyproject.toml`` asks for.

    python -m coverage json && python scripts/floors.py build/coverage/coverage.json

The floors are percent of lines and branches together, in ``[tool.crqueue.floors]``. A module that
was not measured fails too: a renamed file must not take its floor with it.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def covered(module: str, files: Mapping[str, Any]) -> float | None:
    """
    Percent covered of a module, or of a package (with a slash at its end); None if not measured.
    """
    summaries = [
        file["summary"]
        for path, file in files.items()
        if path == module or (module.endswith("/") and path.startswith(module))
    ]
    if not summaries:
        return None
    hit = sum(each["covered_lines"] + each["covered_branches"] for each in summaries)
    total = sum(each["num_statements"] + each["num_branches"] for each in summaries)
    return 100 * hit / total if total else 100.0


def main(report: Path) -> int:
    """
    Compare a report of ``coverage json`` with the floors.
    """
    try:
        measured = json.loads(report.read_text())
    except FileNotFoundError:
        print(f"floors: {report} is missing; run the tests under coverage first", file=sys.stderr)
        return 1
    if not measured["meta"]["branch_coverage"]:
        print("floors: measured without branches; set branch = true", file=sys.stderr)
        return 1

    floors = tomllib.loads(PYPROJECT.read_text())["tool"]["crqueue"]["floors"]
    failures = []
    for module, floor in floors.items():
        percent = covered(module, measured["files"])
        if percent is None:
            failures.append(f"{module:24} {'not measured':>12}   floor {floor:g} %")
        elif percent < floor:
            failures.append(f"{module:24} {percent:10.2f} %   floor {floor:g} %")
    if failures:
        print("Coverage below the floor:", *failures, sep="\n  ", file=sys.stderr)
        return 1
    print(f"Coverage floors: all {len(floors)} reached.")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/floors.py COVERAGE.json")
    sys.exit(main(Path(sys.argv[1])))
