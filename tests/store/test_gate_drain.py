"""
Gates from end to end in the loop: what opens, what goes first, what is kept of it, and an executor
that itself asks to be left alone; on clocks that the test turns, over SQLite and MariaDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.logger import LogEvent

from crq import gatehistory
from crq.config import ReaperOptions
from crq.database import Database
from crq.gatehistory import Closing
from crq.gatememory import FOUND
from crq.instants import instant_text
from crq.messages import Answered, Lost
from crq.policy import PAUSE_MAXIMUM
from crq.reaper import Reaper
from tests.house import House
from tests.rows import NOON, SEALER

KEY = SEALER.key("key")


def history(house: House) -> tuple[Closing, ...]:
    return house.database.read(house.pool.connection, gatehistory.closings)


def close(house: House, seconds: float) -> None:
    house.store.close(KEY, house.clocks.wall() + seconds, house.clocks.wall())


# -- one goes first


def test_a_gate_that_opens_lets_no_herd_through(database: Database) -> None:
    """
    F53: of 200 rows behind a gate one starts when it opens; when that one is refused the gate is
    back before a second starts, and other accounts have had the slots all the time.
    """
    house = House(database).start()
    gated = house.admit("acme", "key", count=200)
    close(house, 10)
    others = [number for name in ("b", "c", "d") for number in house.admit(name, name, count=2)]
    house.drainer.wake()
    house.clocks.go(9)
    assert set(house.executor.order) <= set(others)
    assert len(house.executor.alive) == 4
    house.executor.end_all()
    house.clocks.go(2)
    begun = [number for number in house.executor.order if number in gated]
    assert begun == gated[:1]
    close(house, 20)  # what the first of them does when it is refused
    house.executor.end(gated[0])
    house.clocks.go(18)
    assert [number for number in house.executor.order if number in gated] == gated[:1]
    house.clocks.go(4)
    assert [number for number in house.executor.order if number in gated] == gated[:2]
    house.executor.end(gated[1])
    house.clocks.go(1)
    assert [number for number in house.executor.order if number in gated] == gated[:4]
    house.close()


@pytest.mark.parametrize("opens", ["before the kill", "while it is down", "after the start"])
def test_one_goes_first_after_a_restart_too(house: House, opens: str) -> None:
    """
    Ruling 8 outlives a kill: what a drainer has not seen proven open begins with one execution.
    """
    numbers = house.admit(count=4)
    close(house, 10)
    house.drainer.wake()
    house.clocks.go(12 if opens == "before the kill" else 5)
    begun = numbers[:1] if opens == "before the kill" else []
    assert house.executor.order == begun
    house.kill()
    house.clocks.advance(20 if opens == "while it is down" else 1)
    house = House(house.database, house.clocks, house.executor).start()
    house.clocks.go(8)
    assert house.executor.order == numbers[:1]
    house.executor.end(numbers[0])
    house.clocks.go(4)
    if opens == "before the kill":  # the new drainer has not awaited that one's answer
        assert house.executor.order == numbers[:2]
        house.executor.end(numbers[1])
        house.clocks.go(4)
        assert house.executor.order == numbers
    else:
        assert house.executor.order == numbers[:3]
    house.kill()


# -- the history


def test_the_history_tells_what_a_gate_was_good_for(house: House) -> None:
    """
    A gate that another program wrote is noted when it is seen; when it opens, those who waited are
    counted before the first of them starts; the janitor adds what came after.
    """
    house.admit(count=3)
    house.admit("umbrella", "key", count=2)
    house.admit("umbrella", "other")
    close(house, 60)
    house.drainer.wake()
    (closing,) = history(house)
    assert (closing.cause, closing.limits, closing.held) == (FOUND, 0, None)
    house.clocks.go(61)
    (closing,) = history(house)
    assert (closing.opened_at, closing.held) == (instant_text(NOON + 60), 5)
    janitor(house, 61)
    (closing,) = history(house)
    assert closing.limits_after == 0


def test_an_opening_that_no_tick_has_seen_is_the_janitors(house: House) -> None:
    """
    A key that nothing waits for is not asked for; its closing is finished all the same.
    """
    connection, now = house.pool.connection, house.clocks.wall()
    house.database.transact(connection, gatehistory.record, KEY, now + 30, now, "429")
    house.clocks.go(40)
    assert history(house)[0].opened_at is None
    janitor(house, 0)
    assert (history(house)[0].held, history(house)[0].limits_after) == (0, None)
    janitor(house, 61)
    assert history(house)[0].limits_after == 0


def test_a_fault_of_the_history_stops_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, logged: Sequence[LogEvent]
) -> None:
    """
    It is for people: rows start although it cannot be written, and the log says so.
    """

    def broken(*_: object) -> None:
        raise RuntimeError("the table is gone")

    monkeypatch.setattr(gatehistory, "noted", broken)
    numbers = house.admit(count=1)
    close(house, 5)
    house.drainer.wake()
    house.clocks.go(7)
    assert house.executor.order == numbers
    assert house.pulse.last_error is None
    assert [e["action"] for e in logged if e.get("action") == "gate_history_not_written"]


def test_a_tick_without_news_writes_nothing(database: Database) -> None:
    """
    A gate that stays closed costs no transaction a tick.
    """
    seen: list[str] = []
    house = House(evolve(database, observe=seen.append)).start()
    house.admit(count=2)
    close(house, 600)
    house.drainer.wake()
    assert [sql for sql in seen if "gate_history" in sql]
    seen.clear()
    house.clocks.go(30, 1.0)
    assert seen
    assert not [sql for sql in seen if "gate_history" in sql]
    house.close()


# -- an executor that asks for a pause


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (Answered(503, retry_after="20"), 20),
        (Answered(429, retry_after="20"), 20),
        (Answered(503, retry_after="0"), 5),
        (Answered(503, retry_after="Mon, 02 Mar 2026 12:00:30 GMT"), 30),
        (Answered(503, retry_after="3600"), PAUSE_MAXIMUM),
        (Answered(503, retry_after="soon"), 60),
        (Answered(503), 0.5),
        (Answered(502, retry_after="20"), 0.5),
        (Answered(503, error_code=113, retry_after="20"), 20),
    ],
    ids=str,
)
def test_an_executor_is_left_alone_as_long_as_it_asks(
    house: House, answer: Answered, pause: float
) -> None:
    """
    429 or 503 with Retry-After before a start: nothing is sent until then, by the one rule, but no
    longer than a minute; then the oldest row goes first. Without it the back-off decides.
    """
    house.executor.refuse = answer
    (first,) = house.admit("acme")
    house.drainer.wake()
    assert house.executor.dispatches == [first]
    later = [*house.admit("bravo", "b"), *house.admit("acme")]
    house.executor.refuse = None
    house.clocks.go(pause - 0.25)
    assert house.executor.dispatches == [first]
    assert house.status(first) == "queued"
    assert house.pulse.backing_off_until is not None
    house.clocks.go(0.5)
    assert len(house.executor.order) == 1
    house.clocks.go(40)
    assert sorted(house.executor.order) == sorted([first, *later])
    started = [number for number in house.executor.order if number in (first, later[1])]
    assert started == [first, later[1]]


def test_a_row_that_began_is_not_sent_again_whatever_is_asked(house: House) -> None:
    """
    A 503 with Retry-After that comes after the start frees nothing: the lock decides.
    """
    (number,) = house.admit()
    house.drainer.wake()
    house.executor.answer(number, Answered(503, retry_after="5"))
    house.clocks.go(30)
    assert house.executor.dispatches == [number]
    assert house.status(number) == "running"
    assert house.pulse.backing_off_until is None


def test_a_lost_answer_asks_for_nothing(house: House) -> None:
    """
    Only an answer can ask; a reset is followed by the back-off.
    """
    house.executor.refuse = Lost("connection reset")
    house.admit()
    house.drainer.wake()
    house.clocks.go(0.75)
    assert len(house.executor.dispatches) >= 2


def janitor(house: House, after: float) -> None:
    """
    Let time pass and do one round of the reaper.
    """
    house.clocks.go(after, 1.0)
    reaper = Reaper(house.pool, ReaperOptions(), house.clocks, house.clocks.wall)
    done: list[Any] = []
    Deferred.fromCoroutine(reaper.run_once()).addBoth(done.append)
    assert isinstance(done[0], dict), done
