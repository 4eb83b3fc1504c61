"""
A short soak; ``python -m benchmarks soak`` is the long one.
"""

from __future__ import annotations

import pytest

from benchmarks.soak.run import ENGINES, run


def silent(text: str, done: int = 0, total: int | None = None) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_soak(engine: str, request: pytest.FixtureRequest) -> None:
    """
    Twelve seconds of kills and faults violate nothing, and something was done in them.
    """
    if request.config.getoption("--engine") not in (engine, "both"):
        pytest.skip(f"--engine leaves {engine} out")
    soaked = run(silent, 0.2, seed=3, engine=engine)
    assert soaked.violations == (), soaked.folder
    figures = soaked.measured.figures
    assert figures["kills"].value + figures["faults"].value >= 4
    assert figures["admitted"].value > 5
    assert figures["effects"].value > 5
