"""
A process that dies between any two statements of both phases, on SQLite and on MariaDB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from crq.automations import limits
from crq.automations.model import RunStatus
from crq.database import Database
from tests.automations.house import House, Played
from tests.installation import CHECKOUT
from tests.support import SynchronousPool


class Crash(BaseException):
    """
    The process is gone.
    """


class Fuse:
    """
    Ends a process before its n-th statement.
    """

    def __init__(self) -> None:
        self.left: int | None = None
        self.count = 0

    def observe(self, _sql: str) -> None:
        self.count += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash


def house_with(database: Database, fuse: Fuse, kind: Played, clocks: Any = None) -> House:
    pool = SynchronousPool(evolve(database, observe=fuse.observe))
    return House(database, clocks, kind, pool=pool)


@pytest.mark.parametrize(
    ("live", "repeatable"),
    [(False, False), (True, False), (True, True)],
    ids=["observe", "live", "repeatable"],
)
def test_death_before_any_statement(database: Database, live: bool, repeatable: bool) -> None:
    """
    Whatever statement a tick dies before, the ticks after it leave one run for the minute, one
    decision for each record, counts that equal the items, and each effect at most once (or, where
    that is as good, again); observing changes nothing (F103, I9, I10).
    """
    kind = Played(records=list(range(1, 6)), repeatable=repeatable, page=2)
    fuse = Fuse()
    house = house_with(database, fuse, kind)
    given: dict[str, Any] = {"cron": "0 * * * *", "config": {"threshold": 3}}
    automation = house.live(**given) if live else house.add(**given)
    before = len(house.runs(automation))
    died = 0
    while True:
        house.clocks.advance(3600 - house.now % 3600)
        fuse.left = died
        try:
            house.tick()
        except Crash:
            pass
        else:
            break  # it came to its end: each statement before has been the last one once
        finally:
            fuse.left = None
        died += 1
        clocks = house.clocks
        house.pool.close()
        house = house_with(database, fuse, kind, clocks)
        house.clocks.advance(limits.LEASE_SECONDS + 1)
        house.tick()
    house.check()
    assert died > (30 if live else 15)
    stored = house.runs(automation)[before:]
    assert {run.status for run in stored} == {RunStatus.COMPLETED}
    assert all(run.counts.items == 5 for run in stored)
    assert len({run.scheduled_for_utc for run in stored}) == len(stored)
    if not live:
        assert kind.effects == {}
    else:
        done = Counter(kind.effects)
        unknown = sum(run.counts.unknown for run in stored)
        applied = sum(run.counts.approved for run in stored)
        assert applied + unknown == 3 * len(stored)
        if repeatable:
            assert unknown == 0
        else:
            assert set(done.values()) == {1}
            assert unknown > 0
    house.close()


PROGRAM = """
import os, signal, sys
from attrs import evolve
from crq.database import Database
from tests.automations.house import House, Played
from tests.automations.test_crashes import FileEffects
from tests.house import Clocks
from tests.support import SynchronousPool

url, path, step, fatal = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
count = 0

def observe(sql):
    global count
    count += 1
    if count == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

database = Database(url)
clocks = Clocks(step)
kind = FileEffects(path)
house = House(database, clocks, kind, pool=SynchronousPool(evolve(database, observe=observe)))
house.tick()
print(count)
"""


class FileEffects(Played):
    """
    A type whose effects are lines of a file, which outlives its process.
    """

    def __init__(self, path: str) -> None:
        super().__init__(records=[1, 2, 3], page=2)
        self.path = path

    def apply(self, context: Any, decision: Any) -> str | None:
        with Path(self.path).open("a") as file:
            file.write(f"{context.run_key} {decision.subject_id}\n")
        return None


@pytest.mark.slow
def test_sigkill_between_two_statements(database: Database, tmp_path: Path) -> None:
    """
    A real process, killed by SIGKILL before one of its statements, in both phases: the next
    processes bring the minute to its one right end.
    """
    effects = tmp_path / "effects"
    effects.touch()
    kind = FileEffects(str(effects))
    house = House(database, None, kind)
    automation = house.live(cron="0 * * * *")
    effects.write_text("")
    step = house.now

    def process(fatal: int) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, database.url, str(effects), str(step), str(fatal)],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    step += 3600 - step % 3600
    code, out = process(0)
    assert code == 0, out
    statements = int(out)
    assert len(effects.read_text().splitlines()) == 3
    for part in (0.2, 0.5, 0.8):
        fatal = round(part * statements)
        step += 3600
        code, out = process(fatal)
        assert code == -signal.SIGKILL, out
        _wait_for_rollback(house)
        step += limits.LEASE_SECONDS + 1
        code, out = process(0)
        assert code == 0, out
        step -= limits.LEASE_SECONDS + 1
        house.check()
    found = house.runs(automation)[1:]
    assert {run.status for run in found} == {RunStatus.COMPLETED}
    lines = Counter(effects.read_text().splitlines())
    assert set(lines.values()) == {1}, "an effect was applied twice"
    applied = sum(run.counts.approved for run in found)
    assert applied <= len(lines) <= applied + sum(run.counts.unknown for run in found)
    house.close()


def _wait_for_rollback(house: House) -> None:
    """
    The server notices a dead client by itself, in its own time.
    """
    if house.database.dialect == "sqlite":
        return
    deadline = time.monotonic() + 10
    while house.sql(
        "SELECT COUNT(*) FROM information_schema.INNODB_TRX"
        " WHERE trx_mysql_thread_id <> CONNECTION_ID()"
    ) != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
