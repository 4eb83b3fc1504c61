"""
The rules, as tables and as properties.
"""

from __future__ import annotations

from collections import Counter

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from crq import policy
from crq.messages import Answered, DispatchResult, Lost, NotSent, Outcome, RowState, Settlement
from crq.model import (
    Candidate,
    ErrorCode,
    InFlight,
    Lane,
    LaneHead,
    Limits,
    Reason,
    Snapshot,
    Status,
)

NOW = 1_000_000.0

accounts = st.sampled_from("abcde")
keys = st.sampled_from(["k1", "k2", "k3", None])
lanes = st.builds(Lane, accounts, keys)
instants = st.integers(0, 99).map(float)
limits = st.integers(1, 8).flatmap(
    lambda total: st.builds(Limits, st.just(total), st.integers(1, total))
)


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[Candidate], list[InFlight], dict[str, float], Limits]:
    """
    Queued rows, rows in flight under the caps, gates and caps.
    """
    caps = draw(limits)
    queued = [
        Candidate(number, number, lane, at)
        for number, (lane, at) in enumerate(
            draw(st.lists(st.tuples(lanes, instants), max_size=30, unique_by=lambda row: row[1]))
        )
    ]
    flights: list[InFlight] = []
    used: Counter[str] = Counter()
    for lane in draw(st.lists(lanes, max_size=caps.in_flight)):
        if used[lane.subdomain_hash] < caps.per_account:
            used[lane.subdomain_hash] += 1
            flights.append(InFlight(1000 + len(flights), lane, Status.RUNNING))
    gates = draw(
        st.dictionaries(st.sampled_from(["k1", "k2"]), st.sampled_from([NOW - 1, NOW, NOW + 1]))
    )
    return queued, flights, gates, caps


def heads_of(queued: list[Candidate]) -> tuple[LaneHead, ...]:
    oldest: dict[Lane, float] = {}
    for row in queued:
        oldest[row.lane] = min(row.queued_at, oldest.get(row.lane, row.queued_at))
    return tuple(LaneHead(lane, at) for lane, at in oldest.items())


def started_by_plan(
    queued: list[Candidate], flights: list[InFlight], gates: dict[str, float], caps: Limits
) -> list[Candidate]:
    """
    What a tick would start: plan, lane reads, pick.
    """
    plan = policy.plan(Snapshot(heads_of(queued), tuple(flights)), gates, caps, NOW)
    candidates: list[Candidate] = []
    for take in plan.takes:
        lane = [row for row in queued if row.lane == take.lane and row.queued_at >= take.queued_at]
        lane.sort(key=lambda row: (row.queued_at, row.execution_id))
        candidates += lane[: take.at_most]
    return list(policy.pick(candidates, flights, caps))


def started_by_hand(
    queued: list[Candidate], flights: list[InFlight], gates: dict[str, float], caps: Limits
) -> list[Candidate]:
    """
    What a walk over every row, oldest first, would start.
    """
    used = Counter(flight.lane.subdomain_hash for flight in flights)
    free = caps.in_flight - len(flights)
    chosen: list[Candidate] = []
    for row in sorted(queued, key=lambda row: (row.queued_at, row.execution_id)):
        gated = gates.get(row.lane.apikey_hash or "", 0.0) > NOW
        if len(chosen) < free and not gated and used[row.lane.subdomain_hash] < caps.per_account:
            used[row.lane.subdomain_hash] += 1
            chosen.append(row)
    return chosen


class PlanProperties(SynchronousTestCase):
    """
    `plan` and `pick` over random queues.
    """

    @given(queues())
    @settings(max_examples=400, deadline=None)
    def test_a_plan_by_lanes_is_a_walk_over_rows(
        self, queue: tuple[list[Candidate], list[InFlight], dict[str, float], Limits]
    ) -> None:
        """
        Looking at lane heads alone starts exactly what first-in-first-out under the caps would:
        so the caps hold, no gated key starts, and no startable row waits while a slot is free.
        """
        self.assertEqual(started_by_plan(*queue), started_by_hand(*queue))

    @given(queues(), st.integers(1, 40))
    @settings(max_examples=200, deadline=None)
    def test_rows_of_one_instant_fill_the_slots_too(
        self,
        queue: tuple[list[Candidate], list[InFlight], dict[str, float], Limits],
        blur: int,
    ) -> None:
        """
        When many lanes have heads of the same millisecond, which of them goes first is open; the
        instants that start are the same, and inside a lane the lower id goes first.
        """
        queued, flights, gates, caps = queue
        queued = [evolve(row, queued_at=row.queued_at // blur) for row in queued]
        planned = started_by_plan(queued, flights, gates, caps)
        by_hand = started_by_hand(queued, flights, gates, caps)
        self.assertEqual(len(planned), len(by_hand))
        for row in planned:
            older = [
                other
                for other in queued
                if other.lane == row.lane
                and (other.queued_at, other.execution_id) < (row.queued_at, row.execution_id)
            ]
            self.assertTrue(all(other in planned for other in older))

    @given(queues())
    @settings(max_examples=200, deadline=None)
    def test_every_head_is_taken_or_held(
        self, queue: tuple[list[Candidate], list[InFlight], dict[str, float], Limits]
    ) -> None:
        """
        No head disappears: it is either started from or held with a reason that is true.
        """
        queued, flights, gates, caps = queue
        heads = heads_of(queued)
        plan = policy.plan(Snapshot(heads, tuple(flights)), gates, caps, NOW)
        named = [take.lane for take in plan.takes] + [hold.lane for hold in plan.holds]
        self.assertEqual(Counter(named), Counter(head.lane for head in heads))
        for hold in plan.holds:
            gated = gates.get(hold.lane.apikey_hash or "", 0.0) > NOW
            self.assertEqual(hold.reason is Reason.GATED, gated)


def head(account: str = "a", key: str | None = "k", at: float = 1.0) -> LaneHead:
    return LaneHead(Lane(account, key), at)


def flight(account: str = "a", key: str | None = "k") -> InFlight:
    return InFlight(1, Lane(account, key), Status.RUNNING)


class PlanTests(SynchronousTestCase):
    """
    `plan`, case by case.
    """

    def reasons(
        self,
        heads: list[LaneHead],
        flights: list[InFlight],
        gates: dict[str, float] | None = None,
        half_open: frozenset[str] = frozenset(),
        backing_off: dict[Lane, float] | None = None,
    ) -> list[tuple[Reason, float | None]]:
        plan = policy.plan(
            Snapshot(tuple(heads), tuple(flights)),
            gates or {},
            Limits(),
            NOW,
            half_open=half_open,
            backing_off=backing_off,
        )
        return [(hold.reason, hold.until) for hold in plan.holds]

    def test_reasons(self) -> None:
        """
        Each reason to wait is named, with the instant it ends at where that is known.
        """
        later = NOW + 9
        a = [flight(), flight()]
        full = [*a, flight("b"), flight("b")]
        self.assertEqual(self.reasons([head()], [], {"k": later}), [(Reason.GATED, later)])
        self.assertEqual(self.reasons([head()], a), [(Reason.ACCOUNT_FULL, None)])
        self.assertEqual(self.reasons([head("c")], full), [(Reason.POOL_FULL, None)])
        half = frozenset({"k"})
        self.assertEqual(
            self.reasons([head("c")], [flight()], half_open=half), [(Reason.HALF_OPEN, None)]
        )
        self.assertEqual(
            self.reasons([head()], [], backing_off={head().lane: later}),
            [(Reason.BACKING_OFF, later)],
        )

    def test_a_gate_that_has_passed_is_open(self) -> None:
        """
        At the very instant a gate ends, its key starts.
        """
        self.assertEqual(self.reasons([head()], [], {"k": NOW}), [])

    def test_a_half_open_key_sends_one_ahead(self) -> None:
        """
        Of a key whose gate has passed one row starts, over all accounts that share the key.
        """
        snapshot = Snapshot((head("a", at=1.0), head("b", at=2.0)))
        plan = policy.plan(snapshot, {}, Limits(), NOW, half_open={"k"})
        self.assertEqual([(t.lane.subdomain_hash, t.at_most) for t in plan.takes], [("a", 1)])
        self.assertEqual([hold.reason for hold in plan.holds], [Reason.HALF_OPEN])


class AdmissionTests(SynchronousTestCase):
    """
    The admission verdict.
    """

    def test_verdicts(self) -> None:
        """
        The account's cap is named before the total; below both a row fits.
        """
        caps = Limits(queued_per_account=500, queued_total=2000)
        for account, total, verdict in (
            (0, 0, None),
            (499, 1999, None),
            (500, 500, "account"),
            (500, 2000, "account"),
            (0, 2000, "total"),
        ):
            self.assertEqual(policy.admission(account, total, caps), verdict)


OUTCOME = Outcome(Status.SUCCESS)


class SettleTests(SynchronousTestCase):
    """
    What becomes of a row when its dispatch has ended.
    """

    def check(self, result: DispatchResult, status: str | None, what: Settlement) -> None:
        row = None if status is None else RowState(1, status, 7)
        self.assertEqual(policy.settle(result, 7, row), what, (result, status))

    def test_finished_rows_are_left_alone(self) -> None:
        """
        Whatever the answer says, a row that is over, gone or claimed anew is not touched.
        """
        for result in (Answered(200, OUTCOME), Answered(500), NotSent("refused"), Lost("reset")):
            for status in ("success", "failed", "cancelled", "queued", "odd", None):
                self.check(result, status, Settlement.NOTHING)
            anew = RowState(1, "claimed", 8)
            self.assertEqual(policy.settle(result, 7, anew), Settlement.NOTHING)

    def test_a_row_that_began_is_never_released(self) -> None:
        """
        A running row is finished by the outcome in the answer, or its worker is looked for.
        """
        self.check(Answered(200, OUTCOME), "running", Settlement.FINISH)
        for result in (Answered(200), Answered(400), Answered(504), NotSent("x"), Lost("reset")):
            self.check(result, "running", Settlement.ASK_LIVENESS)

    def test_what_speaks_of_the_executor_costs_no_row(self) -> None:
        """
        Refused, lost, redirected, unauthorised, not found, broken, or a late nonce: the row goes
        back to the queue (ruling 5).
        """
        statuses = (200, 301, 302, 303, 307, 308, 401, 403, 404, 405, 429, 500, 502, 503, 504)
        for status in statuses:
            self.check(Answered(status), "claimed", Settlement.RELEASE_AND_BACK_OFF)
        self.check(NotSent("refused"), "claimed", Settlement.RELEASE_AND_BACK_OFF)
        self.check(Lost("reset"), "claimed", Settlement.RELEASE_AND_BACK_OFF)
        for code in (ErrorCode.NONCE_MISSING, ErrorCode.NONCE_INVALID):
            answer = Answered(400, error_code=code)
            self.check(answer, "claimed", Settlement.RELEASE_AND_BACK_OFF)

    def test_what_speaks_of_the_row_fails_it(self) -> None:
        """
        400, 413 and 422 before a start are about this row.
        """
        for status in (400, 413, 422):
            self.check(Answered(status), "claimed", Settlement.FAIL)


class RetryAfterTests(SynchronousTestCase):
    """
    The one Retry-After rule (ruling 9).
    """

    def test_vectors(self) -> None:
        """
        Digits, fractions and the three dates wait as told; all else waits the default.
        """
        now = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT
        for value, wait in (
            ("120", 120),
            (" 120\t", 120),
            ("0", 5),
            ("3", 5),
            ("0.493", 5),
            ("7.2", 8),
            ("86400", 86_400),
            ("99999999", 86_400),
            ("784111900", 86_400),  # under 10^9: a duration, however long
            ("9" * 30, 86_400),
            ("Sun, 06 Nov 1994 08:51:37 GMT", 120),
            ("Sunday, 06-Nov-94 08:51:37 GMT", 120),
            ("Sun Nov  6 08:51:37 1994", 120),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 5),
            ("Sun, 06 Nov 1994 08:49:60 GMT", 22),
            ("Mon, 07 Nov 2044 08:49:37 GMT", 86_400),
            (None, 60),
            ("", 60),
            ("soon", 60),
            ("-1", 60),
            ("+5", 60),
            ("120junk", 60),
            ("120, 120", 60),
            ("1_0", 60),
            ("1e3", 60),
            ("nan", 60),
            ("inf", 60),
            ("²", 60),
            ("١٢", 60),
            ("Sun, 06 Nov 1994 08:49:36 GMT", 60),
            ("Sun, 06 Nov 1994 08:51:37", 60),
            ("Sun, 06 Nov 1994 08:51:37 CET", 60),
            ("Sun, 31 Feb 1994 08:51:37 GMT", 60),
            ("Sun, 06 Now 1994 08:51:37 GMT", 60),
            ("Sun, 06 Nov 1994 25:51:37 GMT", 60),
        ):
            self.assertEqual(policy.retry_after(value, now), wait, value)

    def test_epoch_seconds(self) -> None:
        """
        An integer above 10^9 is an instant; one in the past waits the default.
        """
        now = 1_800_000_000.0
        self.assertEqual(policy.retry_after("1800000090", now), 90)
        self.assertEqual(policy.retry_after("1799999999", now), 60)

    def test_a_two_digit_year_far_ahead_is_past(self) -> None:
        """
        Year 94 read in 2026 is 1994, which is past: the default.
        """
        self.assertEqual(policy.retry_after("Sunday, 06-Nov-94 08:49:37 GMT", 1_788_000_000.0), 60)

    @given(st.text(max_size=40) | st.integers().map(str) | st.floats().map(str))
    def test_whatever_it_says_the_wait_is_sane(self, value: str) -> None:
        """
        No text raises, and every wait is 5 s to a day.
        """
        self.assertTrue(5 <= policy.retry_after(value, NOW) <= 86_400)

    def test_gates(self) -> None:
        """
        A gate is whole seconds with a margin; it is kept for max(300, wait + 120) seconds.
        """
        self.assertEqual(policy.gate_until(60, 1000.2), 1066)
        self.assertEqual(policy.gate_ttl(policy.gate_until(60, 1000.0), 1000.0), 300)
        self.assertEqual(policy.gate_ttl(policy.gate_until(3600, 1000.0), 1000.0), 3720)

    def test_back_off(self) -> None:
        """
        The pause doubles from 0.5 s to 15 s and stays there.
        """
        pauses = [policy.back_off(failures) for failures in (1, 2, 3, 4, 5, 6, 7, 10_000)]
        self.assertEqual(pauses, [0.5, 1, 2, 4, 8, 15, 15, 15])
