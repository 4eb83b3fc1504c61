"""
The plain contract on real rows: a drainer on clocks that the test turns, over both engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from crq import executions, heartbeat, policy
from crq.database import CommitUnknown, Database
from crq.executions import Ending
from crq.invariants import stored
from crq.messages import Answered, Fate, Lost, NotSent, Outcome
from crq.model import Status
from crq.presence import Presence
from crq.pulse import DEAD_AFTER
from tests import invariants, rows
from tests.plainhouse import PlainHouse
from tests.rows import NOON, SEALER

MARK = "plain by d1:a"
SUCCESS = Outcome(Status.SUCCESS)


@pytest.fixture
def house(database: Database) -> Iterator[PlainHouse]:
    """
    A running drainer with nothing to do.
    """
    made = PlainHouse(database).start()
    yield made
    made.close()


def row(house: PlainHouse, number: int) -> dict[str, Any]:
    return rows.row(house.database, house.pool.connection, number)


def agrees(house: PlainHouse) -> bool:
    """
    I1 of all rows.
    """
    return stored(invariants.rows(house.database, house.pool.connection)) == []


# -- the way of a row


def test_a_row_runs_from_the_claim_on(house: PlainHouse) -> None:
    """
    What is claimed is running, under the mark of this process, before anything is sent; a 2xx is
    its success.
    """
    (number,) = house.admit()
    house.drainer.wake()
    found = row(house, number)
    assert (found["status"], found["nonce_hash"]) == ("running", None)
    assert found["worker_id"] == house.dispatcher.mark
    assert found["started_at"] == found["claimed_at"] is not None
    assert agrees(house)
    house.clocks.advance(2)
    house.answer(number)
    found = row(house, number)
    assert (found["status"], found["error_code"]) == ("success", None)
    assert found["finished_at"] > found["started_at"]
    assert agrees(house)
    assert house.dispatcher.outstanding == {}


@pytest.mark.parametrize(
    ("result", "code", "message"),
    [
        (Answered(500, detail="boom"), 500, "HTTP 500 boom"),
        (Answered(429), 429, "HTTP 429"),
        (Answered(302, detail="redirect to /x"), 302, "HTTP 302 redirect to /x"),
        (Lost("reset"), 303, "no answer, outcome unknown: reset"),
    ],
    ids=str,
)
def test_what_is_not_2xx_fails_and_is_never_repeated(
    house: PlainHouse, result: Any, code: int, message: str
) -> None:
    """
    The row ends with the code, the message says what came, and no second POST is ever made.
    """
    (number,) = house.admit()
    house.drainer.wake()
    house.answer(number, result)
    house.clocks.go(60)
    found = row(house, number)
    assert (found["status"], found["error_code"]) == ("failed", code)
    assert found["error_message"] == message
    assert house.posts == {number: 1}
    assert agrees(house)


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_closes_the_gate_and_keeps_the_place(house: PlainHouse, status: int) -> None:
    """
    429 and 503 with Retry-After close the key's gate until then; the row waits in its old place,
    goes first when the gate opens, and the closing has its line in the history.
    """
    first, second = house.admit(count=2)
    house.drainer.wake()
    house.answer(second)
    house.answer(first, Answered(status, retry_after="30"))
    later = house.admit()
    other = house.admit("bravo", "other")
    house.drainer.wake()
    found = row(house, first)
    assert (found["status"], found["claimed_at"], found["started_at"]) == ("queued", None, None)
    assert (found["worker_id"], found["claim_epoch"]) == (None, None)
    assert agrees(house)
    assert house.store.read([SEALER.key("key")], house.clocks.wall()).closed == {
        SEALER.key("key"): NOON + 35
    }
    assert set(house.executor.arrived) == set(other)
    house.clocks.go(34)
    assert set(house.executor.arrived) == set(other)
    house.clocks.go(2)
    assert set(house.executor.arrived) == {*other, first}
    house.answer(first)
    house.drainer.wake()
    assert set(house.executor.arrived) == {*other, *later}

    def history(txn: Any) -> Any:
        sql = "SELECT cause, execution_id, limits FROM codeRunner_gate_history"
        return [tuple(each) for each in txn.execute(sql).all()]

    told = house.database.read(house.pool.connection, history)
    assert told == [(f"{status}, Retry-After: 30", first, 1)]


def test_a_refusal_without_a_key_pauses_everything(house: PlainHouse) -> None:
    """
    A row without a key has no gate to close: nothing is sent for as long as was asked.
    """

    def insert(txn: Any) -> None:
        rows.insert_queued(txn, SEALER.account("acme"), None, house.clocks.wall())

    house.database.transact(house.pool.connection, insert)
    house.drainer.wake()
    house.answer(1, Answered(503, retry_after="20"))
    assert house.status(1) == "queued"
    (other,) = house.admit("bravo", "other")
    house.clocks.go(19)
    assert house.executor.arrived == {}
    house.clocks.go(4)
    assert set(house.executor.arrived) == {other}


def test_what_was_not_sent_waits_in_its_place(house: PlainHouse) -> None:
    """
    A refused connection costs no row; tries grow rarer, and the oldest goes first afterwards.
    """
    house.executor.refuse = NotSent("connection refused")
    numbers = house.admit(count=3)
    house.drainer.wake()
    house.clocks.go(60)
    assert house.statuses() == {"queued": 3}
    assert 5 <= len(house.executor.dispatches) <= 12
    assert house.pulse.alarm == "connection refused"
    assert agrees(house)
    house.executor.refuse = None
    house.clocks.go(16)
    assert set(house.executor.arrived) == {numbers[0]}
    house.answer(numbers[0])
    assert set(house.executor.arrived) == set(numbers[1:])
    assert house.pulse.alarm is None


def test_a_row_that_cannot_be_sent_fails_alone(house: PlainHouse) -> None:
    """
    106, and never started; the others go on at once.
    """
    house.executor.refuse = NotSent("the key cannot be opened", for_good=True)
    (number,) = house.admit()
    house.drainer.wake()
    house.clocks.advance(0)
    found = row(house, number)
    assert (found["status"], found["error_code"]) == ("failed", 106)
    assert found["started_at"] is None
    assert agrees(house)
    house.executor.refuse = None
    (other,) = house.admit()
    house.drainer.wake()
    assert set(house.executor.arrived) == {other}


def test_a_dead_endpoint_does_not_burn_the_backlog(house: PlainHouse) -> None:
    """
    An endpoint that answers 404 to everything costs a row for each try, and tries grow rarer.
    """
    house.executor.refuse = Answered(404, detail="not found")
    house.admit(count=40)
    house.drainer.wake()
    house.clocks.go(60)
    failed = house.statuses()["failed"]
    assert 5 <= failed <= 12
    assert house.pulse.alarm == "HTTP 404 not found"


def test_while_one_tries_for_all_the_others_wait(house: PlainHouse) -> None:
    """
    After an answer against the endpoint one POST tries for all, however long it takes: that its row
    is running says nothing, only an answer does.
    """
    house.executor.refuse = Answered(502)
    (first,) = house.admit()
    house.drainer.wake()
    house.clocks.go(0.25)
    assert house.status(first) == "failed"
    house.executor.refuse = None
    numbers = [house.admit(account, account)[0] for account in ("acme", "bravo", "carla")]
    house.clocks.go(60)
    assert len(house.executor.arrived) == 1
    assert house.pulse.alarm == "HTTP 502"
    house.answer(next(iter(house.executor.arrived)), Answered(500))
    assert len(house.executor.arrived) == 2
    assert house.pulse.alarm is None
    assert house.posts == dict.fromkeys((first, *numbers), 1)


def test_caps_hold(house: PlainHouse) -> None:
    """
    At most 4 POSTs without an answer, at most 2 of one account.
    """
    for account in ("acme", "bravo", "carla"):
        house.admit(account, account, count=5)
    house.drainer.wake()
    for _ in range(30):
        waiting = [claimed.lane for claimed, _ in house.executor.arrived.values()]
        assert len(waiting) <= 4
        assert all(
            sum(lane.subdomain_hash == each.subdomain_hash for lane in waiting) <= 2
            for each in waiting
        )
        if house.executor.arrived:
            house.answer(next(iter(house.executor.arrived)))
    assert house.statuses() == {"success": 15}


def test_the_clock_of_nothing_starts_ends_with_the_first_byte(house: PlainHouse) -> None:
    """
    A long POST is no sign that nothing starts.
    """
    (number,) = house.admit()
    house.drainer.wake()
    assert house.pulse.unstarted_since is not None
    house.dispatcher.sent(house.executor.arrived[number][0])
    house.clocks.go(5)
    assert house.pulse.unstarted_since is None


# -- outcomes together


def test_outcomes_that_come_together_are_one_transaction(database: Database) -> None:
    """
    Three answers in one turn are written by one UPDATE in one transaction.
    """
    said: list[str] = []
    watched = Database(database.url, observe=said.append)
    house = PlainHouse(watched).start()
    try:
        numbers = [house.admit(account, account)[0] for account in ("acme", "bravo", "carla")]
        house.drainer.wake()
        for number in numbers:
            house.executor.answer(number, Answered(200))
        said.clear()
        house.clocks.advance(0)
        kinds = [text.split()[0] for text in said]
        written = kinds[: kinds.index("COMMIT") + 1]
        assert written[0].startswith("BEGIN")
        assert written[1:] == ["UPDATE", "SELECT", "COMMIT"]
        assert house.statuses() == {"success": 3}
    finally:
        house.close()


def test_an_outcome_is_written_when_the_database_is_back(
    house: PlainHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While it cannot be written the slot is held; a COMMIT without an answer is repeated safely.
    """
    transact = house.pool.transact
    left = ["settle"] * 2

    def lose(function: Any, *args: Any, **more: Any) -> Deferred[Any]:
        done: Deferred[Any] = transact(function, *args, **more)
        if function.__name__ in left:
            left.remove(function.__name__)
            done.addCallback(lambda _: (_ for _ in ()).throw(CommitUnknown()))
        return done

    monkeypatch.setattr(house.pool, "transact", lose)
    (number,) = house.admit()
    house.drainer.wake()
    house.answer(number, Answered(500))
    assert set(house.dispatcher.outstanding) == {number}
    house.clocks.go(3)
    assert house.dispatcher.outstanding == {}
    assert row(house, number)["error_code"] == 500


def test_a_late_outcome_replaces_unknown_and_nothing_else(
    database: Database, connection: Any
) -> None:
    """
    An outcome after 303 replaces it; after an end, of another process, or of a row that waits, it
    changes nothing.
    """
    numbers = [rows.admit(database, connection, f"a{n}", f"k{n}") for n in range(4)]
    epoch = _claim(database, connection, 4)
    reaped, ended, others, waits = numbers
    _end(database, connection, [(ended, epoch, Outcome(Status.FAILED, 500, "x"))])
    database.transact(connection, executions.died, reaped, NOON + 1, "reaped")
    assert _put_back(database, connection, waits, epoch, MARK)
    _end(database, connection, [(others, epoch, SUCCESS)], mark="plain by d1:b")
    states = _end(database, connection, [(n, epoch, SUCCESS) for n in (reaped, ended, waits)])
    assert {n: states[n].status for n in states} == {
        reaped: "success",
        ended: "failed",
        waits: "queued",
    }
    assert rows.row(database, connection, others)["status"] == "running"


def test_only_the_process_and_claim_that_know_put_back(database: Database, connection: Any) -> None:
    """
    A row goes back only under its mark and its claim, and only while it runs.
    """
    number = rows.admit(database, connection)
    epoch = _claim(database, connection, 1)
    assert not _put_back(database, connection, number, epoch, "plain by d1:b")
    assert not _put_back(database, connection, number, epoch + 1, MARK)
    assert _put_back(database, connection, number, epoch, MARK)
    assert not _put_back(database, connection, number, epoch, MARK)
    _claim(database, connection, 1)
    # What was put back is claimed anew by now: repeating the old word of it changes nothing.
    ending = Ending(number, epoch, Fate.RELEASED)
    database.transact(connection, executions.end, [ending], MARK, NOON)
    assert rows.row(database, connection, number)["status"] == "running"


# -- processes that end


def test_a_restart_closes_what_was_sent_and_starts_nothing_again(house: PlainHouse) -> None:
    """
    What the killed process had POSTed is unknown at once (303); what waited goes on; no execution
    is POSTed twice.
    """
    numbers = house.admit(count=4)
    house.drainer.wake()
    sent = set(house.executor.arrived)
    assert sent == set(numbers[:2])
    house = house.restart()
    assert {house.status(number) for number in sent} == {"failed"}
    assert {row(house, number)["error_code"] for number in sent} == {303}
    assert row(house, numbers[0])["error_message"] == ("its daemon was restarted, outcome unknown")
    assert house.status(numbers[2]) == "running"
    house.executor.answer(numbers[0], Answered(200))  # to nobody
    for number in numbers[2:]:
        house.answer(number)
    house.clocks.go(5)
    assert set(house.posts.values()) == {1}
    assert house.statuses() == {"failed": 2, "success": 2}
    assert agrees(house)
    house.kill()


def test_by_the_wall_the_dead_keep_their_slots(database: Database) -> None:
    """
    With liveness = "wall" the slots of a killed process count until the wall: the endpoint may
    still be busy with them.
    """
    house = PlainHouse(database, wall_limit=330.0).start()
    numbers = house.admit(count=4)
    house.drainer.wake()
    house = house.restart()
    house.clocks.go(320, 1.0)
    assert house.posts == dict.fromkeys(numbers[:2], 1)
    house.clocks.go(15, 1.0)
    assert house.statuses() == {"failed": 2, "running": 2}
    house.close()


def test_another_living_drainer_is_left_alone(house: PlainHouse) -> None:
    """
    Rows of another drainer run on as long as it beats, and are closed when it has been silent for
    half a minute; the silence counts on our own clock.
    """
    other = house.again("d2")
    (number,) = house.admit()
    house.drainer.stopService()
    other.start()
    presence = Presence(house.pool, house.pulse, "d1", house.clocks, house.clocks.wall)
    house.drainer.presence = presence
    house.start()
    assert set(other.dispatcher.outstanding) == {number}

    def beat(skew: float) -> None:
        said = other.pulse.beat("d2", other.clocks.wall() + skew, 0.0)
        house.database.transact(house.pool.connection, heartbeat.write, said)

    def go(seconds: int) -> None:
        for _ in range(seconds // 10):
            presence.looked(house.database.read(house.pool.connection, heartbeat.read))
            house.clocks.go(10)

    for _ in range(12):  # its wall clock is an hour behind ours, and it lives
        beat(-3600.0)
        go(10)
    assert house.status(number) == "running"
    go(int(DEAD_AFTER) - 10)
    assert house.status(number) == "running"
    other.kill()
    go(20)
    assert row(house, number)["error_code"] == 303
    assert row(house, number)["error_message"] == "its daemon d2 is silent, outcome unknown"


def test_a_start_closes_only_what_its_own_name_left(house: PlainHouse) -> None:
    """
    A drainer that starts beside a living one leaves its rows alone.
    """
    (number,) = house.admit()
    house.drainer.wake()
    other = house.again("d2").start()
    assert house.status(number) == "running"
    house.answer(number)
    assert house.status(number) == "success"
    other.kill()


def test_an_unanswered_commit_of_the_claim_loses_nothing(
    house: PlainHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Rows that were claimed by a COMMIT without an answer were never sent: they go back and start.
    """
    transact = house.pool.transact
    lost: list[str] = []

    def lose(function: Any, *args: Any, **more: Any) -> Deferred[Any]:
        done: Deferred[Any] = transact(function, *args, **more)
        if function.__name__ == "claim" and not lost:
            lost.append("claim")
            done.addCallback(lambda _: (_ for _ in ()).throw(CommitUnknown()))
        return done

    monkeypatch.setattr(house.pool, "transact", lose)
    numbers = house.admit(count=2)
    house.drainer.wake()
    house.clocks.go(2)
    assert lost == ["claim"]
    assert house.posts == dict.fromkeys(numbers, 1)
    assert set(house.dispatcher.outstanding) == set(numbers)


def test_what_is_put_back_and_claimed_anew_is_not_put_back_again(house: PlainHouse) -> None:
    """
    The end of a dispatch whose row was claimed anew meanwhile does not forget the new dispatch: it
    would be taken for unsent and be sent a second time.
    """
    (number,) = house.admit()
    house.drainer.wake()
    first = house.dispatcher.outstanding[number]
    epoch, mark = first.claim_epoch, house.dispatcher.mark
    assert _put_back(house.database, house.pool.connection, number, epoch, mark)
    _, answer = house.executor.arrived.pop(number)
    house.drainer.wake()
    second = house.dispatcher.outstanding[number]
    assert second is not first
    answer.callback(NotSent("refused"))
    house.clocks.go(3)
    assert house.dispatcher.outstanding == {number: second}
    assert house.posts == {number: 2}


def test_a_stop_writes_what_it_gave_up(house: PlainHouse) -> None:
    """
    POSTs without an answer at the end of the drain limit are unknown when the stop is over.
    """
    (number,) = house.admit()
    house.drainer.wake()
    stopped = house.drainer.stopService()
    house.clocks.go(59)
    assert not stopped.called
    _, answer = house.executor.arrived[number]
    answer.addErrback(lambda _: Lost("cancelled"))
    codes: list[int] = []
    stopped.addCallback(lambda _: codes.append(row(house, number)["error_code"]))
    house.clocks.go(2)
    assert codes == [303]


def _claim(database: Database, connection: Any, count: int) -> int:
    """
    Claim all that waits; returns the epoch.
    """
    snapshot = database.read(connection, executions.snapshot, 4)
    plan = policy.plan(snapshot, {}, rows.LIMITS, NOON)
    claimed = database.transact(
        connection,
        executions.claim,
        plan,
        rows.LIMITS,
        "d1",
        NOON,
        lambda: pytest.fail("a nonce is minted"),
        (),
        MARK,
    )
    assert len(claimed) == count
    return claimed[0].claim_epoch


def _end(
    database: Database,
    connection: Any,
    ended: list[tuple[int, int, Outcome]],
    mark: str = MARK,
) -> Any:
    endings = [Ending(number, epoch, Fate.ENDED, outcome) for number, epoch, outcome in ended]
    return database.transact(connection, executions.end, endings, mark, NOON + 2)


def _put_back(database: Database, connection: Any, number: int, epoch: int, mark: str) -> bool:
    return database.transact(connection, executions.put_back, number, epoch, mark)
