"""
The watch: beats, samples, and one line when the verdict changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher

from crq import audit, heartbeat, series
from crq.config import HistoryOptions
from crq.database import Cursor, Database
from crq.messages import NotSent
from crq.series import Ended, Sample
from crq.verdict import Verdict
from crq.watch import Watch
from tests import rows
from tests.house import House
from tests.rows import LIMITS, NOON

DAY = 86_400.0


class Post:
    """
    A house with its watch, on the same clocks.
    """

    def __init__(self, database: Database) -> None:
        self.house = House(database)
        self.busy = False
        self.also = 0
        self.watch = Watch(
            pool=self.house.pool,
            gates=self.house.gates,
            pulse=self.house.pulse,
            limits=lambda: LIMITS,
            drainer_id="d1",
            options=HistoryOptions(series_days=2, audit_days=3),
            clock=self.house.clocks,
            wall=self.house.clocks.wall,
            busy=lambda: self.busy,
            also=self.something,
        )
        self.lines: list[LogEvent] = []
        self.observer = cast(ILogObserver, self.note)
        globalLogPublisher.addObserver(self.observer)

    async def something(self) -> None:
        self.also += 1

    def note(self, event: LogEvent) -> None:
        if event.get("action") in ("verdict", "watch failed"):
            self.lines.append(event)

    def start(self) -> Post:
        self.house.start()
        self.watch.startService()
        return self

    def go(self, seconds: float) -> None:
        self.house.clocks.go(seconds, 0.5)

    def read(self, function: Any, *args: Any) -> Any:
        return self.house.database.read(self.house.executor.connection, function, *args)

    def write(self, function: Any, *args: Any) -> Any:
        return self.house.database.transact(self.house.executor.connection, function, *args)

    def stop(self) -> list[Any]:
        stopped: list[Any] = []
        self.house.drainer.stopService()
        done = self.watch.stopService()
        assert isinstance(done, Deferred)
        done.addBoth(stopped.append)
        return stopped

    def words(self) -> list[tuple[str, str]]:
        return [(line["verdict"], line["log_level"].name) for line in self.lines]


@pytest.fixture
def post(database: Database) -> Iterator[Post]:
    """
    Nothing is started.
    """
    made = Post(database)
    yield made
    globalLogPublisher.removeObserver(made.observer)
    if made.watch.running:
        made.stop()
        made.go(1)
    made.house.close()


def test_it_writes_a_beat_every_ten_seconds(post: Post) -> None:
    """
    Soon after the start, then every ten seconds: six writes a minute, however often it ticks.
    """
    beats: list[float] = []
    transact = post.house.pool.transact

    def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function in (heartbeat.write, post.watch.run_once.__globals__["_store"]):
            beats.append(post.house.clocks.seconds())
        return transact(function, *args, **kwargs)

    post.house.pool.transact = watched  # type: ignore[method-assign]
    post.start().go(60)
    assert beats == [2.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    (beat,) = post.read(heartbeat.read)
    assert (beat.drainer_id, beat.beat_at) == ("d1", NOON + 60)
    assert beat.last_good_age is not None
    assert beat.last_good_age <= 1.0
    assert post.also == 7


def test_it_samples_each_minute_once(post: Post) -> None:
    """
    The minute that is over, with what began and ended in it.
    """
    post.start()
    number = rows.admit(post.house.database, post.house.pool.connection, at=NOON + 1)
    post.go(70)
    post.house.executor.end(number)
    post.go(120)
    found = post.read(series.read, NOON - 600, NOON + 600)
    assert [(each.minute - NOON) / 60 for each in found] == [0, 1, 2]
    assert [each.ended.starts for each in found] == [1, 0, 0]
    assert [each.ended.success for each in found] == [0, 1, 0]
    assert [each.in_flight for each in found] == [1, 0, 0]


def test_old_minutes_lines_and_beats_go(post: Post) -> None:
    """
    After their days, and the beats of dead drainers after an hour.
    """

    def old(txn: Cursor) -> None:
        for days in (1, 3):
            at = NOON - days * DAY
            series.sample(txn, Sample(at, "idle", 0, None, 0, 0, Ended()))
        for days in (2, 4):
            audit.record(txn, "w", audit.Action.PAUSE, "all", NOON - days * DAY)
        heartbeat.write(txn, post.house.pulse.beat("gone", NOON - 4000, 0.0))

    post.write(old)
    post.start().go(70)
    assert len(post.read(series.read, 0.0, NOON - 3600)) == 1
    assert len(post.read(audit.page)) == 1
    assert [beat.drainer_id for beat in post.read(heartbeat.read)] == ["d1"]


def test_the_verdict_is_logged_when_it_changes(post: Post) -> None:
    """
    Once a change, with its reason and proof; louder when it is worse; between idle and flowing not
    at all.
    """
    post.start().go(20)
    numbers = post.house.admit()
    post.go(20)
    post.house.executor.end(numbers[0])
    post.go(20)
    assert [level for _, level in post.words()] == ["debug"] * 3
    post.house.executor.refuse = NotSent("refused")
    post.house.admit()
    post.go(60)
    assert post.words()[3:] == [("degraded", "warn"), ("stalled", "error")] or post.words()[3:] == [
        ("stalled", "error")
    ]
    (last,) = post.lines[-1:]
    assert "executor" in last["because"]
    assert last["proof"][0].startswith("execution ")
    post.house.executor.refuse = None
    post.go(60)
    assert post.words()[-1] == ("flowing", "info")
    assert len(post.words()) <= 6


def test_it_survives_faults(post: Post) -> None:
    """
    A fault of ours is told once and the next round comes; an outage of the database it leaves to
    the others to tell.
    """
    post.start().go(5)
    read, fault = post.house.pool.read, ValueError("wedged")

    def broken(*_args: Any, **_kwargs: Any) -> Any:
        raise fault

    post.house.pool.read = broken  # type: ignore[method-assign]
    post.go(40)
    assert [line["log_level"] for line in post.lines if line["action"] == "watch failed"] == [
        LogLevel.critical
    ]
    post.house.pool.read = read  # type: ignore[method-assign]
    post.go(20)
    (beat,) = post.read(heartbeat.read)
    assert beat.beat_at > NOON + 50


def test_a_stop_in_order_takes_the_beat_away(post: Post) -> None:
    """
    While answers are due it says that it stops; afterwards nobody is taken for dead.
    """
    post.start().go(11)
    post.busy = True
    stopped = post.stop()
    post.go(3)
    (beat,) = post.read(heartbeat.read)
    assert (stopped, beat.stopping) == ([], True)
    post.busy = False
    post.go(1)
    assert stopped == [None]
    assert post.read(heartbeat.read) == ()
    assert post.house.clocks.getDelayedCalls() == []


def test_a_raised_cap_reaches_whoever_counts(post: Post) -> None:
    """
    The drainer tells its transport when the caps in force change, and only then.
    """
    from crq import actions
    from crq.actions import By

    told: list[tuple[int, dict[str, int]]] = []
    post.house.drainer.capped = lambda caps: told.append((caps.in_flight, dict(caps.accounts)))
    post.start().go(3)
    post.house.admit()
    post.go(3)

    def set_(txn: Cursor) -> None:
        by = By("token:ops", NOON)
        actions.cap(txn, None, 6, LIMITS, 8, by)
        actions.cap(txn, "a" * 64, 1, LIMITS, 8, by)

    post.write(set_)
    post.go(3)
    assert told == [(4, {}), (6, {"a" * 64: 1})]
    assert post.house.drainer.caps.in_flight == 6
    assert post.watch._verdict in (Verdict.FLOWING, Verdict.IDLE)
