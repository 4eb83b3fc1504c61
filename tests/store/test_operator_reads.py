"""
What operators read: the series, the beats, accounts, the search; and what reading it costs.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from crq import (
    accounts,
    actions,
    audit,
    executions,
    explain,
    heartbeat,
    records,
    search,
    series,
    status,
)
from crq.actions import By
from crq.database import Cursor, Database
from crq.instants import instant_text
from crq.pulse import Beat
from crq.records import Filters
from crq.series import Ended, Sample
from tests import rows
from tests.rows import LIMITS, NOON, SEALER

ACME, OTHER = SEALER.account("acme"), SEALER.account("other")
KEY = SEALER.key("key")
BY = By("token:ops", NOON)
MANY = 2000


def insert(txn: Cursor, **values: Any) -> None:
    given = {"subdomain_hash": ACME, "queued_at": instant_text(NOON), **values}
    txn.execute(
        f"INSERT INTO codeRunner_executions ({', '.join(given)})"
        f" VALUES ({', '.join('?' * len(given))})",
        tuple(given.values()),
    )


def ended(
    status: str,
    at: float,
    code: int | None = None,
    started: bool = True,
    times: int = 1,
    account: str = ACME,
    wait: float = 1.0,
) -> dict[str, Any]:
    return {
        "subdomain_hash": account,
        "apikey_hash": KEY,
        "status": status,
        "error_code": code,
        "times": times,
        "queued_at": instant_text(at - 2 - wait),
        "started_at": instant_text(at - 2) if started else None,
        "finished_at": instant_text(at),
    }


def put(database: Database, connection: Any, *found: dict[str, Any]) -> None:
    def write(txn: Cursor) -> None:
        for values in found:
            insert(txn, **values)

    database.transact(connection, write)


# -- the series


def test_a_minute_counts_what_began_and_ended_in_it(database: Database, connection: Any) -> None:
    """
    By their own words, refusals that share a row each counted, and nothing of the minutes beside.
    """
    put(
        *(database, connection),
        ended("success", NOON),
        ended("success", NOON + 59.9),
        ended("success", NOON + 60),  # began in this minute, ended in the next
        ended("success", NOON - 0.1),
        ended("failed", NOON + 5, 301),
        ended("failed", NOON + 6, 303),
        ended("failed", NOON + 7, 303, started=False),
        ended("failed", NOON + 8, 106, started=False),
        ended("rejected", NOON + 9, 107, started=False, times=40),
        ended("cancelled", NOON + 9, started=False),
        ended("wedged", NOON + 9, started=False),
    )
    counted = database.read(connection, series.count, NOON, NOON + 60)
    assert counted == Ended(
        starts=4,
        rejected=40,
        success=2,
        failed=1,
        outcome_unknown=1,
        never_started=2,
        cancelled=1,
    )


def test_a_minute_is_kept_once(database: Database, connection: Any) -> None:
    """
    The first drainer wins, the order is by time, a span ends before its end, old ones go.
    """
    put(database, connection, ended("success", NOON + 60))
    seen = Sample(NOON, "flowing", 3, 1.5, 2, 1, Ended())
    assert database.transact(connection, series.sample, seen)
    assert not database.transact(connection, series.sample, evolve(seen, depth=9))
    for n in (3, 1, 2):
        database.transact(connection, series.sample, evolve(seen, minute=NOON + 60 * n))
    found = database.read(connection, series.read, NOON, NOON + 180)
    assert [(each.minute - NOON) / 60 for each in found] == [0, 1, 2]
    assert (found[0].depth, found[0].oldest_age, found[0].ended.starts) == (3, 1.5, 1)
    assert found[1].ended == Ended(success=1)
    newest = database.read(connection, series.read, NOON, NOON + 999, 2)
    assert [(each.minute - NOON) / 60 for each in newest] == [2, 3]
    assert database.transact(connection, series.prune, NOON + 120, 1) == 1
    assert database.transact(connection, series.prune, NOON + 120, 9) == 1
    assert len(database.read(connection, series.read, NOON, NOON + 999)) == 2


# -- beats


def test_each_drainer_has_one_beat(database: Database, connection: Any) -> None:
    """
    Written again it is changed; taken away or forgotten it is gone.
    """
    beat = Beat("d1", NOON, NOON + 1, 0.25, 3.0, NOON + 9, "refused " * 99, False, True)
    database.transact(connection, heartbeat.write, beat)
    (found,) = database.read(connection, heartbeat.read)
    assert found == evolve(beat, alarm=("refused " * 99)[:400])
    later = Beat("d1", NOON, NOON + 9)
    database.transact(connection, heartbeat.write, later)
    database.transact(connection, heartbeat.write, Beat("d2", NOON, NOON - 9000))
    assert database.read(connection, heartbeat.read) == (later, Beat("d2", NOON, NOON - 9000))
    assert database.transact(connection, heartbeat.forget, NOON) == 1
    database.transact(connection, heartbeat.remove, "d1")
    assert database.read(connection, heartbeat.read) == ()


# -- accounts


def test_accounts(database: Database, connection: Any) -> None:
    """
    Those with work come first, by their oldest; those for whom something is set and those seen
    lately follow; each with its depth, cap, waits and what passed.
    """
    waits = [1.0] * 18 + [5.0, 60.0]
    put(
        *(database, connection),
        *(ended("success", NOON - 10 - n, account=OTHER, wait=waits[n]) for n in range(20)),
        ended("success", NOON - 5000, account=OTHER),
        ended("rejected", NOON - 1, 107, started=False, account=OTHER),
    )
    rows.admit(database, connection, "acme", at=NOON - 50)
    rows.admit(database, connection, "acme", at=NOON - 40)
    rows.admit(database, connection, "third", at=NOON - 60)

    def act(txn: Cursor) -> None:
        actions.pause(txn, "account", ACME, BY)
        actions.cap(txn, SEALER.account("fourth"), 3, LIMITS, 8, BY)

    database.transact(connection, act)
    rows.claim(database, connection)
    found = database.read(connection, accounts.read, LIMITS, NOON)
    by_name = {each.subdomain_hash: each for each in found}
    assert [each.subdomain_hash for each in found][:2] == [ACME, SEALER.account("third")]
    acme, other = by_name[ACME], by_name[OTHER]
    assert (acme.subdomain, acme.queued, acme.in_flight, acme.cap, acme.cap_set) == (
        *("acme", 2, 0, 2, False),
    )
    assert acme.pause is not None
    assert acme.pause.set_by == "token:ops"
    assert acme.oldest_queued_at == NOON - 50
    assert by_name[SEALER.account("third")].in_flight == 1
    assert (by_name[SEALER.account("fourth")].cap, by_name[SEALER.account("fourth")].cap_set) == (
        *(3, True),
    )
    assert (other.queued, other.finished, other.finished_capped) == (0, 20, False)
    assert (other.wait_p50, other.wait_p95) == (1.0, 5.0)
    only = database.read(connection, accounts.read, LIMITS, NOON, [OTHER])
    assert [each.subdomain_hash for each in only] == [OTHER]


def test_an_accounts_depth_has_a_limit(
    database: Database, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Beyond it the figure says that there are more.
    """
    monkeypatch.setattr(accounts, "COUNTED", 2)
    for _ in range(3):
        rows.admit(database, connection)
    (found,) = database.read(connection, accounts.read, LIMITS, NOON)
    assert (found.queued, found.queued_capped) == (2, True)


# -- the search


def pages(database: Database, connection: Any, filters: Filters, limit: int = 50) -> list[int]:
    found: list[int] = []
    cursor = None
    for _ in range(99):
        page = database.read(connection, records.page, filters, cursor, limit)
        found += [record.execution_id for record in page.records]
        if page.cursor is None:
            return found
        cursor = page.cursor
    raise AssertionError("the cursor does not end")


def test_every_word_for_a_state_can_be_searched(database: Database, connection: Any) -> None:
    """
    What people see is what they can filter by: claimed apart from queued, unknown from failed.
    """
    put(
        *(database, connection),
        {"status": "queued"},
        {"status": "claimed"},
        {"status": "running", "started_at": instant_text(NOON)},
        ended("success", NOON),
        ended("failed", NOON, 301),
        ended("rejected", NOON, 107, started=False),
        ended("cancelled", NOON, started=False),
        ended("failed", NOON, 303),
        ended("failed", NOON, 106, started=False),
    )
    for number, word in enumerate(search.SHOWN, 1):
        assert pages(database, connection, Filters(shown=word)) == [number], word
        assert pages(database, connection, Filters(shown=word, accounts=(ACME,))) == [number]
        assert pages(database, connection, Filters(shown=word, accounts=(OTHER,))) == []
    assert pages(database, connection, Filters(apikey_hash=KEY, error_code=303)) == [8]
    assert pages(database, connection, Filters(status="failed", shown="never started")) == [9]


def test_a_search_stops_and_goes_on(
    database: Database, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It passes a bounded number of rows for one page, says how far it came, and the cursor goes on:
    every row is found, each once, whatever account it is of.
    """
    monkeypatch.setattr(search, "PIECE", 3)
    monkeypatch.setattr(search, "SEEN_LIMIT", 9)
    rare = {5, 6, 40, 59}
    put(
        *(database, connection),
        *(
            {
                **ended("failed", NOON + n, 301 if n in rare else 302),
                "subdomain_hash": (ACME, OTHER)[n % 2],
            }
            for n in range(60)
        ),
    )
    first = database.read(connection, records.page, Filters(error_code=301), None, 50)
    assert [record.execution_id for record in first.records] == [60]
    assert first.searched_to is not None
    assert first.cursor is not None
    for filters in (
        Filters(error_code=301),
        Filters(error_code=301, accounts=(ACME, OTHER)),
        Filters(error_code=301, apikey_hash=KEY, status="failed"),
    ):
        for limit in (1, 2, 50):
            assert pages(database, connection, filters, limit) == [60, 41, 7, 6]
    assert pages(database, connection, Filters(error_code=301, accounts=(ACME,))) == [41, 7]


# -- what it costs


@pytest.fixture
def history(database: Database, connection: Any) -> Database:
    """
    A log of some thousand rows behind some that wait.
    """

    def fill(txn: Cursor) -> None:
        for n in range(MANY):
            insert(txn, **ended("success", NOON - 10 - n, account=(ACME, OTHER)[n % 2]))
        for n in range(200):
            rows.insert_queued(txn, (ACME, OTHER)[n % 2], KEY, NOON + n)

    database.transact(connection, fill)
    if database.dialect == "mysql":
        connection.cursor().execute("ANALYZE TABLE codeRunner_executions")
    return database


def plans(database: Database, connection: Any, function: Any, *args: Any) -> list[str]:
    """
    How each SELECT over the executions that a function runs would be carried out.
    """
    seen: list[tuple[str, Any]] = []

    class Spy(Cursor):
        def execute(self, sql: str, parameters: Any = ()) -> Cursor:
            seen.append((sql, parameters))
            return super().execute(sql, parameters)

    function(Spy(connection.cursor(), database.dialect, None), *args)
    word = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
    found = []
    for sql, parameters in seen:
        if "codeRunner_executions" in sql and sql.lstrip().startswith(("SELECT", "WITH")):

            def ask(txn: Cursor, sql: str = sql, parameters: Any = parameters) -> list[Any]:
                return list(txn.execute(f"{word} {sql}", parameters).all())

            steps = database.read(connection, ask)
            if database.dialect == "mysql":  # table, type, key, extra; not what it thought of
                steps = [(step[2], step[3], step[5], step[8]) for step in steps]
                # A derived table has as many rows as its LIMIT.
                steps = [step for step in steps if not str(step[0]).startswith("<")]
            found.append(f"{' '.join(sql.split())}: {steps}")
    assert found
    return found


READINGS: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("status", status.read, ()),
    ("explain", explain.read, (MANY + 7,)),
    ("accounts", accounts.read, (LIMITS, NOON)),
    ("series", series.count, (NOON - 60, NOON)),
    ("cancel", actions.count_waiting, (Filters(accounts=(ACME,)),)),
    ("log", records.page, (Filters(),)),
    ("search", records.page, (Filters(error_code=301, accounts=(ACME,)),)),
    ("search by state", records.page, (Filters(shown="outcome unknown"),)),
    ("scrub", executions.scrub, (NOON, 10)),
    ("purge", executions.purge, (NOON, 10)),
]


def test_nothing_is_read_by_scanning(history: Database, connection: Any) -> None:
    """
    Every statement over the executions goes by an index, in its order: its cost does not grow with
    the log.
    """
    for what, function, args in READINGS:
        for plan in plans(history, connection, function, *args):
            if what == "scrub":  # from the keys that are left, and not from all that has ended
                assert "idx_job_id" in plan, plan
            if history.dialect == "sqlite":
                assert "SCAN codeRunner_executions" not in plan or "USING" in plan, plan
            else:
                # A whole index is of type "index": read in its order, it ends with its LIMIT.
                assert "'codeRunner_executions', 'ALL'" not in plan, plan
            if "ORDER BY" in plan and "IN (" not in plan:
                assert "TEMP B-TREE FOR ORDER BY" not in plan, plan
                assert "filesort" not in plan, plan


def test_rows_read_do_not_grow_with_the_log(database: Database, connection: Any) -> None:
    """
    Status, explanation and accounts read as much behind 2,000 finished rows as behind 300.
    """
    if database.dialect == "sqlite":
        pytest.skip("SQLite counts no rows; its plans are looked at above")

    def fill(txn: Cursor, begin: int, end: int) -> None:
        for n in range(begin, end):
            insert(txn, **ended("success", NOON - 10 - n, account=(ACME, OTHER)[n % 2]))

    numbers = [rows.admit(database, connection) for _ in range(3)]

    def cost(function: Any, *args: Any) -> int:
        cursor = connection.cursor()
        cursor.execute("FLUSH STATUS")
        database.read(connection, function, *args)
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(value) for _, value in cursor.fetchall())

    figures = []
    for begin, end in ((0, 300), (300, MANY)):
        database.transact(connection, fill, begin, end)
        connection.cursor().execute("ANALYZE TABLE codeRunner_executions")
        figures.append(
            (
                cost(status.read),
                cost(explain.read, numbers[-1]),
                cost(accounts.read, LIMITS, NOON),
                cost(records.page, Filters()),
            )
        )
    # The list of accounts looks at the last 500 rows, of which the first log had but 303.
    few, many = figures
    assert many[0] <= few[0] + 5
    assert many[1] <= few[1] + 5
    assert many[2] <= few[2] + 250
    assert many[3] <= few[3] + 5


# -- an explanation's places


def test_places_are_counted_by_lane_and_account(database: Database, connection: Any) -> None:
    """
    The n-th of its lane, and how many of its account are older, over all its keys; ties within a
    millisecond go by number.
    """
    for key, at in (("key", 0), ("other", 1), ("key", 2), ("key", 2), ("other", 3), ("key", 4)):
        rows.admit(database, connection, key=key, at=NOON + at)
    rows.admit(database, connection, "other", at=NOON)

    def place(number: int) -> tuple[int, int]:
        reading = database.read(connection, explain.read, number)
        assert reading is not None
        return reading.ahead_in_lane, reading.ahead_in_account

    assert [place(number) for number in range(1, 8)] == [
        *((0, 0), (0, 1), (1, 2), (2, 3), (1, 4), (3, 5), (0, 0)),
    ]
    assert database.read(connection, explain.read, 99) is None


def test_the_median_of_good_runs_is_expected(database: Database, connection: Any) -> None:
    """
    What an account's executions take is told by those that went well, and by nothing else.
    """
    number = rows.admit(database, connection, at=NOON)
    assert database.read(connection, explain.read, number).service is None  # type: ignore[union-attr]
    put(
        *(database, connection),
        *({**ended("success", NOON - n), "started_at": instant_text(NOON - 9)} for n in (1, 2, 3)),
        {**ended("failed", NOON - 5, 301), "started_at": instant_text(NOON - 200)},
    )
    reading = database.read(connection, explain.read, number)
    assert reading is not None
    assert reading.service == 7.0


def test_an_end_before_its_start_counts_as_no_time(database: Database, connection: Any) -> None:
    """
    Where a wall clock went back during a run, no start is expected in the past because of it.
    """
    number = rows.admit(database, connection, at=NOON)
    put(
        *(database, connection),
        {**ended("success", NOON - 60), "started_at": instant_text(NOON - 50)},
    )
    reading = database.read(connection, explain.read, number)
    assert reading is not None
    assert reading.service == 0.0


def test_audit_lines_are_found_by_their_target(database: Database, connection: Any) -> None:
    """
    By an index, not by looking at every line.
    """

    def ask(txn: Cursor) -> str:
        word = "EXPLAIN QUERY PLAN" if txn.dialect == "sqlite" else "EXPLAIN"
        sql = (
            "SELECT audit_id FROM codeRunner_audit WHERE target = ? ORDER BY audit_id DESC LIMIT ?"
        )
        return str(txn.execute(f"{word} {sql}", ("key:x", 50)).all())

    def fill(txn: Cursor) -> None:
        for n in range(300):
            audit.record(txn, "w", audit.Action.PAUSE, f"key:{n}", NOON)

    database.transact(connection, fill)
    assert "idx_audit_target" in database.read(connection, ask)
