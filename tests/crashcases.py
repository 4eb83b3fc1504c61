"""
The crash matrix: who is killed, and at which instant.
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen

Who = Literal["daemon", "worker", "executor", "both"]


@frozen
class Case:
    """
    Who is killed, and where.

    :ivar at: a crash point and a count; in the situation ``cut`` what has left of the request.
    :ivar situation: what the method of this name does before the crash.
    :ivar unknown: how many executions may end as "unknown" (303) at most.
    """

    who: Who
    at: str
    situation: str = "backlog"
    unknown: int = 0

    @property
    def name(self) -> str:
        """
        For tables and tests.
        """
        more = "" if self.situation in ("backlog", "admission") else f" ({self.situation})"
        return f"{self.who}: {self.at.partition(':')[0]}{more}"


def _cases() -> tuple[Case, ...]:
    begun = ("start committed:3", "call begins:3", "call ended:3", "finish committing:3")
    others = ("lock held:3", "start committing:3", "finish committed:3", "lock given back:3")
    executor = (*others[:2], *begun, *others[2:], "answering:3")
    return (
        *(Case("daemon", at, "admission") for at in _around("admit:3")),
        Case("daemon", "admitted:3", "admission"),
        *(Case("daemon", at, "full") for at in (*_around("admit:3"), "admitted:3")),
        *(Case("daemon", at) for at in _around("claim:2")),
        *(Case("daemon", at) for at in ("dispatching:2", "request begins:3")),
        *(Case("daemon", at, "cut") for at in ("nothing", "headers", "half", "everything")),
        *(Case("daemon", at) for at in ("answer begins:3", "answer whole:3")),
        *(Case("daemon", at) for at in ("settling:3", "settled:3")),
        *(Case("daemon", at, "refused") for at in _around("release:1")),
        *(Case("daemon", at, "recovery") for at in _around("release:1")),
        *(Case("daemon", at, "worker died", 1) for at in _around("died:1")),
        *(Case("daemon", at, "key lost") for at in _around("fail_dispatch:1")),
        # What was told to nobody but the daemon, or to nobody at all, is not known afterwards.
        *(Case("daemon", at, "told only", 4) for at in _around("finish:2")),
        *(Case("worker", at, unknown=int(at in begun)) for at in executor),
        *(Case("worker", at, "throttled", 1) for at in ("gate closing:1", "gate closed:1")),
        *(Case("worker", at, "throttled", 1) for at in _around("close:1")),
        # With it go all that run.
        *(Case("executor", at + ":group", unknown=4) for at in executor),
        *(Case("both", at, unknown=4) for at in ("dispatching:2", "settling:2")),
        Case("both", "call ended:3:group", unknown=4),
        Case("both", "finish committed:3:group", unknown=4),
    )


def _around(commit: str) -> tuple[str, str]:
    function, _, count = commit.partition(":")
    return f"{function} committing:{count}", f"{function} committed:{count}"


CASES = _cases()
