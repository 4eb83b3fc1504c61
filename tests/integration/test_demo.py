"""
``make demo``: the first thing somebody sees of crqueue works.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installation import CHECKOUT


@pytest.mark.slow
def test_the_demo_keeps_its_promises() -> None:
    """
    A shortened demo ends with 0, says that its checks hold and shows each account.
    """
    run = subprocess.run(
        [sys.executable, "-m", "demo", "--scale", "0.05"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "All 7 checks hold" in run.stdout
    assert run.stdout.count("holds  ") == 7
    assert run.stderr == ""
    assert "\x1b" not in run.stdout, "no terminal, no colours"
    for account in ("flood", "limited", "polite"):
        assert f"  {account} " in run.stdout
    steps = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines() if line.strip()}
    assert (steps["preview"], steps["observe"]) == (["12", "4", "0"], ["12", "4", "0"])
    assert steps["live"] == ["12", "-", "4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupted_demo_leaves_nothing(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    """
    A demo that is stopped half-way ends all its processes and deletes its directory.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "demo", "--scale", "0.05"],
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            assert demo.stdout is not None
            assert any(line.startswith("Submitting") for line in demo.stdout)
            started = _descendants(demo.pid)
            assert len(started) >= 4, "the API, the daemon, gunicorn and a worker"
            demo.send_signal(number)
            assert demo.wait(30) == code
        finally:
            demo.kill()
    assert [pid for pid in started if _lives(pid)] == []
    assert list(tmp_path.iterdir()) == []


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *_descendants(child))]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
