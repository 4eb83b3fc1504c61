"""
What the daemon knows of the gates, whether their store answers or not (rulings 6 and 8).

# Note [What is remembered]

A gate that was read as closed is remembered until it passes. While the store answers, the store is
right: an operator may have opened a gate early. While it does not, the remembered gates stay closed
until their time and every other key is open. A value that is there but cannot be read closes its
key for 60 s at a time. A gate that this daemon could not write counts here as if it had been
written.

A key whose gate was seen closed and is not closed any more is half-open: one execution of it goes
first. It stays so until an execution of it has ended and a reading begun after that, from a store
that answered, found the gate still open. What a process before this one has seen closed, the
history of gates tells: `GateMemory.remember`.

A reading waits `PATIENCE` and no longer. The store's own time-outs end a thread sooner or later,
but they do not bound the look-up of a name; a thread that is late is not joined by a second one,
and of its late answer only the closed gates are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from attrs import define
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from crq.gatevalues import GatesUnreachable
from crq.instants import Instant
from crq.interfaces import IGateStore
from crq.model import GateReading
from crq.outages import Outage, one_line
from crq.patience import within

T = TypeVar("T")

PATIENCE = 1.0  # s a tick waits for the gates
UNREADABLE_FOR = 60.0  # s a key is closed for a value that cannot be read (ruling 6)
FOUND = "found closed: written by another program"
FOUND_UNREADABLE = "found a value that cannot be read"
FORGET_AFTER = 600.0  # s without a question, after which nothing is known of a key


@define
class _Known:
    """
    What is remembered of one key.

    :ivar unwritten_until: a gate of ours that the store did not take.
    :ivar ended: an execution has ended since the gate was last seen closed.
    :ivar asked_at: when a reading last included the key.
    """

    asked_at: Instant
    closed_until: Instant = 0.0
    unwritten_until: Instant = 0.0
    half_open: bool = False
    ended: bool = False
    unreadable: bool = False

    def close(self, until: Instant) -> None:
        self.closed_until = until
        self.half_open = self.ended = False

    def pass_by(self) -> None:
        self.closed_until, self.half_open, self.ended = 0.0, True, False


class GateMemory:
    """
    The gates as the drainer sees them. See note [What is remembered].
    """

    _log = Logger()

    def __init__(
        self,
        store: IGateStore,
        in_thread: Callable[..., Deferred[Any]],
        clock: IReactorTime,
        outage: Outage | None = None,
    ) -> None:
        """
        Start with nothing remembered.

        :param in_thread: runs a function with its arguments on a thread.
        :param outage: where failures of the store are told; of its own when None.
        """
        self._store = store
        self._in_thread = in_thread
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._found: dict[str, tuple[Instant, str]] = {}
        self._passed = False
        self._asking = False
        self._reachable = True
        self._outage = outage or Outage(
            "the gates' store", clock.seconds, self._log, "gates_unreachable", "gates_reachable"
        )

    @property
    def reachable(self) -> bool:
        """
        Whether the store answered the last reading.
        """
        return self._reachable

    @property
    def half_open(self) -> frozenset[str]:
        """
        The keys of which one execution goes first.
        """
        return frozenset(key for key, known in self._known.items() if known.half_open)

    def reading(self, now: Instant) -> GateReading:
        """
        What is remembered, as a store would tell it: closed gates, and keys that cannot be read.
        """
        unreadable = {key: "" for key, known in self._known.items() if known.unreadable}
        return GateReading(self.closed(now), unreadable)

    def closed(self, now: Instant) -> dict[str, Instant]:
        """
        The remembered gates that have not passed.
        """
        return {
            key: known.closed_until
            for key, known in self._known.items()
            if known.closed_until > now
        }

    def next_opening(self, now: Instant) -> Instant | None:
        """
        The instant at which the next of them passes.
        """
        return min(self.closed(now).values(), default=None)

    def ended(self, key: str) -> None:
        """
        Take note that an execution of this key has ended.
        """
        known = self._known.get(key)
        if known is not None:
            known.ended = True

    def remember(self, gates: Mapping[str, Instant], now: Instant) -> None:
        """
        Take up gates that a process before this one has seen closed; what has passed is half-open.
        """
        for key, until in gates.items():
            known = self._known.setdefault(key, _Known(now))
            if until > now:
                known.close(max(until, known.closed_until))
            elif not known.closed_until:
                self._pass_by(known)

    def news(self) -> tuple[dict[str, tuple[Instant, str]], bool]:
        """
        Tell what has changed since the last call: gates found closed (until when, why), and whether
        any has passed.
        """
        found, passed = self._found, self._passed
        self._found, self._passed = {}, False
        return found, passed

    async def read(self, keys: Collection[str], now: Instant) -> GateReading:
        """
        Tell which of these keys are closed. Never raises, and waits no longer than `PATIENCE`.
        """
        # An end during the reading does not count for it: the gate it wrote may have been missed.
        ended = {key for key, known in self._known.items() if known.ended}
        reading = await self._ask(tuple(keys), now) if keys else GateReading()
        if reading is not None:
            self._learn(keys, reading, ended, now)
        else:
            self._recall(keys, now)
        self._forget(now)
        closed = self.closed(now)
        return GateReading(
            {key: closed[key] for key in keys if key in closed},
            reading.unreadable if reading is not None else {},
        )

    async def close(self, key: str, until: Instant, now: Instant) -> Instant:
        """
        Close a key and return until when it is closed now. Never raises.

        What the store does not take, or not in time, is remembered here.
        """

        def taken_late(answer: Instant | Failure) -> None:
            if not isinstance(answer, Failure) and key in self._known:
                self._known[key].unwritten_until = 0.0

        unwritten = 0.0
        try:
            writing = self._in_thread(self._store.close, key, until, now)
            until = await self._within(writing, taken_late)
        except Exception as error:  # noqa: BLE001 - a boundary: the gate holds all the same
            unwritten = until
            self._log.error(
                "gate of {key} not written, remembered here: {error}",
                action="gate_not_written",
                key=key[:8],
                error=str(error),
            )
        known = self._known.setdefault(key, _Known(now))
        known.unwritten_until = max(unwritten, known.unwritten_until)
        known.close(max(until, known.closed_until))
        return known.closed_until

    async def open(self, key: str) -> None:
        """
        Open a key by hand; as after any opening, one execution of it goes first (ruling 8).

        :raise GatesUnreachable: the store did not do it, or not in time.
        """
        await self._within(self._in_thread(self._store.open, key), lambda _: None)
        known = self._known.get(key)
        if known is not None and known.closed_until:
            known.unwritten_until = 0.0
            self._pass_by(known)

    async def _ask(self, keys: tuple[str, ...], now: Instant) -> GateReading | None:
        if self._asking:
            return None
        try:
            question: Deferred[GateReading] = self._in_thread(self._store.read, keys, now)
            self._asking = True
            question.addBoth(self._answered)
            reading = await self._within(question, self._learn_late)
        except Exception as error:  # noqa: BLE001 - a boundary: whatever it is, what is known holds
            self._reachable = False
            if isinstance(error, GatesUnreachable):
                self._outage.failed(f"the remembered gates hold: {one_line(error)}")
                self._learn_late(error.seen)
            else:
                self._outage.failed(error)
            return None
        self._reachable = True
        self._outage.went_well()
        return reading

    def _answered(self, answer: T) -> T:
        self._asking = False
        return answer

    def _within(self, question: Deferred[T], late: Callable[[T | Failure], None]) -> Deferred[T]:
        return within(PATIENCE, question, self._clock, _given_up, late)

    def _learn(
        self, keys: Collection[str], reading: GateReading, ended: Collection[str], now: Instant
    ) -> None:
        for key in keys:
            until = reading.closed.get(key, 0.0)
            found = reading.unreadable.get(key)
            if key not in self._known and not until and found is None:
                continue
            known = self._known.setdefault(key, _Known(now))
            known.asked_at = now
            if found is not None:
                until = known.closed_until if known.closed_until > now else now + UNREADABLE_FOR
                if not known.unreadable:
                    self._log.error(
                        "gate of {key} cannot be read, closed for now: {found}",
                        action="gate_unreadable",
                        key=key[:8],
                        found=found,
                    )
            known.unreadable = found is not None
            until = max(until, known.unwritten_until)
            if until > now:
                if until > known.closed_until:
                    self._found[key] = (until, FOUND if found is None else FOUND_UNREADABLE)
                known.close(until)
            elif known.closed_until:
                self._pass_by(known)
            elif key in ended:
                known.half_open = known.ended = False

    def _learn_late(self, reading: GateReading | Failure) -> None:
        if isinstance(reading, Failure):
            return
        for key, until in reading.closed.items():
            known = self._known.setdefault(key, _Known(until))
            if until > known.closed_until:
                known.close(until)

    def _recall(self, keys: Collection[str], now: Instant) -> None:
        for key in keys:
            known = self._known.get(key)
            if known is None:
                continue
            known.asked_at = now
            if known.closed_until and known.closed_until <= now:
                self._pass_by(known)

    def _pass_by(self, known: _Known) -> None:
        known.pass_by()
        self._passed = True

    def _forget(self, now: Instant) -> None:
        for key, known in tuple(self._known.items()):
            unasked = known.asked_at + FORGET_AFTER < now and known.closed_until <= now
            if unasked or not (known.closed_until or known.half_open or known.unreadable):
                del self._known[key]


def _given_up() -> GatesUnreachable:
    return GatesUnreachable(f"no answer within {PATIENCE:g} s")
