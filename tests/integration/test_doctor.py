"""
``crq doctor`` on a living installation, and on one that was spoilt.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client

from tests.installation import Installation
from tests.servers import MariaDB, Memcached, free_port

SETTINGS: dict[str, dict[str, object]] = {
    "drainer": {"lock_file": "crqueue.lock"},
    "executor": {"wall": 30.0, "deadline": 40.0, "grace": 5.0, "workers": 2},
}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Installation]:
    """
    An installation on SQLite, nothing started.
    """
    with Installation(tmp_path, SETTINGS) as made:
        yield made


def doctor(installation: Installation, *options: str, code: int | None = None) -> dict[str, Any]:
    """
    Run it as a program; returns what is not ok, by name.
    """
    clean = {name: value for name, value in os.environ.items() if name[:4] != "CRQ_"}
    command = [sys.executable, "-W", "error", "-m", "crq.cli", "--config", str(installation.path)]
    done = subprocess.run(
        [*command, *options, "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=clean,
    )
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    codes = {"ok": 0, "note": 0, "warning": 1, "error": 2}
    assert done.returncode == codes[answer["worst"]]
    assert code is None or done.returncode == code, done.stdout
    for finding in answer["findings"]:
        assert finding["severity"] == "ok" or finding["found"], finding
        assert finding["severity"] in ("ok", "note") or finding["remedy"], finding
    bad = (each for each in answer["findings"] if each["severity"] != "ok")
    return {each["name"]: (each["severity"], each["found"]) for each in bad}


@pytest.mark.slow
def test_a_good_installation(tmp_path: Path, mariadb: MariaDB, memcached: Memcached) -> None:
    """
    Daemon, executor, MariaDB and memcached at work: nothing worse than a note, with a daemon found
    by its lock and clocks that agree; each part that is taken away is found.
    """
    mariadb.create_database("living")
    before = mariadb.execute("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")[0][0]
    mariadb.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    settings: dict[str, dict[str, object]] = {
        **SETTINGS,
        "database": {"url": mariadb.dsn("living")},
        "gates": {"backend": "memcached", "servers": [f"127.0.0.1:{memcached.port}"]},
    }
    try:
        with Installation(tmp_path, settings) as installation:
            installation.start_executor()
            pid = installation.start_daemon()
            # Young servers and small limits of a test are notes and warnings of their own.
            allowed = {f"memcached 127.0.0.1:{memcached.port}", "unit", "descriptors in force"}
            bad = doctor(installation)
            young = {"drainers", f"drainer {installation.config.drainer.id}"}
            assert set(bad) <= allowed | young, bad
            assert not any(severity == "error" for severity, _ in bad.values())
            lock = installation.directory / "crqueue.lock"
            text = subprocess.run(
                [sys.executable, "-m", "crq.cli", "--config", str(installation.path)]
                + ["doctor", "--all"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            ).stdout
            assert f"process {pid} holds {lock}" in text
            assert "the executor's wall is 30 s, executor.deadline 40 s" in text
            assert "sesame" not in text
            installation.stop("executor")
            bad = doctor(installation, code=2)
            assert bad["executor"][0] == "error"
            installation.kill("daemon")
            assert doctor(installation)["daemon"][0] == "note"
    finally:
        mariadb.execute(f"SET GLOBAL innodb_flush_log_at_trx_commit = {before}")


def test_a_cache_that_pushes_gates_out(small: Installation) -> None:
    """
    A small memcached that was filled up has evicted, and one that is not there is an error.
    """
    with Memcached(extra=["--memory-limit=2"]) as server:
        name = f"memcached 127.0.0.1:{server.port}"
        gates = ("--set", "gates.backend=memcached")
        there = (*gates, "--set", f"gates.servers=127.0.0.1:{server.port}")
        found = doctor(small, *there)
        assert found[name][0] == "note"  # it is young
        client = Client(server.address)
        for number in range(600):
            client.set(f"filler {number}".replace(" ", "_"), b"x" * 10_000, noreply=False)
        evicted = int(client.stats()[b"evictions"])
        client.close()
        assert evicted > 0
        severity, text = doctor(small, *there)[name]
        assert (severity, f"{evicted} items were pushed out" in text) == ("warning", True)
        assert f"clock of memcached 127.0.0.1:{server.port}" not in doctor(small, *there)
    assert doctor(small, *there, code=2)[name][0] == "error"


def test_an_executor_of_another_mind(small: Installation) -> None:
    """
    Its wall, its locks and its gates are compared with what the daemon believes.
    """
    small.start_executor()
    assert "wall" not in doctor(small)
    other = ("--set", "executor.wall=20", "--set", "executor.deadline=25")
    severity, text = doctor(small, *other)["wall"]
    assert (severity, "the executor's wall is 30 s, executor.deadline 25 s" in text) == (
        "error",
        True,
    )
    assert doctor(small, "--set", "executor.wall=35")["wall"][0] == "warning"
    assert doctor(small, "--set", "executor.liveness=wall")["agreement on liveness"][0] == "error"
    gates = ("--set", "gates.backend=memcached", "--set", f"gates.servers=127.0.0.1:{free_port()}")
    assert doctor(small, *gates)["agreement on gates"][0] == "error"


def test_secrets_that_everybody_may_read(small: Installation) -> None:
    """
    A salt of mode 644 is an error with the command that mends it, and the command does.
    """
    salt = small.directory / "salt"
    assert not [name for name in doctor(small) if name.startswith("mode of")]
    salt.chmod(0o644)
    assert doctor(small, code=2)["mode of secrets.salt_file"][0] == "error"
    salt.chmod(0o600)
    assert "mode of secrets.salt_file" not in doctor(small)
    salt.unlink()
    found = doctor(small, code=2)
    assert (found["secrets"][0], found["mode of secrets.salt_file"][0]) == ("error", "error")


def test_a_configuration_that_is_none(small: Installation) -> None:
    """
    It is the one finding, as JSON too.
    """
    found = doctor(small, "--set", "limits.in_flight=many", code=2)
    assert "limits.in_flight" in found["configuration"][1]


def test_a_database_that_is_not_there(small: Installation) -> None:
    """
    No empty file is made, no password shown, and the other parts are looked at all the same.
    """
    missing = small.directory / "missing.db"
    found = doctor(small, "--set", f"database.url=sqlite:///{missing}", code=2)
    assert "there is none at" in found["database"][1]
    assert not missing.exists()
    url = f"mysql://u:sesame@127.0.0.1:{free_port()}/x"
    found = doctor(small, "--set", f"database.url={url}", code=2)
    assert found["database"][0] == "error"
    assert "executor" in found
    assert "sesame" not in str(found)


def test_a_silent_executor_is_not_waited_for(small: Installation) -> None:
    """
    One that accepts and never answers costs some seconds, and is an error.
    """
    small.start_executor()
    (pid,) = (process.pid for process in small._processes.values())
    os.killpg(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        found = doctor(small, code=2)
        assert "does not answer" in found["executor"][1]
        assert time.monotonic() - begun < 15
    finally:
        os.killpg(pid, signal.SIGCONT)
