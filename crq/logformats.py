"""
How one log line looks: text for people, JSON for machines, fields for the journal of systemd.

One event is one record, whatever customers put into it: what a terminal would obey, and what begins
a line of its own, is written as an escape (F111). Only the lines of a traceback follow as they are,
each behind a tab.

# Note [Fields]

``action`` says what happened, in one word of a closed set (docs/operating.md explains each); ids
and figures are fields of their own. In the journal they are called ``CRQ_ACTION``,
``CRQ_EXECUTION_ID`` and so on: ``journalctl CRQ_EXECUTION_ID=17`` is the story of one execution.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from twisted.logger import LogEvent, LogLevel, formatEvent
from twisted.python.failure import Failure

JOURNAL = "/run/systemd/journal/socket"
IDENTIFIER = "crqueue"
LONGEST = 48_000  # bytes of one field of the journal: a datagram is bounded
PRIORITIES = {
    LogLevel.debug: 7,
    LogLevel.info: 6,
    LogLevel.warn: 4,
    LogLevel.error: 3,
    LogLevel.critical: 2,
}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}", re.A | re.I)


def text_line(event: LogEvent) -> str:
    """
    One event for people.
    """
    word = action_of(event) or event.get("log_namespace", "-")
    head = f"{_time(event)} {_level(event).name} [{word}] {message_of(event)}"
    trace = "".join(f"\n\t{visible(line)}" for line in _traceback(event))
    return f"{head}{trace}\n"


def json_line(event: LogEvent) -> str:
    """
    One event for machines: a JSON object.
    """
    record: dict[str, Any] = {
        "time": _time(event),
        "level": _level(event).name,
        "action": action_of(event),
        "message": message_of(event),
        "logger": event.get("log_namespace"),
        **dict(fields_of(event)),
    }
    trace = _traceback(event)
    if trace:
        record["traceback"] = "\n".join(trace)
    # ASCII alone: U+2028 ends a line for some.
    return json.dumps(record, ensure_ascii=True, default=str) + "\n"


def journal_record(event: LogEvent) -> bytes:
    """
    One event in the journal's own protocol.
    """
    message = "\n".join((message_of(event), *_traceback(event)))
    fields = {
        "MESSAGE": message,
        "PRIORITY": str(PRIORITIES[_level(event)]),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "CRQ_ACTION": action_of(event) or "",
        "CRQ_LOGGER": str(event.get("log_namespace", "")),
    }
    for name, value in fields_of(event):
        fields[f"CRQ_{name.upper()}"] = value if isinstance(value, str) else json.dumps(value)
    return b"".join(_field(name, text) for name, text in fields.items() if text)


class Journal:
    """
    The journal, spoken to directly; what it does not take goes to where lines go otherwise.
    """

    def __init__(self, otherwise: Callable[[LogEvent], None], path: str = JOURNAL) -> None:
        self._otherwise = otherwise
        self._path = path
        self._socket: socket.socket | None = None

    def __call__(self, event: LogEvent) -> None:
        """
        Hand an event over.
        """
        try:
            if self._socket is None:
                kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
                self._socket = socket.socket(socket.AF_UNIX, kind)
            self._socket.sendto(journal_record(event), self._path)
        except OSError:
            self._otherwise(event)

    def close(self) -> None:
        """
        Let go of the socket.
        """
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def is_journal(environment: Mapping[str, str], descriptor: int) -> bool:
    """
    Whether what is written to a descriptor goes to the journal (systemd.exec(5), JOURNAL_STREAM).
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def action_of(event: LogEvent) -> str | None:
    """
    What happened, in one word; None: the event is not one of ours.
    """
    action = event.get("action")
    return action.replace(" ", "_") if isinstance(action, str) else None


def message_of(event: LogEvent) -> str:
    """
    What happened, in a sentence, on one line.
    """
    text = formatEvent(event)
    failure = event.get("log_failure")
    if not text and isinstance(failure, Failure):
        text = failure.getErrorMessage()
    return visible(text or "")


def fields_of(event: LogEvent) -> Iterator[tuple[str, Any]]:
    """
    What else an event says: ids, figures, short texts, lists of them.
    """
    for name, value in event.items():
        ours = not name.startswith("log_") and name not in ("action", "message", "time", "system")
        if not ours or _NAME.fullmatch(name) is None:
            continue
        if isinstance(value, (str, int, float, bool)) or value is None:
            yield name, value
        elif isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
            yield name, list(value)


def visible(text: str) -> str:
    """
    Escape what is not printable: control characters, line ends of all kinds, direction marks.
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def _traceback(event: LogEvent) -> list[str]:
    failure = event.get("log_failure")
    if not isinstance(failure, Failure):
        return []
    return [str(line) for line in failure.getTraceback().splitlines()]


def _time(event: LogEvent) -> str:
    at = datetime.fromtimestamp(event.get("log_time") or 0.0, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _level(event: LogEvent) -> Any:
    return event.get("log_level") or LogLevel.info


def _field(name: str, text: str) -> bytes:
    value = text.encode("utf-8", "backslashreplace")[:LONGEST]
    if b"\n" not in value:
        return name.encode("ascii") + b"=" + value + b"\n"
    return name.encode("ascii") + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
