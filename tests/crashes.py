"""
One crash of a real process at one named instant, a restart, and what is left then.

Real twistd, real gunicorn, a real database. `run` goes through one case of `tests.crashcases` and
says what did not hold of I1 to I7.
"""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import field, frozen

from crq import crashpoints
from crq.database import Cursor
from crq.gates import open_store
from crq.instants import instant_of
from tests import invariants
from tests.crashcases import Case
from tests.effects import script
from tests.fake_api import HELD
from tests.forgetful import Forgetful
from tests.site import WITHIN, Site

COUNT = 9  # executions of one case
ROOM = 3  # of them that fit, when the queue is full
GATE = 3600.0  # s for which a gate would be closed so that it stays full; it is opened before
ACCOUNTS = ("acme", "bravo", "carla", "delta")
WAIT = 0.1  # s that a script's call takes
LONG = 1  # number of the one whose call takes until the dead have been started anew


@frozen
class Result:
    """
    What came of a case.

    :ivar ended: rows by status, failed ones by code.
    :ivar effects: side effects that the API saw.
    :ivar seconds: from the restart until everything had ended.
    :ivar problems: what did not hold.
    """

    case: Case
    engine: str
    ended: Counter[str]
    effects: int
    seconds: float
    problems: tuple[str, ...] = field(factory=tuple)


def run(case: Case, folder: Path, url: str | None = None) -> Result:
    """
    Go through one case in an empty folder.

    :param url: of an empty database; None: SQLite.
    """
    site = CrashSite(case, folder, url)
    try:
        getattr(site, case.situation.replace(" ", "_"))()
        site.while_dead()
        begun = time.monotonic()
        site.restart()
        site.until(site.all_ended, "not everything ends")
        return site.result(time.monotonic() - begun)
    finally:
        site.close()


class CrashSite(Site):
    """
    The installation of one case.
    """

    def __init__(self, case: Case, folder: Path, url: str | None) -> None:
        settings: dict[str, dict[str, object]] = {"api": {"wait_below": 1}}
        if case.situation == "full":
            settings["limits"] = {"queued_per_account": ROOM}
        super().__init__(folder, url, settings, front=case.situation == "cut")
        self.case = case
        self.store: Any = open_store(self.config, self.database)
        self.forgetful: Forgetful | None = None
        self.pending: list[int] = []
        self.files = {name: folder / f"{name}.crash" for name in ("daemon", "executor")}
        self.crashed_at = 0.0
        self.found: list[str] = []

    def close(self) -> None:
        super().close()
        self.store.disconnect()
        if self.forgetful is not None:
            self.forgetful.close()

    # -- the situations: each returns when the crash has happened

    def backlog(self) -> None:
        """
        A crash in the midst of work.
        """
        self.admit_all()
        self.arm("daemon" if self.armed_daemon else "executor", self.case.at)
        self.start()
        self.crash()

    def admission(self) -> None:
        """
        A crash under the hand of a caller, who asks again afterwards.
        """
        self.installation.start_executor()
        self.arm("daemon", self.case.at)
        self.installation.start_daemon()
        self.pending = list(range(COUNT))
        self.submit()
        self.crash()

    def full(self) -> None:
        """
        The same at the edge of a cap: nothing of the account moves, and three of its rows fit (I7).
        """
        now = time.time()
        self.store.close(self.config.sealer().key(".".join(self.lane(0))), now + GATE, now)
        self.admission()

    def refused(self) -> None:
        """
        There is no executor: what was claimed goes back.
        """
        self.admit_all()
        self.arm("daemon", self.case.at)
        self.start(executor=False)
        self.crash()

    def recovery(self) -> None:
        """
        A second crash, in the recovery from the first.
        """
        self.admit_all()
        self.arm("daemon", "dispatching:1")
        self.start()
        self.crash("dispatching:1")
        self.arm("daemon", self.case.at)
        self.start(executor=False)
        self.crash()

    def worker_died(self) -> None:
        """
        A worker died, and then the daemon while it closes its row.
        """
        self.admit_all()
        self.arm("executor", "call ended:2")
        self.arm("daemon", self.case.at)
        self.start()
        self.crash()

    def key_lost(self) -> None:
        """
        A row whose key cannot be unsealed is closed alone (106).
        """
        self.admit_all()

        def spoil(txn: Cursor) -> None:
            txn.execute("UPDATE codeRunner_jobs SET apikey = 'spoilt' WHERE job_id = 2")

        self.database.transact(self.connection, spoil)
        self.arm("daemon", self.case.at)
        self.start()
        self.crash()

    def told_only(self) -> None:
        """
        The executor cannot write outcomes, only tell them.
        """
        self.admit_all()
        self.forgetful = Forgetful(self.installation)
        self.arm("daemon", self.case.at)
        self.start(executor=False)
        self.crash()

    def throttled(self) -> None:
        """
        The API throttles the key of the first execution.
        """
        self.admit_all(then='api.get("/limit/1")')
        self.arm("executor", self.case.at)
        self.start()
        self.crash()

    def cut(self) -> None:
        """
        The daemon dies when so much of a request has left it.
        """
        assert self.front is not None
        requests = itertools.count(1)
        dead = threading.Event()

        def edit(data: bytes) -> bytes:
            if b"runAsync" not in data or next(requests) != 3:
                return data
            self.installation.kill("daemon")
            dead.set()
            head = data.index(b"\r\n\r\n") + 4
            half = (head + len(data)) // 2
            upto = {"nothing": 0, "headers": head, "half": half, "everything": len(data)}
            return data[: upto[self.case.at]]

        self.front.edit = edit
        self.admit_all()
        self.start()
        self.until(dead.is_set, "the daemon sends too little")

    # -- what they are made of

    @property
    def armed_daemon(self) -> bool:
        return self.case.who in ("daemon", "both") and not self.case.at.endswith("group")

    def lane(self, number: int) -> tuple[str, str]:
        number = 0 if self.case.situation == "full" else number
        return ACCOUNTS[number % len(ACCOUNTS)], str(number % 2)

    def wait_of(self, number: int) -> float:
        # The forgetful executor does one thing at a time.
        return HELD if number == LONG and self.case.situation != "told only" else WAIT

    def admit_all(self, then: str = "") -> None:
        """
        Let executions wait before the daemon is there.
        """
        for number in range(COUNT):
            account, key = self.lane(number)
            self.admit(
                number, account, self.wait_of(number), key=key, then=then if number == 0 else ""
            )

    def submit(self) -> None:
        """
        Submit what is pending over HTTP; what is not answered stays pending.
        """
        for number in list(self.pending):
            account, key = self.lane(number)
            try:
                status, answer = self.installation.submit(
                    idempotency_key=str(number),
                    subdomain=account,
                    apikey=f"{account}.{key}",
                    source_code=script(number, self.wait_of(number)),
                    identifier=f"{number}/1",
                )
            except (OSError, http.client.HTTPException):
                return
            assert status in (200, 202, 429), answer
            self.answers[f"{number}/1"] = "rejected" if status == 429 else "queued"
            self.pending.remove(number)

    def start(self, executor: bool = True) -> None:
        if executor:
            self.installation.start_executor()
        self.installation.start_daemon(wait=False)

    def arm(self, name: str, at: str) -> None:
        file = self.files[name]
        file.write_bytes(crashpoints.HEAD)
        self.installation.environment[name] = {
            crashpoints.AT: at,
            crashpoints.FILE: str(file),
        }

    def crash(self, at: str | None = None) -> None:
        """
        Wait until the armed process has come to its point, and who is to die is dead.
        """
        at = at or self.case.at
        armed = "daemon" if self.armed_daemon else "executor"
        file, count = self.files[armed], int(at.split(":")[1])
        self.until(
            lambda: file.stat().st_size >= len(crashpoints.HEAD) + count, f"nobody comes to {at}"
        )
        self.crashed_at = file.stat().st_mtime
        if self.case.who != "worker":
            self.until(lambda: not self.installation.runs(armed), f"the {armed} survives {at}")
            self.installation.kill(armed)  # it is dead; nobody is to expect it to run
        if self.case.who == "both":
            self.installation.kill("executor" if armed == "daemon" else "daemon")

    def while_dead(self) -> None:
        """
        I1 holds at the instant of the crash, not only when all is well again.
        """
        self.found += invariants.stored(self.rows())

    def restart(self) -> None:
        self.installation.environment.clear()
        if self.forgetful is None and not self.installation.runs("executor"):
            self.installation.start_executor()
        if not self.installation.runs("daemon"):
            self.installation.start_daemon(wait=not self.pending)
        deadline = time.monotonic() + WITHIN
        while self.pending and time.monotonic() < deadline:
            self.submit()
        if self.case.situation == "full":
            self.store.open(self.config.sealer().key(".".join(self.lane(0))))
        self.api.released.set()

    def result(self, seconds: float) -> Result:
        rows, ended = self.rows(), self.statuses()
        problems = [*self.found, *self.problems(), *self.gate_held(rows)]
        if len(self.answers) != COUNT:
            problems.append(f"I3: {len(self.answers)} of {COUNT} were answered")
        if ended["303"] > self.case.unknown:
            problems.append(f"{ended['303']} are unknown, {self.case.unknown} may be")
        others = {
            "106": int(self.case.situation == "key lost"),
            "107": COUNT - ROOM if self.case.situation == "full" else 0,
        }
        if self.case.situation == "throttled":
            others["301"] = ended["301"]  # its script ends so, if it was not the one that died
        if ended["success"] + ended["303"] + sum(others.values()) != COUNT or any(
            ended[code] != count for code, count in others.items()
        ):
            problems.append(f"ended otherwise: {dict(ended)}")
        return Result(
            self.case,
            self.database.dialect,
            ended,
            sum(self.api.effects.values()),
            seconds,
            tuple(problems),
        )

    def gate_held(self, rows: list[dict[str, Any]]) -> list[str]:
        """
        I5: a gate that was closed before the crash is closed after it.
        """
        if self.case.at.partition(":")[0] not in ("gate closed", "close committed"):
            return []
        key = rows[0]["apikey_hash"]
        until = self.store.read([key], self.crashed_at).closed.get(key, 0.0)
        problems = [] if until > self.crashed_at else ["I5: the gate was lost"]
        for row in rows:
            claimed_at = instant_of(row["claimed_at"])
            if row["apikey_hash"] == key and self.crashed_at < claimed_at < until:
                problems.append(f"I5: claimed behind the gate: {row}")
        return problems
