"""
The report and its one word.
"""

from __future__ import annotations

import json
from typing import Any

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from crq import status
from crq.model import (
    Controls,
    GateReading,
    Hold,
    InFlight,
    Lane,
    LaneHead,
    Limits,
    Plan,
    Reason,
    Status,
)
from crq.pulse import Beat, Pulse
from crq.records import Depth
from crq.status import Reading, StatusReport
from crq.verdict import Verdict, not_ready, stale_after

NOW = 1_000_000.0
LIMITS = Limits()
A, B = Lane("a", "key of a"), Lane("b", "key of b")


def reading(*heads: tuple[Lane, float], in_flight: tuple[Lane, ...] = (), **queued: int) -> Reading:
    """
    What the database says: heads by their age, what is in flight, depth by account.
    """
    by_account = queued or {lane.subdomain_hash: 1 for lane, _ in heads}
    oldest = min((NOW - age for _, age in heads), default=None)
    return Reading(
        Depth(sum(by_account.values()), False, oldest, by_account),
        tuple(LaneHead(lane, NOW - age) for lane, age in heads),
        tuple(InFlight(n, lane, Status.RUNNING) for n, lane in enumerate(in_flight)),
        {"a": "acme"},
    )


def pulse(**changes: Any) -> Pulse:
    """
    The pulse of a daemon that ticked well just now.
    """
    return Pulse(**{"started_at": NOW - 60, "last_good_monotonic": 100.0, **changes})


def report(read: Reading, closed: dict[str, float] | None = None, **more: Any) -> StatusReport:
    """
    A report with the default caps; by default of a daemon that ticks.
    """
    given = {"pulse": pulse(), "monotonic": 100.0, **more}
    return status.report(read, GateReading(closed or {}), LIMITS, NOW, **given)


class VerdictTests(SynchronousTestCase):
    """
    Stalled, idle and gated can be told apart (brief §16, F65).
    """

    def assert_verdict(self, verdict: Verdict, made: StatusReport) -> None:
        """
        Check the word, and that there is a reason.
        """
        self.assertIs(made.verdict, verdict, made.because)
        self.assertTrue(made.because)

    def test_idle(self) -> None:
        """
        Nothing waits and nothing runs.
        """
        self.assert_verdict(Verdict.IDLE, report(reading()))

    def test_flowing(self) -> None:
        """
        Something runs, or something is about to be started.
        """
        self.assert_verdict(Verdict.FLOWING, report(reading(in_flight=(A,))))
        self.assert_verdict(Verdict.FLOWING, report(reading((A, 1.0))))
        self.assert_verdict(Verdict.FLOWING, report(reading((A, 900.0), in_flight=(A, A))))

    def test_gated(self) -> None:
        """
        All that waits is behind a closed gate, whatever else runs; one open lane is enough to flow.
        """
        closed = {"key of a": NOW + 60}
        self.assert_verdict(Verdict.GATED, report(reading((A, 900.0)), closed))
        self.assert_verdict(Verdict.GATED, report(reading((A, 900.0), in_flight=(B,)), closed))
        self.assert_verdict(Verdict.FLOWING, report(reading((A, 900.0), (B, 1.0)), closed))
        self.assert_verdict(Verdict.FLOWING, report(reading((A, 900.0)), {"key of a": NOW}))

    def test_half_open_key_counts_as_gated(self) -> None:
        """
        While one execution tries the key, the others still wait for its gate.
        """
        made = report(reading((A, 900.0), in_flight=(A,)), half_open=["key of a"])
        self.assert_verdict(Verdict.GATED, made)

    def test_saturated(self) -> None:
        """
        Every slot is taken and something waits.
        """
        full = (A, A, B, B)
        self.assert_verdict(Verdict.SATURATED, report(reading((A, 1.0), in_flight=full)))
        self.assert_verdict(Verdict.FLOWING, report(reading(in_flight=full)))

    def test_saturated_is_not_gated(self) -> None:
        """
        Slots do not matter to what waits behind a gate: that it is gated says more.
        """
        made = report(reading((A, 1.0), in_flight=(A, A, B, B)), {"key of a": NOW + 1})
        self.assert_verdict(Verdict.GATED, made)

    def test_degraded_without_good_ticks(self) -> None:
        """
        A daemon whose ticks fail is degraded, even when nothing waits; the proof names the drainer.
        """
        for changes in ({"last_good_monotonic": 95.0}, {"last_good_monotonic": None}):
            for read in (reading(), reading((A, 1.0))):
                made = report(read, pulse=pulse(**changes))
                self.assert_verdict(Verdict.DEGRADED, made)
                self.assertEqual(
                    [(p.kind, p.name) for p in made.proof], [("dependency", "drainer")]
                )

    def test_stalled(self) -> None:
        """
        Something could start, and nothing has for ten seconds; a second less is still in order.
        """
        for since, word in ((90.0, Verdict.STALLED), (90.1, Verdict.FLOWING)):
            made = report(reading((A, 31.0)), pulse=pulse(unstarted_since=since))
            self.assert_verdict(word, made)
        # Whatever the drainer thinks: nothing waits, or what waits is held.
        stuck = pulse(unstarted_since=0.0)
        self.assert_verdict(Verdict.IDLE, report(reading(), pulse=stuck))
        gated = report(reading((A, 31.0)), {"key of a": NOW + 1}, pulse=stuck)
        self.assert_verdict(Verdict.GATED, gated)

    def test_an_executor_that_takes_no_work(self) -> None:
        """
        Degraded at once, stalled when it lasts; with nothing queued nobody needs it.
        """
        alarmed = pulse(alarm="refused")
        self.assert_verdict(Verdict.DEGRADED, report(reading((A, 1.0)), pulse=alarmed))
        self.assert_verdict(Verdict.IDLE, report(reading(), pulse=alarmed))
        self.assert_verdict(Verdict.FLOWING, report(reading(in_flight=(A,)), pulse=alarmed))
        made = report(reading((A, 31.0)), pulse=pulse(alarm="refused", unstarted_since=80.0))
        self.assert_verdict(Verdict.STALLED, made)
        self.assertIn("executor", made.because)

    def test_gates_that_do_not_answer(self) -> None:
        """
        Degraded while something waits; with nothing queued nobody needs them.
        """
        away = pulse(gates_reachable=False)
        self.assert_verdict(Verdict.DEGRADED, report(reading((A, 1.0)), pulse=away))
        self.assert_verdict(Verdict.IDLE, report(reading(), pulse=away))
        made = status.report(
            *(reading(), GateReading(unreadable={"k": "junk"}), LIMITS, NOW),
            pulse=pulse(),
            monotonic=100.0,
        )
        self.assert_verdict(Verdict.DEGRADED, made)

    def test_paused_work_is_held_on_purpose(self) -> None:
        """
        What an operator has paused is gated, not stalled, and the proof says so.
        """
        for controls, scope in (
            (Controls(everything=True), "all"),
            (Controls(draining=True), "drain"),
            (Controls(accounts=frozenset("a")), "account"),
            (Controls(keys=frozenset(["key of a"])), "key"),
        ):
            made = report(evolve(reading((A, 99.0)), controls=controls))
            self.assert_verdict(Verdict.GATED, made)
            self.assertEqual([p.detail for p in made.proof], [f"paused: {scope}"])

    def test_stalled_as_seen_from_outside(self) -> None:
        """
        With no drainer alive, startable work that waits says it, and gated work does not.
        """
        dead: dict[str, Any] = {"beats": (Beat("d1", NOW - 900, NOW - 31, 0.1),)}
        for old, word in (
            (reading((A, 10.0)), Verdict.STALLED),
            (reading((A, 9.0)), Verdict.DEGRADED),
            (reading(), Verdict.DEGRADED),
            (evolve(reading((A, 99.0)), last_start=NOW - 9), Verdict.DEGRADED),
            (evolve(reading((A, 99.0)), last_start=NOW - 10), Verdict.STALLED),
            (reading((A, 99.0), in_flight=(B,)), Verdict.STALLED),
            (reading((A, 99.0), in_flight=(A, A)), Verdict.DEGRADED),
        ):
            self.assert_verdict(word, report(evolve(old, **dead), pulse=None))
        gated = report(evolve(reading((A, 99.0)), **dead), {"key of a": NOW + 1}, pulse=None)
        self.assert_verdict(Verdict.DEGRADED, gated)
        self.assert_verdict(Verdict.STALLED, report(reading((A, 99.0)), pulse=None))

    def test_a_living_drainer_knows_better(self) -> None:
        """
        Seen from outside, what its beat says about starts counts: a gate may just have opened.
        """
        old = reading((A, 3600.0))
        for unstarted, word in (
            (None, Verdict.FLOWING),
            (9.9, Verdict.FLOWING),
            (10.0, Verdict.STALLED),
        ):
            beat = Beat("d1", NOW - 900, NOW - 29, 0.1, unstarted)
            self.assert_verdict(word, report(evolve(old, beats=(beat,)), pulse=None))
        both = (Beat("d1", NOW, NOW, 0.1, 60.0), Beat("d2", NOW, NOW, 0.1, None))
        self.assert_verdict(Verdict.FLOWING, report(evolve(old, beats=both), pulse=None))

    def test_a_beat_of_the_future_is_not_believed(self) -> None:
        """
        After the wall clock was stepped back, a dead drainer does not look alive for an hour.
        """
        beat = Beat("d1", NOW, NOW + 3600, 0.1)
        made = report(evolve(reading(), beats=(beat,)), pulse=None)
        self.assert_verdict(Verdict.DEGRADED, made)

    def test_one_dead_drainer_of_two(self) -> None:
        """
        Work flows, and that one of the drainers is gone is said by its name.
        """
        beats = (Beat("d1", NOW, NOW, 0.1), Beat("d2", NOW, NOW - 60, 0.1))
        made = report(evolve(reading(in_flight=(A,)), beats=beats), pulse=None)
        self.assert_verdict(Verdict.DEGRADED, made)
        self.assertIn("d2", made.because)


class ReadinessTests(SynchronousTestCase):
    """
    `not_ready`.
    """

    def test_five_seconds_or_five_ticks(self) -> None:
        """
        Whichever is longer.
        """
        self.assertEqual((stale_after(0.1), stale_after(1.0), stale_after(2.0)), (5.0, 5.0, 10.0))
        self.assertIsNone(not_ready(pulse(), 109.9, 2.0))
        self.assertIn("10.0 s", not_ready(pulse(), 110.0, 2.0) or "")


class ReportTests(SynchronousTestCase):
    """
    `report`.
    """

    def test_ages_are_never_negative(self) -> None:
        """
        A host whose clock is ahead does not make the oldest wait less than no time.
        """
        self.assertEqual(report(reading((A, -5.0))).oldest_queued_age, 0.0)
        self.assertEqual(report(reading((A, 5.0))).oldest_queued_age, 5.0)
        self.assertIsNone(report(reading()).oldest_queued_age)

    def test_accounts_with_work_are_listed(self) -> None:
        """
        Those that wait and those that run, the deepest first, by name where it is known.
        """
        made = report(reading((A, 1.0), (B, 1.0), in_flight=(A, A), a=3, b=7))
        found = [(a.subdomain_hash, a.subdomain, a.queued, a.in_flight) for a in made.accounts]
        self.assertEqual(found, [("b", None, 7, 0), ("a", "acme", 3, 2)])
        self.assertEqual((made.depth, made.in_flight), (10, 2))

    def test_holds_are_counted_by_reason(self) -> None:
        """
        The plan's reasons, and those that only the drainer knows.
        """
        closed = {"key of a": NOW + 60}
        backing_off = Plan(
            holds=(
                Hold(B, NOW, Reason.BACKING_OFF),
                Hold(A, NOW, Reason.BACKING_OFF),  # gated by now
                Hold(Lane("c", None), NOW, Reason.BACKING_OFF),  # waits no more
            )
        )
        made = report(
            reading((A, 1.0), (B, 1.0), in_flight=(B,)), closed, pulse=pulse(plan=backing_off)
        )
        self.assertEqual(dict(made.holds), {Reason.GATED: 1, Reason.BACKING_OFF: 1})

    def test_passed_gates_are_not_closed(self) -> None:
        """
        Only gates that hold now are shown, with those who wait behind them.
        """
        made = report(reading((A, 1.0)), {"key of a": NOW + 1, "key of b": NOW})
        found = [(gate.apikey_hash, gate.until, gate.accounts) for gate in made.gates]
        self.assertEqual(found, [("key of a", NOW + 1, ("a",))])

    def test_limited_view_shows_nothing_of_others(self) -> None:
        """
        Accounts, numbers and gates of others are gone, and so are the daemon's affairs (ruling 17).
        """
        made = report(
            reading((A, 1.0), (B, 9.0), in_flight=(B,), a=3, b=7),
            {"key of a": NOW + 1, "key of b": NOW + 1},
            pulse=pulse(last_error="sesame", alarm="sesame"),
        )
        limited = made.limited_to({"a"})
        text = json.dumps(status.as_json(limited))
        self.assertNotIn("sesame", text)
        self.assertEqual((limited.drainers, limited.startable, limited.last_start), ((), (), None))
        self.assertNotIn("key of b", text)
        self.assertNotIn('"b"', text)
        self.assertEqual((limited.depth, limited.in_flight), (3, 0))
        self.assertEqual([gate.apikey_hash for gate in limited.gates], ["key of a"])
        self.assertIs(limited.verdict, made.verdict)
        empty = made.limited_to(())
        self.assertEqual((empty.depth, empty.accounts, empty.gates), (0, (), ()))

    def test_json_names_its_units(self) -> None:
        """
        Instants in RFC 3339, ages in seconds, and the daemon's part only where there is one.
        """
        shown = status.as_json(report(reading((A, 1.5)), monotonic=102.5))
        self.assertEqual(shown["at"], "1970-01-12T13:46:40.000Z")
        self.assertEqual((shown["oldestQueuedAge"], shown["daemon"]["lastGoodAge"]), (1.5, 2.5))
        self.assertIsNone(status.as_json(report(reading(), pulse=None))["daemon"])

    @given(
        st.lists(st.tuples(st.sampled_from([A, B, Lane("a", None)]), st.floats(-1e5, 1e5))),
        st.lists(st.sampled_from([A, B]), max_size=6),
        st.dictionaries(st.sampled_from(["key of a", "key of b"]), st.floats(0, 2 * NOW)),
        st.booleans(),
    )
    @settings(max_examples=100, deadline=None)
    def test_every_reading_makes_a_report(
        self,
        heads: list[tuple[Lane, float]],
        flights: list[Lane],
        closed: dict[str, float],
        alarm: bool,
    ) -> None:
        """
        A report is made and can be sent, whatever was read.
        """
        read = reading(*dict(heads).items(), in_flight=tuple(flights))
        made = report(read, closed, pulse=pulse(alarm="x" if alarm else None))
        json.dumps(status.as_json(made), allow_nan=False)
        json.dumps(status.as_json(made.limited_to({"a"})), allow_nan=False)
