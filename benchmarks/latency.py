"""
How long a start takes on an idle system: from the admission's COMMIT to the first byte of the POST
at the executor.

The daemon is the real ``twistd crqueue``, admissions come over HTTP, one at a time. The instant of
the COMMIT is taken inside the daemon (`benchmarks.probe`), that of the first byte inside the
executor (`benchmarks.noop`), both on the monotonic clock. Rows that another program inserts by SQL
wait for the poll of each second; their COMMIT is ours.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from benchmarks.report import Figure, Measured, Stage
from crq.database import Database
from crq.sealing import sha256_hex
from tests.installation import CHECKOUT, Installation
from tests.processes import kill, spawn
from tests.rows import insert_queued
from tests.servers import MariaDB

PROBE = CHECKOUT / "benchmarks" / "probe"
WARM_UP = 20
WITHIN = 5.0  # s for one start
PAUSE = (0.03, 0.1)  # s between two admissions: long after the last one is settled
COLD = 2.5  # s after which the daemon has let its connection to the executor go

# Of one admission in the daemon, in the order in which it comes by them.
COMMITTED, CLAIMED = "admit committed", "claim committed"
STEPS = {"to_claim": (COMMITTED, CLAIMED), "to_send": (CLAIMED, " request begins")}


def run(stage: Stage, count: int = 400, polls: int = 40, cold: int = 10) -> Measured:
    """
    Measure on both databases.

    :param count: admissions over HTTP.
    :param polls: rows that are inserted by SQL.
    :param cold: admissions after a pause in which connections were let go.
    """
    figures = _measure("sqlite", None, stage, count, polls, cold)
    with MariaDB(flush_log_at_commit=1) as server:
        url = server.create_database("latency")
        figures |= _measure("mariadb", (url, server), stage, count, polls, cold)
        version = str(server.execute("SELECT VERSION()")[0][0])
    # What an installation at work has: MariaDB.
    first = {name: figures[f"{name}_mariadb"] for name in ("p50_ms", "p99_ms")}
    return Measured(first | figures, {"mariadb": version})


def _measure(
    name: str, server: tuple[str, MariaDB] | None, stage: Stage, count: int, polls: int, cold: int
) -> dict[str, Figure]:
    settings: dict[str, dict[str, object]] = {"log": {"level": "info"}}
    if server is not None:
        settings["database"] = {"url": server[0]}
    with (
        tempfile.TemporaryDirectory(prefix="crq-benchmark-") as folder,
        Installation(Path(folder), settings) as installation,
    ):
        database = installation.config.open_database()
        url = database.url if server is None else server[1].url_socket("latency")
        probe = installation.directory / "probe"
        installation.environment["daemon"] = {
            "PYTHONPATH": f"{PROBE}{os.pathsep}{CHECKOUT}",
            "CRQUEUE_BENCHMARK_PROBE": str(probe),
        }
        with _executor(installation, url) as stamps:
            installation.start_daemon()
            watched = _Watched(installation, probe, stamps)
            for _ in range(WARM_UP):
                watched.admitted(PAUSE)
            warm = []
            for done in range(count):
                stage(f"{name}: admissions", done, count)
                warm.append(watched.admitted(PAUSE))
            colds = []
            for done in range(cold):
                stage(f"{name}: after a pause", done, cold)
                colds.append(watched.admitted((COLD, COLD)))
            inserted = []
            for done in range(polls):
                stage(f"{name}: rows by SQL", done, polls)
                inserted.append(watched.inserted(database))
    figures = {
        f"p50_ms_{name}": _ms(statistics.median(one.start for one in warm)),
        f"p99_ms_{name}": _ms(_percentile([one.start for one in warm], 99)),
    }
    for step in STEPS:
        figures[f"{step}_p50_ms_{name}"] = _ms(statistics.median(one.steps[step] for one in warm))
    answers = [one.answer for one in warm]
    figures[f"answer_p50_ms_{name}"] = _ms(statistics.median(answers))
    figures[f"cold_p50_ms_{name}"] = _ms(statistics.median(one.start for one in colds))
    figures[f"poll_p50_ms_{name}"] = _ms(statistics.median(inserted))
    figures[f"poll_max_ms_{name}"] = _ms(max(inserted))
    return figures


def _ms(nanoseconds: float) -> Figure:
    return Figure(nanoseconds / 1e6, "ms")


def _percentile(values: Sequence[int], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


@frozen
class _Start:
    """
    One start, in nanoseconds.

    :ivar start: from the COMMIT of the admission to the first byte at the executor.
    :ivar steps: parts of it, by `STEPS`.
    :ivar answer: what the caller waited for its answer.
    """

    start: int
    steps: Mapping[str, int]
    answer: int


class _Watched:
    """
    Starts executions one at a time, and reads what daemon and executor wrote down of each.
    """

    def __init__(self, installation: Installation, probe: Path, stamps: Path) -> None:
        self._installation = installation
        self._probe, self._stamps = probe.open(), stamps.open()
        self._number = 0

    def admitted(self, pause: tuple[float, float]) -> _Start:
        """
        Admit one over HTTP after a pause.
        """
        time.sleep(random.uniform(*pause))
        self._probe.read()
        begun = time.monotonic_ns()
        status, answer = self._installation.submit(**self._submission())
        answered = time.monotonic_ns()
        if status != 202:
            raise RuntimeError(f"not admitted: {status} {answer}")
        arrived = self._arrived()
        points = {
            point: int(at)
            for at, _, point in (line.partition(" ") for line in self._probe.read().splitlines())
        }
        steps = {name: points[last] - points[first] for name, (first, last) in STEPS.items()}
        return _Start(arrived - points[COMMITTED], steps, answered - begun)

    def inserted(self, database: Database) -> int:
        """
        Insert one by SQL, at no particular time; returns the nanoseconds until it arrived.
        """
        time.sleep(random.uniform(0.1, 1.1))
        connection = database.connect()
        try:
            account = sha256_hex("latency")
            database.transact(connection, insert_queued, account, account, time.time())
            begun = time.monotonic_ns()
        finally:
            connection.close()
        return self._arrived() - begun

    def _submission(self) -> dict[str, Any]:
        self._number += 1
        return {
            "subdomain": f"account{self._number % 50}",
            "apikey": f"key{self._number % 50}",
            "source_code": "x = 1\n" * 33,
        }

    def _arrived(self) -> int:
        deadline = time.monotonic() + WITHIN
        while not (line := self._stamps.readline()):
            self._installation.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing came to the executor within {WITHIN:g} s")
            time.sleep(0.002)
        return int(line)


@contextmanager
def _executor(installation: Installation, url: str) -> Iterator[Path]:
    stamps = installation.directory / "stamps"
    stamps.touch()
    process = spawn(
        [
            *(sys.executable, "-m", "benchmarks.noop"),
            *(str(installation.executor_port), url, str(stamps)),
        ],
        installation.directory / "noop.log",
        CHECKOUT,
        {**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    try:
        yield stamps
    finally:
        kill(process)
