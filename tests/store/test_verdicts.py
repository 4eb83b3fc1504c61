"""
Each verdict, and each rule of an explanation, out of real state: as the daemon sees it, and as it
looks from outside, where the daemon may be dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from crq import actions, explain, status
from crq.actions import By
from crq.config import HistoryOptions
from crq.database import Cursor, Database
from crq.explanation import Explanation, Rule
from crq.gatevalues import GatesUnreachable
from crq.messages import NotSent
from crq.model import GateReading, Limits
from crq.statusreport import StatusReport
from crq.verdict import Verdict
from crq.watch import Watch
from tests import rows
from tests.house import House
from tests.rows import SEALER

LIMITS = Limits()
ACME, KEY = SEALER.account("acme"), SEALER.key("key")


class Queue:
    """
    A house with its watch, and somebody who looks from outside.
    """

    def __init__(self, database: Database, connection: Any) -> None:
        self.database = database
        self.connection = connection
        self.house = House(database).start()
        self.watch = Watch(
            pool=self.house.pool,
            gates=self.house.gates,
            pulse=self.house.pulse,
            limits=lambda: LIMITS,
            drainer_id="d1",
            options=HistoryOptions(),
            clock=self.house.clocks,
            wall=self.house.clocks.wall,
        )
        self.look()

    def look(self) -> StatusReport:
        """
        Let the watch look once: it writes the beat that others see.
        """
        report: StatusReport = done(self.watch.run_once())
        return report

    def go(self, seconds: float) -> None:
        """
        Let time pass, with a look of the watch each ten seconds.
        """
        while seconds > 0:
            self.house.clocks.go(min(10.0, seconds), 0.5)
            seconds -= 10.0
            if not self.house.killed:
                self.look()

    def admit(self, account: str = "acme", key: str = "key") -> int:
        return rows.admit(self.database, self.connection, account, key, self.house.clocks.wall())

    def act(self, function: Any, *args: Any) -> None:
        by = By("token:ops", self.house.clocks.wall())

        def all_of_it(txn: Cursor) -> Any:
            return function(txn, *args, by)

        self.database.transact(self.connection, all_of_it)

    def close_gate(self, key: str = KEY, seconds: float = 600) -> None:
        now = self.house.clocks.wall()
        self.house.store.close(key, now + seconds, now)

    def inside(self) -> StatusReport:
        """
        As the daemon sees it.
        """
        report: StatusReport = done(self.watch.report())
        return report

    def outside(self) -> StatusReport:
        """
        As it looks to somebody who has nothing but the database and the gates' store.
        """
        now = self.house.clocks.wall()
        reading = self.database.read(self.connection, status.read)
        gates = GateReading()
        if reading.keys:
            from crq.gatetable import DatabaseGates

            store = DatabaseGates(self.database)
            gates = store.read(reading.keys, now)
            store.disconnect()
        report = status.report(reading, gates, LIMITS, now)
        return self.database.read(self.connection, status.prove, report)

    def explain(self, number: int, inside: bool) -> Explanation:
        reading = self.database.read(self.connection, explain.read, number)
        assert reading is not None
        now = self.house.clocks.wall()
        if inside:
            return explain.explain(
                *(reading, self.house.gates.closed(now), LIMITS, now),
                half_open=self.house.gates.half_open,
                pulse=self.house.pulse,
                drainer_id="d1",
                monotonic=self.house.clocks.seconds(),
            )
        return explain.explain(reading, self.outside_gates(), LIMITS, now)

    def outside_gates(self) -> dict[str, float]:
        return {gate.apikey_hash: gate.until for gate in self.outside().gates}


def done(coroutine: Any) -> Any:
    """
    What a coroutine that waits for nothing returns.
    """
    results: list[Any] = []
    Deferred.fromCoroutine(coroutine).addBoth(results.append)
    (result,) = results
    if not isinstance(result, (StatusReport, type(None))):
        result.raiseException()
    return result


@pytest.fixture
def queue(database: Database, connection: Any) -> Iterator[Queue]:
    """
    A queue whose drainer has ticked.
    """
    made = Queue(database, connection)
    yield made
    made.house.close()


# -- how the states come about


def nothing(queue: Queue) -> None:
    queue.go(12)


def one_runs(queue: Queue) -> None:
    queue.admit()
    queue.go(2)


def all_slots_taken(queue: Queue) -> None:
    for account in ("acme", "acme", "other", "other", "third"):
        queue.admit(account, account)
    queue.go(2)


def behind_a_gate(queue: Queue) -> None:
    queue.close_gate()
    queue.admit()
    queue.go(2)


def paused(queue: Queue) -> None:
    queue.act(actions.pause, "account", ACME)
    queue.admit()
    queue.go(40)


def draining(queue: Queue) -> None:
    queue.act(actions.drain)
    queue.admit()
    queue.go(40)


def refused_just_now(queue: Queue) -> None:
    queue.house.executor.refuse = NotSent("connection refused")
    queue.admit()
    queue.go(2)


def refused_for_long(queue: Queue) -> None:
    refused_just_now(queue)
    queue.go(20)


def gates_away(queue: Queue) -> None:
    def broken(*_args: Any) -> Any:
        raise GatesUnreachable("connection refused")

    queue.house.gates._store = type("Away", (), {"read": staticmethod(broken)})()
    for _ in range(3):
        queue.admit()
    queue.go(2)


def killed_with_work(queue: Queue) -> None:
    queue.house.kill()
    queue.admit()
    queue.go(40)


def killed_idle(queue: Queue) -> None:
    queue.house.kill()
    queue.go(40)


def killed_while_gated(queue: Queue) -> None:
    behind_a_gate(queue)
    queue.house.kill()
    queue.go(40)


def killed_with_all_slots_taken(queue: Queue) -> None:
    all_slots_taken(queue)
    queue.house.kill()
    queue.go(40)


def killed_a_moment_ago(queue: Queue) -> None:
    one_runs(queue)
    queue.house.kill()
    queue.go(5)


def stopped_in_order(queue: Queue) -> None:
    stopped: list[Any] = []
    queue.watch.running = True
    queue.watch._loop.start(99.0, now=False)
    queue.house.drainer.stopService()
    queue.watch.stopService().addBoth(stopped.append)
    queue.house.clocks.go(2)
    assert stopped == [None]
    queue.house.kill()


State = Callable[[Queue], None]
TABLE: list[tuple[State, Verdict | None, Verdict, str]] = [
    (nothing, Verdict.IDLE, Verdict.IDLE, ""),
    (one_runs, Verdict.FLOWING, Verdict.FLOWING, "execution"),
    (all_slots_taken, Verdict.SATURATED, Verdict.SATURATED, "execution"),
    (behind_a_gate, Verdict.GATED, Verdict.GATED, "key"),
    (paused, Verdict.GATED, Verdict.GATED, "pause"),
    (draining, Verdict.GATED, Verdict.GATED, "pause"),
    (refused_just_now, Verdict.DEGRADED, Verdict.DEGRADED, "dependency"),
    (refused_for_long, Verdict.STALLED, Verdict.STALLED, "execution"),
    (gates_away, Verdict.DEGRADED, Verdict.DEGRADED, "dependency"),
    (killed_a_moment_ago, None, Verdict.FLOWING, "execution"),
    (killed_with_work, None, Verdict.STALLED, "execution"),
    (killed_idle, None, Verdict.DEGRADED, "dependency"),
    (killed_while_gated, None, Verdict.DEGRADED, "dependency"),
    (killed_with_all_slots_taken, None, Verdict.DEGRADED, "dependency"),
    (stopped_in_order, None, Verdict.DEGRADED, "dependency"),
]


@pytest.mark.parametrize(
    ("state", "inside", "outside", "proof"), TABLE, ids=[row[0].__name__ for row in TABLE]
)
def test_verdicts(
    queue: Queue, state: State, inside: Verdict | None, outside: Verdict, proof: str
) -> None:
    """
    The word is the same inside and outside, comes with its proof, and is right when the daemon is
    dead.
    """
    state(queue)
    if inside is not None:
        report = queue.inside()
        assert report.verdict is inside, report.because
    report = queue.outside()
    assert report.verdict is outside, report.because
    assert report.because
    kinds = [each.kind for each in report.proof]
    assert (kinds[0] if kinds else "") == proof, report.proof


def test_every_verdict_is_in_the_table() -> None:
    """
    None was forgotten.
    """
    assert {row[2] for row in TABLE} == set(Verdict)


def test_a_stalled_queue_names_its_rows(queue: Queue) -> None:
    """
    The proof of a stalled queue is what could start, oldest first.
    """
    queue.house.kill()
    numbers = [queue.admit("other", "other")]
    queue.go(1)
    numbers.append(queue.admit())
    queue.go(40)
    report = queue.outside()
    assert [each.name for each in report.proof if each.kind == "execution"] == [
        str(number) for number in numbers
    ]


def test_the_queue_recovers(queue: Queue) -> None:
    """
    Once the executor takes work again, the word is flowing, within one look.
    """
    refused_for_long(queue)
    queue.house.executor.refuse = None
    queue.go(20)
    assert queue.inside().verdict is Verdict.FLOWING
    assert queue.outside().verdict is Verdict.FLOWING


def test_a_busy_queue_is_not_stalled(queue: Queue) -> None:
    """
    Work that could start is there in every tick for half a minute, and each time some starts.
    """
    for _ in range(80):
        queue.admit()
    queue.go(1)
    queue.house.drainer._loop.stop()  # only freed slots ask for ticks: each finds work to start
    for _ in range(30):
        queue.house.clocks.go(1)
        queue.house.executor.end_all()
    assert queue.inside().verdict is Verdict.FLOWING
    assert len(queue.house.executor.starts) > 30
    unstarted = queue.house.pulse.beat("d1", 0.0, queue.house.clocks.seconds()).unstarted
    assert unstarted is None or unstarted < 5.0  # what others would be told


# -- explanations


def waits_behind_its_account(queue: Queue) -> int:
    one, two = queue.admit(), queue.admit()
    queue.go(2)
    assert {one, two} == set(queue.house.executor.alive)
    return queue.admit()


def waits_for_a_slot(queue: Queue) -> int:
    for account in ("acme", "acme", "other", "other"):
        queue.admit(account, account)
    queue.go(2)
    return queue.admit("third", "third")


def waits_for_its_gate(queue: Queue) -> int:
    queue.close_gate()
    number = queue.admit()
    queue.go(2)
    return number


def waits_under_a_pause(queue: Queue) -> int:
    queue.act(actions.pause, "key", KEY)
    number = queue.admit()
    queue.go(2)
    return number


def waits_under_a_drain(queue: Queue) -> int:
    queue.act(actions.drain)
    number = queue.admit()
    queue.go(2)
    return number


def waits_for_the_executor(queue: Queue) -> int:
    number = queue.admit()
    queue.house.executor.refuse = NotSent("connection refused")
    queue.go(4.5)
    return number


def waits_for_the_first_of_its_key(queue: Queue) -> int:
    queue.close_gate(seconds=5)
    queue.admit("other")
    number = queue.admit()
    queue.go(8)
    return number


def waits_for_a_dead_drainer(queue: Queue) -> int:
    queue.house.kill()
    number = queue.admit()
    queue.go(40)
    return number


def waits_behind_older_ones(queue: Queue) -> int:
    queue.house.drainer.running = False  # nobody ticks in this moment
    queue.admit()
    return queue.admit()


def could_start(queue: Queue) -> int:
    queue.house.drainer.running = False
    return queue.admit()


def is_claimed(queue: Queue) -> int:
    queue.house.executor.begin_at_once = False
    number = queue.admit()
    queue.go(1)
    return number


def runs(queue: Queue) -> int:
    number = queue.admit()
    queue.go(1)
    return number


def has_ended(queue: Queue) -> int:
    number = runs(queue)
    queue.house.executor.end_all()
    return number


Case = Callable[[Queue], int]
RULES: list[tuple[Case, Rule, bool, str]] = [
    (waits_for_a_dead_drainer, Rule.NO_DRAINER, False, "is the daemon running"),
    (waits_under_a_drain, Rule.DRAINING, True, "maintenance"),
    (waits_under_a_pause, Rule.PAUSED, True, "key is paused"),
    (waits_for_its_gate, Rule.GATED, True, "closed until 2026-03-02T12:10"),
    (waits_for_the_executor, Rule.BACKING_OFF, True, "tried again at 2026-03-02"),
    (waits_for_the_first_of_its_key, Rule.HALF_OPEN, True, "goes first"),
    (waits_behind_its_account, Rule.ACCOUNT_FULL, True, "2 of 2 in flight: executions 1, 2"),
    (waits_for_a_slot, Rule.POOL_FULL, True, "all 4 slots are taken: executions 1, 2, 3, 4"),
    (waits_behind_older_ones, Rule.BEHIND, True, "1 older executions"),
    (could_start, Rule.STARTABLE, True, "next tick"),
    (is_claimed, Rule.CLAIMED, True, "on its way"),
    (runs, Rule.RUNNING, True, "running since 2026-03-02"),
    (has_ended, Rule.ENDED, True, "success"),
]


@pytest.mark.parametrize(
    ("case", "rule", "daemon", "text"), RULES, ids=[row[0].__name__ for row in RULES]
)
def test_explanations(queue: Queue, case: Case, rule: Rule, daemon: bool, text: str) -> None:
    """
    The first rule that holds a row is named, with what it waits for; inside as outside, but for
    what only the daemon remembers: which key goes first after its gate.
    """
    number = case(queue)
    if daemon:
        found = queue.explain(number, inside=True)
        assert (found.why[0].rule, text in found.why[0].text) == (rule, True), found
    if rule is not Rule.HALF_OPEN:
        found = queue.explain(number, inside=False)
        assert (found.why[0].rule, text in found.why[0].text) == (rule, True), found
    waits = rule not in (Rule.CLAIMED, Rule.RUNNING, Rule.ENDED)
    assert (found.place_in_lane is not None) == waits


def test_every_rule_is_in_the_table() -> None:
    """
    None was forgotten.
    """
    assert {row[1] for row in RULES} == set(Rule)


def test_the_earliest_start(queue: Queue) -> None:
    """
    A gate says when; what somebody must do says never; slots say now, at the earliest. The expected
    start counts the work before it in.
    """
    now = queue.house.clocks.wall()
    number = waits_for_its_gate(queue)
    found = queue.explain(number, inside=True)
    assert found.earliest_start == pytest.approx(now + 600, abs=1)
    assert found.expected_start is None  # nobody knows how long one takes
    queue.act(actions.pause, "all", "")
    assert queue.explain(number, inside=True).earliest_start is None
    rules = [why.rule for why in queue.explain(number, inside=True).why]
    assert rules == [Rule.PAUSED, Rule.GATED]
    queue.act(actions.run_one, number)
    assert queue.explain(number, inside=True).earliest_start is not None


def test_the_expected_start_counts_rounds(queue: Queue) -> None:
    """
    Two at once, 30 s each, six before it and two that run: four rounds.
    """
    for _ in range(2):
        queue.admit()
    queue.go(30)
    queue.house.executor.end_all()
    for _ in range(9):
        number = queue.admit()
    queue.go(1)
    found = queue.explain(number, inside=True)
    assert (found.place_in_lane, found.ahead_in_account) == (7, 6)
    assert found.earliest_start is not None
    assert found.expected_start is not None
    assert found.expected_start - found.earliest_start == pytest.approx(4 * 30, abs=6)


def test_an_account_sees_nothing_of_others(queue: Queue) -> None:
    """
    Limited, an explanation names no execution of others and no words of an operator.
    """
    slot = queue.explain(waits_for_a_slot(queue), inside=True).limited()
    assert "1" not in slot.why[0].text
    assert slot.why[0].by == ()
    queue.act(actions.close_gate, SEALER.key("third"), queue.house.clocks.wall() + 600)
    queue.close_gate(SEALER.key("third"))
    number = queue.admit("third", "third")
    full = queue.explain(number, inside=False)
    assert "token:ops" in full.why[0].text
    assert "token:ops" not in str(full.limited())
