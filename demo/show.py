"""
What the demo prints: a moving display on a terminal, plain lines anywhere else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from attrs import define, field
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from demo.checks import Automated, Call, gates, most_at_once
from demo.load import Load
from demo.play import Played, Show

LINE_EVERY = 5.0  # s between two lines where there is no terminal
ENDED = ("success", "failed", "rejected", "cancelled")


@contextmanager
def watching(console: Console, load: Load) -> Iterator[Show]:
    """
    A display of the run.
    """
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(
            progress,
            {
                account.name: progress.add_task(account.name, total=account.count, state="")
                for account in load.accounts
            },
        )


@define
class Bars:
    """
    One bar an account.
    """

    display: Progress
    bars: Mapping[str, TaskID]

    def say(self, text: str) -> None:
        self.display.console.print(text, highlight=False)

    def progress(self, states: Mapping[str, Mapping[str, int]]) -> None:
        for name, bar in self.bars.items():
            waiting, running = _waiting(states[name]), states[name].get("running", 0)
            self.display.update(
                bar, completed=_ended(states[name]), state=f"{running} running, {waiting} waiting"
            )


@define
class Lines:
    """
    A line now and then.
    """

    console: Console
    monotonic: Callable[[], float] = time.monotonic
    _due: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._due = self.monotonic() + LINE_EVERY

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def progress(self, states: Mapping[str, Mapping[str, int]]) -> None:
        if self.monotonic() < self._due:
            return
        self._due += LINE_EVERY
        each = (f"{n} {_ended(s)} ended, {_waiting(s)} waiting" for n, s in states.items())
        self.say("; ".join(each))


def _ended(states: Mapping[str, int]) -> int:
    return sum(states.get(status, 0) for status in ENDED)


def _waiting(states: Mapping[str, int]) -> int:
    return states.get("queued", 0) + states.get("claimed", 0)


def result(played: Played, load: Load) -> Table:
    """
    The table of accounts.
    """
    table = Table(box=box.SIMPLE)
    names = ("account", "admitted", "success", "failed", "waited p50, p95", "at once", "gated")
    for name in names:
        table.add_column(name, justify="left" if name == "account" else "right")
    closed = gates(played.calls)
    for account in load.accounts:
        rows = [row for row in played.rows if row.account == account.name]
        waits = [row.started_at - row.queued_at for row in rows if row.started_at is not None]
        lived = [
            (row.started_at, row.finished_at)
            for row in rows
            if row.started_at is not None and row.finished_at is not None
        ]
        seconds = sum(end - begin for begin, end in closed.get(account.name, ()))
        table.add_row(
            account.name,
            str(len(rows)),
            *(str(sum(row.status == status for row in rows)) for status in ("success", "failed")),
            f"{quantile(waits, 0.50):.1f} s, {quantile(waits, 0.95):.1f} s",
            str(most_at_once(lived)),
            f"{seconds:.0f} s" if seconds else "-",
        )
    return table


def automation(automated: Automated, calls: Sequence[Call]) -> Table:
    """
    The table of the automation's steps.
    """
    table = Table(box=box.SIMPLE)
    for name in ("automation", "cards decided", "would change", "changed, by the API"):
        table.add_column(name, justify="left" if name == "automation" else "right")
    seen = [call.at for call in calls if call.account == automated.account and call.effect]
    before = sum(at < automated.promoted_at for at in seen)
    decided = str(automated.decided)
    table.add_row("preview", decided, str(len(automated.previewed)), "0")
    table.add_row("observe", decided, str(len(automated.observed)), str(before))
    table.add_row("live", decided, "-", str(len(seen) - before))
    return table


def quantile(values: Sequence[float], part: float) -> float:
    """
    The smallest value that so large a part of the values does not exceed; 0 without values.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0
