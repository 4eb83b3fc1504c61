"""
The executor as an operator runs it: real gunicorn, SQLite, MariaDB, and an API that throttles.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from crq import admission, executions
from crq.gates import open_store
from crq.liveness import Liveness
from crq.messages import Admitted, Submission
from crq.model import Claimed
from tests import rows
from tests.fake_api import Answer, FakeApi
from tests.installation import Installation
from tests.servers import HOST, MariaDB

WALL = 3.0  # s; gunicorn looks once a second, and kills a second later what does not listen
KILLED_WITHIN = WALL + 5.0
KEY = "secret-key-of-acme"


class Box:
    """
    An installation whose executor runs, and the rows it executes.
    """

    def __init__(self, folder: Path, url: str | None) -> None:
        self.api = FakeApi()
        self.installation = Installation(
            folder,
            {
                "executor": {
                    "workers": 4,
                    "wall": WALL,
                    "deadline": WALL + 1,
                    "grace": 1.0,
                    "lock_dir": "locks",
                    "memory_mb": 256,
                },
                "api": {"base_url": self.api.url},
                **({"database": {"url": url}} if url else {}),
            },
        )
        self.config = self.installation.config
        self.database = self.config.open_database()
        self.connection = self.database.connect()
        self.locks = Liveness(self.database, folder / "locks")
        self.installation.start_executor()

    def close(self) -> None:
        self.installation.close()
        self.connection.close()
        self.api.close()

    def claimed(self, source_code: str, account: str = "acme") -> Claimed:
        submission = Submission(account, KEY, source_code)
        limits, now = self.config.limits.limits(), time.time()
        answer = admission.admit(
            self.database, self.connection, submission, self.config.sealer(), limits, now
        )
        assert isinstance(answer, Admitted)
        (claimed,) = rows.claim(self.database, self.connection, now, limits)
        assert claimed.execution_id == answer.execution_id
        return claimed

    def post(self, claimed: Claimed, nonce: str | None = None) -> tuple[int, Any]:
        """
        Dispatch; status 0 when the connection is cut, None when the body is no JSON.
        """
        form = urlencode({"jobId": claimed.job_id, "asyncNonce": nonce or claimed.nonce})
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", "/codeRunner/runAsync", form, headers)

    def ask(
        self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        port = self.installation.executor_port
        connection = http.client.HTTPConnection(HOST, port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, None
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def row(self, claimed: Claimed) -> dict[str, Any]:
        return rows.row(self.database, self.connection, claimed.execution_id)

    def held(self, claimed: Claimed) -> bool:
        held = self.database.read(self.connection, self.locks.held, [claimed.execution_id])
        return bool(held)

    def eventually(self, what: Callable[[], bool], within: float = 10.0) -> None:
        deadline = time.monotonic() + within
        while not what():
            assert time.monotonic() < deadline, self.installation.log("executor")[-4000:]
            time.sleep(0.02)

    def ends_as_a_dead_worker(self, claimed: Claimed, answer: tuple[int, Any]) -> None:
        """
        Make sure that the row is left to the drainer, and that the executor goes on serving.
        """
        status, body = answer
        assert status in (0, 500), answer
        assert body is None, answer
        assert self.row(claimed)["status"] == "running"
        self.eventually(lambda: not self.held(claimed))
        # What the drainer does then, so that the next test finds a free account.
        now = time.time()
        assert self.database.transact(self.connection, executions.died, claimed.execution_id, now)
        after = self.claimed("x = 1")
        assert self.post(after)[1]["status"] == "success"


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    engine: str = request.param
    if request.config.getoption("--engine") not in (engine, "both"):
        pytest.skip(f"--engine leaves {engine} out")
    url = None
    if engine == "mariadb":
        server: MariaDB = request.getfixturevalue("mariadb")
        url = server.create_database("executor")
        # As a server is found in the field: whatever names no character set gets this one.
        server.execute("ALTER DATABASE executor CHARACTER SET latin1")
    made = Box(tmp_path_factory.mktemp("executor"), url)
    yield made
    made.close()


def test_an_execution_runs_and_says_so(box: Box) -> None:
    """
    A dispatch is answered with the outcome when it has been written.
    """
    claimed = box.claimed("answer = api.post('/cards', json = {'title': 'x'})\nanswer.json['ok']")
    status, answer = box.post(claimed)
    assert (status, answer["executionId"], answer["status"]) == (
        200,
        claimed.execution_id,
        "success",
    )
    row = box.row(claimed)
    assert row["status"] == "success"
    assert row["queued_at"] <= row["claimed_at"] <= row["started_at"] <= row["finished_at"]
    assert box.api.calls[-1].key == KEY
    assert not box.held(claimed)
    status, answer = box.ask("GET", "/health")
    assert (status, answer["status"], answer["liveness"]) == (200, "ok", "lock")


def test_text_of_any_script_comes_through(box: Box) -> None:
    """
    Emoji, arrow and Hebrew in source, API and error survive a server that defaults to latin1.
    """
    text = "👨‍👩‍👧 → שלום"
    box.api.answer(Answer(200, {"said": text}))
    claimed = box.claimed(f"said = api.get('/x').json['said']\nfail(said, said == '{text}')")
    assert box.post(claimed)[1]["errorMessage"] == f"line 2, column 1: fail: {text} True"
    assert box.row(claimed)["error_message"] == f"line 2, column 1: fail: {text} True"
    assert text in box.row(claimed)["source_code"]


def test_bytes_that_are_no_text_come_through_as_text(box: Box) -> None:
    """
    An upstream error in broken bytes fails the execution once, with replacement marks.
    """
    box.api.answer(Answer(500, b"a\x92p\xff\x00\xf0\x9f"))
    claimed = box.claimed("fail(api.get('/x').text)")
    status, answer = box.post(claimed)
    assert (status, answer["errorCode"]) == (200, 301)
    row = box.row(claimed)
    assert (row["status"], row["error_code"]) == ("failed", 301)
    assert row["error_message"] == "line 1, column 1: fail: a\ufffdp\ufffd\ufffd\ufffd"


def test_a_long_limit_closes_the_gate_for_everybody(box: Box) -> None:
    """
    A 429 for an hour ends the script with 301 and closes the key's gate where the drainer reads it.
    """
    box.api.answer(Answer(429, {}, {"Retry-After": "3600"}))
    claimed = box.claimed("api.get('/x')")
    answer = box.post(claimed)[1]
    assert answer["errorCode"] == 301
    assert "gate" in answer["errorMessage"]
    assert KEY not in answer["errorMessage"]
    key = claimed.lane.apikey_hash or ""
    store = open_store(box.config, box.database)
    now = time.time()
    until = store.read([key], now).closed[key]
    assert 3600 <= until - now <= 3606
    store.open(key)


def test_one_nonce_starts_once(box: Box) -> None:
    """
    Of 50 parallel dispatches with one nonce one runs the script and 49 are refused with 113.
    """
    before = len(box.api.calls)
    claimed = box.claimed("api.post('/once')")
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: box.post(claimed), range(50)))
    codes = Counter((status, body["errorCode"]) for status, body in answers)
    assert codes == {(200, None): 1, (409, 113): 49}
    assert len(box.api.calls) - before == 1
    assert box.row(claimed)["status"] == "success"
    assert box.post(claimed)[1]["errorCode"] == 113


@pytest.mark.slow
@pytest.mark.parametrize(
    "source_code",
    [
        pytest.param("def f():\n  for i in range(2000000000):\n    pass\nf()", id="looping"),
        pytest.param("max(range(2000000000))", id="in one statement"),
        pytest.param("def f():\n  for i in range(2000000000):\n    print(i)\nf()", id="calling"),
    ],
)
def test_the_wall_kills_a_worker(box: Box, source_code: str) -> None:
    """
    Whatever a script is at, its worker is killed at the wall; the others and the next go on.
    """
    claimed = box.claimed(source_code)
    begun = time.monotonic()
    answer = box.post(claimed)
    assert WALL - 0.5 <= time.monotonic() - begun <= KILLED_WITHIN
    box.ends_as_a_dead_worker(claimed, answer)


@pytest.mark.slow
def test_a_call_ends_before_the_wall(box: Box) -> None:
    """
    An API that does not answer costs the script a 301 that can be told, not its worker.
    """
    box.api.answer(Answer(delay=WALL * 3))
    claimed = box.claimed("x = 1\napi.get('/slow')")
    status, answer = box.post(claimed)
    assert (status, answer["errorCode"]) == (200, 301)
    assert "line 2" in answer["errorMessage"]
    assert box.row(claimed)["error_code"] == 301


@pytest.mark.parametrize(
    "source_code",
    [
        pytest.param(
            "x = []\nfor i in range(9999):\n  x.append('a' * 9000000 + str(i))", id="much"
        ),
        pytest.param("x = [0] * 40000000", id="at once"),
        pytest.param("x = list(range(1000000000))", id="many"),
    ],
)
def test_memory_has_an_end(box: Box, source_code: str) -> None:
    """
    A script that takes more memory than it may ends its own execution, and nothing else: the
    interpreter may be able to say so, or the worker dies of it.
    """
    claimed = box.claimed(source_code)
    status, answer = box.post(claimed)
    if status != 200:
        box.ends_as_a_dead_worker(claimed, (status, answer))
        return
    assert answer["errorCode"] == box.row(claimed)["error_code"] == 302
    assert box.post(box.claimed("x = 1"))[1]["status"] == "success"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_worker_that_crashes_is_replaced(box: Box, number: int) -> None:
    """
    A worker that dies in the midst of a script leaves its row to the drainer.
    """
    box.api.answer(Answer(delay=2.0))
    claimed = box.claimed("api.get('/slow')")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(box.post, claimed)
        box.eventually(lambda: box.row(claimed)["status"] == "running")
        assert box.held(claimed)
        os.kill(int(box.row(claimed)["worker_id"].split(":")[1]), number)
        answer = waiting.result()
    box.ends_as_a_dead_worker(claimed, answer)


def test_a_script_is_tried_without_the_queue(box: Box) -> None:
    """
    A trial answers with outcome and output at once, and leaves no row.
    """
    given = {"subdomain": "acme", "apikey": KEY, "source_code": "print('שלום')\nx = ["}
    headers = {"Authorization": f"Bearer {box.installation.token}"}
    path = "/codeRunner/test"
    status, answer = box.ask("POST", path, json.dumps(given), headers)
    assert (status, answer["errorCode"], answer["line"]) == (200, 201, 2)
    given["source_code"] = "print('שלום')"
    status, answer = box.ask("POST", path, json.dumps(given), headers)
    assert (status, answer["status"], answer["output"]) == (200, "success", "שלום\n")
    assert box.ask("POST", path, json.dumps(given))[0] == 401


def test_a_stop_lets_scripts_end(box: Box) -> None:
    """
    SIGTERM lets a script come to its end and its outcome be told; nothing of it is cut.
    """
    box.api.answer(Answer(delay=1.0))
    claimed = box.claimed("api.get('/slow')")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(box.post, claimed)
        box.eventually(lambda: box.row(claimed)["status"] == "running")
        assert box.installation.stop("executor") == 0
        status, answer = waiting.result()
    assert (status, answer["status"]) == (200, "success")
    assert box.row(claimed)["status"] == "success"
    log = box.installation.log("executor")
    assert KEY not in log
    assert claimed.nonce not in log
    box.installation.start_executor()
