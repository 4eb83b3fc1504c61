"""
The alert rules, run by promtool.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.processes import SEARCH_PATH
from tests.servers import ServerMissing

MONITORING = Path(__file__).resolve().parent.parent.parent / "deploy" / "monitoring"


def promtool(*words: str) -> str:
    program = shutil.which("promtool", path=SEARCH_PATH)
    if program is None:
        raise ServerMissing("promtool is not installed; run: scripts/provision servers")
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, timeout=60, cwd=MONITORING
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_rules() -> None:
    """
    Prometheus would load them.
    """
    assert "rules found" in promtool("check", "rules", "alerts.yml")


def test_alerts_fire_when_they_should_and_only_then() -> None:
    """
    Each over series made for it, with its text.
    """
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")
