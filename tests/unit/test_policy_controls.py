"""
What operators have set, in the plan: pauses, caps, the drain, executions asked for one by one.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from crq import policy
from crq.model import (
    Candidate,
    Controls,
    InFlight,
    Lane,
    LaneHead,
    Limits,
    Plan,
    Reason,
    RunOne,
    Snapshot,
    Status,
)
from tests.unit.test_policy import heads_of, queues

NOW = 1_000_000.0
A1, A2, B1 = Lane("a", "k1"), Lane("a", "k2"), Lane("b", "k1")

Queue = tuple[list[Candidate], list[InFlight], dict[str, float], Limits]


@st.composite
def controls(draw: st.DrawFn) -> Controls:
    """
    Anything that operators may have set.
    """
    return Controls(
        draining=draw(st.sampled_from([False, False, False, True])),
        everything=draw(st.sampled_from([False, False, True])),
        accounts=draw(st.frozensets(st.sampled_from("abc"), max_size=2)),
        keys=draw(st.frozensets(st.sampled_from(["k1", "k2"]), max_size=1)),
        in_flight=draw(st.none() | st.integers(1, 8)),
        per_account=draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), max_size=2)),
    )


def planned(queue: Queue, set_: Controls, asked: list[Candidate]) -> list[int]:
    """
    What a tick would start, in the order of its choice: plan, lane reads, pick.
    """
    queued, flights, gates, caps = queue
    requests = tuple(RunOne(row.execution_id, row.lane, float(n)) for n, row in enumerate(asked))
    given = Controls(
        **{
            name: getattr(set_, name)
            for name in ("draining", "everything", "accounts", "keys", "in_flight", "per_account")
        },
        run_one=requests,
    )
    caps = given.over(caps)
    plan = policy.plan(Snapshot(heads_of(queued), tuple(flights), given), gates, caps, NOW)
    candidates = {
        row.execution_id: row
        for row in queued
        if row.execution_id in {request.execution_id for request in plan.picks}
    }
    for take in plan.takes:
        lane = [row for row in queued if row.lane == take.lane and row.queued_at >= take.queued_at]
        lane.sort(key=lambda row: (row.queued_at, row.execution_id))
        for row in lane[: take.at_most]:
            candidates.setdefault(row.execution_id, row)
    first = [request.execution_id for request in plan.picks]
    return [row.execution_id for row in policy.pick(candidates.values(), flights, caps, first)]


def by_hand(queue: Queue, set_: Controls, asked: list[Candidate]) -> list[int]:
    """
    What a walk would start: first what was asked for, then every row that is not paused.
    """
    queued, flights, gates, caps = queue
    caps = set_.over(caps)
    used = Counter(flight.lane.subdomain_hash for flight in flights)
    free = caps.in_flight - len(flights)
    chosen: list[int] = []

    def start(row: Candidate) -> None:
        account = row.lane.subdomain_hash
        gated = gates.get(row.lane.apikey_hash or "", 0.0) > NOW
        room = used[account] < caps.of(account) and len(chosen) < free
        if room and not gated and row.execution_id not in chosen:
            used[account] += 1
            chosen.append(row.execution_id)

    if not set_.draining:
        for row in asked:
            start(row)
    for row in sorted(queued, key=lambda row: (row.queued_at, row.execution_id)):
        if set_.pause_of(row.lane) is None:
            start(row)
    return chosen


class ControlProperties(SynchronousTestCase):
    """
    `plan` and `pick` under anything that operators may have set.
    """

    @given(queues(), controls())
    @settings(max_examples=80, deadline=None)
    def test_a_plan_is_still_a_walk_over_rows(self, queue: Queue, set_: Controls) -> None:
        """
        What starts is what first-in-first-out over the rows that are not paused would start, under
        the caps that were set: so nothing paused starts, and nothing else is held back by a pause.
        """
        self.assertEqual(planned(queue, set_, []), by_hand(queue, set_, []))

    @given(queues(), controls(), st.data())
    @settings(max_examples=80, deadline=None)
    def test_what_was_asked_for_goes_first(
        self, queue: Queue, set_: Controls, data: st.DataObject
    ) -> None:
        """
        An execution that was asked for starts under a pause, before all others; never under a
        drain, past a gate or above a cap.
        """
        queued, flights, gates, caps = queue
        asked = (
            []
            if not queued
            else data.draw(
                st.lists(
                    st.sampled_from(queued), max_size=3, unique_by=lambda row: row.execution_id
                )
            )
        )
        started = planned(queue, set_, asked)
        rows = {row.execution_id: row for row in queued}
        limits = set_.over(caps)
        used = Counter(flight.lane.subdomain_hash for flight in flights)
        before = dict(used)
        used.update(rows[number].lane.subdomain_hash for number in started)
        self.assertLessEqual(len(started), max(0, limits.in_flight - len(flights)))
        for account, count in used.items():
            if count > before.get(account, 0):
                self.assertLessEqual(count, limits.of(account))
        for number in started:
            row = rows[number]
            self.assertLessEqual(gates.get(row.lane.apikey_hash or "", 0.0), NOW)
            if number not in {each.execution_id for each in asked}:
                self.assertIsNone(set_.pause_of(row.lane))
        if set_.draining:
            self.assertEqual(started, [])
        elif asked:
            wanted = by_hand(queue, set_, asked)
            first = [number for number in wanted if number in {r.execution_id for r in asked}]
            self.assertEqual(sorted(started[: len(first)]), sorted(first))


class ControlTests(SynchronousTestCase):
    """
    Single cases.
    """

    def plan(self, set_: Controls, *flights: Lane, limits: Limits = Limits()) -> Plan:  # noqa: B008
        heads = tuple(LaneHead(lane, float(n)) for n, lane in enumerate((A1, A2, B1)))
        flying = tuple(InFlight(n, lane, Status.RUNNING) for n, lane in enumerate(flights))
        return policy.plan(Snapshot(heads, flying, set_), {}, set_.over(limits), NOW)

    def test_paused_lanes_have_a_reason_of_their_own(self) -> None:
        """
        A pause of an account, of a key or of everything holds just those lanes.
        """
        for set_, held in (
            (Controls(accounts=frozenset("a")), {A1, A2}),
            (Controls(keys=frozenset(["k1"])), {A1, B1}),
            (Controls(everything=True), {A1, A2, B1}),
            (Controls(draining=True), {A1, A2, B1}),
        ):
            plan = self.plan(set_)
            self.assertEqual({hold.lane for hold in plan.holds}, held)
            self.assertEqual({hold.reason for hold in plan.holds}, {Reason.PAUSED})
            self.assertEqual({take.lane for take in plan.takes}, {A1, A2, B1} - held)

    def test_caps_go_up_and_down(self) -> None:
        """
        A cap of an account counts instead of the usual one, in both directions.
        """
        one = self.plan(Controls(per_account={"a": 1}))
        self.assertEqual([take.lane for take in one.takes], [A1, B1])
        more = self.plan(Controls(per_account={"a": 3}), A1, A1)
        self.assertEqual([take.lane for take in more.takes], [A1, B1])
        none = self.plan(Controls(in_flight=2), A1, B1)
        self.assertEqual(none.takes, ())
        self.assertEqual({hold.reason for hold in none.holds}, {Reason.POOL_FULL})

    def test_a_lower_cap_than_what_runs_starts_nothing(self) -> None:
        """
        More in flight than the cap allows is no reason to start a negative number.
        """
        plan = self.plan(Controls(in_flight=1), A1, A2, B1)
        self.assertEqual((plan.takes, plan.picks), ((), ()))

    def test_drain_beats_a_request(self) -> None:
        """
        While the queue drains, nothing is started, whoever asks.
        """
        request = RunOne(7, A1, 1.0)
        paused = Controls(everything=True, run_one=(request,))
        self.assertEqual(self.plan(paused).picks, (request,))
        draining = Controls(draining=True, run_one=(request,))
        self.assertEqual(self.plan(draining).picks, ())
