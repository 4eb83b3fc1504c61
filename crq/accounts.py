"""
How each account fares: what waits and runs, its cap, its pause, how long it waits and what passes.

The list holds accounts with work, accounts for which something was set, and those seen in the last
rows of the log; each is looked at by ranges of its own, so that neither a long log nor a deep queue
makes it dearer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from attrs import frozen

from crq import controls, executions
from crq.controls import Control, Kind
from crq.database import Cursor
from crq.instants import Instant, instant_text, iso
from crq.model import Limits, Status
from crq.recordvalues import stored_instant, text_of
from crq.search import along

LIMIT = 50  # accounts of one list
COUNTED = 1000  # queued rows of one account that are counted
SAMPLE = 50  # last executions of an account that its figures are made of
LOOKED_AT = 500  # last rows of the log in which accounts are looked for
HOUR = 3600.0  # s


@frozen
class AccountFigures:
    """
    One account.

    :ivar queued: up to `COUNTED`; ``queued_capped``: there are more.
    :ivar wait_p50: seconds from admission to start, of the last `SAMPLE` executions before the
        oldest that waits; None: none of them has started.
    :ivar finished: of the same, those that ended in the last hour; ``finished_capped``: there may
        be more.
    :ivar pause: by whom and why it is paused; None: it is not.
    """

    subdomain_hash: str
    subdomain: str | None
    queued: int
    queued_capped: bool
    in_flight: int
    cap: int
    cap_set: bool
    wait_p50: float | None
    wait_p95: float | None
    finished: int
    finished_capped: bool
    oldest_queued_at: Instant | None
    pause: Control | None

    def as_json(self) -> dict[str, Any]:
        """
        The account for a machine.
        """
        return {
            "account": self.subdomain_hash,
            "subdomain": self.subdomain,
            "queued": self.queued,
            "queuedCapped": self.queued_capped,
            "oldestQueuedAt": iso(self.oldest_queued_at),
            "inFlight": self.in_flight,
            "cap": self.cap,
            "capSet": self.cap_set,
            "waitP50": self.wait_p50,
            "waitP95": self.wait_p95,
            "finishedLastHour": self.finished,
            "finishedCapped": self.finished_capped,
            "pause": None if self.pause is None else self.pause.as_json(),
        }


def read(
    txn: Cursor,
    limits: Limits,
    now: Instant,
    only: Iterable[str] | None = None,
    limit: int = LIMIT,
) -> tuple[AccountFigures, ...]:
    """
    Read accounts, those whose work is oldest first, then those that were seen last.

    :param limits: the configured caps.
    :param only: these accounts alone.
    """
    oldest: dict[str, Instant] = {}
    for head in executions.heads(txn):
        account = head.lane.subdomain_hash
        oldest[account] = min(head.queued_at, oldest.get(account, head.queued_at))
    flying = Counter(row.lane.subdomain_hash for row in executions.in_flight(txn))
    caps = controls.read(txn).over(limits)
    pauses = {
        control.name: control
        for control in controls.listed(txn)
        if control.kind is Kind.PAUSE_ACCOUNT
    }
    found = [*sorted(oldest, key=lambda account: oldest[account]), *flying, *pauses, *caps.accounts]
    found += () if only is not None else _recent(txn)
    names = dict.fromkeys(found if only is None else only)
    return tuple(
        _figures(
            *(txn, account, now, oldest.get(account)),
            *(flying[account], caps, pauses.get(account)),
        )
        for account in list(names)[: min(limit, LIMIT)]
    )


def _figures(
    txn: Cursor,
    account: str,
    now: Instant,
    oldest: Instant | None,
    in_flight: int,
    caps: Limits,
    pause: Control | None,
) -> AccountFigures:
    # What waits has no figures yet, and there may be hundreds of it in front.
    before = "9999-12-31 23:59:59.999" if oldest is None else instant_text(oldest)
    rows = txn.execute(
        "SELECT status, queued_at, started_at, finished_at, subdomain"  # noqa: S608 - fixed
        f" FROM codeRunner_executions {along(txn, ('subdomain_hash = ?',))}"
        " WHERE subdomain_hash = ? AND queued_at <= ?"
        " ORDER BY queued_at DESC, execution_id DESC LIMIT ?",
        (account, before, SAMPLE),
    ).all()
    waits: list[float] = []
    finished = 0
    lately = instant_text(now - HOUR)
    for status, queued_at, started_at, finished_at, _ in rows:
        if started_at is not None:
            queued, started = (stored_instant(text_of(each)) for each in (queued_at, started_at))
            if queued is not None and started is not None:
                waits.append(max(0.0, started - queued))
        ended = text_of(finished_at) or ""  # texts of instants sort as they do
        finished += ended > lately and status != Status.REJECTED.value
    waiting = _queued(txn, account)
    return AccountFigures(
        subdomain_hash=account,
        subdomain=text_of(rows[0][4]) if rows else None,
        queued=min(waiting, COUNTED),
        queued_capped=waiting > COUNTED,
        in_flight=in_flight,
        cap=caps.of(account),
        cap_set=account in caps.accounts,
        wait_p50=_share(waits, 0.5),
        wait_p95=_share(waits, 0.95),
        finished=finished,
        finished_capped=finished == SAMPLE,
        oldest_queued_at=oldest,
        pause=pause,
    )


def _queued(txn: Cursor, account: str) -> int:
    return executions.count_waiting(txn, (account,), None, None, None, COUNTED + 1)


def _recent(txn: Cursor) -> list[str]:
    rows = txn.execute(
        f"SELECT subdomain_hash FROM codeRunner_executions {along(txn, ())}"  # noqa: S608 - fixed
        " ORDER BY queued_at DESC, execution_id DESC LIMIT ?",
        (LOOKED_AT,),
    ).all()
    return [text_of(row[0]) or "" for row in rows]


def _share(values: list[float], share: float) -> float | None:
    """
    The smallest value that this share of all does not pass.
    """
    if not values:
        return None
    return round(sorted(values)[math.ceil(share * len(values)) - 1], 3)
