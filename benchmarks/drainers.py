"""
Several daemons share one MariaDB and are killed, stopped, frozen and cut off at random from a seed.
"""

from __future__ import annotations

from benchmarks.report import Stage
from benchmarks.soak.run import Soaked
from benchmarks.soak.run import run as soak

COUNT = 2


def run(stage: Stage, minutes: float = 10.0, seed: int = 1, count: int = COUNT) -> Soaked:
    """
    Soak with so many daemons: all that is done to one, to each of them; and each is now and then
    away, or frozen, for longer than the others wait to call it dead.
    """
    return soak(stage, minutes, seed, "mariadb", count)
