"""
What systemd is told, tick by tick.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from crq import verdict
from crq.model import Hold, InFlight, Lane, Limits, Plan, Reason, Status, Take
from crq.notify import Notify
from crq.pulse import Ended, Pulse
from crq.supervision import STATUS_EVERY, Supervision
from crq.verdict import Verdict

LANE = Lane("a", "key")
RUNNING = InFlight(1, LANE, Status.RUNNING)


@define(eq=False, slots=False)
class Heard(Notify):
    """
    A manager that listens.

    :ivar deaf: it takes nothing.
    """

    address: str | None = "@heard"
    words: list[str] = field(factory=list)
    deaf: bool = False

    def send(self, *words: str) -> bool:
        if self.deaf or not words:
            return False
        self.words += words
        return True

    def take(self) -> list[str]:
        """
        What has been heard since the last look, without the lines of status.
        """
        words, self.words = self.words, []
        return [word for word in words if not word.startswith("STATUS=")]

    def status(self) -> str | None:
        """
        The newest line of status.
        """
        lines = [word for word in self.words if word.startswith("STATUS=")]
        return lines[-1].removeprefix("STATUS=") if lines else None


class _Case(SynchronousTestCase):
    watchdog: float | None = 60.0
    tick = 1.0

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(1000.0)
        self.pulse = Pulse(0.0)
        self.heard = Heard()
        self.limits = Limits()
        self.queued: Any = succeed(False)
        self.asked = 0
        self.supervision = Supervision(
            notify=self.heard,
            watchdog=self.watchdog,
            pulse=self.pulse,
            clock=self.clock,
            limits=lambda: self.limits,
            tick=self.tick,
            waits=self.waits,
        )

    def waits(self) -> Deferred[bool]:
        self.asked += 1
        answer: Deferred[bool] = self.queued
        return answer

    def start(self) -> None:
        self.supervision.startService()
        self.heard.take()

    def ticked(self, ended: Ended = Ended.WELL) -> list[str]:
        """
        Let a tick end; returns what was said.
        """
        if ended is Ended.WELL:
            self.pulse.last_error = None
            self.pulse.last_good_monotonic = self.clock.seconds()
        else:
            self.pulse.last_error = "wrong"
        self.supervision.ticked(ended)
        return self.heard.take()


class ReadyTests(_Case):
    """
    READY, and time to get there.
    """

    def test_ready_is_the_first_good_tick(self) -> None:
        """
        READY comes once, with the first tick that ended well, and not with the start.
        """
        self.supervision.startService()
        self.assertEqual(self.heard.take(), [])
        self.assertEqual(self.ticked(), ["READY=1", "WATCHDOG=1"])
        self.assertEqual(self.ticked(), ["WATCHDOG=1"])

    def test_an_outage_asks_for_more_time(self) -> None:
        """
        Until then a tick that knows of an outage asks the manager to wait; afterwards it does not.
        """
        self.start()
        more = ["EXTEND_TIMEOUT_USEC=60000000", "WATCHDOG=1"]
        self.assertEqual(self.ticked(Ended.OUTAGE), more)
        self.assertEqual(self.ticked(Ended.OUTAGE), more)
        self.assertEqual(self.ticked(), ["READY=1", "WATCHDOG=1"])
        self.assertEqual(self.ticked(Ended.OUTAGE), ["WATCHDOG=1"])

    def test_a_fault_of_another_kind_asks_for_nothing(self) -> None:
        """
        A start that cannot end well runs into the manager's limit.
        """
        self.start()
        self.assertEqual(self.ticked(Ended.BADLY), [])

    def test_ready_is_said_until_it_is_taken(self) -> None:
        """
        A manager whose queue is full is told again.
        """
        self.start()
        self.heard.deaf = True
        self.assertEqual(self.ticked(), [])
        self.heard.deaf = False
        self.assertEqual(self.ticked(), ["READY=1", "WATCHDOG=1"])


class WatchdogTests(_Case):
    """
    The pings.
    """

    def test_time_alone_pings_nobody(self) -> None:
        """
        A reactor that turns while no tick ends says nothing, however long.
        """
        self.start()
        self.ticked()
        self.clock.pump([1.0] * 600)
        self.assertEqual(self.heard.take(), [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_an_outage_is_alive_and_a_fault_is_not(self) -> None:
        """
        A restart does not help against an outage; against a fault of the process it may.
        """
        self.start()
        self.ticked()
        self.assertEqual(self.ticked(Ended.OUTAGE), ["WATCHDOG=1"])
        self.assertEqual(self.ticked(Ended.BADLY), [])


class UnwatchedTests(_Case):
    """
    A unit without WatchdogSec.
    """

    watchdog = None

    def test_no_watchdog_no_ping(self) -> None:
        """
        READY and STATUS are sent all the same.
        """
        self.start()
        self.assertEqual(self.ticked(), ["READY=1"])
        self.assertEqual(self.ticked(), [])


class SlowTests(_Case):
    """
    A watchdog that is shorter than some ticks.
    """

    watchdog = 20.0
    tick = 10.0

    def test_it_is_said_at_the_start(self) -> None:
        """
        The log names both numbers, before the manager ends a daemon that is well.
        """
        with capturedLogs() as events:
            self.supervision.startService()
        (event,) = (event for event in events if event.get("action") == "watchdog too short")
        self.assertEqual((event["watchdog"], event["tick"]), (20.0, 10.0))


class ReloadTests(_Case):
    """
    RELOADING and READY.
    """

    def test_a_reload_has_a_begin_and_an_end(self) -> None:
        """
        RELOADING carries the monotonic instant, which is how a manager tells the READY behind it.
        """
        self.start()
        self.ticked()
        self.supervision.reloading()
        self.assertEqual(self.heard.take(), ["RELOADING=1", "MONOTONIC_USEC=1000000000"])
        self.supervision.reloaded()
        self.assertEqual(self.heard.take(), ["READY=1"])
        self.assertEqual(self.ticked(), ["WATCHDOG=1"])

    def test_an_end_that_was_not_heard_is_said_again(self) -> None:
        """
        Else the unit would be reloading for ever.
        """
        self.start()
        self.ticked()
        self.supervision.reloading()
        self.heard.deaf = True
        self.supervision.reloaded()
        self.heard.deaf = False
        self.heard.take()
        self.assertEqual(self.ticked(), ["READY=1", "WATCHDOG=1"])

    def test_a_reload_makes_nobody_ready(self) -> None:
        """
        Before the first good tick and after the last one a reload says nothing.
        """
        self.start()
        self.supervision.reloading()
        self.supervision.reloaded()
        self.assertEqual(self.heard.take(), [])
        self.ticked()
        self.supervision.stopService()
        self.heard.take()
        self.supervision.reloading()
        self.supervision.reloaded()
        self.assertEqual(self.heard.take(), [])


class StatusTests(_Case):
    """
    STATUS and STOPPING.
    """

    def test_the_line_is_the_verdict(self) -> None:
        """
        One word and the reason, as everywhere.
        """
        self.supervision.startService()
        self.assertEqual(self.heard.status(), "starting")
        self.pulse.plan = Plan(holds=(Hold(LANE, 0.0, Reason.GATED, 1060.0),))
        self.pulse.last_good_monotonic = self.clock.seconds()
        self.supervision.ticked(Ended.WELL)
        self.assertEqual(self.heard.status(), "gated: all that waits is behind a closed gate")

    def test_the_line_is_sent_when_it_changes(self) -> None:
        """
        Not with each tick, and not more often than each five seconds.
        """
        self.start()
        self.supervision.ticked(Ended.WELL)
        self.heard.words.clear()
        self.pulse.plan = Plan(takes=(Take(LANE, 0.0, 1),))
        self.pulse.last_good_monotonic = self.clock.seconds()
        self.supervision.ticked(Ended.WELL)
        self.assertIsNone(self.heard.status())
        for expected in ("flowing: work is being started", None):
            self.clock.advance(STATUS_EVERY)
            self.pulse.last_good_monotonic = self.clock.seconds()
            self.supervision.ticked(Ended.WELL)
            self.assertEqual(self.heard.status(), expected)
            self.heard.words.clear()

    def test_full_slots_ask_the_rows(self) -> None:
        """
        With all slots taken the plan has not looked at what waits, so the rows are asked.
        """
        self.supervision.startService()
        self.pulse.in_flight = (RUNNING,) * 4
        self.queued = succeed(True)
        self.pulse.last_good_monotonic = self.clock.seconds()
        self.supervision.ticked(Ended.WELL)
        self.assertEqual(self.asked, 1)
        self.assertEqual(self.heard.status(), "saturated: all 4 slots are taken and work waits")

    def test_rows_that_do_not_answer_end_nothing(self) -> None:
        """
        A question that fails, or is still open, costs a line of status and no ping.
        """
        self.supervision.startService()
        self.queued = fail(OSError("gone"))
        self.pulse.last_good_monotonic = self.clock.seconds()
        self.supervision.ticked(Ended.WELL)
        self.assertEqual(self.heard.status(), "idle: nothing waits and nothing runs")
        self.queued = Deferred()
        self.heard.take()
        for _ in range(3):
            self.clock.advance(STATUS_EVERY)
            self.assertEqual(self.ticked(), ["WATCHDOG=1"])
        self.assertEqual(self.asked, 2)

    def test_an_outage_shows(self) -> None:
        """
        While ticks fail the line says for how long; the rows are not asked.
        """
        self.start()
        self.ticked()
        for age in (7.0, 12.0):
            self.clock.advance(age - (self.clock.seconds() - 1000.0))
            self.pulse.last_error = "away"
            self.supervision.ticked(Ended.OUTAGE)
            self.assertIn(f"no tick has ended well for {age} s", self.heard.status() or "")
        self.assertEqual(self.asked, 1)

    def test_another_end_shows_at_once(self) -> None:
        """
        Whoever looks after an outage is over does not read that it lasts.
        """
        self.start()
        self.supervision.ticked(Ended.OUTAGE)
        self.assertIn("no tick has ended well yet", self.heard.status() or "")
        self.clock.advance(1.0)
        self.pulse.last_good_monotonic = self.clock.seconds()
        self.supervision.ticked(Ended.WELL)
        self.assertEqual(self.heard.status(), "idle: nothing waits and nothing runs")

    def test_the_end(self) -> None:
        """
        STOPPING says that it is meant, and nothing is said afterwards.
        """
        self.start()
        self.pulse.in_flight = (RUNNING,)
        self.supervision.stopService()
        self.assertEqual(self.heard.words, ["STOPPING=1", "STATUS=stopping, 1 in flight"])
        self.heard.words.clear()
        self.assertEqual(self.ticked(), [])

    def test_without_a_manager_nothing_is_asked(self) -> None:
        """
        A daemon that nobody supervises does no work for it.
        """
        self.heard.address = None
        self.start()
        self.ticked()
        self.assertEqual(self.asked, 0)


class VerdictTests(SynchronousTestCase):
    """
    The word from a pulse alone.
    """

    def of(self, waits: bool = False, **changes: Any) -> Verdict:
        pulse = Pulse(0.0, last_good_monotonic=10.0, **changes)
        return verdict.of_pulse(pulse, Limits(in_flight=2), 10.0, 1.0, waits)[0]

    def test_the_words(self) -> None:
        """
        The same words as those of a report.
        """
        self.assertIs(self.of(), Verdict.IDLE)
        self.assertIs(self.of(in_flight=(RUNNING,)), Verdict.FLOWING)
        self.assertIs(self.of(waits=True, in_flight=(RUNNING,) * 2), Verdict.SATURATED)
        self.assertIs(self.of(in_flight=(RUNNING,) * 2), Verdict.FLOWING)
        self.assertIs(self.of(waits=True, alarm="refused"), Verdict.DEGRADED)
        self.assertIs(self.of(alarm="refused"), Verdict.IDLE)
        self.assertIs(self.of(plan=Plan(takes=(Take(LANE, 0.0, 1),))), Verdict.FLOWING)
        held = Plan(holds=(Hold(LANE, 0.0, Reason.HALF_OPEN),))
        self.assertIs(self.of(plan=held), Verdict.GATED)
        self.assertIs(self.of(draining=True), Verdict.DEGRADED)
