"""
A sample of the crash matrix; ``python -m benchmarks crashes`` goes through all of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashcases import CASES, Case
from tests.crashes import run
from tests.servers import MariaDB

BY_NAME = {case.name: case for case in CASES}
SAMPLE = {
    "sqlite": (
        "daemon: admit committed",
        "daemon: claim committed",
        "daemon: half (cut)",
        "daemon: settling",
        "daemon: release committed (recovery)",
        "worker: start committing",
        "worker: call ended",
        "executor: finish committed",
    ),
    "mariadb": (
        "daemon: claim committing",
        "daemon: finish committed (told only)",
        "worker: start committed",
        "both: call ended",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "case"),
    [
        pytest.param(engine, BY_NAME[name], id=f"{engine}, {name}")
        for engine, names in SAMPLE.items()
        for name in names
    ],
)
def test_a_crash(engine: str, case: Case, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """
    After a crash at this instant and a restart, nothing is lost and nothing is done twice.
    """
    if request.config.getoption("--engine") not in (engine, "both"):
        pytest.skip(f"--engine leaves {engine} out")
    url = None
    if engine == "mariadb":
        server: MariaDB = request.getfixturevalue("mariadb")
        url = server.create_database("crashes")
    assert run(case, tmp_path, url).problems == ()
