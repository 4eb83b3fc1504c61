"""
How long ``twistd crqueue`` takes from its start to its first good tick.

On SQLite, with the default configuration; the tick is known by ``/health/ready``, which is asked
without pause. One start comes before those that count: it compiles and caches.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.processes import cpu_seconds, resident_mb
from benchmarks.report import Figure, Measured, Stage, median
from tests.installation import Installation


def run(stage: Stage, rounds: int = 7) -> Measured:
    """
    Measure starts.
    """
    seconds, cpu, memory = [], [], []
    with (
        tempfile.TemporaryDirectory(prefix="crq-benchmark-") as folder,
        Installation(Path(folder)) as installation,
    ):
        for done in range(rounds + 1):
            stage("starting", done, rounds + 1)
            begun = time.perf_counter()
            pid = installation.start_daemon()
            took = time.perf_counter() - begun
            if done:
                seconds.append(took)
                cpu.append(cpu_seconds(pid))
                memory.append(resident_mb(pid))
            installation.stop("daemon")
    return Measured(
        {
            "seconds": Figure(median(seconds), "s"),
            "seconds_slowest": Figure(max(seconds), "s"),
            "cpu_seconds": Figure(median(cpu), "s"),
            "rss_mb": Figure(median(memory), "MB"),
        },
        {},
    )
