"""
The daemon as an operator meets it: real twistd, real gunicorn, real signals.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crq.database import Cursor
from tests.fake_api import Answer, FakeApi
from tests.installation import BIN, CHECKOUT, Installation
from tests.processes import end, spawn
from tests.servers import MariaDB, free_port

EFFECT = 'api.post("/effects/%d")\napi.get("/slow")\n'
WITHIN = 60.0  # s


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """
    The API that counts side effects.
    """
    with FakeApi() as started:
        yield started


@pytest.fixture(params=["sqlite", "mariadb"])
def installation(
    request: pytest.FixtureRequest, tmp_path: Path, api: FakeApi
) -> Iterator[Installation]:
    """
    An installation on each engine, nothing started.
    """
    settings: dict[str, dict[str, object]] = {
        "api": {"base_url": api.url},
        "executor": {"wall": 20.0, "deadline": 25.0, "grace": 5.0},
        "drainer": {"drain_limit": 5.0, "stop_limit": 8.0},
    }
    if request.param == "mariadb":
        server: MariaDB = request.getfixturevalue("mariadb")
        server.create_database("daemon")
        settings["database"] = {"url": server.dsn("daemon")}
    with Installation(tmp_path, settings) as made:
        yield made


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Installation]:
    """
    An installation on SQLite that has no executor.
    """
    with Installation(tmp_path) as made:
        yield made


def ask(installation: Installation, sql: str) -> list[tuple[Any, ...]]:
    database = installation.config.open_database()
    connection = database.connect()

    def read(txn: Cursor) -> list[tuple[Any, ...]]:
        return list(txn.execute(sql).all())

    try:
        return database.read(connection, read)
    finally:
        connection.close()


def states(installation: Installation) -> Counter[str]:
    sql = "SELECT status, COUNT(*) FROM codeRunner_executions GROUP BY status"
    return Counter(dict(ask(installation, sql)))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def submit(installation: Installation, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        status, answer = installation.submit(
            subdomain=f"account{number % 3}",
            apikey=f"key-{number % 3}",
            source_code=EFFECT % number,
        )
        assert status == 202, answer


def effects(api: FakeApi) -> Counter[int]:
    paths = (call.path.partition("/effects/")[2] for call in api.calls)
    return Counter(int(path) for path in paths if path)


@pytest.mark.slow
def test_killed_daemon_resumes_the_backlog(installation: Installation, api: FakeApi) -> None:
    """
    SIGKILL in mid-backlog, three times: after the restart every execution is done exactly once.
    """
    api.answer(*(Answer(delay=0.02) for _ in range(400)))
    installation.start_executor()
    installation.start_daemon()
    submit(installation, 45)
    for goal in (8, 16, 24):
        until(lambda goal=goal: len(effects(api)) >= goal, "the backlog does not drain")  # type: ignore[misc]
        installation.kill("daemon")
        installation.start_daemon()
    until(lambda: states(installation)["success"] == 45, f"not drained: {states(installation)}")
    assert effects(api) == Counter(range(45))
    assert states(installation) == {"success": 45}


@pytest.mark.slow
def test_stopped_daemon_waits_for_its_answers(installation: Installation, api: FakeApi) -> None:
    """
    SIGTERM: nothing new is dispatched, what runs ends, the exit is clean, the rest waits.
    """
    api.answer(*(Answer(delay=0.5) for _ in range(100)))
    installation.start_executor()
    installation.start_daemon()
    submit(installation, 20)
    until(lambda: len(api.calls) >= 4, "nothing runs")
    assert installation.stop("daemon") == -signal.SIGTERM
    after = states(installation)
    assert set(after) == {"success", "queued"}
    assert sum(after.values()) == 20
    assert len(effects(api)) == after["success"]


@pytest.mark.slow
def test_a_script_killed_at_the_wall_ends_its_row(tmp_path: Path) -> None:
    """
    The wall kills the worker, not the executor: the row ends as 303 and the next one runs.
    """
    settings: dict[str, dict[str, object]] = {
        "executor": {"wall": 2.0, "deadline": 8.0, "grace": 1.0, "workers": 2},
    }
    endless = "max(range(2000000000))"
    with Installation(tmp_path, settings) as installation:
        installation.start_executor()
        installation.start_daemon()
        installation.submit(subdomain="acme", apikey="k", source_code=endless)
        until(lambda: states(installation)["failed"] == 1, "the row does not end")
        ((code, started),) = ask(
            installation, "SELECT error_code, started_at FROM codeRunner_executions"
        )
        assert code == 303
        assert started is not None
        installation.submit(subdomain="acme", apikey="k", source_code="print(1)")
        until(lambda: states(installation)["success"] == 1, "the executor is gone")


def twistd(path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name[:4] != "CRQ_"}
    return subprocess.run(
        [str(BIN / "twistd"), "--nodaemon", "--pidfile=", "crqueue", *options],
        cwd=path,
        env={**clean, "PYTHONPATH": str(CHECKOUT), **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_second_daemon_is_refused(small: Installation) -> None:
    """
    Two daemons on one lock: the second ends with a line that says who and what to do.
    """
    small.start_daemon()
    second = twistd(small.directory, "--config", str(small.path))
    assert second.returncode == 1
    assert "another daemon holds" in second.stderr
    assert "Traceback" not in second.stderr + second.stdout
    assert small.get("/health/ready")[0] == 200


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("limits.in_fligt=4", "did you mean limits.in_flight?"),
        ("limits.per_account=9", "limits.per_account: 9 is above limits.in_flight"),
        ("drainer.drain_limit=500", "drainer.drain_limit: 500 is above"),
        ("secrets.salt_file=/nonexistent", "secrets.salt_file: /nonexistent cannot be read"),
    ],
)
def test_a_fault_in_the_configuration_is_a_usage_error(
    small: Installation, option: str, told: str
) -> None:
    """
    A typo or an impossible combination ends the start with the option's name and a remedy.
    """
    refused = twistd(small.directory, "--config", str(small.path), "--set", option)
    assert refused.returncode == 1
    assert told in refused.stderr + refused.stdout
    assert "Traceback" not in refused.stderr + refused.stdout


def test_a_schema_that_is_not_ours_is_refused(small: Installation) -> None:
    """
    A database of a later version is not touched.
    """
    database = small.config.open_database()
    connection = database.connect()
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    refused = twistd(small.directory, "--config", str(small.path))
    assert refused.returncode == 1
    assert "of a later crqueue" in refused.stderr


@pytest.mark.slow
def test_starting_and_stopping_leaves_nothing_behind(small: Installation) -> None:
    """
    Ten starts and stops: exit code 0, no traceback, and a database that opens read-only (F21).
    """
    for _ in range(10):
        small.start_daemon()
        assert small.stop("daemon") == -signal.SIGTERM
    log = small.log("daemon")
    assert "Traceback" not in log
    assert "rror" not in log
    uri = f"file:{small.config.open_database().path}?mode=ro"
    import sqlite3

    connection = sqlite3.connect(uri, uri=True)
    assert connection.execute("SELECT COUNT(*) FROM codeRunner_executions").fetchone() == (0,)
    connection.close()


def test_a_daemon_without_its_database_waits_for_it(tmp_path: Path) -> None:
    """
    Started while the database is down, it stays up, says that it is not ready, and recovers.
    """
    with MariaDB() as server:
        server.create_database("late")
        settings: dict[str, dict[str, object]] = {"database": {"url": server.dsn("late")}}
        with Installation(tmp_path, settings) as installation:
            server.stop()
            installation.start_daemon(wait=False)
            until(lambda: installation.get("/health/live")[0] == 200, "not alive")
            status, body = installation.get("/health/ready")
            assert status == 503, body
            server.start()
            until(lambda: installation.get("/health/ready")[0] == 200, "does not recover")
            assert installation.log("daemon").count("[database_away]") == 1
            assert "Traceback" not in installation.log("daemon")


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_unprivileged_user_on_a_read_only_install(tmp_path: Path) -> None:
    """
    nobody runs a copy that nobody may write: help and start work without an error line (F36).
    """
    place = Path("/var/tmp") / f"crq-readonly-{os.getpid()}"
    shutil.copytree(CHECKOUT / "crq", place / "crq")
    shutil.copytree(CHECKOUT / "twisted", place / "twisted")
    for folder, _, files in os.walk(place):
        Path(folder).chmod(0o555)
        for name in files:
            (Path(folder) / name).chmod(0o444)
    work = tmp_path
    installation = Installation(work)
    for path in (tmp_path, *tmp_path.parents):
        if str(path).startswith("/tmp/pytest"):
            path.chmod(0o755)
    for path in (work, *work.iterdir()):
        os.chown(path, 65534, 65534)
    log = work / "nobody.log"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
    }
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    command += [sys.executable, str(BIN / "twistd"), "--nodaemon", "--pidfile=", "crqueue"]
    try:
        shown = subprocess.run(
            [*command, "--help"],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if "Permission denied" in shown.stderr and sys.prefix in shown.stderr:
            pytest.skip("this environment itself cannot be read by nobody")
        assert shown.returncode == 0, shown.stderr
        assert "--config" in shown.stdout
        process = spawn([*command, "--config", str(installation.path)], log, work, environment)
        until(lambda: installation.get("/health/ready")[0] == 200, log.read_text())
        assert end(process, 10) == -signal.SIGTERM
        told = log.read_text() + shown.stderr
        assert "Traceback" not in told
        assert "dropin.cache" not in told
    finally:
        for folder, _, _ in os.walk(place):
            Path(folder).chmod(0o755)
        shutil.rmtree(place)


def test_a_stale_pidfile_is_no_obstacle(small: Installation) -> None:
    """
    A pid file left by a crash, whoever has that pid now, does not keep the daemon down: it is not
    used; the kernel's lock is (F37).
    """
    for pid in (1, os.getppid()):
        (small.directory / "twistd.pid").write_text(str(pid))
        small.start_daemon()
        assert small.stop("daemon") == -signal.SIGTERM


def test_hanging_up_is_not_waiting_for_ever(small: Installation) -> None:
    """
    SIGTERM while an executor never answers: the process is gone within the drain limit.
    """
    import socket

    silent = socket.create_server(("127.0.0.1", small.executor_port))
    try:
        text = small.path.read_text()
        small.path.write_text(text + "\n[drainer]\ndrain_limit = 0.5\nstop_limit = 2.0\n")
        pid = small.start_daemon()
        small.submit(subdomain="acme", apikey="k", source_code="print(1)")
        until(lambda: states(small)["claimed"] == 1, "not dispatched")
        begun = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        assert small.stop("daemon") == -signal.SIGTERM
        assert time.monotonic() - begun < 5
        # Not begun: still claimed, or put back while the process ended.
        assert states(small) in ({"claimed": 1}, {"queued": 1})
    finally:
        silent.close()


def test_ports_are_free_again() -> None:
    """
    The ports that tests use lie where no client's own port can be.
    """
    assert free_port() < 32768
