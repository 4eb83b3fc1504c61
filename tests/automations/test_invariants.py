"""
Invariants I9 and I10, over random histories on the real store: edits, promotions, demotions, runs
by hand, two daemons, processes that die before any statement, clocks that are set.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from crq.automations import limits, runs
from crq.automations.interfaces import Context, Later
from crq.automations.model import Decision, Mode, RunStatus, Unfit
from crq.database import Database
from tests.automations.house import MAY, House, Played
from tests.automations.test_crashes import Crash, Fuse
from tests.house import Clocks
from tests.store.conftest import TABLES
from tests.support import SynchronousPool

TENANTS = ("acme", "bravo")
WHICH = st.integers(0, 3)
WHERE = st.sampled_from(["deciding", "applying"])
CRONS = st.sampled_from(["* * * * *", "*/2 * * * *", "0 * * * *", "30 13 * * *"])
ENDED = {status.value for status in RunStatus} - {"queued", "running"}


class Automating(RuleBasedStateMachine):
    """
    Four automations of two tenants, two daemons, and what may happen to them.
    """

    database: Database

    def __init__(self) -> None:
        super().__init__()
        connection = self.database.connect()
        for table in (name for name in TABLES if name.startswith("automation")):
            connection.cursor().execute(f"DELETE FROM {table}")
        connection.close()
        self.clocks = Clocks()
        self.fuse = Fuse()
        self.once = Played("once", list(range(1, 8)), page=3, overlap=1)
        self.again = Played("again", list(range(1, 8)), page=3, repeatable=True)
        for kind in (self.once, self.again):
            kind.before, kind.applying = self.while_deciding, self.while_applying
        self.meanwhile: tuple[str, Callable[[], None]] | None = None
        self.full = False
        self.violations: list[str] = []
        self.may = {MAY}
        self.daemons = [self.daemon(), self.daemon()]
        self.automations: list[Any] = []
        for number in range(4):
            house = self.daemons[0]
            house.kind = (self.once, self.again)[number % 2]
            self.automations.append(
                house.add(
                    TENANTS[number // 2],
                    name=f"rule {number}",
                    config={"threshold": 4},
                    max_items_per_run=6 if number == 3 else 1000,
                )
            )
        # What of the world was there when the run was live; nothing else may be.
        self.ended: dict[int, tuple[Any, ...]] = {}

    def daemon(self) -> House:
        """
        A daemon that has just started.
        """
        pool = SynchronousPool(evolve(self.database, observe=self.fuse.observe))
        made = House(self.database, self.clocks, self.once, self.again, pool=pool)
        made.may = self.may
        return made

    @property
    def house(self) -> House:
        return self.daemons[0]

    def do(self, function: Any, *args: Any) -> None:
        """
        What a person does; what is refused is refused.
        """
        with suppress(Unfit):
            self.house.do(function, *args)

    def tick(self, daemon: int) -> None:
        """
        A tick, which a process may not survive.
        """
        try:
            self.daemons[daemon].tick()
        except Crash:
            self.daemons[daemon].pool.close()
            self.fuse.left = None
            self.daemons[daemon] = self.daemon()
        self.fuse.left = None

    # -- what happens inside a call

    def while_deciding(self, context: Context, cursor: Any) -> None:
        self.somebody("deciding")

    def somebody(self, where: str) -> None:
        """
        Somebody may come to the desk while a type decides, or while it applies.
        """
        if self.meanwhile is not None and self.meanwhile[0] == where:
            _, come = self.meanwhile
            self.meanwhile = None
            come()

    def while_applying(self, context: Context, decision: Decision) -> None:
        """
        An effect begins only while its automation is live; and then somebody may come.
        """
        (standing,) = self.house.sql(
            "SELECT mode, enabled FROM automations WHERE automation_uuid = ?",
            context.automation_uuid,
        )
        if standing != ("live", 1):  # kept: what a type raises is taken for its failure
            self.violations.append(f"an effect of an automation that is {standing}")
        if self.full:
            raise Later("a place in the queue")
        self.somebody("applying")

    # -- what may happen

    @rule(which=WHICH, how=st.sampled_from(["demote", "disable", "observe"]), where=WHERE)
    def somebody_comes_in_the_middle(self, which: int, how: str, where: str) -> None:
        number = self.automations[which].automation_id
        function = getattr(self.house.desk, how)
        self.meanwhile = where, lambda: self.do(function, number, "e", self.clocks.wall())

    @rule(full=st.booleans())
    def the_queue_is_full(self, full: bool) -> None:
        self.full = full

    @rule(
        which=WHICH,
        begun=st.booleans(),
        then=st.sampled_from(["nothing", "demote", "disable", "observe"]),
        where=WHERE,
    )
    def one_goes_live(self, which: int, begun: bool, then: str, where: str) -> None:
        """
        What takes luck otherwise: observed to the end, promoted (with another run in observe that
        has begun, or without), run again, and changed while it acts.
        """
        number = self.automations[which].automation_id
        self.meanwhile = None
        self.do(self.house.desk.observe, number, "e", self.clocks.wall())
        self.by_hand(number, 8)
        if begun:
            self.by_hand(number, 1)
        self.promote(which)
        self.by_hand(number, 1)
        if then != "nothing":
            self.somebody_comes_in_the_middle(which, then, where)
        for _ in range(4):
            self.tick(0)

    def by_hand(self, number: int, ticks: int) -> None:
        self.clocks.advance(1)
        self.do(self.house.desk.run_now, number, "e", self.clocks.wall())
        for _ in range(ticks):
            self.tick(0)

    @rule(daemon=st.integers(0, 1), seconds=st.sampled_from([0, 60, 61, 1800, 7300]))
    def time_passes(self, daemon: int, seconds: int) -> None:
        self.clocks.advance(seconds)
        self.tick(daemon)

    @rule(daemon=st.integers(0, 1), statements=st.integers(0, 60))
    def a_process_dies_in_its_tick(self, daemon: int, statements: int) -> None:
        self.clocks.advance(60)
        self.fuse.left = statements
        self.tick(daemon)

    @rule(step=st.sampled_from([-3600.0, -90.0, 90.0, 3600.0, 86_400.0]))
    def the_wall_clock_is_set(self, step: float) -> None:
        self.clocks.step += step

    @rule(which=WHICH, threshold=st.integers(1, 8))
    def edit(self, which: int, threshold: int) -> None:
        given = {"config": {"threshold": threshold}}
        number = self.automations[which].automation_id
        self.do(self.house.desk.edit, number, given, "e", self.clocks.wall())

    @rule(which=WHICH, cron=CRONS)
    def reschedule(self, which: int, cron: str) -> None:
        number = self.automations[which].automation_id
        self.do(self.house.desk.edit, number, {"cron": cron}, "e", self.clocks.wall())

    @rule(which=WHICH)
    def promote(self, which: int) -> None:
        number = self.automations[which].automation_id
        self.do(self.house.desk.promote, number, MAY, self.clocks.wall())

    @rule(which=WHICH, how=st.sampled_from(["demote", "disable", "enable", "observe"]))
    def switch(self, which: int, how: str) -> None:
        number = self.automations[which].automation_id
        self.do(getattr(self.house.desk, how), number, "e", self.clocks.wall())

    @rule(which=WHICH)
    def run_now(self, which: int) -> None:
        number = self.automations[which].automation_id
        self.do(self.house.desk.run_now, number, "e", self.clocks.wall())

    @rule()
    def the_promoter_s_right_changes(self) -> None:
        self.may ^= {MAY}

    @precondition(lambda self: self.once.records)
    @rule(data=st.data())
    def a_record_goes_and_others_come(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.once.records))
        self.once.records.remove(gone)
        self.once.records.append(max([*self.once.records, gone]) + 1)

    # -- what must hold

    @invariant()
    def i9_and_i10_hold(self) -> None:
        """
        One occurrence one run, one decision for each record of a run, counts equal to items, no
        effect of an observing run.
        """
        self.house.check()

    @invariant()
    def observing_changes_nothing(self) -> None:
        """
        I10, in the world: each effect belongs to an item of a live run, and was had at most once,
        or is of a type that may repeat it.
        """
        live = {
            key
            for (key,) in self.house.sql(
                "SELECT idempotency_key FROM automation_runs WHERE mode = 'live'"
            )
        }
        for kind in (self.once, self.again):
            assert {key for key, _ in kind.effects} <= live
        assert set(self.once.effects.values()) <= {1}
        assert self.violations == []
        begun = Counter(
            (key, subject)
            for key, subject in self.house.sql(
                "SELECT r.idempotency_key, i.subject_id FROM automation_run_items i"
                " JOIN automation_runs r ON r.run_id = i.run_id"
                " WHERE i.effect IN ('applying', 'applied', 'unknown')"
            )
        )
        for kind in (self.once, self.again):
            assert set(kind.effects) <= set(begun), "an effect without an item that says so"

    @invariant()
    def what_has_ended_stays_as_it_is(self) -> None:
        """
        A run that has ended is never touched again.
        """
        for row in self.house.sql(
            "SELECT run_id, status, mode, item_count, would_count, approved_count, unknown_count,"
            " finished_at FROM automation_runs"
        ):
            if row[1] in ENDED:
                assert self.ended.setdefault(row[0], row) == row

    @invariant()
    def pointers_agree_with_switches(self) -> None:
        """
        Who is switched on has a pointer, who is off has none.
        """
        assert (
            self.house.sql(
                "SELECT automation_id FROM automations WHERE (enabled = 1) <>"
                " (next_run_at_utc IS NOT NULL)"
            )
            == []
        )

    def teardown(self) -> None:
        """
        Left alone, every run comes to its end, and each minute makes its run again.
        """
        self.fuse.left = None
        self.meanwhile = None
        self.full = False
        self.may |= {MAY}
        left_alone = self.clocks.wall()
        for _ in range(12):
            self.clocks.advance(limits.LEASE_SECONDS + 60)
            self.tick(0)
        now = self.clocks.wall()
        still = self.house.sql(
            "SELECT run_id FROM automation_runs WHERE status IN ('queued', 'running')"
            " AND created_at < ?",
            runs.rows.text_of(left_alone),
        )
        assert still == []
        self.i9_and_i10_hold()
        self.observing_changes_nothing()
        first = self.automations[0].automation_id
        self.do(self.house.desk.observe, first, "e", now)
        self.do(self.house.desk.edit, first, {"cron": "* * * * *"}, "e", now)
        before = len(self.house.runs(self.automations[0]))
        self.clocks.advance(60)
        self.tick(0)
        found = self.house.runs(self.automations[0])[before:]
        if found:  # unless the clock was set back over a minute that has run
            assert found[-1].mode is Mode.OBSERVE
        for daemon in self.daemons:
            daemon.close()


def test_i9_and_i10_hold_over_random_histories(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    I9 and I10 hold after every step of random histories with crashes at any statement, and every
    run comes to an end. Runs take a chunk a tick, so that much can happen in between.
    """
    monkeypatch.setattr(limits, "CHUNKS_PER_TICK", 1)
    machine = type("AutomatingOn" + database.dialect, (Automating,), {"database": database})
    examples = int(os.environ.get("TEST_EXAMPLES", 25 if database.dialect == "sqlite" else 10))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a history says enough unshrunk
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
