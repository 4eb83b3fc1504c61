"""
Leases: an abandoned run is taken over, and never advanced by two workers.
"""

from __future__ import annotations

from typing import Any

import pytest

from crq.automations import limits, runs
from crq.automations.calls import Applied, Calls
from crq.automations.context import About
from crq.automations.interfaces import Context
from crq.automations.model import Close, Decision, Effect, Json, RunStatus
from crq.automations.runs.serving import open_runs
from crq.database import Database
from tests.automations.house import House, Played, Rule


@pytest.fixture
def two(database: Database) -> Any:
    """
    Two daemons over one store and one world.
    """
    one = House(database)
    other = House(database, one.clocks, one.kind)
    yield one, other
    one.close()
    other.close()


def take(house: House, run_id: int, token: str = "t" * 32) -> Any:
    return house.do(runs.take, run_id, token, limits.LEASE_SECONDS, house.now)


def claimed(house: House, **more: Any) -> tuple[Any, int]:
    automation = house.add(**more)
    house.clocks.advance(60)
    (found,) = house.do(runs.claim_due, "acme", house.now, 10)
    return automation, found.run_id


def test_a_run_has_one_worker(two: tuple[House, House]) -> None:
    """
    Of two workers that want a run one gets it; the other's tick leaves it alone.
    """
    one, other = two
    automation, run_id = claimed(one)
    assert take(one, run_id) is not None
    assert take(other, run_id, "u" * 32) is None
    assert other.read(open_runs, "acme", 10) == ()
    other.tick()
    assert one.runs(automation)[0].status is RunStatus.RUNNING
    assert one.kind.evaluated == []


def test_an_abandoned_run_is_taken_over_after_its_lease(two: tuple[House, House]) -> None:
    """
    The tick looks for runs whose worker is gone: not before the lease has run out, and then the
    run goes on and ends.
    """
    one, other = two
    automation = one.add(cron="0 * * * *")
    one.clocks.advance(3600)
    (found,) = one.do(runs.claim_due, "acme", one.now, 10)
    take(one, found.run_id)
    one.clocks.advance(limits.LEASE_SECONDS)
    assert other.tick().taken_over == 0
    one.clocks.advance(1)
    assert other.tick().taken_over == 1
    assert one.runs(automation)[0].status is RunStatus.COMPLETED


def test_a_worker_that_comes_back_writes_nothing(two: tuple[House, House]) -> None:
    """
    A worker that was taken for dead finds its lease gone with its next write, whatever it is.
    """
    one, other = two
    automation, run_id = claimed(one)
    run, lease, _, _ = take(one, run_id)
    one.clocks.advance(limits.LEASE_SECONDS + 1)
    stale = other.read(runs.get_stale_running, other.now, 10)
    assert [one.run_id for one in stale] == [run_id]
    assert other.do(runs.take_over, stale[0], other.now, False) == 0
    taken = take(other, run_id, "u" * 32)
    about = About("acme", "u", run.scheduled_for_utc, run.idempotency_key, Rule())
    evaluated = one.calls.evaluate(one.kind, about, None, 10)
    writes: list[tuple[Any, tuple[Any, ...]]] = [
        (runs.record, (lease, run, evaluated.chunk, evaluated.cursor_json, run.guard, one.now)),
        (runs.effect, (lease, run, None, None, False, one.now)),
        (runs.pause, (lease, "", one.now)),
        (runs.finish, (lease, run, Close(RunStatus.FAILED, "late"), one.now)),
    ]
    for function, arguments in writes:
        with pytest.raises(runs.Lost):
            one.do(function, *arguments)
    assert one.items(run) == []
    other.do(runs.finish, taken[1], taken[0], Close(RunStatus.COMPLETED, "ours"), other.now)
    assert one.runs(automation)[0].why == "ours"


def test_a_renewed_lease_is_not_taken(two: tuple[House, House]) -> None:
    """
    A worker that writes in time keeps its run: between the look and the taking it may have come
    back.
    """
    one, other = two
    _, run_id = claimed(one)
    run, lease, _, _ = take(one, run_id)
    one.clocks.advance(limits.LEASE_SECONDS + 1)
    (stale,) = other.read(runs.get_stale_running, other.now, 10)
    one.do(runs.effect, lease, run, None, None, False, one.now)
    assert other.do(runs.take_over, stale, other.now, False) is None
    assert other.read(runs.get_stale_running, other.now, 10) == ()


def test_a_lease_of_a_wrong_clock_is_not_waited_for(two: tuple[House, House]) -> None:
    """
    A worker dies while the clock is an hour ahead; the clock is set right, and the run and its
    tenant go on with the next ticks, not in an hour.
    """
    one, other = two
    automation = one.add(cron="0 * * * *")
    one.clocks.step += 3600
    (found,) = one.do(runs.claim_due, "acme", one.now, 10)
    token = "x" * 32
    assert one.do(runs.lease_tenant, "acme", token, one.now, one.now + 120, 5) is not None
    take(one, found.run_id)
    one.clocks.step -= 3600
    assert other.tick().taken_over == 1
    assert one.runs(automation)[0].status is RunStatus.COMPLETED


@pytest.mark.parametrize("repeatable", [False, True])
def test_what_had_begun_is_unknown_unless_it_may_be_repeated(
    database: Database, monkeypatch: pytest.MonkeyPatch, repeatable: bool
) -> None:
    """
    A worker dies while an effect is being applied: what is only intended is applied by whoever
    takes over; what had begun is unknown, or, with an idempotency key, applied again (ruling 15).
    """
    house = House(database, None, Played(repeatable=repeatable))
    automation = house.live(config={"threshold": 8})

    class Killed(BaseException):
        pass

    def die(context: Context, decision: Decision) -> None:
        if decision.subject_id == "9":
            house.kind.effects[context.run_key, "9"] += 1
            raise Killed

    house.clocks.advance(60)
    house.kind.applying = die
    monkeypatch.setattr(Calls, "apply", uncaught)
    with pytest.raises(Killed):
        house.tick()
    house.kind.applying = lambda context, decision: None
    monkeypatch.undo()
    house = house.restart()
    house.clocks.advance(limits.LEASE_SECONDS + 1)
    house.tick()
    run = next(run for run in house.runs(automation) if run.mode.value == "live")
    effects = {
        i.decision.subject_id: i.effect for i in house.items(run) if i.effect.value != "none"
    }
    done = {subject: n for (key, subject), n in house.kind.effects.items()}
    assert run.status is RunStatus.COMPLETED
    if repeatable:
        assert set(effects.values()) == {Effect.APPLIED}
        assert done == {"8": 1, "9": 2, "10": 1}
    else:
        assert effects == {"8": Effect.APPLIED, "9": Effect.UNKNOWN, "10": Effect.APPLIED}
        assert run.counts.unknown == 1
        assert done == {"8": 1, "9": 1, "10": 1}
    house.check()
    house.close()


def begun(house: House) -> tuple[Any, int]:
    """
    A live run of which one effect has begun, and its worker is gone; returns the item's number.
    """
    automation = house.live(config={"threshold": 8})
    house.clocks.advance(60)
    house.tick()
    run = house.runs(automation)[-1]
    (item, *_) = (item for item in house.items(run) if item.effect is Effect.APPLIED)
    house.sql("UPDATE automation_run_items SET effect = 'applying' WHERE item_id = ?", item.item_id)
    house.sql(
        "UPDATE automation_runs SET status = 'running', approved_count = 2, finished_at = NULL,"
        " lease_token = 'dead', lease_until = '2026-03-02 12:00:30.000' WHERE run_id = ?",
        run.run_id,
    )
    house.kind.effects.clear()
    return automation, item.item_id


def test_what_had_begun_is_unknown_as_soon_as_it_is_taken_over(house: House) -> None:
    """
    Taking a run over settles what had begun, whoever goes on with it and when (ruling 15).
    """
    automation, number = begun(house)
    (stale,) = house.read(runs.get_stale_running, house.now, 10)
    assert house.do(runs.take_over, stale, house.now, False) == 1
    run = house.runs(automation)[-1]
    (item,) = (item for item in house.items(run) if item.item_id == number)
    assert (item.effect, run.counts.unknown) == (Effect.UNKNOWN, 1)
    house.check()


def test_what_had_begun_is_never_begun_again(house: House) -> None:
    """
    An effect that may not be repeated is not applied a second time, however it came to be left.
    """
    automation, _ = begun(house)
    house.sql("UPDATE automation_runs SET lease_token = NULL WHERE lease_token = 'dead'")
    house.tick()
    run = house.runs(automation)[-1]
    assert run.status is RunStatus.COMPLETED
    assert house.kind.effects == {}
    assert run.counts.unknown == 1


def uncaught(calls: Calls, kind: Any, about: Any, decision: Decision) -> Applied:
    """
    A call of apply that lets go through what ends a process.
    """
    kind.apply(calls._context(about, True), decision)
    return Applied(Effect.APPLIED)


def test_two_daemons_share_the_work(two: tuple[House, House]) -> None:
    """
    Two daemons that tick in turn advance each run once, and the counts hold.
    """
    one, other = two
    one.kind.records = list(range(1, 1500))
    automations = [one.add(f"tenant{n}", max_items_per_run=5000) for n in range(3)]
    for _ in range(4):
        one.clocks.advance(60)
        one.tick()
        other.tick()
    for automation in automations:
        first = one.runs(automation)[0]
        assert (first.status, first.counts.items) == (RunStatus.COMPLETED, 1499)
    one.check()


def test_a_tenant_is_served_by_one_at_a_time(two: tuple[House, House]) -> None:
    """
    While one daemon serves a tenant, another's tick leaves that tenant alone; after the lease a
    dead daemon's tenant is served again.
    """
    one, other = two
    one.add()
    one.add("bravo")
    served: list[str] = []

    def during(context: Context, cursor: Json) -> None:
        if not served and context.tenant == "acme":
            served.append("acme")
            before = len(other.workers.calls)
            other.tick()
            assert [call.tenant for call in other.workers.calls[before:]] == ["bravo"]

    one.kind.before = during
    one.minutes(1)
    assert served == ["acme"]
    token = "x" * 32
    assert one.do(runs.lease_tenant, "acme", token, one.now, one.now + 120, 5) is not None
    one.clocks.advance(60)
    one.tick()
    assert other.do(runs.lease_tenant, "acme", "y" * 32, one.now, one.now + 120, 5) is None
    one.clocks.advance(61)
    assert one.tick().chunks > 0
