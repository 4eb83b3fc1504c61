"""
What the daemon knows of the gates while the store answers, and while it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from attrs import define, field
from twisted.internet import defer
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from crq.gatememory import (
    FORGET_AFTER,
    FOUND,
    FOUND_UNREADABLE,
    PATIENCE,
    UNREADABLE_FOR,
    GateMemory,
)
from crq.gates import GatesUnreachable
from crq.instants import Instant
from crq.interfaces import IGateStore
from crq.model import GateReading

T = TypeVar("T")

NOW = 1_788_000_000.0


@implementer(IGateStore)
@define
class _Store:
    """
    Gates in a dict.

    :ivar away: what a question raises instead of an answer.
    """

    gates: dict[str, Instant] = field(factory=dict)
    garbage: dict[str, str] = field(factory=dict)
    away: Exception | None = None
    full: bool = False
    asked: int = 0

    def read(self, keys: Collection[str], now: Instant) -> GateReading:
        self.asked += 1
        if self.away is not None:
            raise self.away
        return GateReading(
            {key: self.gates[key] for key in keys if self.gates.get(key, 0) > now},
            {key: self.garbage[key] for key in keys if key in self.garbage},
        )

    def close(self, key: str, until: Instant, now: Instant) -> Instant:
        if self.full or self.away is not None:
            raise GatesUnreachable("SERVER_ERROR out of memory storing object")
        self.gates[key] = max(until, self.gates.get(key, 0))
        return self.gates[key]

    def open(self, key: str) -> None:
        self.gates.pop(key, None)


class _Case(SynchronousTestCase):
    """
    A memory on a store that answers at once, and the log it writes.
    """

    def setUp(self) -> None:
        self.store = _Store()
        self.clock = Clock()
        self.log: list[tuple[str, str]] = []
        self.patch(GateMemory, "_log", _Log(self.log))
        self.memory = GateMemory(self.store, defer.execute, self.clock)

    def read(self, *keys: str, at: Instant = NOW) -> dict[str, Instant]:
        return dict(self.now(self.memory.read(keys, at)).closed)

    def now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: T = self.successResultOf(Deferred.fromCoroutine(coroutine))
        return result

    def actions(self) -> list[str]:
        """
        What has been logged since this was last asked.
        """
        actions = [action for action, _ in self.log]
        self.log.clear()
        return actions


class _Log:
    def __init__(self, lines: list[tuple[str, str]]) -> None:
        self._lines = lines

    def __getattr__(self, level: str) -> Callable[..., None]:
        assert level in {each.name for each in LogLevel.iterconstants()} | {"failure"}

        def write(text: str, *_: object, action: str, **fields: object) -> None:
            self._lines.append((action, text.format(**fields)))

        return write


class OutageTests(_Case):
    """
    Fail-open, remembered (ruling 6).
    """

    def test_a_closed_gate_outlives_its_store(self) -> None:
        """
        While the store is away a known gate holds until its time, and an unknown key is open.
        """
        self.store.gates = {"a": NOW + 100}
        self.assertEqual(self.read("a", "b"), {"a": NOW + 100})
        self.store.away = GatesUnreachable("refused")
        self.assertEqual(self.read("a", "b", "c", at=NOW + 1), {"a": NOW + 100})
        self.assertFalse(self.memory.reachable)
        self.assertEqual(self.read("a", "b", at=NOW + 99.5), {"a": NOW + 100})
        self.assertEqual(self.read("a", "b", at=NOW + 100), {})

    def test_the_store_is_right_when_it_answers(self) -> None:
        """
        A gate that an operator opened early is open, whatever is remembered.
        """
        self.store.gates = {"a": NOW + 3600}
        self.read("a")
        self.store.open("a")
        self.assertEqual(self.read("a", at=NOW + 1), {})
        self.store.away = GatesUnreachable("refused")
        self.assertEqual(self.read("a", at=NOW + 2), {})

    def test_an_outage_is_logged_twice(self) -> None:
        """
        One line when it begins and one when it ends, however many ticks lie between.
        """
        self.read("a")
        self.store.away = GatesUnreachable("refused")
        for tick in range(20):
            self.read("a", at=NOW + tick)
        self.assertEqual(self.log, [("gates_unreachable", self.log[0][1])])
        self.assertIn("refused", self.log[0][1])
        self.actions()
        self.store.away = None
        self.read("a", at=NOW + 20)
        self.read("a", at=NOW + 21)
        self.assertEqual(self.actions(), ["gates_reachable"])
        self.assertTrue(self.memory.reachable)

    def test_no_error_leaves_a_reading(self) -> None:
        """
        Even a fault of our own in a store is an outage with remembered gates, not a failed tick.
        """
        self.store.gates = {"a": NOW + 100}
        self.read("a")
        self.store.away = TypeError("a fault")
        self.assertEqual(self.read("a", at=NOW + 1), {"a": NOW + 100})
        self.assertEqual(self.actions(), ["gates_unreachable"])

    def test_threads_that_cannot_be_had_are_an_outage(self) -> None:
        """
        A refusal to start the question counts like one to answer it, and the next is asked again.
        """

        def refuse(*_: object) -> Deferred[Any]:
            raise RuntimeError("no thread")

        self.memory = GateMemory(self.store, refuse, self.clock)
        self.assertEqual(self.read("a"), {})
        self.assertEqual(self.read("a"), {})
        self.assertEqual(self.actions(), ["gates_unreachable"])

    def test_no_keys_no_question(self) -> None:
        """
        With nothing queued the store is not asked.
        """
        self.assertEqual(self.read(), {})
        self.assertEqual(self.store.asked, 0)


class PatienceTests(_Case):
    """
    A reading is bounded in time (F71).
    """

    def setUp(self) -> None:
        super().setUp()
        self.threads: list[Deferred[Any]] = []
        self.memory = GateMemory(self.store, self.in_thread, self.clock)

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        thread: Deferred[Any] = Deferred()
        thread.addCallback(lambda _: function(*arguments))
        self.threads.append(thread)
        return thread

    def test_a_silent_store_delays_a_tick_by_one_second(self) -> None:
        """
        The answer is what is remembered, right when patience ends.
        """
        reading = Deferred.fromCoroutine(self.memory.read(["a"], NOW))
        self.clock.advance(PATIENCE - 0.01)
        self.assertNoResult(reading)
        self.clock.advance(0.01)
        self.assertEqual(self.successResultOf(reading).closed, {})
        self.assertFalse(self.memory.reachable)
        self.assertEqual(PATIENCE, 1.0)

    def test_a_late_thread_is_not_joined_by_another(self) -> None:
        """
        While a question hangs, ticks go on at once, and no further thread is taken.
        """
        first = Deferred.fromCoroutine(self.memory.read(["a"], NOW))
        self.clock.advance(PATIENCE)
        self.successResultOf(first)
        for tick in range(1, 5):
            self.assertEqual(self.read("a", at=NOW + tick), {})
        self.assertEqual(len(self.threads), 1)
        self.assertEqual(self.actions(), ["gates_unreachable"])

    def test_a_late_answer_closes_but_does_not_open(self) -> None:
        """
        A gate found late is remembered; that a key was open some time ago says nothing.
        """
        self.store.gates = {"a": NOW + 100, "c": NOW + 20}
        first = Deferred.fromCoroutine(self.memory.read(["a", "b", "c"], NOW))
        self.clock.advance(PATIENCE)
        self.successResultOf(first)
        for key in ("b", "c"):
            writing = Deferred.fromCoroutine(self.memory.close(key, NOW + 50, NOW))
            self.clock.advance(PATIENCE)
            self.successResultOf(writing)
        self.threads[0].callback(None)
        closed = {"a": NOW + 100, "b": NOW + 50, "c": NOW + 50}
        self.assertEqual(self.memory.closed(NOW + 2), closed)
        self.assertFalse(self.memory.reachable)
        # The thread is back: the next tick asks again.
        second = Deferred.fromCoroutine(self.memory.read(["a", "b"], NOW + 2))
        self.threads[-1].callback(None)
        self.successResultOf(second)
        self.assertTrue(self.memory.reachable)

    def test_a_late_failure_is_no_news(self) -> None:
        """
        The hanging question fails in the end: nothing raised, nothing logged, asked again.
        """
        first = Deferred.fromCoroutine(self.memory.read(["a"], NOW))
        self.clock.advance(PATIENCE)
        self.successResultOf(first)
        self.store.away = GatesUnreachable("timed out")
        self.threads[0].callback(None)
        self.assertEqual(self.actions(), ["gates_unreachable"])
        Deferred.fromCoroutine(self.memory.read(["a"], NOW + 2))
        self.assertEqual(len(self.threads), 2)

    def test_no_timer_stays_behind(self) -> None:
        """
        An answer in time ends the wait.
        """
        Deferred.fromCoroutine(self.memory.read(["a"], NOW))
        self.threads[0].callback(None)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_an_end_during_a_reading_does_not_count_for_it(self) -> None:
        """
        The store was asked before the execution that ended could have closed the gate again.
        """

        def read(at: Instant, meanwhile: Callable[[], None] = lambda: None) -> None:
            reading = Deferred.fromCoroutine(self.memory.read(["a"], at))
            meanwhile()
            self.threads[-1].callback(None)
            self.successResultOf(reading)

        self.store.gates = {"a": NOW + 10}
        read(NOW)
        read(NOW + 10)
        read(NOW + 11, lambda: self.memory.ended("a"))
        self.assertEqual(self.memory.half_open, {"a"})
        read(NOW + 12)
        self.assertEqual(self.memory.half_open, frozenset())

    def test_a_late_write_counts_as_written(self) -> None:
        """
        Once the store has taken the gate after all, an operator can open it there.
        """
        writing = Deferred.fromCoroutine(self.memory.close("a", NOW + 50, NOW))
        self.clock.advance(PATIENCE)
        self.assertEqual(self.successResultOf(writing), NOW + 50)
        self.threads[0].callback(None)
        self.store.open("a")
        reading = Deferred.fromCoroutine(self.memory.read(["a"], NOW + 2))
        self.threads[1].callback(None)
        self.assertEqual(self.successResultOf(reading).closed, {})


class UnreadableTests(_Case):
    """
    A value that is there but cannot be understood (ruling 6).
    """

    def test_the_key_is_closed_for_sixty_seconds_at_a_time(self) -> None:
        """
        As long as the value stays, one period follows the other; the reading says what was found.
        """
        self.store.garbage = {"a": "b'abc' (flags 0)"}
        reading = self.now(self.memory.read(["a", "b"], NOW))
        self.assertEqual(reading.closed, {"a": NOW + UNREADABLE_FOR})
        self.assertEqual(reading.unreadable, {"a": "b'abc' (flags 0)"})
        self.assertEqual(self.read("a", at=NOW + 30), {"a": NOW + 60})
        self.assertEqual(self.read("a", at=NOW + 60), {"a": NOW + 120})

    def test_it_is_logged_once_until_it_can_be_read_again(self) -> None:
        """
        One error for each key and each time it becomes unreadable, with the key's first 8 digits.
        """
        key = "0123456789abcdef" * 4
        self.store.garbage = {key: "found this", "other": "found that"}
        for tick in range(200):
            self.read(key, "other", at=NOW + tick)
        self.assertEqual(self.actions(), ["gate_unreadable"] * 2)
        self.store.garbage = {}
        self.read(key, at=NOW + 201)
        self.store.garbage = {key: "found this"}
        self.read(key, at=NOW + 202)
        (line,) = self.log
        self.assertIn("01234567 ", line[1])
        self.assertIn("found this", line[1])
        self.assertNotIn(key, line[1])

    def test_a_known_gate_counts_more_than_garbage(self) -> None:
        """
        What overwrote a gate of an hour does not open it after a minute.
        """
        self.store.gates = {"a": NOW + 3600}
        self.read("a")
        self.store.gates, self.store.garbage = {}, {"a": "?"}
        self.assertEqual(self.read("a", at=NOW + 1), {"a": NOW + 3600})

    def test_a_value_that_can_be_read_again_is_followed_at_once(self) -> None:
        """
        The sixty seconds end with the garbage.
        """
        self.store.garbage = {"a": "?"}
        self.read("a")
        self.store.garbage = {}
        self.assertEqual(self.read("a", at=NOW + 5), {})


class HalfOpenTests(_Case):
    """
    One execution goes first (ruling 8, F53).
    """

    def pass_by(self) -> None:
        self.store.gates = {"a": NOW + 10}
        self.read("a", "b")
        self.assertEqual(self.memory.half_open, frozenset())
        self.assertEqual(self.read("a", "b", at=NOW + 10), {})

    def test_a_gate_that_passed_is_half_open(self) -> None:
        """
        Only the key whose gate was seen closed is.
        """
        self.pass_by()
        self.assertEqual(self.memory.half_open, {"a"})

    def test_an_end_and_a_reading_open_it(self) -> None:
        """
        Both are needed, in this order; ticks alone change nothing.
        """
        self.pass_by()
        for tick in range(11, 20):
            self.read("a", at=NOW + tick)
        self.assertEqual(self.memory.half_open, {"a"})
        self.memory.ended("a")
        self.assertEqual(self.memory.half_open, {"a"})
        self.read("b", at=NOW + 20)
        self.assertEqual(self.memory.half_open, {"a"})
        self.read("a", at=NOW + 21)
        self.assertEqual(self.memory.half_open, frozenset())

    def test_a_gate_closed_again_is_closed(self) -> None:
        """
        The first execution met the limit again: all wait, and one goes first once more.
        """
        self.pass_by()
        self.store.gates = {"a": NOW + 70}
        self.memory.ended("a")
        self.assertEqual(self.read("a", at=NOW + 12), {"a": NOW + 70})
        self.assertEqual(self.memory.half_open, frozenset())
        self.read("a", at=NOW + 70)
        self.assertEqual(self.memory.half_open, {"a"})
        # What ended before it passed again does not count for it.
        self.read("a", at=NOW + 71)
        self.assertEqual(self.memory.half_open, {"a"})

    def test_an_end_before_the_gate_passed_does_not_count(self) -> None:
        """
        An execution that was under way when the gate closed proves nothing when it ends.
        """
        self.store.gates = {"a": NOW + 10}
        self.read("a")
        self.memory.ended("a")
        self.memory.ended("never seen")
        self.read("a", at=NOW + 10)
        self.read("a", at=NOW + 11)
        self.assertEqual(self.memory.half_open, {"a"})

    def test_a_gate_that_vanished_is_half_open(self) -> None:
        """
        A restarted memcached has forgotten its gates: the key's backlog must not start at once.
        """
        self.store.gates = {"a": NOW + 3600}
        self.read("a")
        self.store.gates = {}
        self.read("a", at=NOW + 1)
        self.assertEqual(self.memory.half_open, {"a"})

    def test_a_silent_store_proves_nothing(self) -> None:
        """
        A remembered gate that passes during an outage is half-open until the store answers.
        """
        self.store.gates = {"a": NOW + 10}
        self.read("a")
        self.store.away = GatesUnreachable("refused")
        self.read("a", at=NOW + 10)
        self.assertEqual(self.memory.half_open, {"a"})
        self.memory.ended("a")
        self.read("a", at=NOW + 11)
        self.assertEqual(self.memory.half_open, {"a"})
        self.store.away = None
        self.read("a", at=NOW + 12)
        self.assertEqual(self.memory.half_open, frozenset())


class CloseTests(_Case):
    """
    Gates of the daemon's own.
    """

    def close(self, key: str, until: Instant, at: Instant = NOW) -> Instant:
        return self.now(self.memory.close(key, until, at))

    def test_a_gate_goes_to_the_store(self) -> None:
        """
        What is closed here is closed for everybody, and known here without a reading.
        """
        self.assertEqual(self.close("a", NOW + 60), NOW + 60)
        self.assertEqual(self.store.gates, {"a": NOW + 60})
        self.assertEqual(self.memory.next_opening(NOW), NOW + 60)

    def test_the_longer_gate_counts(self) -> None:
        """
        Ruling 7: neither the store nor the memory shortens a gate.
        """
        self.store.gates = {"a": NOW + 3600}
        self.assertEqual(self.close("a", NOW + 60), NOW + 3600)
        self.store.away = GatesUnreachable("refused")
        self.assertEqual(self.close("a", NOW + 120), NOW + 3600)
        self.assertEqual(self.memory.closed(NOW), {"a": NOW + 3600})

    def test_a_gate_the_store_refused_holds(self) -> None:
        """
        F74: a store that answers readings but takes no gate is reported, and the gate still holds.
        """
        self.store.full = True
        self.assertEqual(self.close("a", NOW + 60), NOW + 60)
        self.assertEqual(self.actions(), ["gate_not_written"])
        self.assertEqual(self.read("a", "b", at=NOW + 1), {"a": NOW + 60})
        self.assertTrue(self.memory.reachable)
        self.assertEqual(self.read("a", at=NOW + 59), {"a": NOW + 60})
        self.assertEqual(self.read("a", at=NOW + 60), {})
        self.assertEqual(self.memory.half_open, {"a"})

    def test_closing_ends_half_open(self) -> None:
        """
        A key is closed or half-open, never both.
        """
        self.store.gates = {"a": NOW + 10}
        self.read("a")
        self.read("a", at=NOW + 10)
        self.close("a", NOW + 70, at=NOW + 11)
        self.assertEqual(self.memory.half_open, frozenset())


class BoundsTests(_Case):
    """
    What is remembered, and for how long.
    """

    def test_the_next_opening(self) -> None:
        """
        The earliest gate that has not passed; None when all have.
        """
        self.store.gates = {"a": NOW + 100, "b": NOW + 50}
        self.read("a", "b", "c")
        self.assertEqual(self.memory.next_opening(NOW), NOW + 50)
        self.assertEqual(self.memory.next_opening(NOW + 50), NOW + 100)
        self.assertIsNone(self.memory.next_opening(NOW + 100))
        self.assertEqual(self.memory.closed(NOW + 60), {"a": NOW + 100})

    def test_open_keys_leave_no_trace(self) -> None:
        """
        Ten thousand keys that were never closed take no memory.
        """
        self.read(*(f"key {number}" for number in range(10_000)))
        self.assertEqual(self.memory._known, {})

    def test_what_nobody_asks_for_is_forgotten(self) -> None:
        """
        Passed gates, half-open keys and garbage go when their key was not asked for any more; a
        gate that is still closed stays.
        """
        self.store.gates = {"a": NOW + 10, "b": NOW + 10, "long": NOW + 86_400}
        self.store.garbage = {"c": "?"}
        self.read("a", "b", "c", "long")
        self.read("b", at=NOW + 10)
        self.assertEqual(set(self.memory._known), {"a", "b", "c", "long"})
        self.read("other", at=NOW + 10 + FORGET_AFTER + 1)
        self.assertEqual(set(self.memory._known), {"long"})

    def test_an_opened_key_is_forgotten_at_once(self) -> None:
        """
        After half-open nothing is left to know.
        """
        self.store.gates = {"a": NOW + 10}
        self.read("a")
        self.read("a", at=NOW + 10)
        self.memory.ended("a")
        self.read("a", at=NOW + 11)
        self.assertEqual(self.memory._known, {})


class RestartTests(_Case):
    """
    What a process before this one has seen.
    """

    def test_a_gate_that_passed_meanwhile_is_half_open(self) -> None:
        """
        It is not asked again whether it was seen to pass; one of its key goes first.
        """
        self.memory.remember({"a": NOW - 5, "b": NOW + 10}, NOW)
        self.assertEqual(self.memory.half_open, {"a"})
        self.assertEqual(self.memory.closed(NOW), {"b": NOW + 10})
        self.assertEqual(self.read("a", "b"), {})  # the store is right: somebody opened b
        self.assertEqual(self.memory.half_open, {"a", "b"})
        self.memory.ended("a")
        self.read("a", "b", at=NOW + 1)
        self.assertEqual(self.memory.half_open, {"b"})

    def test_what_is_known_already_stays(self) -> None:
        """
        The longer gate counts, and what is closed is not made half-open by an older closing.
        """
        self.store.gates = {"a": NOW + 60}
        self.read("a")
        self.memory.remember({"a": NOW + 10}, NOW)
        self.assertEqual(self.memory.closed(NOW), {"a": NOW + 60})
        self.memory.remember({"a": NOW - 10}, NOW)
        self.assertEqual(self.memory.closed(NOW), {"a": NOW + 60})
        self.assertEqual(self.memory.half_open, frozenset())

    def test_a_restart_during_an_outage(self) -> None:
        """
        With the store away, the gates of the history hold until their time.
        """
        self.store.away = GatesUnreachable("refused")
        self.memory.remember({"a": NOW + 60}, NOW)
        self.assertEqual(self.read("a"), {"a": NOW + 60})
        self.assertEqual(self.read("a", at=NOW + 60), {})
        self.assertEqual(self.memory.half_open, {"a"})


class NewsTests(_Case):
    """
    What the history of gates is told.
    """

    def test_each_change_is_told_once(self) -> None:
        """
        A gate found closed, or closed for longer, and that one has passed; nothing in between.
        """
        self.assertEqual(self.memory.news(), ({}, False))
        self.store.gates = {"a": NOW + 10}
        self.read("a", "b")
        self.assertEqual(self.memory.news(), ({"a": (NOW + 10, FOUND)}, False))
        self.read("a", "b", at=NOW + 1)
        self.assertEqual(self.memory.news(), ({}, False))
        self.store.gates = {"a": NOW + 20}
        self.read("a", at=NOW + 2)
        self.assertEqual(self.memory.news(), ({"a": (NOW + 20, FOUND)}, False))
        self.read("a", at=NOW + 20)
        self.assertEqual(self.memory.news(), ({}, True))
        self.assertEqual(self.memory.news(), ({}, False))

    def test_garbage_is_told_as_such(self) -> None:
        """
        A key that is closed for a value nobody can read has that cause.
        """
        self.store.garbage = {"a": "?"}
        self.read("a")
        found, _ = self.memory.news()
        self.assertEqual(found, {"a": (NOW + UNREADABLE_FOR, FOUND_UNREADABLE)})

    def test_a_gate_that_passes_during_an_outage_is_told(self) -> None:
        """
        Its time is over, whoever is away.
        """
        self.store.gates = {"a": NOW + 10}
        self.read("a")
        self.memory.news()
        self.store.away = GatesUnreachable("refused")
        self.read("a", at=NOW + 10)
        self.assertEqual(self.memory.news(), ({}, True))

    def test_what_one_of_several_servers_saw_is_believed(self) -> None:
        """
        An outage of some servers closes what the others say is closed, and opens nothing.
        """
        self.store.gates = {"a": NOW + 10}
        self.read("a")
        self.store.away = GatesUnreachable("refused", seen=GateReading({"b": NOW + 30}))
        self.assertEqual(self.read("a", "b", at=NOW + 1), {"a": NOW + 10, "b": NOW + 30})
        self.assertFalse(self.memory.reachable)
