"""
Automations in the real daemon: a real twistd, real threads, real SIGKILL.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from crq.automations.workers import Caller, NoThread, Overdue, Workers
from tests.fake_api import Answer, FakeApi
from tests.installation import Installation
from tests.integration.test_cli import run
from tests.servers import MariaDB

WITHIN = 60.0  # s
CARDS = [{"id": number} for number in range(1, 6)]
RULE = 'def decide(card):\n    return {"approve": card["id"] > 2, "reason": "many"}\n'


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """
    The tenant's API.
    """
    with FakeApi() as made:
        yield made


@pytest.fixture
def installation(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, api: FakeApi
) -> Iterator[Installation]:
    """
    An installation on each engine, nothing started.
    """
    settings: dict[str, dict[str, object]] = {
        "api": {"base_url": api.url},
        "drainer": {"drain_limit": 2.0, "stop_limit": 8.0},
    }
    if engine == "mariadb":
        server: MariaDB = request.getfixturevalue("mariadb")
        server.create_database("automating")
        settings["database"] = {"url": server.dsn("automating")}
    with Installation(tmp_path, settings) as made:
        (tmp_path / "token").write_text(made.token)
        (tmp_path / "key").write_text("key")
        (tmp_path / "rule.star").write_text(RULE)
        (tmp_path / "script.star").write_text('api.get("/done/" + str(payload["id"]))\n')
        yield made


def crq(installation: Installation, *words: str) -> dict[str, Any]:
    result = run("--config", str(installation.path), "automations", *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def last_run(installation: Installation) -> dict[str, Any]:
    runs: list[dict[str, Any]] = crq(installation, "runs", "acme/remind")["runs"]
    return runs[0]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.slow
def test_a_live_decision_becomes_an_execution(installation: Installation, api: FakeApi) -> None:
    """
    Declared, observed, promoted: the daemon's tick lets the rule decide, and the executor runs the
    script of each approved card; a daemon that was killed goes on, and admits nothing twice.
    """
    folder = installation.directory
    files = [f"{n}={folder / f}" for n, f in (("rule", "rule.star"), ("script", "script.star"))]
    crq(
        installation,
        *("add", "--tenant", "acme", "--name", "remind", "--type", "run_script"),
        *("--cron", "0 0 1 1 *", "--zone", "UTC"),
        *("--setting", "source=json", "--setting", "path=/cards"),
        *("--from", files[0], "--from", files[1], "--from", f"apikey={folder / 'key'}"),
    )
    pages = [Answer(body=CARDS), Answer(body=[])]
    api.answer(*pages)
    crq(installation, "observe", "acme/remind", "--now")
    installation.start_daemon()
    until(lambda: last_run(installation)["status"] == "completed", "it does not observe")
    assert last_run(installation)["wouldCount"] == 3
    installation.kill("daemon")
    crq(installation, "promote", "acme/remind", "--token-file", str(folder / "token"))
    api.answer(*pages)
    crq(installation, "run-now", "acme/remind")
    installation.start_executor()
    installation.start_daemon()
    until(lambda: last_run(installation)["status"] == "completed", "it does not act")
    found = last_run(installation)
    assert (found["mode"], found["approvedCount"]) == ("live", 3)

    def done() -> list[str]:
        paths = (call.path.partition("/done/") for call in api.calls)
        return sorted(rest for _, mark, rest in paths if mark)

    until(lambda: len(done()) >= 3, "its executions do not run")
    assert done() == ["3", "4", "5"]
    assert "Traceback" not in installation.log("daemon")
    installation.stop("daemon")


@pytest_twisted.ensureDeferred
async def test_a_blocking_call_blocks_nobody_else() -> None:
    """
    On real threads: a call that does not come back is given up after its deadline, others are made
    meanwhile on the same number of threads, and the reactor goes on.
    """
    real: Any = reactor
    held = threading.Event()
    workers = Workers(real, real, threads=1, seconds=0.3)
    workers._threads.start()
    try:
        blocked = workers.call(Caller("acme", "one"), held.wait, 30)
        waiting = workers.call(Caller("acme", "two"), lambda: "well")
        with pytest.raises(Overdue):
            await blocked
        assert await waiting == "well"
        with pytest.raises(NoThread):
            await workers.call(Caller("acme", "one"), lambda: "well")
        held.set()
        while workers.lost:
            pause: Deferred[None] = Deferred()
            real.callLater(0.01, pause.callback, None)
            await pause
        assert await workers.call(Caller("acme", "one"), lambda: "again") == "again"
    finally:
        held.set()
        workers._threads.stop()
