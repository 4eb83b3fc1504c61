"""
The daemon itself, as far as it can be seen from outside: its lock, its limits, its heartbeat.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from crq import heartbeat
from crq.config import Config
from crq.database import Cursor
from crq.doctor.findings import Finding, error, note, ok, warning
from crq.doctor.units import FILES_NEEDED
from crq.instants import Instant
from crq.origin import lock_of
from crq.pulse import Beat
from crq.verdict import stale_after

_LOCK = re.compile(r"\d+: FLOCK +\S+ +WRITE +(\d+) +([0-9a-f]+):([0-9a-f]+):(\d+) ")


def look(config: Config) -> Iterator[Finding]:
    """
    Look for the daemon that holds this configuration's lock.

    The kernel's table of locks is read. Trying the lock would tell as well, but a daemon that
    starts in that moment would find it taken.
    """
    if not Path(config.drainer.lock_file).is_absolute():
        yield note(
            "daemon",
            f"drainer.lock_file is {config.drainer.lock_file}, relative to wherever a daemon was"
            " started: from here nobody can tell whether one runs",
            "give it an absolute path, or one in the file, which is relative to the file",
        )
        return
    pid = _holder(config.drainer.lock_file)
    yield running(config.drainer.lock_file, pid)
    if pid is not None and (limit := _open_files(pid)) is not None:
        yield descriptors(pid, limit)


def running(lock_file: str, pid: int | None) -> Finding:
    """
    Judge whether a daemon runs here.
    """
    if pid is None:
        return note(
            "daemon",
            f"nobody holds {lock_file}: no daemon of this configuration runs on this host",
            "systemctl start crqueue, unless it runs elsewhere",
        )
    return ok("daemon", f"process {pid} holds {lock_file}")


def descriptors(pid: int, limit: int) -> Finding:
    """
    Judge the limit that a running daemon has.
    """
    name = "descriptors in force"
    text = f"process {pid} may open {limit} files"
    if limit < FILES_NEEDED:
        remedy = "set LimitNOFILE in its unit (or ulimit -n) and restart it"
        return warning(name, f"{text}: that many idle callers keep everybody else out", remedy)
    return ok(name, text)


def beats(txn: Cursor) -> tuple[Beat, ...]:
    """
    Read what the drainers last said.
    """
    return heartbeat.read(txn)


def judge_beats(found: Collection[Beat], now: Instant, tick: float) -> Iterator[Finding]:
    """
    Judge what the drainers last said of themselves.
    """
    if not found:
        yield note("drainers", "none has reported", "start a daemon")
    for beat in found:
        name = f"drainer {beat.drainer_id}"
        if not beat.alive(now):
            since = f"for {beat.age(now):.0f} s" if beat.beat_at <= now else "in our time"
            yield warning(
                name,
                f"has not reported {since} and did not stop in order",
                "start it; the row of one that is gone for good is forgotten after an hour",
            )
        elif beat.last_good_age is None and beat.beat_at - beat.started_at < stale_after(tick):
            yield note(name, "has just started")  # its first beat comes before its first claim
        elif beat.last_good_age is None or beat.last_good_age >= stale_after(tick):
            yield error(
                name, "runs, and its ticks do not end well", "see its log: journalctl -u crqueue"
            )
        elif beat.alarm is not None:
            yield error(
                name, f"the executor takes no work: {beat.alarm}", "see the executor and its log"
            )
        elif not beat.gates_reachable:
            yield warning(name, "the gates do not answer it", "see that memcached runs")
        else:
            yield ok(name, f"reported {beat.age(now):.0f} s ago")


def named(config: Config, found: Collection[Beat], now: Instant) -> Iterator[Finding]:
    """
    Look whether the daemon of this host has its name for itself.
    """
    path = config.drainer.lock_file
    if Path(path).is_absolute():
        yield from judge_name(config.drainer.id, _holder(path), lock_of(path), found, now)


def judge_name(
    name: str, pid: int | None, lock: str, found: Collection[Beat], now: Instant
) -> Iterator[Finding]:
    """
    Judge whose a name is: a daemon runs here, and one of that name has reported.

    :param pid: of the daemon that holds our lock file; None: none runs here.
    :param lock: what tells our lock file from all others.
    """
    beat = next((beat for beat in found if beat.drainer_id == name), None)
    if pid is None or beat is None or not beat.alive(now) or not beat.origin.lock_of:
        return
    if beat.origin.lock_of != lock:
        yield error(
            f"name {name}",
            f"a daemon on {beat.origin.host} reports by it; process {pid} here stands by",
            "give each daemon a drainer.id of its own",
        )


def _holder(lock_file: str) -> int | None:
    try:
        found = os.stat(lock_file)
        table = Path("/proc/locks").read_text("ascii", "replace")
    except OSError:
        return None
    wanted = (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
    for pid, major, minor, inode in _LOCK.findall(table):
        if (int(major, 16), int(minor, 16), int(inode)) == wanted and int(pid) > 0:
            return int(pid)
    return None


def _open_files(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/limits").read_text("ascii", "replace")
    except OSError:
        return None
    match = re.search(r"^Max open files +(\d+) ", text, re.MULTILINE)
    return None if match is None else int(match[1])
