"""
Where the daemon's log lines go, and from which level on.

# Note [Rotation]

Under systemd the lines go to standard output and the journal keeps them. ``twistd --logfile FILE``
writes to a file instead; it is appended to and never renamed by us, because an external rotation
(logrotate) would rename it as well. After the rename we go on writing to the old file, so that no
line is lost, until SIGHUP or SIGUSR1 asks for the name to be opened again. A file that cannot be
opened again is no reason to drop lines: the old one is kept.

How a line looks says `crq.logformats`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    LegacyLogObserverWrapper,
    LogEvent,
    LogLevel,
    LogLevelFilterPredicate,
)

from crq.logformats import Journal, is_journal, json_line, text_line

MODE = 0o640  # of a new log file, less the umask


class LogFile:
    """
    A file that lines are appended to (see note [Rotation]).
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._file = self._opened()

    def write(self, text: str) -> None:
        """
        Append text, all of it, before anything else happens.
        """
        # A message may hold what is no text: it is shown, and the line is not lost for it.
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[self._file.write(data) :]

    def flush(self) -> None:
        """
        Nothing is held back.
        """

    def reopen(self) -> None:
        """
        Open the name again; whatever is behind it now.

        :raise OSError: it cannot be opened; the old file stays in use.
        """
        old, self._file = self._file, self._opened()
        old.close()

    def close(self) -> None:
        """
        Close the file.
        """
        self._file.close()

    def _opened(self) -> BinaryIO:
        return open(
            self._path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, MODE)
        )


class Logs:
    """
    The daemon's log.

    :ivar observer: what twistd is to hand all events to; None: it has been told to use another.
    """

    def __init__(
        self,
        level: str,
        given: Mapping[str, Any] | None = None,
        form: str = "auto",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Open the log.

        :param level: the least level that is written: debug, info, warn or error.
        :param given: twistd's own options, of which logfile, nodaemon, syslog, prefix and logger
            count.
        :param form: how lines look: text, json, journal or auto: the journal's own protocol where
            standard output leads to the journal, else text.
        :raise SystemExit: twistd's options contradict each other, or the file cannot be opened.
        """
        given = given or {}
        self._file: LogFile | None = None
        self._environment = os.environ if environment is None else environment
        self.form = form
        self._levels = LogLevelFilterPredicate()
        self.level = level
        self.observer: ILogObserver | None = None
        if not given.get("logger"):
            self.observer = FilteringLogObserver(self._sink(given), [self._levels])

    @property
    def level(self) -> str:
        """
        The least level that is written.
        """
        return str(self._levels.logLevelForNamespace("").name)

    @level.setter
    def level(self, name: str) -> None:
        self._levels.setLogLevelForNamespace("", LogLevel.levelWithName(name))

    def reopen(self) -> None:
        """
        Open the log file again, if there is one (see note [Rotation]).

        :raise OSError: it cannot be opened; the old file stays in use.
        """
        if self._file is not None:
            self._file.reopen()

    def _sink(self, given: Mapping[str, Any]) -> ILogObserver:
        if given.get("syslog"):
            from twisted.python.syslog import SyslogObserver

            emit: Any = SyslogObserver(given.get("prefix", "")).emit
            return LegacyLogObserverWrapper(emit)
        name = given.get("logfile")
        foreground = bool(given.get("nodaemon", True))
        if name == "-" or (not name and foreground):
            if not foreground:
                raise SystemExit("crqueue: --logfile=-: a daemon has no standard output; name one")
            return self._formed(_forgiving(sys.stdout), True)
        path = Path(name or "twistd.log")
        try:
            self._file = LogFile(path)
        except OSError as error:
            raise SystemExit(f"crqueue: --logfile: {path}: {error.strerror}") from None
        return self._formed(self._file, False)

    def _formed(self, sink: Any, standard: bool) -> ILogObserver:
        def write(event: LogEvent) -> None:
            line = json_line if self.form == "json" else text_line
            sink.write(line(event))
            sink.flush()

        journal = Journal(write)

        def observe(event: LogEvent) -> None:
            form = self.form
            if form == "auto" and standard and is_journal(self._environment, 1):
                form = "journal"
            (journal if form == "journal" else write)(event)

        return cast(ILogObserver, observe)


def _forgiving(stream: TextIO) -> TextIO:
    # In a locale that is not UTF-8 an umlaut in a message must not cost its line.
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return stream
