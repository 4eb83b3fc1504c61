"""
What honest callers wait for an admission while others besiege the door, as ratios within one run.

The real daemon over MariaDB; honest callers admit over HTTP, one after the other, each on a
connection of its own. First they are alone; then, one after the other, the door is besieged by slow
senders (500 that send one byte of a header each five seconds, 200 one byte of a body), by a crowd
(10,000 connections that say nothing), by refused requests of 16 kinds, and by all of it at once.
Between them they are alone again: each ratio compares a siege with the quiet before and after it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import resident_mb
from benchmarks.report import Figure, Measured, Stage
from tests import besieger
from tests.installation import CHECKOUT, Installation
from tests.processes import end, spawn
from tests.servers import MariaDB

PAUSE = 0.01  # s between two honest admissions
SETTLE = 2.0  # s from the begin of a siege until it counts
IDLE = 10_000
SIEGES: dict[str, dict[str, float]] = {
    "slow": {"slow_headers": 500, "slow_bodies": 200},
    "crowd": {"idle": IDLE, "idle_rate": 2000},
    "abuse": {"abuse_rate": 100},
    "all": {
        "slow_headers": 500,
        "slow_bodies": 200,
        "idle": IDLE,
        "idle_rate": 2000,
        "abuse_rate": 50,
    },
}


def run(stage: Stage, count: int = 400) -> Measured:
    """
    Measure.
    """
    figures: dict[str, Figure] = {}
    with (
        MariaDB(flush_log_at_commit=1) as server,
        tempfile.TemporaryDirectory(prefix="crq-benchmark-") as folder,
    ):
        settings: dict[str, Mapping[str, object]] = {
            "database": {"url": server.create_database("hostile")},
            # Nothing is refused for depth: what is admitted is admitted.
            "limits": {"queued_per_account": 1_000_000, "queued_total": 10_000_000},
            "web": {"rate": 0.0},
        }
        with Installation(Path(folder), settings) as installation:
            pid = installation.start_daemon()
            admissions(installation, count)  # the first ones open connections
            quiet = percentile(admissions(installation, count), 95)
            figures["idle_p95_ms"] = Figure(1000 * quiet, "ms")
            figures["idle_rss_mb"] = Figure(resident_mb(pid), "MB")
            worst, descriptors = 0.0, 0
            for name, plan in SIEGES.items():
                stage(f"besieged: {name}")
                with besieged(installation, plan) as log, watched(pid) as seen:
                    time.sleep(SETTLE)
                    waits = admissions(installation, count)
                    # A crowd counts when it is there: as long as it comes, it is measured.
                    while last(log).get("idle", 0) < plan.get("idle", 0):
                        waits += admissions(installation, count // 10)
                    counts = last(log)
                after = percentile(admissions(installation, count), 95)
                figures[f"{name}_p50_ms"] = Figure(1000 * percentile(waits, 50), "ms")
                figures[f"{name}_p95_ms"] = Figure(1000 * percentile(waits, 95), "ms")
                figures[f"{name}_max_ms"] = Figure(1000 * max(waits), "ms")
                ratio = percentile(waits, 95) / ((quiet + after) / 2)
                figures[f"{name}_p95_ratio"] = Figure(ratio, "ratio")
                worst, quiet = max(worst, ratio), after
                descriptors = max(descriptors, *seen)
                if "idle" in counts:
                    figures[f"{name}_idle_opened"] = Figure(counts["idle"], "connections")
            figures["worst_p95_ratio"] = Figure(worst, "ratio")
            figures["most_descriptors"] = Figure(descriptors, "descriptors")
            figures["rss_mb_after"] = Figure(resident_mb(pid), "MB")
            installation.check()
        version = str(server.execute("SELECT VERSION()")[0][0])
    return Measured(figures, {"mariadb": version})


def admissions(installation: Installation, count: int) -> list[float]:
    """
    Admit so many executions; returns how long each took, from connecting to the answer.
    """
    waits = []
    for number in range(count):
        begun = time.perf_counter()
        status, answer = installation.submit(
            subdomain=f"honest{number % 50}", apikey=f"key {number % 50}", source_code="x = 1\n"
        )
        waits.append(time.perf_counter() - begun)
        if status != 202:
            raise RuntimeError(f"an honest admission was answered with {status}: {answer}")
        time.sleep(PAUSE)
    return waits


def percentile(values: list[float], percent: int) -> float:
    """
    The value that so many percent are not above.
    """
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


@contextmanager
def besieged(installation: Installation, plan: Mapping[str, float]) -> Iterator[Path]:
    """
    Besiege a door meanwhile; gives the file with the besieger's counts.
    """
    folder = installation.directory
    path, log = folder / "siege.json", folder / "siege.log"
    path.touch(0o600)
    path.write_text(
        json.dumps({"port": installation.web_port, "token": installation.token, **plan})
    )
    log.unlink(missing_ok=True)
    besieger.room(0)
    process = spawn(
        [sys.executable, "-m", "tests.besieger", str(path)],
        log,
        CHECKOUT,
        {**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    try:
        yield log
        if process.poll() is not None:
            raise RuntimeError(f"the besieger has ended: {log.read_text()[-2000:]}")
    finally:
        end(process, 10)


def last(log: Path) -> dict[str, Any]:
    """
    The last counts that a besieger has told.
    """
    lines = [line for line in log.read_text().splitlines() if line.endswith("}")]
    counts: dict[str, Any] = json.loads(lines[-1])
    return counts


@contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """
    Count a process's open file descriptors meanwhile.
    """
    seen = [0]
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            seen.append(len(os.listdir(f"/proc/{pid}/fd")))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
