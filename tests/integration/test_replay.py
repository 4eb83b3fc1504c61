"""
``crq replay`` as a person runs it, against a real daemon and a real executor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installation import Installation
from tests.servers import HOST, free_port

TRACE = """\
# quota key-limited 4 60
offset,account,key,service,outcome
0,acme,key-acme,0.8,success
0,acme,key-acme,0.8,error
0,acme,key-acme,0.8,success
1,limited,key-limited,1.6,success
5,limited,key-limited,0.4,success
3000,bravo,key-bravo,0.4,success
"""


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    settings: dict[str, dict[str, object]] = {
        "api": {"base_url": f"http://{HOST}:{free_port()}/api"},
        "gates": {"shortest_wait": 1, "margin": 0.1},
        "drainer": {"tick": 0.05},
    }
    with Installation(tmp_path, settings) as made:
        made.start_executor()
        made.start_daemon()
        yield made


def crq(installation: Installation, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name[:4] != "CRQ_"}
    command = [sys.executable, "-m", "crq.cli", "--config", str(installation.path)]
    return subprocess.run(
        [*command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_a_trace_is_played_and_reported(installation: Installation, tmp_path: Path) -> None:
    """
    Every arrival is submitted and ends as in the trace; the report has waits, 429s and health.
    """
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    health = f"http://{HOST}:{installation.web_port}/health/live"
    options = ("--speed", "20", "--longest-pause", "10", "--health", health)
    found = crq(
        installation,
        "replay",
        str(path),
        *options,
        "--health-every",
        "0.1",
        "--idle",
        "0.5",
        "--json",
    )
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert report["submitted"] == 6
    assert report["states"] == {"success": 5, "failed": 1}
    assert report["limits"] >= 1
    assert report["limitsOf"].keys() == {"key-limited"}
    assert report["refused"] == {}
    assert report["atTheWall"] == 0
    assert report["mostInFlightOf"]["acme"] <= 2
    assert report["waits"]["acme"]["count"] == 3
    assert report["healthIdle"]["count"] >= 3
    assert report["healthFailed"] == 0
    assert report["seconds"] < 30


def test_a_part_of_a_trace_for_people(installation: Installation, tmp_path: Path) -> None:
    """
    Without --json there are tables; --until leaves the rest out.
    """
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    found = crq(installation, "replay", str(path), "--speed", "20", "--until", "0.5")
    assert found.returncode == 0, found.stderr
    assert "died at the wall   0" in found.stdout
    assert "acme" in found.stdout
    assert "limited" not in found.stdout


def test_a_cap_that_fires_is_exit_code_1(installation: Installation, tmp_path: Path) -> None:
    """
    A refusal for depth is in the report, and a script notices.
    """
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    tight = ("--set", "limits.queued_per_account=1", "--set", "limits.queued_total=1")
    found = crq(
        installation, *tight, "replay", str(path), "--speed", "20", "--until", "0.5", "--json"
    )
    assert found.returncode == 1
    report = json.loads(found.stdout)
    assert report["refused"]
    assert sum(report["states"].values()) + sum(report["refused"].values()) == 3


@pytest.mark.parametrize(
    ("options", "text", "told"),
    [
        (("--set", "api.base_url=https://acme.example/api"), TRACE, "is not on this machine"),
        (("--set", "api.base_url=http://10.0.0.1:80/api"), TRACE, "is not on this machine"),
        ((), "offset\n", "line 1: the first line must be"),
        ((), TRACE + "x,a,k,1,success\n", "line 9: offset: 'x' is no number"),
    ],
)
def test_what_cannot_be_played_is_refused(
    tmp_path: Path, options: tuple[str, ...], text: str, told: str
) -> None:
    """
    An installation that customers use is never replayed on, and a bad trace is told by its line.
    """
    installation = Installation(tmp_path, {"api": {"base_url": f"http://{HOST}:{free_port()}/api"}})
    path = tmp_path / "trace.csv"
    path.write_text(text)
    found = crq(installation, *options, "replay", str(path))
    assert found.returncode == 2
    assert told in found.stderr
    assert "Traceback" not in found.stderr


def test_more_ways_to_be_told_no(tmp_path: Path) -> None:
    """
    Nothing in the part asked for, a health check that is no URL, a template without its numbers.
    """
    installation = Installation(tmp_path, {"api": {"base_url": f"http://{HOST}:{free_port()}/api"}})
    path, script = tmp_path / "trace.csv", tmp_path / "script"
    path.write_text(TRACE)
    script.write_text("work")
    for options, told in (
        (("--since", "9000"), "no arrival between --since and --until"),
        (("--health", "ftp://x"), "is no http URL"),
        (("--script", str(script)), "does not have {calls}"),
    ):
        found = crq(installation, "replay", str(path), *options)
        assert (found.returncode, told in found.stderr) == (2, True), found.stderr
