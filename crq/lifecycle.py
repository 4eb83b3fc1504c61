"""
Signals, reloading, and the end that always comes.

# Note [Signals]

SIGTERM or SIGINT begins the stop: nothing is claimed any more, answers that are due are waited for
(`crq.drainer`). A second one, of either kind, ends the waiting: connections are hung up and the
process is gone within `HURRY` seconds. That is safe at any instant; the rows say what has begun.
SIGHUP reads the configuration again and opens the log file again; SIGUSR1 does the latter alone,
as twistd's users know it. Handlers only hand over to the reactor, except for the hurry: the reactor
itself may be what waits, for a thread inside a database call.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import define, field
from twisted.application.service import MultiService, Service
from twisted.internet.error import CannotListenError
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized

from crq.config import Config
from crq.logs import Logs
from crq.reload import difference

HURRY = 2.0  # s from a second signal to the end, whatever hangs

_LEVELS = ("debug", "info", "warn", "error")


class Daemon(MultiService):
    """
    All services of the daemon. It hands twistd the log's observer, with the application it becomes
    part of.
    """

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self.setName("crqueue")
        self._logs = logs

    def setServiceParent(self, parent: Any) -> None:
        """
        Become part of an application, or of another service.
        """
        super().setServiceParent(parent)
        if self._logs.observer is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._logs.observer)

    def privilegedStartService(self) -> None:
        """
        Begin to listen.

        :raise SystemExit: the address is taken or not ours; a daemon without its door is no daemon.
        """
        try:
            super().privilegedStartService()
        except CannotListenError as error:
            raise SystemExit(f"crqueue: web.listen: {error}") from None


@define(eq=False)
class Signals(Service):
    """
    What the process does when it is signalled (see note [Signals]).

    :ivar reload: called for SIGHUP.
    :ivar reopen: called for SIGUSR1.
    :ivar hang_up: called for the second signal to stop.
    :ivar hurry: called at once, within the handler, for the second signal to stop.
    :ivar get: tells the handler of a signal (`signal.getsignal`).
    :ivar put: installs one (`signal.signal`).
    """

    reactor: Any
    reload: Callable[[], None]
    reopen: Callable[[], None]
    hang_up: Callable[[], None]
    hurry: Callable[[], None]
    get: Callable[[int], Any] = signal.getsignal
    put: Callable[[int, Any], Any] = signal.signal
    _stopping: bool = field(init=False, default=False)

    def startService(self) -> None:
        """
        Install the handlers, once the reactor has installed its own.
        """
        super().startService()
        self.reactor.callWhenRunning(self._install)

    def stopService(self) -> None:
        """
        Whatever began the stop: the next signal to stop is the second one.
        """
        super().stopService()
        self._stopping = True

    def _install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = self.get(number)
            if callable(handler):  # an ignored SIGINT stays ignored, as for jobs of a shell
                self.put(number, partial(self._stop, handler))
        self.put(signal.SIGHUP, partial(self._call, self.reload))
        self.put(signal.SIGUSR1, partial(self._call, self.reopen))

    def _stop(self, first: Callable[[int, Any], Any], number: int, frame: Any) -> None:
        if not self._stopping:
            self._stopping = True
            first(number, frame)
            return
        self.hurry()
        self.reactor.callFromThread(self.hang_up)

    def _call(self, function: Callable[[], None], _number: int, _frame: Any) -> None:
        if not self._stopping:
            self.reactor.callFromThread(function)


@define(eq=False)
class Reloader:
    """
    Takes over what may change while the daemon runs, and names what may not.

    :ivar load: reads the configuration from where it was read at the start.
    :ivar config: what is in force.
    :ivar apply: puts a configuration's limits into force.
    :ivar before: called before anything changes; ``after`` when it is done, also after a fault.
    """

    load: Callable[[], Config]
    config: Config
    logs: Logs
    apply: Callable[[Config], None]
    before: Callable[[], None]
    after: Callable[[], None]

    _log = Logger()

    def reload(self) -> None:
        """
        Read the configuration and open the log file again. Never raises; a fault leaves the old
        values in force.
        """
        self.before()
        try:
            self.reopen()
            found = difference(self.config, self.load())
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a file, the daemon goes on
            self._log.error(
                "the configuration was not reloaded, the old values stay in force: {error}",
                action="reload refused",
                error=str(error),
            )
        else:
            old, new = self.config.log.level, found.config.log.level
            self.logs.level = min(old, new, key=_LEVELS.index)  # this line is to be seen
            self._log.info(
                "the configuration was reloaded: {changes}",
                action="reloaded",
                changes=", ".join(map(str, found.changes)) or "nothing that can change has changed",
            )
            if found.waiting:
                self._log.warn(
                    "these options have changed and need a restart: {names}",
                    action="restart needed",
                    names=", ".join(found.waiting),
                )
            self.logs.level = new
            self.logs.form = found.config.log.format
            self.config = found.config
            self.apply(found.config)
        self.after()

    def reopen(self) -> None:
        """
        Open the log file again. Never raises.
        """
        try:
            self.logs.reopen()
        except OSError as error:
            self._log.error(
                "the log file cannot be opened again, the old one stays in use: {error}",
                action="log kept",
                error=str(error),
            )


@define(eq=False)
class LastResort(Service):
    """
    Ends the process when a stop takes longer than its limit, whatever it is that hangs.

    A thread inside a database call would otherwise keep the process for ever (Twisted #10124). It
    is safe at any instant: the rows say what was begun.

    :ivar lock: the descriptor of the daemon's lock, held as long as this is.
    """

    limit: float
    lock: int
    end: Callable[[int], Any] = os._exit

    _log = Logger()

    def stopService(self) -> None:
        """
        Start the count-down; it ends with the process.
        """
        super().stopService()
        self._count_down(self.limit)

    def hurry(self) -> None:
        """
        Wait no longer than `HURRY` from now on.
        """
        self._count_down(HURRY)

    def _count_down(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._end, [seconds])
        timer.daemon = True
        timer.start()

    def _end(self, seconds: float) -> None:
        self._log.error("the stop took over {limit} s: ending now", action="forced", limit=seconds)
        self.end(1)
