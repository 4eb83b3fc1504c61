"""
The real daemon before a plain endpoint: every kind of answer and of end, and no second POST.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crq import crashpoints
from crq.database import Cursor
from crq.instants import instant_of
from tests import invariants, journal
from tests.endpoint import Endpoint, Reply
from tests.installation import CHECKOUT, Installation, Settings
from tests.invariants import History
from tests.processes import kill, spawn
from tests.servers import MariaDB

WITHIN = 30.0  # s
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class PlainSite:
    """
    An installation whose executor is an endpoint. Nothing runs until it is started.
    """

    def __init__(self, folder: Path, url: str | None = None, **executor: object) -> None:
        (folder / "endpoint.token").write_text("s3cret-of-ours\n")
        settings: Settings = {
            "executor": {
                "contract": "plain",
                "token_file": "endpoint.token",
                "wall": 5.0,
                "deadline": 6.0,
                **executor,
            },
            "drainer": {"id": "site", "tick": 0.1, "drain_limit": 1.0, "stop_limit": 9.0},
            "gates": {"shortest_wait": 1, "margin": 0.0},
            "script": {"language": "opaque"},
            **({"database": {"url": url}} if url else {}),
        }
        self.installation = Installation(folder, settings)
        self.database = self.installation.config.open_database()
        self.connection = self.database.connect()
        journal.install(self.database, self.connection)
        self.endpoint: Endpoint | None = None

    def listen(self, reply: Callable[[dict[str, Any], int], Reply]) -> Endpoint:
        """
        Start the endpoint.
        """
        self.endpoint = Endpoint(self.installation.executor_port, reply)
        return self.endpoint

    def close(self) -> None:
        """
        End it all.
        """
        self.installation.close()
        if self.endpoint is not None:
            self.endpoint.close()
        self.connection.close()

    def submit(self, identifier: str, account: str = "acme", key: str = "0") -> int:
        """
        Submit an execution over HTTP; its id.
        """
        status, answer = self.installation.submit(
            subdomain=account,
            apikey=f"{account}.{key}",
            source_code="do {\n  as you like\n}",
            payload={"n": 1},
            identifier=identifier,
        )
        assert status == 202, answer
        return int(answer["executionId"])

    def rows(self) -> dict[str, dict[str, Any]]:
        """
        All rows, by identifier.
        """
        found = invariants.rows(self.database, self.connection)
        return {row["identifier"]: row for row in found}

    def message(self, execution_id: int) -> str:
        """
        What a row says of its end.
        """

        def read(txn: Cursor) -> Any:
            sql = "SELECT error_message FROM codeRunner_executions WHERE execution_id = ?"
            return txn.execute(sql, (execution_id,)).scalar()

        return str(self.database.read(self.connection, read))

    def all_ended(self) -> bool:
        """
        Whether nothing waits and nothing runs.
        """
        return all(row["finished_at"] is not None for row in self.rows().values())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """
        Wait for something.
        """
        deadline = time.monotonic() + WITHIN
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{what}: {self.rows()}\n{self.installation.log('daemon')[-4000:]}"
                )
            time.sleep(0.02)

    def problems(self) -> list[str]:
        """
        What does not hold of I1 to I4 and I6, when all is quiet.
        """
        limits = self.installation.config.limits.limits()
        history = History(limits, plain=True).tell(journal.changes(self.database, self.connection))
        return [*invariants.stored(self.rows().values()), *history.problems]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PlainSite]:
    """
    On SQLite.
    """
    made = PlainSite(tmp_path)
    yield made
    made.close()


def test_every_kind_of_answer(site: PlainSite) -> None:
    """
    2xx is success, an error is its code, 429 with Retry-After closes the gate and goes again, a cut
    connection is unknown; each row is POSTed once, but for the one that was refused.
    """
    hang = threading.Event()

    def reply(job: dict[str, Any], times: int) -> Reply:
        if job["identifier"] == "limited" and times == 1:
            return Reply(429, b"slow down", {"Retry-After": "2"})
        return {
            "created": Reply(201, b'{"status": "failed", "errorCode": 301}'),
            "broken": Reply(500, "kaputt, weil ü".encode()),
            "cut": Reply(0),
            "hangs": Reply(wait=hang),
        }.get(job["identifier"], Reply())

    endpoint = site.listen(reply)
    site.installation.start_daemon()
    ids = {
        name: site.submit(name, account=name, key="own")
        for name in ("good", "created", "broken", "limited")
    }
    behind = site.submit("behind", account="limited", key="own")
    site.until(site.all_ended, "not all ends")
    rows = site.rows()
    assert {name: (row["status"], row["error_code"]) for name, row in rows.items()} == {
        "good": ("success", None),
        "created": ("success", None),
        "broken": ("failed", 500),
        "limited": ("success", None),
        "behind": ("success", None),
    }
    assert site.message(ids["broken"]) == "HTTP 500 kaputt, weil ü"
    assert endpoint.posts == {**dict.fromkeys(ids.values(), 1), ids["limited"]: 2, behind: 1}
    first, again = (instant_of(rows[name]["claimed_at"]) for name in ("good", "limited"))
    assert again - first >= 2.0
    job, headers = endpoint.jobs[0]
    assert job == {
        "executionId": ids["good"],
        "account": rows["good"]["subdomain_hash"],
        "subdomain": "good",
        "identifier": "good",
        "source_code": "do {\n  as you like\n}",
        "payload": '{"n":1}',
        "debug": False,
    }
    assert headers["Authorization"] == "Bearer s3cret-of-ours"
    assert headers["Idempotency-Key"] == str(ids["good"])
    assert headers["Content-Type"] == "application/json"
    # What gives no answer pauses the others, so it comes last.
    lost = {name: site.submit(name, account=name) for name in ("cut", "hangs")}
    site.until(site.all_ended, "the lost do not end")
    hang.set()
    rows = site.rows()
    assert {rows[name]["error_code"] for name in lost} == {303}
    assert "no whole answer within 6 s" in site.message(lost["hangs"])
    assert [endpoint.posts[number] for number in lost.values()] == [1, 1]
    assert site.problems() == []
    assert "s3cret" not in site.installation.log("daemon")


def test_nobody_listens(site: PlainSite) -> None:
    """
    Refused connections leave everything queued, in its place; it runs once somebody listens.
    """
    site.installation.start_daemon()
    numbers = [site.submit(str(number)) for number in range(3)]
    site.until(lambda: "trying again" in site.installation.log("daemon"), "nobody tries")
    assert {row["status"] for row in site.rows().values()} <= {"queued", "running"}
    endpoint = site.listen(lambda _job, _times: Reply(204))
    site.until(site.all_ended, "not all ends")
    assert {row["status"] for row in site.rows().values()} == {"success"}
    assert endpoint.posts == dict.fromkeys(numbers, 1)
    assert site.problems() == []


def test_the_key_goes_only_where_it_may(tmp_path: Path) -> None:
    """
    With send_apikey the body has the API key, and the trace goes along; a key that cannot be opened
    fails its row alone (106).
    """
    site = PlainSite(tmp_path, send_apikey=True)
    try:
        endpoint = site.listen(lambda _job, _times: Reply())
        site.installation.start_daemon()
        good = site.submit("good", "acme")
        site.until(site.all_ended, "it does not end")
        assert endpoint.jobs[0][0]["apikey"] == "acme.0"
        site.installation.stop("daemon")

        def admit_spoilt(txn: Cursor) -> None:
            txn.execute(
                "INSERT INTO codeRunner_jobs (subdomain_hash, apikey, started_at)"
                " VALUES (?, 'spoilt', '2026-03-02 12:00:00.000')",
                ("b" * 64,),
            )
            txn.execute(
                "INSERT INTO codeRunner_executions (job_id, subdomain_hash, apikey_hash, status,"
                " queued_at, identifier, traceparent)"
                " VALUES (?, ?, ?, 'queued', '2026-03-02 12:00:00.000', 'bad', ?)",
                (txn.lastrowid, "b" * 64, "c" * 64, TRACE),
            )

        site.database.transact(site.connection, admit_spoilt)
        bad = site.rows()["bad"]["execution_id"]
        site.installation.start_daemon()
        site.until(site.all_ended, "it does not end")
        assert (site.rows()["bad"]["error_code"], site.rows()["bad"]["started_at"]) == (106, None)
        assert endpoint.posts == {good: 1}
        assert bad not in endpoint.posts
        assert site.problems() == []
    finally:
        site.close()


def test_a_stop_tells_what_it_leaves(site: PlainSite) -> None:
    """
    SIGTERM waits for answers up to the drain limit; what is unanswered then is unknown when the
    daemon has ended, and not POSTed again by the next one.
    """
    released = threading.Event()
    endpoint = site.listen(lambda _job, _times: Reply(wait=released))
    site.installation.start_daemon()
    numbers = [site.submit(str(number)) for number in range(3)]
    site.until(lambda: sum(endpoint.posts.values()) == 2, "they are not sent")
    site.installation.stop("daemon")
    rows = site.rows()
    assert [rows[name]["error_code"] for name in ("0", "1")] == [303, 303]
    released.set()
    site.installation.start_daemon()
    site.until(site.all_ended, "not all ends")
    assert endpoint.posts == dict.fromkeys(numbers, 1)
    assert site.problems() == []


# How many of the cap of 4 may be unknown afterwards: all that were on their way.
KILLS = {
    "claim committing:1": 0,
    "claim committed:1": 4,
    "dispatching:2": 4,
    "parcel read:2": 4,
    "request begins:2": 4,
    "answer begins:2": 4,
    "answer whole:2": 4,
    "concluding:2": 4,
    "settle committing:1": 4,
    "settle committed:1": 3,
    "settled:2": 4,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "at"),
    [
        *(("sqlite", at) for at in KILLS),
        ("mariadb", "claim committed:1"),
        ("mariadb", "settle committing:1"),
    ],
)
def test_a_kill_starts_nothing_twice(
    engine: str, at: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """
    The daemon is killed at an instant between claim, POST, answer and write: nothing is POSTed a
    second time, nothing vanishes, and only what was on its way is unknown.
    """
    if request.config.getoption("--engine") not in (engine, "both"):
        pytest.skip(f"--engine leaves {engine} out")
    url = None
    if engine == "mariadb":
        server: MariaDB = request.getfixturevalue("mariadb")
        url = server.create_database("plain_kill")
    site = PlainSite(tmp_path, url)
    try:
        site.installation.start_daemon()
        for number in range(9):
            site.submit(str(number), account=f"account-{number % 3}")
        site.installation.stop("daemon")  # nobody listened: all of it waits
        assert {row["status"] for row in site.rows().values()} == {"queued"}
        endpoint = site.listen(lambda _job, _times: Reply())
        file = tmp_path / "crash"
        file.write_bytes(crashpoints.HEAD)
        site.installation.environment["daemon"] = {
            crashpoints.AT: at,
            crashpoints.FILE: str(file),
        }
        site.installation.start_daemon(wait=False)
        site.until(lambda: not site.installation.runs("daemon"), f"nobody comes to {at}")
        site.installation.kill("daemon")
        assert invariants.stored(site.rows().values()) == []
        site.installation.environment.clear()
        site.installation.start_daemon()
        site.until(site.all_ended, "not all ends")
        rows = site.rows().values()
        assert max(endpoint.posts.values()) == 1
        unknown = [row for row in rows if row["error_code"] == 303]
        assert len(unknown) <= KILLS[at]
        others = [row for row in rows if row["error_code"] != 303]
        assert {row["status"] for row in others} == {"success"}
        assert all(endpoint.posts[row["execution_id"]] == 1 for row in others)
        assert site.problems() == []
    finally:
        site.close()


def test_the_endpoint_of_the_documentation_works(site: PlainSite) -> None:
    """
    The ten lines in docs/plain-endpoints.md, as they stand there, run executions.
    """
    page = (CHECKOUT / "docs" / "plain-endpoints.md").read_text("utf-8")
    found = re.search(r"```python\n(.*?)```", page, re.S)
    assert found is not None
    lines = found.group(1)
    assert len([line for line in lines.splitlines() if line.strip()]) <= 10
    text = lines.replace("8081", str(site.installation.executor_port))
    log = site.installation.directory / "endpoint.log"
    process = spawn([sys.executable, "-u", "-c", text], log, site.installation.directory)
    try:
        site.installation.start_daemon()
        number = site.submit("job 1")
        site.until(site.all_ended, "it does not end")
        assert site.rows()["job 1"]["status"] == "success"
        assert f"{number} acme" in log.read_text()
    finally:
        kill(process)
