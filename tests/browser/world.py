"""
A queue with something of everything in it, for the pages to show: the real daemon over SQLite, and
an executor that takes what it is given and never answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crq import gatehistory, series
from crq.database import Cursor
from crq.instants import instant_text
from crq.liveness import Liveness
from crq.sealing import sha256_hex
from crq.series import Ended, Sample
from tests.fake_api import Answer, FakeApi
from tests.installation import Installation

HOSTILE = (
    "<img src=x onerror=document.title='owned'>",
    "</script><script>document.title='owned'</script>",
    "{{7*7}}{% raw %}",
    "\" autofocus onfocus=document.title='owned' x=\"",
    "<style>*{display:none}</style>",
    "javascript:document.title='owned'//&amp;&#60;b>",
)
ALL_OF_IT = "".join(HOSTILE)
ACCOUNTS = ("acme", "beta", "gamma")
HOURS = 4 * 3600


class World:
    """
    The installation and what was put into it.

    :ivar states: an execution of each state that stays, by its word.
    :ivar hostile: an execution with markup in every text it has.
    :ivar key: an API key whose gate has been closed before.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.token = installation.token
        self.url = f"http://127.0.0.1:{installation.web_port}"
        self.sealer = installation.config.sealer()
        self.key = sha256_hex("a key")
        self.states: dict[str, int] = {}
        self.hostile = 0
        self.database = installation.config.open_database()
        self.connection = self.database.connect()
        self.database.transact(self.connection, self._fill, time.time())

    def close(self) -> None:
        self.connection.close()

    def value(self, sql: str, *values: object) -> Any:
        """
        What one SELECT says.
        """
        return self.database.read(self.connection, lambda txn: txn.execute(sql, values).scalar())

    def status(self, execution_id: int) -> str:
        sql = "SELECT status FROM codeRunner_executions WHERE execution_id = ?"
        return str(self.value(sql, execution_id))

    def audited(self, action: str) -> int:
        """
        How many lines of the audit say so.
        """
        return int(self.value("SELECT COUNT(*) FROM codeRunner_audit WHERE action = ?", action))

    def queue(self, account: str, count: int = 1, key: str | None = None) -> list[int]:
        """
        Put executions into the queue, behind all others.
        """
        return self.database.transact(
            self.connection,
            lambda txn: [
                self._row(txn, account, "queued", time.time(), key=key) for _ in range(count)
            ],
        )

    def _fill(self, txn: Cursor, now: float) -> None:
        for number in range(120):
            at = now - HOURS + number * 115
            account = ACCOUNTS[number % 3]
            failed = number % 11 == 5
            self._row(
                txn,
                account,
                "failed" if failed else "success",
                at,
                started_at=at + 1 + number % 7,
                finished_at=at + 9 + number % 9,
                error_code=301 if failed else None,
                error_message="the API said no" if failed else None,
            )
        ended = {"started_at": now - 500, "finished_at": now - 400}
        for word, status, more in (
            ("success", "success", ended),
            ("failed", "failed", {**ended, "error_code": 301, "error_message": "line 3: boom"}),
            ("rejected", "rejected", {"finished_at": now - 500, "error_code": 107, "times": 12}),
            ("cancelled", "cancelled", {"finished_at": now - 450}),
            ("outcome unknown", "failed", {**ended, "error_code": 303}),
            ("never started", "failed", {"finished_at": now - 420, "error_code": 106}),
            ("running", "running", {"claimed_at": now - 9, "started_at": now - 8}),
        ):
            self.states[word] = self._row(txn, "acme", status, now - 501, **more)
        text = ALL_OF_IT
        self.hostile = self._row(
            txn,
            text,
            "failed",
            now - 300,
            started_at=now - 299,
            finished_at=now - 298,
            error_code=302,
            error_message=text,
            source_code=text,
            identifier=text,
            drainer_id=text[:60],
            worker_id=text[:60],
            traceparent=HOSTILE[0],
        )
        self._row(txn, "odd", ALL_OF_IT[:16], now - 250)
        for number in range(40):
            self._row(txn, "beta", "queued", now - 240 + number)
        for number in range(6):
            self._row(txn, "gamma", "queued", now - 100 + number)
        cause = f"429 with Retry-After {ALL_OF_IT}"
        gatehistory.record(txn, self.key, now - 6000, now - 6600, cause, 17)
        gatehistory.record(txn, self.key, now - 2000, now - 2300, "429 with Retry-After 300", 18)
        self._minutes(txn, now)

    def _minutes(self, txn: Cursor, now: float) -> None:
        last = series.minute_of(now) - 60
        for back in range(240):
            if 90 <= back < 110:  # nobody was there
                continue
            wave = 1 + math.sin(back / 23)
            sample = Sample(
                last - 60 * back,
                "flowing",
                int(180 * wave * wave),
                30.0,
                min(4, int(2.4 * wave)),
                1 if 35 < back < 60 or 150 < back < 160 else 0,
                Ended(),
            )
            series.sample(txn, sample)
            txn.execute(
                "UPDATE codeRunner_series SET starts = ?, rejected = ? WHERE minute = ?",
                (int(25 * wave), 14 if 60 < back < 75 else 0, instant_text(sample.minute)),
            )

    def _row(
        self,
        txn: Cursor,
        account: str,
        status: str,
        queued_at: float,
        key: str | None = None,
        source_code: str = "api.get('/orders')\nprint('done')",
        **more: Any,
    ) -> int:
        hashed = self.sealer.account(account)
        txn.execute(
            "INSERT INTO codeRunner_jobs (subdomain_hash, apikey, payload, started_at)"
            " VALUES (?, ?, '{}', ?)",
            (
                hashed,
                self.sealer.seal_text("a key") if status == "queued" else None,
                instant_text(queued_at),
            ),
        )
        values = {
            "job_id": txn.lastrowid,
            "subdomain": account,
            "subdomain_hash": hashed,
            "apikey_hash": key or sha256_hex(f"the key of {account}"),
            "status": status,
            "queued_at": queued_at,
            "source_code": source_code,
            **more,
        }
        stored = [
            instant_text(value) if name.endswith("_at") else value for name, value in values.items()
        ]
        txn.execute(
            f"INSERT INTO codeRunner_executions ({', '.join(values)})"
            f" VALUES ({', '.join('?' * len(values))})",
            stored,
        )
        return int(txn.lastrowid or 0)


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """
    Make the queue and run its daemon.
    """
    with FakeApi() as executor:
        executor.answer(*[Answer(delay=3600.0)] * 500)
        url = executor.url.removesuffix("/api/v2")
        settings = {"executor": {"url": url, "lock_dir": "locks"}}
        with Installation(folder, settings) as installation:
            made = World(installation)
            try:
                locks = Liveness(made.database, Path(installation.config.executor.lock_dir))
                with locks.hold(made.states["running"]):  # its worker lives
                    installation.start_daemon()
                    yield made
                    executor.close()  # or the daemon would wait for its answers
            finally:
                made.close()
