"""
The invariants, over random histories on the real store: admissions, gates, answers that come, come
late or never, workers that die, a daemon that is killed, clocks that are stepped, and operators who
pause, cap, cancel, start one and settle.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import Deferred

from crq import actions, controls, executions
from crq.actions import By
from crq.config import ReaperOptions
from crq.database import Cursor, Database
from crq.messages import Admitted, Answered, Lost, NotSent, Outcome, Rejected
from crq.model import Claimed, Controls, Lane, Limits, Status
from crq.reaper import Reaper
from crq.records import Filters
from crq.sealing import Sealer
from crq.submissions import Refusal
from tests import rows
from tests.house import SUCCESS, Clocks, House, PlayedExecutor, PlayedLiveness

LIMITS = Limits(in_flight=3, per_account=2, queued_per_account=4, queued_total=7)
ACCOUNTS = st.sampled_from(["acme", "bravo", "carla"])
KEYS = st.sampled_from(["k1", "k2"])
CEILING = 4  # the highest cap that operators set
ROW = (
    "execution_id, subdomain_hash, apikey_hash, status, error_code, queued_at, claimed_at,"
    " started_at, finished_at, nonce_hash"
)
SEALER: Sealer = rows.SEALER


class Queue(RuleBasedStateMachine):
    """
    One queue and what may happen to it.
    """

    database: Database

    def __init__(self) -> None:
        super().__init__()
        connection = self.database.connect()
        for table in ("executions", "jobs", "gates", "controls", "audit"):
            connection.cursor().execute(f"DELETE FROM codeRunner_{table}")
        connection.close()
        self.clocks = Clocks()
        self.executor = PlayedExecutor(self.database, self.clocks, begin_at_once=False)
        self.house = House(self.database, self.clocks, self.executor, LIMITS)
        self.violations: list[str] = []
        self.watch()
        self.accepted: set[int] = set()
        self.refused = 0
        self.stale: list[Claimed] = []
        self.asked: set[int] = set()
        self.highest = {"total": LIMITS.in_flight, "account": LIMITS.per_account}

    @initialize()
    def start(self) -> None:
        self.house.start()

    def watch(self) -> None:
        """
        Look at each claim at the instant it is made.
        """
        transact = self.house.pool.transact

        def watched(function: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
            done = transact(function, *args, **kwargs)
            if function is executions.claim:
                done.addCallback(self.check_claim)
            return done

        self.house.pool.transact = watched  # type: ignore[method-assign]

    # -- what may happen

    @rule(account=ACCOUNTS, key=KEYS)
    def admit(self, account: str, key: str) -> None:
        queued = [row for row in self.rows() if row["status"] == "queued"]
        mine = [row for row in queued if row["subdomain_hash"] == SEALER.account(account)]
        answer = self.database.transact(
            self.executor.connection,
            executions.admit,
            rows.submission(account, key),
            LIMITS,
            self.clocks.wall(),
        )
        fits = len(mine) < LIMITS.queued_per_account and len(queued) < LIMITS.queued_total
        if fits:  # I7, both ways
            assert isinstance(answer, Admitted)
            self.accepted.add(answer.execution_id)
        else:
            assert isinstance(answer, Rejected)
            self.refused += 1

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.5, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.clocks.go(seconds, max(0.25, seconds / 10))

    @rule()
    def wake(self) -> None:
        self.house.drainer.wake()

    @rule(step=st.sampled_from([-3600.0, -5.0, 5.0, 3600.0]))
    def the_wall_clock_is_stepped(self, step: float) -> None:
        self.clocks.step += step

    @rule(key=KEYS, seconds=st.sampled_from([2, 30]))
    def a_gate_closes(self, key: str, seconds: int) -> None:
        now = self.clocks.wall()
        self.house.store.close(SEALER.key(key), now + seconds, now)

    @rule(answer=st.sampled_from([None, None, NotSent("refused"), Answered(503), Answered(422)]))
    def the_executor_changes_its_mind(self, answer: Any) -> None:
        self.executor.refuse = answer

    def waiting(self) -> list[Claimed]:
        return [
            claimed
            for claimed, _ in self.executor.arrived.values()
            if claimed.execution_id not in self.executor.starts
        ]

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def a_worker_begins(self, data: st.DataObject) -> None:
        claimed = data.draw(st.sampled_from(self.waiting()))
        self.stale.append(claimed)
        self.executor.begin(claimed)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def an_old_request_arrives_again(self, data: st.DataObject) -> None:
        claimed = data.draw(st.sampled_from(self.stale))
        begun = claimed.execution_id in self.executor.starts
        assert not (self.executor.begin(claimed) and begun)

    @precondition(lambda self: self.executor.arrived)
    @rule(data=st.data(), how=st.sampled_from(["answer", "lost", "504"]))
    def an_answer_comes(self, data: st.DataObject, how: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.executor.arrived)))
        claimed, _ = self.executor.arrived[number]
        if how == "answer" and number in self.executor.alive:
            self.executor.end(number)
            return
        self.stale.append(claimed)
        self.executor.answer(number, Lost("reset") if how == "lost" else Answered(504))

    @precondition(lambda self: self.executor.alive)
    @rule(data=st.data(), how=st.sampled_from(["finishes", "dies"]))
    def a_worker_ends(self, data: st.DataObject, how: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.executor.alive)))
        if how == "finishes":
            self.executor.finish(number)
        else:
            del self.executor.alive[number]

    @rule()
    def the_daemon_is_killed(self) -> None:
        self.house.kill()
        self.house = House(self.database, self.clocks, self.executor, LIMITS)
        self.watch()
        self.house.start()

    @rule()
    def the_janitor_comes(self) -> None:
        reaper = Reaper(
            self.house.pool,
            ReaperOptions(),
            self.clocks,
            self.clocks.wall,
            PlayedLiveness.of(self.executor),
        )
        done = reaper.run_once()
        try:
            done.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("the janitor waits for something")

    # -- what operators do

    def operate(self, function: Any, *args: Any) -> Any:
        """
        Do one action; what it refuses changes nothing.
        """
        by = By("token:ops", self.clocks.wall())

        def act(txn: Cursor) -> Any:
            try:
                return function(txn, *args, by)
            except Refusal:
                return None

        return self.database.transact(self.executor.connection, act)

    def set_(self) -> Controls:
        """
        What they have set.
        """
        return self.database.read(self.executor.connection, controls.read)

    @rule(scope=st.sampled_from(["all", "acme", "k1", "drain"]), on=st.booleans())
    def an_operator_pauses_or_resumes(self, scope: str, on: bool) -> None:
        if scope == "drain":
            self.operate(actions.drain if on else actions.end_drain)
            return
        kind, name = {
            "all": ("all", ""),
            "acme": ("account", SEALER.account("acme")),
            "k1": ("key", SEALER.key("k1")),
        }[scope]
        self.operate(actions.pause if on else actions.resume, kind, name)

    @rule(account=st.none() | ACCOUNTS, cap=st.none() | st.integers(1, CEILING))
    def an_operator_sets_a_cap(self, account: str | None, cap: int | None) -> None:
        name = None if account is None else SEALER.account(account)
        if cap is None:
            self.operate(actions.uncap, name)
            return
        self.operate(actions.cap, name, cap, LIMITS, CEILING)
        which = "total" if account is None else "account"
        self.highest[which] = max(self.highest[which], cap)

    def queued(self) -> list[int]:
        return [row["execution_id"] for row in self.rows() if row["status"] == "queued"]

    @precondition(lambda self: self.queued())
    @rule(data=st.data())
    def an_operator_cancels_one(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.queued()))
        done = self.operate(actions.cancel, number)
        assert done is not None
        assert done.changed

    @rule(account=ACCOUNTS)
    def an_operator_cancels_all_of_an_account(self, account: str) -> None:
        name = SEALER.account(account)
        self.operate(actions.cancel_some, Filters(accounts=(name,)), 99)
        left = [row for row in self.rows() if self.lane(row)[0] == name]
        assert all(row["status"] != "queued" for row in left)

    @precondition(lambda self: self.queued())
    @rule(data=st.data())
    def an_operator_starts_one(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.queued()))
        if self.operate(actions.run_one, number) is not None:
            self.asked.add(number)

    @rule(outcome=st.sampled_from(["success", "failed"]))
    def an_operator_settles(self, outcome: str) -> None:
        for row in self.rows():
            before = (row["status"], row["error_code"])
            done = self.operate(actions.settle, row["execution_id"], outcome, None)
            if done is not None and done.changed:
                assert before == ("failed", 303)
                assert row["started_at"] is not None

    # -- what must hold

    def check_claim(self, claimed: tuple[Claimed, ...]) -> tuple[Claimed, ...]:
        """
        At the instant of a claim: I4, I5 and I6, under what operators have set. The tick would
        swallow a failure: it is kept.
        """
        closed = self.house.gates.closed(self.clocks.wall())
        everything = {row["execution_id"]: row for row in self.rows()}
        set_ = self.set_()
        if claimed:
            self.check_caps(set_.over(LIMITS), everything)
        for one in claimed:
            asked = one.execution_id in self.asked
            held = set_.pause_of(one.lane)
            if held == "drain" or (held is not None and not asked):
                self.violations.append(f"{one} claimed although {held} is paused")
            if asked:
                self.asked.discard(one.execution_id)
                if one.lane.apikey_hash in closed:
                    self.violations.append(f"I5: {one} claimed behind a closed gate")
                continue  # whoever was asked for may overtake
            if one.lane.apikey_hash in closed:
                self.violations.append(f"I5: {one} claimed behind a closed gate")
            mine = everything[one.execution_id]
            self.violations += [
                f"I6: {row} is older than {mine} and still waits"
                for row in everything.values()
                if row["status"] == "queued"
                and self.lane(row) == self.lane(mine)
                and self.age(row) < self.age(mine)
            ]
        return claimed

    def check_caps(self, caps: Limits, everything: dict[int, dict[str, Any]]) -> None:
        """
        After a claim that took something, what is in flight fits under the caps in force.
        """
        flying = [
            row["subdomain_hash"]
            for row in everything.values()
            if row["status"] in ("claimed", "running")
        ]
        if len(flying) > caps.in_flight:
            self.violations.append(f"I4: {len(flying)} in flight, {caps.in_flight} may be")
        for account in set(flying):
            # Those that ran before a cap was lowered still run.
            if flying.count(account) > max(caps.of(account), LIMITS.per_account, CEILING):
                self.violations.append(f"I4: {flying.count(account)} in flight of {account}")

    @invariant()
    def no_claim_was_wrong(self) -> None:
        """
        I5 and I6, as seen at each claim; and no tick failed.
        """
        assert self.violations == []
        assert self.house.pulse.last_error is None

    @invariant()
    def every_row_is_in_one_state(self) -> None:
        """
        I1: timestamps agree with the status.
        """
        for row in self.rows():
            have = {
                name
                for name in ("queued_at", "claimed_at", "started_at", "finished_at", "nonce_hash")
                if row[name] is not None
            }
            status = row["status"]
            if status == "queued":
                assert have == {"queued_at"}, row
            elif status == "claimed":
                assert have == {"queued_at", "claimed_at", "nonce_hash"}, row
            elif status == "running":
                assert have == {"queued_at", "claimed_at", "started_at"}, row
            elif status == "success" or (status == "failed" and row["error_code"] != 106):
                assert have == {"queued_at", "claimed_at", "started_at", "finished_at"}, row
            elif status == "failed":
                assert have == {"queued_at", "claimed_at", "finished_at"}, row
            else:
                assert status in ("rejected", "cancelled"), row
                assert have == {"queued_at", "finished_at"}, row
            instants = [row[n] for n in ("queued_at", "claimed_at", "started_at", "finished_at")]
            known = [instant for instant in instants if instant is not None]
            assert status == "rejected" or known == sorted(known), row

    @invariant()
    def nothing_starts_twice(self) -> None:
        """
        I2.
        """
        assert all(count == 1 for count in self.executor.starts.values())

    @invariant()
    def nothing_vanishes(self) -> None:
        """
        I3: the states add up to what was accepted and refused.
        """
        everything = self.rows()
        rejected = [row for row in everything if row["status"] == "rejected"]
        assert len(rejected) == self.refused
        assert {row["execution_id"] for row in everything} - {
            row["execution_id"] for row in rejected
        } == self.accepted

    @invariant()
    def the_caps_hold(self) -> None:
        """
        I4, counted at the executor.
        """
        most = dict(self.executor.most)
        assert most.pop("total", 0) <= self.highest["total"]
        assert all(count <= self.highest["account"] for count in most.values())

    @rule()
    def no_startable_row_waits(self) -> None:
        """
        I6, second half: after a tick with nothing in the way, no row that could start is left.
        """
        for _ in range(2):  # the first may find that somebody it was asked to start waits no more
            self.house.drainer.wake()
        dispatcher, now = self.house.drainer.dispatcher, self.clocks.wall()
        set_ = self.set_()
        caps = set_.over(LIMITS)
        if self.executor.refuse is not None or dispatcher.back_off.failures:
            return
        if self.house.gates.half_open or dispatcher.back_off.left(self.clocks.seconds()):
            return
        if dispatcher.back_off._lanes:
            return
        closed = self.house.gates.closed(now)
        flights = dispatcher.in_flight() | {
            row["execution_id"]: row
            for row in self.rows()
            if row["status"] in ("claimed", "running")
        }
        if len(flights) >= caps.in_flight:
            return
        accounts = [
            flight.lane.subdomain_hash if not isinstance(flight, dict) else flight["subdomain_hash"]
            for flight in flights.values()
        ]
        for row in self.rows():
            paused = set_.pause_of(Lane(*self.lane(row))) is not None
            if row["status"] == "queued" and row["apikey_hash"] not in closed and not paused:
                full = accounts.count(row["subdomain_hash"]) >= caps.of(row["subdomain_hash"])
                assert full, "I6: a startable row waits while a slot is free"

    # -- the end

    def teardown(self) -> None:
        """
        Left alone with a working executor, everything accepted comes to an end (I3).
        """
        self.executor.refuse = None
        self.operate(actions.end_drain)
        for kind, name in (
            *(("all", ""), ("account", SEALER.account("acme")), ("key", SEALER.key("k1"))),
        ):
            self.operate(actions.resume, kind, name)
        self.clocks.step = max(self.clocks.step, rows.NOON) + 50 * 3600  # past every gate
        for _ in range(30):
            for number in list(self.executor.arrived):
                claimed, _ = self.executor.arrived[number]
                if number not in self.executor.starts:
                    self.executor.begin(claimed)
                if number in self.executor.alive:
                    self.executor.finish(number, Outcome(Status.SUCCESS))
                self.executor.answer(number, Answered(200, SUCCESS))
            for number in list(self.executor.alive):
                self.executor.finish(number, SUCCESS)
            self.clocks.go(20, 2.0)
            states = {row["status"] for row in self.rows()}
            if not states & {"queued", "claimed", "running"}:
                break
        self.every_row_is_in_one_state()
        self.nothing_starts_twice()
        self.nothing_vanishes()
        self.the_caps_hold()
        assert not states & {"queued", "claimed", "running"}, self.house.statuses()
        self.house.close()

    # -- how rows are read

    def rows(self) -> list[dict[str, Any]]:
        def read(txn: Cursor) -> list[dict[str, Any]]:
            found = txn.execute(f"SELECT {ROW} FROM codeRunner_executions").all()
            return [dict(zip(ROW.split(", "), row, strict=True)) for row in found]

        return self.database.read(self.executor.connection, read)

    @staticmethod
    def lane(row: dict[str, Any]) -> tuple[str, str]:
        return row["subdomain_hash"], row["apikey_hash"]

    @staticmethod
    def age(row: dict[str, Any]) -> tuple[str, int]:
        return row["queued_at"], row["execution_id"]


def test_the_invariants_hold(database: Database) -> None:
    """
    I1 to I7 hold after every step of random histories, and everything ends.
    """
    machine = type("QueueOn" + database.dialect, (Queue,), {"database": database})
    examples = int(os.environ.get("TEST_EXAMPLES", 60 if database.dialect == "sqlite" else 25))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a history says enough unshrunk
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
