"""
Hostile callers against the real daemon: it stays up, small and honest to those who mean well.

Without figures: those are the benchmark's (``python -m benchmarks hostile``).
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest

from tests import besieger
from tests.installation import CHECKOUT, Installation
from tests.processes import end, spawn
from tests.servers import HOST
from tests.site import Site

pytestmark = pytest.mark.slow

PLACES = 400  # web.connections here
ARRIVES = 2.0  # s for a request to arrive here
SPARE = 80  # descriptors of everything else, and of bodies in files
GROWTH = 40  # MB that a siege may leave behind at most: buffers of the allocator


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Installation]:
    """
    A daemon with few places and little patience, alone.
    """
    settings: dict[str, dict[str, object]] = {
        "web": {"connections": PLACES, "request_seconds": ARRIVES, "rate": 0.0},
        "limits": {"queued_per_account": 10_000, "queued_total": 10_000},
    }
    with Installation(tmp_path, settings) as made:
        old = made.path.read_text()
        made.path.write_text(old.replace(f"interface={HOST}", f"interface={HOST}:backlog=1024"))
        made.start_daemon()
        yield made


def pid(door: Installation) -> int:
    return door._processes["daemon"].pid


def descriptors(door: Installation) -> int:
    return len(os.listdir(f"/proc/{pid(door)}/fd"))


def resident_mb(door: Installation) -> float:
    status = Path(f"/proc/{pid(door)}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def besieged(door: Installation, **plan: float) -> Iterator[Path]:
    """
    Besiege a door; gives the file with the besieger's counts.
    """
    path, log = door.directory / "siege.json", door.directory / "siege.log"
    path.touch(0o600)
    path.write_text(json.dumps({"port": door.web_port, "token": door.token, **plan}))
    process = spawn(
        [sys.executable, "-m", "tests.besieger", str(path)],
        log,
        CHECKOUT,
        {**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    try:
        yield log
    finally:
        assert process.poll() is None, log.read_text()
        end(process, 10)


def counts(log: Path) -> dict[str, int]:
    lines = [line for line in log.read_text().splitlines() if line.endswith("}")]
    found: dict[str, int] = json.loads(lines[-1]) if lines else {}
    return found


def honest(door: Installation, count: int) -> None:
    """
    Admissions of somebody who means well, each on a connection of its own.
    """
    for number in range(count):
        status, answer = door.submit(subdomain="honest", apikey="k", source_code="x = 1")
        assert status == 202, (number, answer)


def stored(door: Installation) -> Counter[str]:
    database = door.config.open_database()
    connection = database.connect()
    try:
        rows = database.read(
            connection,
            lambda txn: txn.execute("SELECT subdomain FROM codeRunner_executions").all(),
        )
    finally:
        connection.close()
    return Counter(row[0] for row in rows)


def unharmed(door: Installation, admitted: int) -> None:
    """
    The daemon lives, has given everything back, and has only what honest callers gave it.
    """
    door.check()
    assert stored(door) == {"honest": admitted}
    log = door.log("daemon")
    assert "Traceback" not in log
    assert "crq_forged" not in log
    assert door.token not in log


def test_slow_senders(door: Installation) -> None:
    """
    500 that send a header byte by byte and 200 a body: each is let go at its deadline, honest
    admissions go on, descriptors stay bounded and memory flat (F116).
    """
    honest(door, 20)
    before, memory = descriptors(door), resident_mb(door)
    with besieged(door, slow_headers=500, slow_bodies=200, slow_every=0.3) as log:
        deadline = time.monotonic() + 60
        admitted = most = 0
        while counts(log).get("let go", 0) < 1400:
            assert time.monotonic() < deadline, counts(log)
            honest(door, 5)
            admitted += 5
            most = max(most, descriptors(door))
    assert most <= before + PLACES + SPARE
    assert resident_mb(door) < memory + GROWTH
    gone = time.monotonic() + 3 * ARRIVES
    while descriptors(door) > before + 5:
        assert time.monotonic() < gone, "connections stay behind"
        time.sleep(0.05)
    unharmed(door, 20 + admitted)


def test_ten_thousand_silent_connections(door: Installation) -> None:
    """
    They connect and say nothing: there are never more than the limit, whoever means well gets in,
    and one line tells of the crowd.
    """
    wanted = min(10_000, besieger.room(10_000))
    before, memory = descriptors(door), resident_mb(door)
    with besieged(door, idle=wanted, idle_rate=4000) as log:
        deadline = time.monotonic() + 90
        admitted = most = 0
        while counts(log).get("idle", 0) < wanted:
            assert time.monotonic() < deadline, counts(log)
            honest(door, 5)
            admitted += 5
            most = max(most, descriptors(door))
    assert PLACES <= most <= before + PLACES + SPARE
    assert resident_mb(door) < memory + GROWTH
    unharmed(door, admitted)
    assert door.log("daemon").count("[crowd]") == 1


def test_requests_of_every_bad_kind(door: Installation) -> None:
    """
    Lying and endless bodies, floods of headers, shapes that smuggle, forged tokens, requests by the
    hundred in one packet: refused, none of it stored, nothing of it in the log.
    """
    honest(door, 10)
    memory = resident_mb(door)
    kinds = len(besieger.abuses("t"))
    with besieged(door, abuse_rate=60) as log:
        deadline = time.monotonic() + 60
        admitted = 10
        while sum(counts(log).values()) < 12 * kinds:
            assert time.monotonic() < deadline, counts(log)
            honest(door, 2)
            admitted += 2
        answers = counts(log)
    assert set(answers) <= {"200", "400", "401", "413", "422", "429", "431", "nothing"}, answers
    assert {"400", "401", "413", "422", "431"} <= set(answers)
    assert answers.get("nothing", 0) < 0.05 * sum(answers.values()), answers
    assert resident_mb(door) < memory + GROWTH
    unharmed(door, admitted)


# -- nonces


def post(site: Site, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """
    Send a dispatch to the executor, as whoever has seen one could.
    """
    connection = http.client.HTTPConnection(HOST, site.installation.executor_port, timeout=30)
    try:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/codeRunner/runAsync", urlencode(form), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("engine", ["sqlite", "mariadb"])
def test_replayed_nonces_start_nothing(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """
    A dispatch that somebody has recorded is sent again, ten at a time: before the daemon's own
    arrives one of them all starts the script, while it runs and afterwards none does; nor does a
    nonce with another job, or one that was never minted (F109).
    """
    url = None
    if engine == "mariadb":
        url = request.getfixturevalue("mariadb").create_database("nonces")
    site = Site(tmp_path, url, front=True)
    seen: list[dict[str, str]] = []
    replayed: list[tuple[int, dict[str, Any]]] = []
    first = threading.Event()

    def record(data: bytes) -> bytes:
        _, _, body = data.partition(b"\r\n\r\n")
        form = {name: values[0] for name, values in parse_qs(body.decode("ascii")).items()}
        if form:
            seen.append(form)
            if not first.is_set():
                first.set()
                with ThreadPoolExecutor(10) as pool:  # ahead of the daemon's own
                    replayed.extend(pool.map(lambda _: post(site, form), range(10)))
        return data

    try:
        assert site.front is not None
        site.front.edit = record
        site.installation.start_executor()
        site.admit(0, "a", 0.5)
        site.admit(1, "b", 0.5)
        site.installation.start_daemon()
        site.until(lambda: len(seen) == 2, "not dispatched")
        site.until(lambda: site.statuses()["running"] >= 1, "does not run")
        with ThreadPoolExecutor(10) as pool:
            late = list(pool.map(lambda n: post(site, seen[n % 2]), range(20)))
        site.until(site.all_ended, "does not end")
        for job, nonce in (
            (seen[0]["jobId"], seen[1]["asyncNonce"]),
            (seen[1]["jobId"], seen[0]["asyncNonce"]),
            (seen[0]["jobId"], "0" * 64),
            (seen[0]["jobId"], "\xe9"),
            ("999999", seen[0]["asyncNonce"]),
            ("-1", seen[0]["asyncNonce"]),
        ):
            late.append(post(site, {"jobId": job, "asyncNonce": nonce}))
        assert [answer["status"] for code, answer in replayed if code == 200] == ["success"]
        assert {code for code, _ in late} <= {409, 503}
        assert all(answer["errorCode"] in (113, None) for _, answer in late)
        assert site.statuses() == {"success": 2}
        assert site.api.effects == {(0, 1): 1, (1, 1): 1}
        assert site.problems() == []
    finally:
        site.close()
