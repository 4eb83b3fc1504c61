"""
Several drainers over one store: caps, shares, names, and what a dead one leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from attrs import evolve
from twisted.logger import LogEvent, capturedLogs

from crq import drainers, executions, heartbeat, policy
from crq.config import HistoryOptions
from crq.database import Database
from crq.model import Limits, Plan
from crq.presence import Presence
from crq.pulse import DEAD_AFTER, Beat, Origin
from crq.watch import Watch
from crq.workbench import PlayedExecutor
from tests import rows
from tests.house import Clocks, House
from tests.rows import LIMITS, NOON, SEALER


class Fellow:
    """
    One of several daemons, with its watch and an executor of its own.
    """

    def __init__(
        self,
        database: Database,
        clocks: Clocks,
        name: str,
        incarnation: str = "",
        lock_of: str = "",
        limits: Limits = LIMITS,
    ) -> None:
        self.house = House(
            database, executor=PlayedExecutor(database, clocks), drainer_id=name, limits=limits
        )
        house = self.house
        house.pulse.origin = Origin(incarnation or name, f"host of {name}", "1", lock_of)
        self.presence = Presence(house.pool, house.pulse, name, house._clock, clocks.wall)
        house.drainer.presence = self.presence
        self.watch = Watch(
            pool=house.pool,
            gates=house.gates,
            pulse=house.pulse,
            limits=lambda: limits,
            drainer_id=name,
            options=HistoryOptions(),
            clock=house._clock,
            wall=clocks.wall,
            presence=self.presence,
        )

    def start(self) -> Fellow:
        """
        Start; its first tick runs at once.
        """
        self.watch.startService()
        self.house.start()
        return self

    @property
    def alive(self) -> int:
        """
        How many of its executions live.
        """
        return len(self.house.executor.alive)

    def kill(self) -> None:
        """
        As SIGKILL would.
        """
        self.watch.running = False
        self.house.kill()

    def stop(self) -> None:
        """
        In order.
        """
        self.house.drainer.stopService()
        self.watch.stopService()


Make = Callable[..., Fellow]


@pytest.fixture
def clocks() -> Clocks:
    """
    Everybody's.
    """
    return Clocks()


@pytest.fixture
def logged() -> Iterator[Sequence[LogEvent]]:
    """
    What is logged.
    """
    with capturedLogs() as events:
        yield events


@pytest.fixture
def make(database: Database, clocks: Clocks, logged: Sequence[LogEvent]) -> Iterator[Make]:
    """
    Make daemons over one store; those that are left are ended.
    """
    made: list[Fellow] = []

    def fellow(name: str, **more: Any) -> Fellow:
        made.append(Fellow(database, clocks, name, **more))
        return made[-1]

    yield fellow
    for each in made:
        each.kill()
        each.house.executor.connection.close()


def said(events: Sequence[LogEvent], action: str) -> list[LogEvent]:
    return [event for event in events if event.get("action") == action]


# -- caps and shares


def test_the_caps_hold_over_all_of_them(make: Make, clocks: Clocks) -> None:
    """
    Three drainers drain one backlog: never more than 4 in flight or 2 of an account over all of
    them, everything runs once, and everything runs.
    """
    fellows = [make(name).start() for name in ("d1", "d2", "d3")]
    for account in ("acme", "bravo", "carla", "delta"):
        fellows[0].house.admit(account, account, count=6)
    for turn in range(60):
        clocks.go(0.4, 0.2)
        assert sum(each.alive for each in fellows) <= 4
        for account in ("acme", "bravo", "carla", "delta"):
            lives = [one.lane for each in fellows for one in each.house.executor.alive.values()]
            assert sum(SEALER.account(account) == lane.subdomain_hash for lane in lives) <= 2
        fellows[turn % 3].house.executor.end_all()
    starts = [number for each in fellows for number in each.house.executor.order]
    assert sorted(starts) == sorted(set(starts))
    assert len(starts) == 24
    assert fellows[0].house.statuses() == {"success": 24}


def test_each_takes_no_more_than_its_own_slots(make: Make, clocks: Clocks) -> None:
    """
    With slots of its own a drainer leaves the others' free, before and after one of its ends.
    """
    limits = Limits(in_flight=5, per_account=5)
    first, second = (make(name, limits=limits) for name in ("d1", "d2"))
    for each in (first, second):
        each.house.drainer.slots = 3
    first.start()
    first.house.admit(count=20)
    clocks.go(3, 0.5)
    assert first.alive == 3
    assert first.house.pulse.plan.takes == ()  # so that no claim is tried in vain each second
    second.start()
    clocks.go(1, 0.5)
    assert (first.alive, second.alive) == (3, 2)
    first.house.executor.end(min(first.house.executor.alive))
    clocks.go(1, 0.5)
    assert first.alive + second.alive == 5
    assert max(first.alive, second.alive) == 3


def test_a_claim_keeps_to_the_slots_under_the_lock(database: Database, connection: Any) -> None:
    """
    A plan that was made before the last claim of the same drainer takes what is left of its slots.
    """
    for _ in range(4):
        rows.admit(database, connection)
    limits = Limits(in_flight=8, per_account=8)
    plan = policy.plan(database.read(connection, executions.snapshot, 8), {}, limits, NOON)

    def claim(drainer_id: str, slots: int | None) -> int:
        nonces = iter(f"{drainer_id} {n}" for n in range(9))
        given = (plan, limits, drainer_id, NOON, lambda: next(nonces), (), None, slots)
        return len(database.transact(connection, executions.claim, *given))

    assert [claim("d1", 2), claim("d1", 2), claim("d2", 1), claim("d2", None)] == [2, 0, 1, 1]


def test_one_goes_first_over_all_of_them(database: Database, connection: Any) -> None:
    """
    Of a key whose gate has passed two drainers claim one execution, also when both have planned to
    be first.
    """
    for _ in range(2):
        rows.admit(database, connection, "acme", "key")
    key = SEALER.key("key")

    def planned() -> Plan:
        snapshot = database.read(connection, executions.snapshot, 4)
        return policy.plan(snapshot, {}, LIMITS, NOON, half_open={key})

    def claim(drainer_id: str, plan: Plan) -> int:
        given = (plan, LIMITS, drainer_id, NOON, lambda: f"nonce of {drainer_id}")
        return len(database.transact(connection, executions.claim, *given))

    one, other = planned(), planned()
    assert len(one.takes) == 1
    assert [claim("d1", one), claim("d2", other)] == [1, 0]


# -- what a dead one leaves behind


def test_claims_of_a_dead_drainer_go_back_to_the_queue(
    make: Make, clocks: Clocks, logged: Sequence[LogEvent]
) -> None:
    """
    What it had claimed and not begun is started by another one after 30 seconds of silence, under
    another nonce: the old dispatch, arriving late, starts nothing.
    """
    dead, other = make("d1"), make("d2")
    dead.house.executor.begin_at_once = False
    dead.start()
    (number,) = dead.house.admit()
    clocks.go(1, 0.5)
    old, _ = dead.house.executor.arrived[number]
    other.start()
    dead.kill()
    clocks.go(DEAD_AFTER - 10, 1.0)
    assert other.house.status(number) == "claimed"
    clocks.go(25, 1.0)
    assert other.house.executor.order == [number]
    assert not dead.house.executor.begin(old)
    assert [event["why"] for event in said(logged, "released")] == [
        "was claimed by d1, which is dead,"
    ]
    other.house.executor.end(number)
    assert other.house.status(number) == "success"


def test_claims_of_a_living_drainer_stay(make: Make, clocks: Clocks) -> None:
    """
    However long its executor takes to begin (a nonce lives 300 s), nobody else touches its rows.
    """
    slow, other = make("d1"), make("d2")
    slow.house.executor.begin_at_once = False
    slow.start()
    other.start()
    (number,) = slow.house.admit()
    clocks.go(1, 0.5)
    owner, bystander = (slow, other) if slow.house.executor.arrived else (other, slow)
    if owner is other:
        pytest.fail("the first to tick claims")
    clocks.go(200, 1.0)
    assert bystander.house.executor.order == []
    assert owner.house.executor.begin(owner.house.executor.arrived[number][0])


def test_what_runs_is_not_taken_from_the_dead(make: Make, clocks: Clocks) -> None:
    """
    A dead drainer's running execution holds its slot until it ends, and is never begun again.
    """
    dead, other = make("d1"), make("d2")
    dead.start()
    (number,) = dead.house.admit()
    clocks.go(1, 0.5)
    assert dead.alive == 1
    # Its worker lives on, as d2's look at the lock must tell.
    other.house.executor.alive[number] = dead.house.executor.alive[number]
    other.start()
    dead.kill()
    clocks.go(100, 1.0)
    assert other.house.status(number) == "running"
    assert other.house.executor.dispatches == []


# -- names


def test_a_second_daemon_of_a_name_stands_by(
    make: Make, clocks: Clocks, logged: Sequence[LogEvent]
) -> None:
    """
    It starts nothing and undoes nothing, says why in one line, and takes over when the first one
    has stopped.
    """
    first = make("d1", incarnation="a", lock_of="one").start()
    second = make("d1", incarnation="b", lock_of="two").start()
    numbers = first.house.admit(count=2)
    clocks.go(60, 1.0)
    assert first.house.executor.order == numbers
    assert second.house.executor.order == []
    assert second.house.pulse.last_good_tick is None
    (line,) = [
        event for event in said(logged, "tick failed") if "is in use" in str(event.get("error"))
    ]
    assert "give each daemon a drainer.id of its own" in line["error"]
    assert "host of d1" in line["error"]
    first.house.executor.end_all()
    first.stop()
    clocks.go(1, 0.5)
    (third,) = second.house.admit("bravo")
    clocks.go(2, 0.5)
    assert second.house.executor.order == [third]


def test_a_name_is_free_when_its_daemon_is_dead(make: Make, clocks: Clocks) -> None:
    """
    After a kill: at once for whoever holds the same lock file, for others after 30 seconds.
    """
    make("d1", incarnation="a", lock_of="one").start().kill()
    again = make("d1", incarnation="b", lock_of="one").start()
    (number,) = again.house.admit()
    clocks.go(1, 0.5)
    assert again.house.executor.order == [number]
    again.house.executor.end_all()
    clocks.go(10, 1.0)
    again.kill()
    elsewhere = make("d1", incarnation="c", lock_of="two").start()
    (number,) = elsewhere.house.admit("bravo")
    clocks.go(DEAD_AFTER - 8, 1.0)
    assert elsewhere.house.executor.order == []
    clocks.go(20, 1.0)
    assert elsewhere.house.executor.order == [number]


def test_one_that_was_believed_dead_finds_its_name_gone(
    make: Make, clocks: Clocks, logged: Sequence[LogEvent]
) -> None:
    """
    It says so, claims no more while the other lives, and settles what it has on its way.
    """
    first = make("d1", incarnation="a").start()
    (mine,) = first.house.admit()
    clocks.go(1, 0.5)

    def taken(txn: Any) -> None:
        (standing,) = heartbeat.read(txn)
        beat = evolve(standing, origin=Origin("b", "elsewhere"), beat_at=clocks.wall())
        assert heartbeat.take(txn, beat, standing)

    first.house.database.transact(first.house.pool.connection, taken)
    clocks.go(11, 1.0)
    (line,) = said(logged, "name lost")
    assert "elsewhere" in line["text"]
    first.house.admit("bravo", count=2)
    clocks.go(10, 1.0)
    assert first.house.executor.order == [mine]
    first.house.executor.end(mine)
    assert first.house.status(mine) == "success"
    clocks.go(40, 1.0)
    assert len(first.house.executor.order) == 3  # the other one has been silent


def test_a_name_that_is_regained_keeps_what_is_on_its_way(make: Make, clocks: Clocks) -> None:
    """
    Back under its name, a drainer puts back what it does not know of, and not what it waits for.
    """
    first = make("d1", incarnation="a")
    first.house.executor.begin_at_once = False
    first.start()
    (mine,) = first.house.admit()
    clocks.go(1, 0.5)

    def taken(txn: Any) -> None:
        (standing,) = heartbeat.read(txn)
        beat = evolve(standing, origin=Origin("b", "elsewhere"), beat_at=clocks.wall())
        assert heartbeat.take(txn, beat, standing)

    first.house.database.transact(first.house.pool.connection, taken)
    clocks.go(11, 1.0)
    assert not first.presence.held
    clocks.go(40, 1.0)
    assert first.presence.held
    assert first.house.executor.dispatches == [mine]
    assert first.house.executor.begin(first.house.executor.arrived[mine][0])


def test_a_row_is_taken_from_whom_was_seen_alone(database: Database, connection: Any) -> None:
    """
    Whoever has said something since, or is another process, keeps it; leaving takes away one's own
    row alone.
    """
    standing = Beat("d1", NOON, NOON, origin=Origin("a"))
    mine = Beat("d1", NOON, NOON + 50, origin=Origin("b"))
    ask = database.transact
    assert ask(connection, heartbeat.write, standing) is None
    assert ask(connection, heartbeat.write, mine) == standing
    assert not ask(connection, heartbeat.take, mine, evolve(standing, beat_at=NOON - 9))
    assert not ask(connection, heartbeat.take, mine, evolve(standing, origin=Origin("c")))
    ask(connection, heartbeat.remove, "d1", "b")
    assert database.read(connection, heartbeat.read) == (standing,)
    assert ask(connection, heartbeat.take, mine, standing)
    assert database.read(connection, heartbeat.read) == (mine,)


# -- for people


def test_they_are_listed(make: Make, clocks: Clocks, database: Database, connection: Any) -> None:
    """
    By name, with host, version and what each has in flight; a dead one is called dead, and one
    without a row whose work still runs is called gone.
    """
    first, second, third = (make(name) for name in ("d1", "d2", "d3"))
    third.start()
    third.house.admit("zulu", "z")
    clocks.go(1, 0.5)
    second.house.executor.alive |= third.house.executor.alive
    first.house.executor.alive |= third.house.executor.alive
    third.stop()  # what it has on its way is not waited for here
    database.transact(connection, heartbeat.remove, "d3", "d3")
    third.kill()
    second.start()
    clocks.go(1, 0.5)
    second.kill()
    clocks.go(31, 1.0)
    first.house.executor.begin_at_once = False
    first.start()
    first.house.admit(count=2)
    clocks.go(12, 1.0)
    found = database.read(connection, drainers.read, clocks.wall())
    assert [(each.drainer_id, each.state, each.claimed, each.running) for each in found] == [
        ("d1", "alive", 2, 0),
        ("d2", "dead", 0, 0),
        ("d3", "gone", 0, 1),
    ]
    shown = found[0].as_json()
    assert (shown["host"], shown["version"], shown["alive"]) == ("host of d1", "1", True)
    assert shown["reportedAge"] < 10
