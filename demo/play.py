"""
The run: start everything, submit, wait until all has ended, and read what there is to check.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from attrs import frozen

from crq.instants import Instant, instant_of
from demo.api import HOST
from demo.checks import Call, Row
from demo.load import Account, Load
from tests.installation import CHECKOUT, Installation
from tests.processes import kill, spawn
from tests.servers import free_port

LOOK_EVERY = 0.5  # s between two looks at the log
TODAY = "2026-03-02"  # what day it is for the scripts
WITHIN = 150.0  # s; then something hangs

# The times of production, made shorter: a script is killed after 30 s instead of 300, and from a
# Retry-After of 5 s on, instead of 100, a 429 ends its script instead of letting it wait.
SHORTER: Mapping[str, Mapping[str, object]] = {
    "executor": {"wall": 30, "deadline": 35, "grace": 5, "script_seconds": 20},
    "api": {"wait_below": 5, "timeout": 10},
}


class Show(Protocol):
    """
    What the run tells whoever watches.
    """

    def say(self, text: str) -> None:
        """
        Tell what happens now.
        """

    def progress(self, states: Mapping[str, Mapping[str, int]]) -> None:
        """
        Tell how many executions of each account are in each state.
        """


class DemoFailed(Exception):
    """
    The run could not be brought to its end; the text says why.
    """


@frozen
class Played:
    """
    What a run left.

    :ivar admitted: the account of each execution whose admission was answered.
    """

    admitted: Mapping[int, str]
    rows: Sequence[Row]
    calls: Sequence[Call]
    seconds: float


@contextmanager
def running(directory: Path, load: Load) -> Iterator[Installation]:
    """
    A daemon, an executor and the API, all on ports of their own.
    """
    port = free_port()
    base_url = f"http://{HOST}:{port}/{{subdomain}}/api/v2"
    settings = {**SHORTER, "api": {**SHORTER["api"], "base_url": base_url}}
    limited = f"key-of-limited:{load.free_calls}:{load.retry_after}"
    with Installation(directory, settings) as installation:
        api = spawn(
            [sys.executable, "-m", "demo.api", str(port), str(_record(directory)), limited],
            directory / "api.log",
            CHECKOUT,
        )
        try:
            installation.start_executor()
            installation.start_daemon()
            yield installation
        finally:
            installation.close()
            kill(api)


def play(installation: Installation, load: Load, show: Show, waiting: Mapping[int, str]) -> Played:
    """
    Submit everything and wait for the end.

    :param waiting: the account of each execution that was admitted before.
    :raise DemoFailed: something was refused, or does not come to an end.
    """
    begun = time.monotonic()
    due = load.submissions()
    admitted = dict(waiting)
    look_at = begun
    while True:
        now = time.monotonic()
        while due and begun + due[0][0] <= now:
            _, account, card = due.pop(0)
            admitted[_submit(installation, account, card)] = account.name
        if now >= look_at:
            look_at = now + LOOK_EVERY
            installation.check()
            rows = read_log(installation)
            show.progress(
                {
                    account.name: Counter(row.status for row in rows if row.account == account.name)
                    for account in load.accounts
                }
            )
            if not due and all(row.finished_at is not None for row in rows):
                seconds = time.monotonic() - begun
                return Played(admitted, rows, _calls(installation.directory), seconds)
            if now - begun > WITHIN:
                left = sum(row.finished_at is None for row in rows)
                raise DemoFailed(f"{left} executions have not ended after {WITHIN:g} s")
        time.sleep(0.05)


def _submit(installation: Installation, account: Account, card: int) -> int:
    status, answer = installation.submit(
        subdomain=account.name,
        apikey=account.key,
        source_code=account.source_code,
        identifier=f"card {card}",
        payload={"card_id": card, "today": TODAY},
    )
    if status != 202:
        raise DemoFailed(f"{account.name} was not admitted: HTTP {status}, {answer}")
    return int(answer["executionId"])


def read_log(installation: Installation) -> list[Row]:
    """
    Read the whole log as a customer would, page by page.
    """
    rows: list[Row] = []
    cursor: str | None = None
    while True:
        query = {"limit": "500", **({"cursor": cursor} if cursor else {})}
        status, text = installation.get(f"/codeRunner/logs/data?{urlencode(query)}")
        if status != 200:
            raise DemoFailed(f"the log cannot be read: HTTP {status}, {text[:300]}")
        page = json.loads(text)
        rows += map(_row, page["executions"])
        cursor = page["cursor"]
        if cursor is None:
            return rows


def _row(found: Mapping[str, Any]) -> Row:
    queued_at = _instant(found["queuedAt"])
    assert queued_at is not None
    return Row(
        execution_id=found["executionId"],
        account=found["subdomain"],
        card=int(found["identifier"].rpartition(" ")[2]),
        status=found["status"],
        error_code=found["errorCode"],
        queued_at=queued_at,
        claimed_at=_instant(found["claimedAt"]),
        started_at=_instant(found["startedAt"]),
        finished_at=_instant(found["finishedAt"]),
    )


def _instant(text: str | None) -> Instant | None:
    return None if text is None else instant_of(text.replace("T", " ").rstrip("Z"))


def _record(directory: Path) -> Path:
    return directory / "calls.jsonl"


def _calls(directory: Path) -> list[Call]:
    return [Call(**json.loads(line)) for line in _record(directory).read_text().splitlines()]
