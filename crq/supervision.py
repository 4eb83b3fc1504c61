"""
What systemd is told of the daemon: READY, RELOADING, STOPPING, STATUS and the watchdog's pings.

# Note [What the watchdog follows]

Ticks, and nothing else: there is no timer here. A reactor that still turns while no tick comes to
an end sends nothing, and systemd starts the daemon anew, which is safe at any instant. A tick that
ended with an outage of the database counts as alive: the daemon knows what is wrong, says so, and
goes on by itself; a restart every minute would help nobody. A tick that ended with any other fault
does not count: what is wrong may be in this process, and a fresh one may be better.

READY comes with the first tick that ended well. Until then each tick that knows of an outage asks
for more time (EXTEND_TIMEOUT_USEC), so that a start without a database is neither ready nor
killed, while a first tick that hangs is.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from crq import verdict
from crq.model import Limits
from crq.notify import USEC, Notify
from crq.pulse import Ended, Pulse

STATUS_EVERY = 5.0  # s between two lines of status, unless a tick ended in another way
PATIENCE = 60.0  # s more that a start may take after a tick that knows of an outage
LEAST_TICKS = 3  # that must fit into the watchdog's time


@define(eq=False)
class Supervision(Service):
    """
    Speaks to the service manager (see note [What the watchdog follows]).

    :ivar watchdog: seconds of silence after which the manager ends us; None: it does not.
    :ivar limits: tells the caps in force.
    :ivar tick: seconds between ticks.
    :ivar waits: asks the rows whether anything is queued.
    """

    notify: Notify
    watchdog: float | None
    pulse: Pulse
    clock: IReactorTime
    limits: Callable[[], Limits]
    tick: float
    waits: Callable[[], Deferred[bool]]

    _was_ready: bool = field(init=False, default=False)
    _owed: bool = field(init=False, default=True)  # a READY
    _told: str | None = field(init=False, default=None)
    _told_at: float = field(init=False, default=0.0)
    _ended: Ended | None = field(init=False, default=None)
    _asking: bool = field(init=False, default=False)

    _log = Logger()

    def startService(self) -> None:
        """
        Tell that the daemon starts; say so in the log if its watchdog cannot be kept quiet.
        """
        super().startService()
        self.notify.send("STATUS=starting")
        if self.watchdog is not None and self.watchdog < LEAST_TICKS * self.tick:
            self._log.warn(
                "the watchdog waits {watchdog:g} s and a tick comes each {tick:g} s: raise"
                " WatchdogSec in the unit or lower drainer.tick",
                action="watchdog too short",
                watchdog=self.watchdog,
                tick=self.tick,
            )

    def stopService(self) -> None:
        """
        Tell that the daemon stops, and what for.
        """
        super().stopService()
        count = len(self.pulse.in_flight)
        self.notify.send("STOPPING=1", f"STATUS=stopping, {count} in flight")
        self.notify.close()

    def ticked(self, ended: Ended) -> None:
        """
        Take note of the end of a tick.
        """
        if self.notify.address is None or not self.running:
            return
        words = []
        if ended is Ended.WELL and self._owed:
            words.append("READY=1")
        elif ended is Ended.OUTAGE and not self._was_ready:
            words.append(f"EXTEND_TIMEOUT_USEC={int(PATIENCE * USEC)}")
        if self.watchdog is not None and ended is not Ended.BADLY:
            words.append("WATCHDOG=1")
        if self.notify.send(*words) and "READY=1" in words:
            self._owed, self._was_ready = False, True
        now = self.clock.seconds()
        if ended is not self._ended or now - self._told_at >= STATUS_EVERY:
            self._ended, self._told_at = ended, now
            Deferred.fromCoroutine(self._tell())

    def reloading(self) -> None:
        """
        Tell that the configuration is being read again.
        """
        if self._was_ready and self.running:
            self._owed = True
            self.notify.send("RELOADING=1", f"MONOTONIC_USEC={int(self.clock.seconds() * USEC)}")

    def reloaded(self) -> None:
        """
        Tell that it has been read; a word that is not taken is sent again with the next good tick.
        """
        if self._was_ready and self.running:
            self._owed = not self.notify.send("READY=1")

    async def _tell(self) -> None:
        if self._asking:
            return
        self._asking = True
        try:
            plan = self.pulse.plan
            looked = bool(plan.takes or plan.holds) or self.pulse.last_error is not None
            waits = False if looked else await self.waits()
        except Exception:  # noqa: BLE001 - the next tick says what is wrong with the database
            waits = False
        finally:
            self._asking = False
        word, because = verdict.of_pulse(
            self.pulse, self.limits(), self.clock.seconds(), self.tick, waits
        )
        text = f"{word.value}: {because}"
        if self.running and text != self._told and self.notify.send(f"STATUS={text}"):
            self._told = text
