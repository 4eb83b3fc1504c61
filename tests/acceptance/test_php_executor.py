"""
The reference executor of deploy/php under a real PHP-FPM, behind real Apache and nginx: what the
contract promises, under the faults it speaks of.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from crq import admission, executions
from crq.gates import MemcachedGates
from crq.messages import Submission
from crq.model import Claimed
from tests import rows
from tests.acceptance.parts import DEPLOY, Apache, Nginx, php_fpm
from tests.acceptance.site import Site, WorkingApi
from tests.fake_api import Answer
from tests.servers import MariaDB, Memcached

SPEED = 40.0  # 300 s of wall are 7.5 s, FPM takes 8
LIMIT = {"error": "API limit reached for this method"}


@pytest.fixture(scope="module")
def api() -> Iterator[WorkingApi]:
    with WorkingApi(SPEED) as started:
        yield started


@pytest.fixture(scope="module")
def box(mariadb: MariaDB, memcached: Memcached, api: WorkingApi) -> Iterator[Site]:
    """
    A site whose drainer is stopped: the tests dispatch.
    """
    with Site(mariadb, memcached, "executor", SPEED, api=api, memory="24M") as started:
        started.installation.stop("daemon")
        yield started


def claim(site: Site, source: str, account: str = "acme", key: str = "key-of-acme") -> Claimed:
    """
    Admit and claim one execution, as a drainer does.
    """
    config = site.installation.config
    database = config.open_database()
    connection = database.connect()
    now = time.time()
    admission.admit(
        database,
        connection,
        Submission(account, key, source),
        config.sealer(),
        config.limits.limits(),
        now,
        "opaque",
    )
    (claimed,) = rows.claim(database, connection, now, config.limits.limits())
    connection.close()
    return claimed


def post(
    front: Any, claimed: Claimed, within: float = 60.0, changes: Mapping[str, object] | None = None
) -> tuple[int, Any]:
    """
    Dispatch; None: the body is no JSON.
    """
    body = urlencode({"jobId": claimed.job_id, "asyncNonce": claimed.nonce, **(changes or {})})
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, text = front.ask("POST", "/codeRunner/runAsync", body, form, within)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, None


def row(site: Site, claimed: Claimed) -> dict[str, Any]:
    names = "status", "error_code", "error_message", "started_at", "finished_at", "worker_id"
    (found,) = site.rows(
        f"SELECT {', '.join(names)} FROM codeRunner_executions WHERE execution_id = ?",
        (claimed.execution_id,),
    )
    return dict(zip(names, found, strict=True))


def held(site: Site, claimed: Claimed) -> bool:
    sql = "SELECT IS_FREE_LOCK(CONCAT('crq:', LEFT(DATABASE(), 40), ':', ?))"
    return bool(site.rows(sql, (claimed.execution_id,))[0][0] == 0)


def end(site: Site, claimed: Claimed) -> None:
    """
    Close a row that a dead worker has left, as the drainer does.
    """
    database = site.installation.config.open_database()
    connection = database.connect()
    database.transact(connection, executions.died, claimed.execution_id, time.time())
    connection.close()


# -- the promises


def test_an_execution_runs_and_says_so(box: Site, api: WorkingApi) -> None:
    """
    The answer carries the outcome, the row has it, the API has seen the key, the lock is gone.
    """
    claimed = claim(box, 'POST /cards {"title": "→ 👨‍👩‍👧"}\nGET /work/400')
    assert post(box.apache, claimed) == (
        200,
        {
            "executionId": claimed.execution_id,
            "status": "success",
            "errorCode": None,
            "errorMessage": None,
        },
    )
    found = row(box, claimed)
    assert found["status"] == "success"
    assert found["started_at"] <= found["finished_at"]
    assert api.calls[-2].key == "key-of-acme"
    assert json.loads(api.calls[-2].body) == {"title": "→ 👨‍👩‍👧"}
    assert not held(box, claimed)


def test_a_script_that_fails_says_where(box: Site, api: WorkingApi) -> None:
    """
    301 with a message that any table takes, whatever bytes the API answered.
    """
    claimed = claim(box, "GET /ok\nFAIL שלום 👨‍👩‍👧")
    assert post(box.apache, claimed)[1]["errorCode"] == 301
    assert row(box, claimed)["error_message"] == "line 2: שלום 👨‍👩‍👧"
    claimed = claim(box, "GET /bad")
    api.answer(Answer(500, b"a\x92\xff"))
    assert post(box.apache, claimed)[1]["errorCode"] == 301
    assert row(box, claimed)["error_message"] == "line 1: GET /bad: the API answered 500"


def test_one_nonce_starts_once(box: Site, api: WorkingApi) -> None:
    """
    Of 30 parallel dispatches with one nonce one runs the script; all others are refused with 113,
    or while its lock is held.
    """
    claimed = claim(box, "POST /effects/once\nGET /work/4000")
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: post(box.apache, claimed), range(30)))
    codes = Counter((status, body["errorCode"]) for status, body in answers)
    assert codes[200, None] == 1
    assert set(codes) <= {(200, None), (409, 113), (503, None)}
    assert sum(codes.values()) == 30
    assert api.effects()["once"] == 1
    assert post(box.apache, claimed) == (409, {"errorCode": 113, "errorMessage": ANY_TEXT})


class _AnyText:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other != ""

    __hash__ = None  # type: ignore[assignment]


ANY_TEXT = _AnyText()


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"asyncNonce": ""}, 400, 112),
        ({"asyncNonce": "another"}, 409, 113),
        ({"jobId": "0"}, 409, 113),
        ({"jobId": "1 OR 1=1"}, 409, 113),
        ({"jobId": ""}, 409, 113),
        ({"jobId": "99999999999"}, 409, 113),
    ],
)
def test_what_is_refused_starts_nothing(
    box: Site, changes: dict[str, object], status: int, code: int
) -> None:
    """
    A refusal has the code that the drainer knows, and the row is untouched.
    """
    claimed = claim(box, "POST /effects/refused")
    found = post(box.apache, claimed, changes=changes)
    assert (found[0], found[1]["errorCode"]) == (status, code)
    assert row(box, claimed)["status"] == "claimed"
    assert post(box.apache, claimed)[1]["status"] == "success"


def test_a_row_that_cannot_be_run_is_told_by_422(box: Site) -> None:
    """
    An API key that no sealing key opens is found out before the start.
    """
    claimed = claim(box, "POST /effects/sealed")
    box.rows("UPDATE codeRunner_jobs SET apikey = 'garbage' WHERE job_id = ?", (claimed.job_id,))
    status, answer = post(box.apache, claimed)
    assert (status, answer["errorCode"]) == (422, None)
    assert "garbage" not in answer["errorMessage"]
    assert row(box, claimed)["status"] == "claimed"
    end_claimed(box, claimed)


def test_a_nonce_of_six_minutes_ago_is_void(box: Site) -> None:
    """
    113, by the one conditional update.
    """
    claimed = claim(box, "POST /effects/old")
    box.rows(
        "UPDATE codeRunner_executions SET claimed_at = claimed_at - INTERVAL 301 SECOND"
        " WHERE execution_id = ?",
        (claimed.execution_id,),
    )
    assert post(box.apache, claimed)[1]["errorCode"] == 113
    end_claimed(box, claimed)


def end_claimed(site: Site, claimed: Claimed) -> None:
    site.rows(
        "UPDATE codeRunner_executions SET status = 'cancelled' WHERE execution_id = ?",
        (claimed.execution_id,),
    )


# -- the ladders (brief §10), at 40 times their speed


def timed(site: Site, claimed: Claimed) -> tuple[float, Any]:
    begun = time.monotonic()
    answer = post(site.apache, claimed)[1]
    return time.monotonic() - begun, answer


def test_the_429_ladder_ends_after_three_attempts(box: Site, api: WorkingApi) -> None:
    """
    Two waits of Retry-After plus the margin, then 301; each refusal has closed the gate.
    """
    claimed = claim(box, "GET /limited")
    before = len(api.calls)
    api.answer(*[Answer(429, {}, {"Retry-After": "1"})] * 3)
    seconds, answer = timed(box, claimed)
    assert answer["errorCode"] == 301
    assert "3 attempts were answered so" in answer["errorMessage"]
    assert len(api.calls) - before == 3
    assert 2.25 <= seconds <= 5
    (closing,) = box.rows(
        "SELECT limits, cause, execution_id FROM codeRunner_gate_history"
        " WHERE apikey_hash = ? ORDER BY number DESC LIMIT 1",
        (claimed.lane.apikey_hash,),
    )
    assert closing[1:] == ("429, Retry-After: 1", claimed.execution_id)


def test_the_401_ladder_ends_after_three_attempts(box: Site, api: WorkingApi) -> None:
    """
    The other way to say 429: 60 s (here 1.5) before each new attempt, three in all, and no gate.
    """
    claimed = claim(box, "GET /limited", key="key-of-401")
    api.answer(*[Answer(401, LIMIT)] * 3)
    seconds, answer = timed(box, claimed)
    assert answer["errorCode"] == 301
    assert 3 <= seconds <= 6
    gates = box.rows(
        "SELECT 1 FROM codeRunner_gate_history WHERE apikey_hash = ?", (claimed.lane.apikey_hash,)
    )
    assert gates == []


def test_a_401_of_another_kind_goes_to_the_script(box: Site, api: WorkingApi) -> None:
    """
    Only the one text is a limit.
    """
    claimed = claim(box, "GET /forbidden")
    api.answer(Answer(401, {"error": "unauthorized"}))
    seconds, answer = timed(box, claimed)
    assert answer["errorMessage"] == "line 1: GET /forbidden: the API answered 401"
    assert seconds < 2


def test_the_third_429_anywhere_has_its_own_three_attempts(box: Site, api: WorkingApi) -> None:
    """
    Three calls, each refused once: all three come to their end, since attempts are counted in the
    call and not on the client.
    """
    claimed = claim(box, "GET /a\nGET /b\nGET /c")
    limit = Answer(429, {}, {"Retry-After": "1"})
    api.answer(limit, Answer(), limit, Answer(), limit, Answer())
    seconds, answer = timed(box, claimed)
    assert answer["status"] == "success"
    assert 3 <= seconds <= 7


def test_a_long_wait_ends_the_script_at_once(box: Site, api: WorkingApi) -> None:
    """
    The hourly limit: 301 without a wait, and the gate is where the drainer reads it.
    """
    claimed = claim(box, "GET /limited", key="key-of-hourly")
    api.answer(Answer(429, {"retry_after": 3600}))
    seconds, answer = timed(box, claimed)
    assert "too long for a script" in answer["errorMessage"]
    assert seconds < 2
    gates = box.installation.config.gates
    store = MemcachedGates(gates.servers, gates.prefix, gates.timeout)
    key = claimed.lane.apikey_hash or ""
    now = time.time()
    assert 3590 <= store.read([key], now).closed[key] - now <= 3602
    store.disconnect()


def test_no_wait_goes_past_the_wall(box: Site, api: WorkingApi) -> None:
    """
    A wait that does not fit into what is left ends the script with an outcome, before the wall.
    """
    claimed = claim(box, "SLEEP 6.6\nGET /limited")
    api.answer(Answer(429, {}, {"Retry-After": "1"}))
    seconds, answer = timed(box, claimed)
    assert answer["errorCode"] == 301
    assert "does not fit" in answer["errorMessage"]
    assert seconds < 7.5


# -- the lock, the wall, and what dies


def running(site: Site, claimed: Claimed) -> Callable[[], bool]:
    return lambda: row(site, claimed)["status"] == "running"


def test_the_lock_lives_as_long_as_its_worker(box: Site, mariadb: MariaDB) -> None:
    """
    Held while the script runs, taken again when its connection was killed, free once the worker is
    dead; the row is left to the drainer.
    """
    claimed = claim(box, "SLEEP 5")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, box.apache, claimed)
        wait(running(box, claimed))
        assert held(box, claimed)
        name = f"crq:executor:{claimed.execution_id}"
        ((connection,),) = box.rows("SELECT IS_USED_LOCK(?)", (name,))
        mariadb.execute(f"KILL {connection}")
        wait(lambda: not held(box, claimed))
        wait(lambda: held(box, claimed))
        os.kill(int(row(box, claimed)["worker_id"].split(":")[1]), signal.SIGKILL)
        status, body = waiting.result()
    assert status >= 500
    assert body is None
    wait(lambda: not held(box, claimed))
    assert row(box, claimed)["status"] == "running"
    end(box, claimed)


@pytest.mark.slow
def test_the_wall_kills_a_worker(box: Site) -> None:
    """
    A script that sleeps inside one statement is killed by FPM at the wall: no answer, no outcome,
    no lock, and the next execution runs.
    """
    claimed = claim(box, "SLEEP 60")
    seconds, answer = timed(box, claimed)
    assert answer is None
    assert 7 <= seconds <= 12
    assert "execution timed out" in box.fpm.log()
    assert row(box, claimed)["status"] == "running"
    wait(lambda: not held(box, claimed))
    end(box, claimed)
    after = claim(box, "GET /ok")
    assert post(box.apache, after)[1]["status"] == "success"


def test_a_fatal_error_is_an_outcome(box: Site, api: WorkingApi) -> None:
    """
    302: PHP ends in the midst of a script, out of memory here, and the row says so.
    """
    claimed = claim(box, "GET /big")
    api.answer(Answer(200, b"x" * 40_000_000))
    status, _ = post(box.apache, claimed)
    assert status in (200, 500)
    found = row(box, claimed)
    assert (found["status"], found["error_code"]) == ("failed", 302)
    assert "memory" in found["error_message"]


def test_a_caller_that_hangs_up_ends_no_script(box: Site) -> None:
    """
    F82: the connection is gone after a moment, the script comes to its end and writes its outcome.
    """
    claimed = claim(box, "SLEEP 2\nPOST /effects/alone")
    assert post(box.apache, claimed, within=0.5)[0] == 0
    wait(lambda: row(box, claimed)["status"] == "success")


def test_a_late_outcome_replaces_unknown(box: Site) -> None:
    """
    The row was closed as 303 while its worker lived: the real outcome wins.
    """
    claimed = claim(box, "SLEEP 2")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, box.apache, claimed)
        wait(running(box, claimed))
        end(box, claimed)
        assert row(box, claimed)["error_code"] == 303
        assert waiting.result()[1]["status"] == "success"
    assert row(box, claimed)["status"] == "success"


# -- the front servers


@pytest.fixture(scope="module", params=["apache", "nginx"])
def front(request: pytest.FixtureRequest, box: Site) -> Iterator[Any]:
    """
    Either front server before the same pools.
    """
    if request.param == "apache":
        yield box.apache
        return
    with Nginx(box.fpm) as nginx:
        yield nginx


def test_only_two_paths_go_to_the_pool(box: Site, front: Any) -> None:
    """
    /codeRunner and /codeRunner/runAsync; logs, test, health and whatever looks alike stay on the
    shared pool.
    """
    before = front.status("codeRunner")["accepted conn"]
    for path in ("/codeRunner/logs", "/codeRunner/test", "/codeRunner/logs/data?a=1"):
        assert front.ask("GET", path) == (200, f"www {path}")
    for path in ("/codeRunners", "/codeRunner/", "/codeRunner/runAsync/x", "/codeRunner/runAsyncs"):
        assert front.ask("POST", path, "a=1") == (200, f"www {path}"), path
    assert front.status("codeRunner")["accepted conn"] == before
    assert front.ask("GET", "/codeRunner")[0] == 405
    assert front.ask("POST", "/codeRunner/runAsync?x=1", "a=1")[0] == 400
    assert front.status("codeRunner")["accepted conn"] == before + 2


def test_a_post_is_never_sent_twice(box: Site, front: Any, api: WorkingApi) -> None:
    """
    F83: the worker dies in the midst of a script; the front server says so and does not try again.
    """
    name = f"twice-{type(front).__name__}"
    claimed = claim(box, f"POST /effects/{name}\nSLEEP 5")
    before = box.apache.status("codeRunner")["accepted conn"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, front, claimed)
        wait(lambda: api.effects()[name] == 1)
        os.kill(int(row(box, claimed)["worker_id"].split(":")[1]), signal.SIGKILL)
        assert waiting.result()[0] in (500, 502, 503)
    time.sleep(0.3)  # a second try would be there at once
    assert api.effects()[name] == 1
    assert box.apache.status("codeRunner")["accepted conn"] == before + 1
    end(box, claimed)


@pytest.mark.parametrize("kind", [Apache, Nginx])
def test_a_front_server_waits_as_long_as_it_is_told(box: Site, kind: type[Apache | Nginx]) -> None:
    """
    F75: the time-out of the shipped file is the one that counts; when the front server gives up all
    the same, the script goes on, keeps its lock and writes its outcome.
    """
    claimed = claim(box, "SLEEP 4")
    with kind(box.fpm, timeout=2) as impatient:
        begun = time.monotonic()
        status, body = post(impatient, claimed)
        assert (status, body) == (504, None)
        assert 1.5 <= time.monotonic() - begun <= 3.5
        assert row(box, claimed)["status"] == "running"
        assert held(box, claimed)
        wait(lambda: row(box, claimed)["status"] == "success")
    with kind(box.fpm) as patient:
        assert post(patient, claim(box, "SLEEP 3"))[1]["status"] == "success"


def test_a_restart_of_fpm_is_over_at_once(box: Site, front: Any) -> None:
    """
    F79: while FPM is away the front server answers 502 or 503 before anything was started; the
    first dispatch after it is back runs, without a minute in which the backend counts as dead.
    """
    claimed = claim(box, "GET /ok")
    box.fpm.stop()
    for _ in range(3):
        status, body = post(front, claimed)
        assert (status in (502, 503), body) == (True, None)
    assert row(box, claimed)["status"] == "claimed"
    box.fpm.start()
    assert post(front, claimed)[1]["status"] == "success"


def test_the_shipped_pool_file_is_valid(tmp_path: Path) -> None:
    """
    php-fpm takes deploy/php-fpm/codeRunner.conf as it is, environment and all.
    """
    text = (DEPLOY / "php-fpm" / "codeRunner.conf").read_text("utf-8")
    path = tmp_path / "fpm.conf"
    path.write_text(
        f"[global]\nerror_log = {tmp_path}/log\n{text.replace('/run/php', str(tmp_path))}"
    )
    found = subprocess.run(
        [php_fpm(), "--test", "--allow-to-run-as-root", "--fpm-config", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "test is successful" in found.stderr


def wait(what: Callable[[], object], within: float = 15.0) -> None:
    """
    Wait for something.
    """
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)
