"""
A whole site as a team with PHP-FPM has it: the queue's daemon, MariaDB, memcached, FPM with both
pools, Apache in front of it.

Times are those of the brief divided by a speed, by configuration alone: 1.6 s of service become
0.08 s, the wall of 300 s becomes 15 s, at a speed of 20.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from attrs import evolve

from crq.database import Cursor
from crq.gates import MemcachedGates
from tests.acceptance.parts import Apache, Fpm
from tests.fake_api import Answer, Call, FakeApi
from tests.installation import Installation
from tests.servers import HOST, MariaDB, Memcached, free_port

WITHIN = 60.0  # s
SPEED = 20.0
WALL, DEADLINE, GRACE, REAPED_AFTER = 300.0, 330.0, 30.0, 900.0  # s, of the brief


class Site:
    """
    Everything running, in a directory of its own; ended by `close`.

    :ivar api_port: where the API that scripts call is expected, unless one was given.
    """

    def __init__(
        self,
        mariadb: MariaDB,
        memcached: Memcached,
        name: str,
        speed: float = SPEED,
        *,
        api: FakeApi | None = None,
        memory: str = "256M",
    ) -> None:
        """
        Start everything.

        :param name: of its database.
        :param memory: that a worker of PHP may use.
        """
        self.speed = speed
        self.api_port = free_port()
        self._held = ExitStack()
        url = f"http://{HOST}:{self.api_port}/api" if api is None else api.url
        try:
            self._start(mariadb, memcached, name, url, memory)
        except BaseException:
            self.close()
            raise

    def _start(
        self, mariadb: MariaDB, memcached: Memcached, name: str, api: str, memory: str
    ) -> None:
        folder = Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="crq-site-")))
        server = "{}:{}".format(*memcached.address)
        environment: dict[str, object] = {}
        wall = WALL / self.speed
        self.fpm = Fpm(environment, math.ceil(wall), memory)
        self._held.callback(self.fpm.close)
        self.apache = Apache(self.fpm)
        self._held.callback(self.apache.close)
        waits = {
            "shortest_wait": max(1, round(5 / self.speed)),
            "margin": 5 / self.speed,
        }
        api_waits: dict[str, object] = {
            "wait_below": max(1, round(100 / self.speed)),
            "wait_unauthorized": 60 / self.speed,
            "timeout": 180 / self.speed,
        }
        self.installation = Installation(
            folder,
            {
                "database": {"url": mariadb.create_database(name)},
                "gates": {"backend": "memcached", "servers": [server], **waits},
                "drainer": {"tick": 0.05, "drain_limit": 5.0, "stop_limit": 8.0},
                "executor": {
                    "url": self.apache.url,
                    "wall": wall,
                    "deadline": DEADLINE / self.speed + 1,
                    "grace": GRACE / self.speed,
                },
                "api": {"base_url": api, **api_waits},
                "script": {"language": "opaque"},
                "reaper": {"running_limit": max(REAPED_AFTER / self.speed, wall + 10)},
            },
        )
        self._held.callback(self.installation.close)
        dsn = f"mysql:unix_socket={mariadb.socket};dbname={name};charset=utf8mb4"
        environment |= {
            "dsn": dsn,
            "user": "root",
            "seal_keys_file": folder / "seal_keys",
            "memcached": server,
            "api": api,
            "wall": wall,
            "door": f"http://{HOST}:{self.installation.web_port}",
            "token": self.installation.token,
            **waits,
            **api_waits,
        }
        self.fpm.start()
        self.apache.start()
        self.installation.start_daemon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """
        End everything.
        """
        self._held.close()

    def admit(
        self, source_code: str, account: str = "acme", key: str = "key-of-acme"
    ) -> tuple[int, dict[str, Any]]:
        """
        Submit as a business rule does: POST /codeRunner at the product's own address.
        """
        given = {"subdomain": account, "apikey": key, "source_code": source_code}
        headers = {"Content-Type": "application/json"}
        status, text = self.apache.ask("POST", "/codeRunner", json.dumps(given), headers)
        return status, json.loads(text)

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """
        Ask the database.
        """
        database = self.installation.config.open_database()
        connection = database.connect()

        def read(txn: Cursor) -> list[tuple[Any, ...]]:
            return list(txn.execute(sql, parameters).all())

        try:
            return database.read(connection, read)
        finally:
            connection.close()

    def states(self) -> Counter[str]:
        """
        How many executions are in each state.
        """
        sql = "SELECT status, COUNT(*) FROM codeRunner_executions GROUP BY status"
        return Counter(dict(self.rows(sql)))

    def drained(self, within: float = WITHIN) -> None:
        """
        Wait until nothing waits and nothing runs.
        """
        self.until(
            lambda: not {"queued", "claimed", "running"} & self.states().keys(),
            "the queue does not drain",
            within,
        )

    def until(self, condition: Callable[[], bool], what: str, within: float = WITHIN) -> None:
        """
        Wait for something.
        """
        deadline = time.monotonic() + within
        while not condition():
            self.installation.check()
            log = self.installation.log("daemon")[-2000:]
            assert time.monotonic() < deadline, f"{what}: {self.states()}\n{log}"
            time.sleep(0.02)

    def crq(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """
        Run the command line on this installation.
        """
        command = [sys.executable, "-m", "crq.cli", "--config", str(self.installation.path)]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=240, check=False, **more
        )

    def close_gate(self, key: str, seconds: float) -> None:
        """
        Close the gate of an API key, as another program would.
        """
        name = self.installation.config.sealer().key(key)
        gates = self.installation.config.gates
        store = MemcachedGates(gates.servers, gates.prefix, gates.timeout)
        now = time.time()
        store.close(name, now + seconds, now)
        store.disconnect()

    def log(self, **query: str) -> list[dict[str, Any]]:
        """
        The newest page of the log, as the product's own log view reads it.
        """
        status, text = self.installation.get(f"/codeRunner/logs/data?{urlencode(query)}")
        assert status == 200, text
        found: list[dict[str, Any]] = json.loads(text)["executions"]
        return found


class WorkingApi(FakeApi):
    """
    An API whose ``/work/MILLISECONDS`` takes so long, divided by the speed; it counts effects.
    """

    def __init__(self, speed: float = SPEED) -> None:
        super().__init__()
        self._speed = speed

    def effects(self) -> Counter[str]:
        """
        How often each ``/effects/NAME`` was POSTed.
        """
        names = (call.path.partition("/effects/")[2] for call in tuple(self.calls))
        return Counter(name for name in names if name)

    def _take(self, call: Call) -> Answer:
        answer = super()._take(call)
        milliseconds = call.path.partition("/work/")[2]
        if not milliseconds or answer.status != 200:
            return answer
        return evolve(answer, delay=int(milliseconds) / 1000 / self._speed)


class Watch:
    """
    Counts, from rows, how many executions are in flight; again and again, on a thread.

    :ivar most: the most that were seen: of all accounts (""), and of each.
    """

    def __init__(self, site: Site) -> None:
        self.most: Counter[str] = Counter()
        self._database = site.installation.config.open_database()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        connection = self._database.connect()

        def flights(txn: Cursor) -> list[tuple[str]]:
            sql = (
                "SELECT subdomain FROM codeRunner_executions WHERE status IN ('claimed', 'running')"
            )
            return [(row[0],) for row in txn.execute(sql).all()]

        while not self._over.wait(0.01):
            found = Counter(name for (name,) in self._database.read(connection, flights))
            found[""] = sum(found.values())
            for name, count in found.items():
                self.most[name] = max(self.most[name], count)
        connection.close()
