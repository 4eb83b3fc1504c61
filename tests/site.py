"""
A whole crqueue under observation: real daemon, real executor, an API that counts, a journal.

What faults are done to, and by what they are judged: `tests.invariants`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crq import admission
from crq.database import Cursor
from crq.messages import Admitted, Submission
from tests import invariants, journal
from tests.effects import EffectsApi, script
from tests.installation import Installation
from tests.invariants import History
from tests.proxy import Proxy
from tests.servers import HOST

WITHIN = 60.0  # s for whatever is waited for
TICK = 0.2  # s between the daemon's ticks

Settings = Mapping[str, Mapping[str, object]]


class Site:
    """
    Nothing runs until it is started; `close` ends it all.

    :ivar front: what stands between daemon and executor, if it was asked for.
    :ivar answers: what the door said, by identifier: ``queued`` or ``rejected``.
    """

    def __init__(
        self,
        folder: Path,
        url: str | None = None,
        settings: Settings | None = None,
        front: bool = False,
    ) -> None:
        """
        Set it up in an empty folder.

        :param url: of an empty database; None: SQLite.
        """
        given: dict[str, dict[str, object]] = {
            "executor": {"workers": 6, "wall": 90.0, "deadline": 95.0, "memory_mb": 256},
            "drainer": {"id": "site", "tick": TICK, "drain_limit": 2.0, "stop_limit": 4.0},
            "api": {},
        }
        for section, options in (settings or {}).items():
            given.setdefault(section, {}).update(options)
        if url:
            given.setdefault("database", {})["url"] = url
        self.answers: dict[str, str] = {}
        self.api = EffectsApi()
        self.front = Proxy((HOST, 0)) if front else None
        try:
            given["api"]["base_url"] = self.api.url
            if self.front is not None:
                given["executor"]["url"] = f"http://{HOST}:{self.front.port}"
            self.installation = Installation(folder, given)
            if self.front is not None:
                self.front.address = (HOST, self.installation.executor_port)
            self.config = self.installation.config
            self.database = self.config.open_database()
            self.connection = self.database.connect()
            journal.install(self.database, self.connection)
        except BaseException:
            self.api.close()
            raise

    def close(self) -> None:
        """
        End it all.
        """
        self.installation.close()
        if self.front is not None:
            self.front.close()
        self.connection.close()
        self.api.close()

    def admit(
        self, number: int, account: str, *waits: float, key: str = "0", then: str = ""
    ) -> str:
        """
        Let an execution wait, with an effect of so many seconds each; returns its identifier.
        """
        identifier = f"{number}/{len(waits)}"
        answer = admission.admit(
            self.database,
            self.connection,
            Submission(
                account,
                f"{account}.{key}",
                script(number, *waits, then=then),
                identifier=identifier,
                idempotency_key=str(number),
            ),
            self.config.sealer(),
            self.config.limits.limits(),
            time.time(),
        )
        assert isinstance(answer, Admitted), answer
        self.answers[identifier] = "queued"
        return identifier

    def rows(self) -> list[dict[str, Any]]:
        """
        All executions as they are stored.
        """
        return invariants.rows(self.database, self.connection)

    def row(self, identifier: str) -> dict[str, Any]:
        """
        One of them.
        """
        (found,) = (row for row in self.rows() if row["identifier"] == identifier)
        return found

    def statuses(self) -> Counter[str]:
        """
        How many are in each state; those that failed, by their code.
        """
        return Counter(
            row["status"] if row["error_code"] is None else str(row["error_code"])
            for row in self.rows()
        )

    def ask(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """
        Ask the database.
        """

        def read(txn: Cursor) -> list[tuple[Any, ...]]:
            return list(txn.execute(sql, parameters).all())

        return self.database.read(self.connection, read)

    def worker(self, identifier: str) -> int:
        """
        The process that runs an execution.
        """
        sql = "SELECT worker_id FROM codeRunner_executions WHERE identifier = ?"
        return int(self.ask(sql, identifier)[0][0].split(":")[1])

    def dispatched(self) -> Counter[int]:
        """
        How often each execution was sent to the executor, by the daemon's log.
        """
        words = (line.split() for line in self.installation.log("daemon").splitlines())
        return Counter(int(each[-2]) for each in words if each[-1:] == ["dispatched"])

    def all_ended(self) -> bool:
        """
        Whether nothing waits and nothing runs.
        """
        sql = (
            "SELECT COUNT(*) FROM codeRunner_executions"
            " WHERE status IN ('queued', 'claimed', 'running')"
        )
        return bool(self.ask(sql)[0][0] == 0)

    def until(self, condition: Callable[[], bool], what: str, within: float = WITHIN) -> float:
        """
        Wait for something; returns how many seconds it took.
        """
        begun = time.monotonic()
        while not condition():
            if time.monotonic() > begun + within:
                logs = "\n".join(self.installation.log(n)[-3000:] for n in ("daemon", "executor"))
                raise AssertionError(f"{what}: {dict(self.statuses())}\n{logs}")
            time.sleep(0.02)
        return time.monotonic() - begun

    def problems(self) -> list[str]:
        """
        What does not hold of I1 to I4 and I6, when all is quiet.
        """
        limits = self.config.limits.limits()
        rows = self.rows()
        history = History(limits).tell(journal.changes(self.database, self.connection))
        return [
            *invariants.stored(rows),
            *history.problems,
            *invariants.effects(rows, self.api.effects),
            *invariants.accepted(rows, self.answers),
            *invariants.caps(self.api.most, limits),
        ]
