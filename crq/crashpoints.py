"""
Instants at which a test may end this process: between two effects that others can see.

Whether anything is lost or done twice is decided there. The code says `reached` where it comes by;
a test names one point and a count, and the process that comes by for the count-th time kills itself
(SIGKILL): no farewell, no ``finally``, as in a power cut.

# Note [Not by accident]

It takes two variables of the environment, and either alone does nothing: `AT` names the point,
`FILE` a file that a test has made for the purpose. The count is kept in that file, so that all
processes of an executor count together, and so that whoever is started in the place of the dead
one, with the same environment, does not die as well. Without the variables, which is everywhere but
in such a test, `reached` is one comparison.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

AT = "CRQUEUE_TEST_CRASH_AT"  # POINT, POINT:COUNT or POINT:COUNT:group
FILE = "CRQUEUE_TEST_CRASH_FILE"  # begins with `HEAD`
HEAD = b"crash tests of crqueue\n"

# Each with what has happened by then. Those of a transaction bear its function's name.
COMMITS: Final = {
    "committing": "its statements are done, its COMMIT is not sent",
    "committed": "its COMMIT has been answered",
}
POINTS: Final = {
    "admitted": "daemon: the caller has no answer yet",
    "dispatching": "daemon: a claimed row is known, no connection asked for",
    "parcel read": "daemon: what a plain endpoint is sent has been read, no connection asked for",
    "request begins": "daemon: connected to the executor, no byte of the request has left",
    "answer begins": "daemon: status and headers of the answer are there",
    "answer whole": "daemon: the answer is there, nothing is settled",
    "concluding": "daemon: what a plain endpoint's answer means is decided, nothing is done yet",
    "settling": "daemon: what becomes of the row is decided, nothing written",
    "settled": "daemon: the row is settled, its slot not yet free",
    "lock held": "executor: the liveness lock is taken, nothing started",
    "call begins": "executor: before a call of the API",
    "call ended": "executor: the API has answered, the script does not know it yet",
    "gate closing": "executor: a 429 has come, its key's gate is still open",
    "gate closed": "executor: the gate is closed",
    "lock given back": "executor: the outcome is written, the lock free, nothing answered",
    "answering": "executor: the answer is made, not sent",
}


@frozen
class Crash:
    """
    Where this process is to end.

    :ivar count: at which time of coming by, from 1.
    :ivar group: with all processes of its group: a whole executor, not one worker.
    """

    point: str
    count: int
    group: bool
    file: Path

    def come_by(self, point: str) -> None:
        """
        Count, and end here if it is time.
        """
        if point != self.point:
            return
        descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND)
        try:
            os.write(descriptor, b".")
            # O_APPEND writes whole; where it ended is what this process alone has counted to.
            count = os.lseek(descriptor, 0, os.SEEK_CUR) - len(HEAD)
        finally:
            os.close(descriptor)
        if count == self.count:
            if self.group:
                os.killpg(os.getpgid(0), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def armed(environment: Mapping[str, str]) -> Crash | None:
    """
    Read what a test wants; None everywhere else (see note).

    :raise ValueError: the test names a point that does not exist, or no count.
    """
    at, file = environment.get(AT), environment.get(FILE)
    if not at or not file:
        return None
    try:
        with Path(file).open("rb") as opened:
            if opened.read(len(HEAD)) != HEAD:
                return None
    except OSError:
        return None
    point, _, rest = at.partition(":")
    count, _, group = rest.partition(":")
    if point not in POINTS and point.rpartition(" ")[2] not in COMMITS:
        raise ValueError(f"{AT}: {point!r} is no crash point; name one of {', '.join(POINTS)}")
    if group not in ("", "group") or not (count or "1").isdigit() or int(count or "1") < 1:
        raise ValueError(f"{AT}: {at!r}; write POINT, POINT:COUNT or POINT:COUNT:group")
    return Crash(point, int(count or "1"), group == "group", Path(file))


_crash = armed(os.environ)


def reached(point: str, function: object = None) -> None:
    """
    Say that this process has come to a point.

    :param function: whose transaction it is, for the points of `COMMITS`.
    """
    if _crash is not None:
        if function is not None:
            point = f"{getattr(function, '__name__', '').lstrip('_')} {point}"
        _crash.come_by(point)
