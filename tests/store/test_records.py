"""
What people read, on SQLite and on MariaDB.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import pytest

from crq import executions, heartbeat, records, status
from crq.database import Cursor, Database
from crq.instants import instant_text
from crq.messages import Outcome
from crq.model import GateReading, Status
from crq.pulse import Beat
from crq.records import Filters, Page
from crq.recordvalues import Record
from crq.verdict import Verdict
from tests import rows
from tests.rows import LIMITS, NOON, SEALER

ALL = Filters()
ACME, OTHER = SEALER.account("acme"), SEALER.account("other")


def insert(txn: Cursor, many: Iterable[tuple[float, str, str, int | None]]) -> None:
    """
    Insert finished rows: instant, account, status, code.
    """
    for at, account, word, code in many:
        txn.execute(
            "INSERT INTO codeRunner_executions (subdomain, subdomain_hash, status, error_code,"
            " queued_at, started_at, finished_at) VALUES ('acme', ?, ?, ?, ?, ?, ?)",
            (account, word, code, *(instant_text(at) for _ in range(3))),
        )


def pages(
    database: Database, connection: Any, filters: Filters = ALL, limit: int = 200
) -> list[Page]:
    """
    Read the whole log, page by page.
    """
    found = [database.read(connection, records.page, filters, None, limit)]
    while found[-1].cursor is not None:
        found.append(database.read(connection, records.page, filters, found[-1].cursor, limit))
    return found


def ids(found: Iterable[Page]) -> list[int]:
    """
    The executions on some pages.
    """
    return [record.execution_id for page in found for record in page.records]


def test_ties_are_neither_lost_nor_repeated(database: Database, connection: Any) -> None:
    """
    Rows of one and the same millisecond are each on exactly one page (F99).
    """
    database.transact(connection, insert, [(NOON, ACME, "success", None)] * 1000)
    found = pages(database, connection)
    assert [len(page.records) for page in found] == [200] * 5
    assert ids(found) == list(range(1000, 0, -1))


def test_order_is_the_cursors_order(database: Database, connection: Any) -> None:
    """
    A row with a low number and a late instant is visited too (F101).
    """
    instants = [NOON + number for number in range(202)]
    instants[0] = NOON + 1000
    database.transact(connection, insert, [(at, ACME, "success", None) for at in instants])
    found = ids(pages(database, connection))
    assert found == [1, *range(202, 1, -1)]


def test_rows_that_arrive_meanwhile_do_not_shift_the_pages(
    database: Database, connection: Any
) -> None:
    """
    New rows come before the first page; the pages after it are the same.
    """
    database.transact(connection, insert, [(NOON, ACME, "success", None)] * 10)
    first = database.read(connection, records.page, Filters(), None, 5)
    database.transact(connection, insert, [(NOON, ACME, "success", None)] * 3)
    second = database.read(connection, records.page, Filters(), first.cursor, 5)
    assert ids([first, second]) == list(range(10, 0, -1))
    assert second.cursor is None


def test_filters(database: Database, connection: Any) -> None:
    """
    Each filter, and all of them together, show what they name and nothing else.
    """
    many = [
        (NOON + 1, ACME, "success", None),
        (NOON + 2, ACME, "failed", 301),
        (NOON + 3, OTHER, "failed", 301),
        (NOON + 4, OTHER, "failed", 303),
        (NOON + 5, ACME, "rejected", 107),
    ]
    database.transact(connection, insert, many)

    def shown(**filters: Any) -> list[int]:
        return ids(pages(database, connection, Filters(**filters), 2))

    assert shown() == [5, 4, 3, 2, 1]
    assert shown(accounts=(ACME,)) == [5, 2, 1]
    assert shown(accounts=(ACME, OTHER)) == [5, 4, 3, 2, 1]
    assert shown(accounts=(ACME, ACME, OTHER)) == [5, 4, 3, 2, 1]
    assert shown(accounts=()) == []
    assert shown(status="failed") == [4, 3, 2]
    assert shown(error_code=301) == [3, 2]
    assert shown(since=NOON + 2, until=NOON + 4) == [3, 2]
    assert shown(accounts=(OTHER,), status="failed", error_code=303, since=NOON) == [4]


@pytest.mark.parametrize(
    "text",
    ["", "=", "x", "é", "\0", "2026-03-02 12:00:00.000/1", "!!!!", "A" * 9999, "//8"],
)
def test_other_texts_are_no_cursor(database: Database, connection: Any, text: str) -> None:
    """
    What is no cursor of ours is a ValueError, whatever it is.
    """
    with pytest.raises(ValueError, match="cursor"):
        database.read(connection, records.page, Filters(), text)


def test_forged_cursor_harms_nothing(database: Database, connection: Any) -> None:
    """
    A made-up position shows rows or is no cursor; it never reaches the database as SQL.
    """
    database.transact(connection, insert, [(NOON, ACME, "success", None)])
    for position in ("' OR 1=1 --/1", "9999-99-99/1", "/1", "2026-03-02 12:00:00.000/-1", "x/" * 9):
        text = base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")
        try:
            page = database.read(connection, records.page, Filters(), text)
        except ValueError:
            continue
        assert len(page.records) <= 1


def test_odd_rows_are_shown_as_they_are(database: Database, connection: Any) -> None:
    """
    An unknown status, a claimed row without instants, odd codes: shown, and nothing raises (F64).
    """

    def odd(txn: Cursor) -> None:
        insert(txn, [(NOON, ACME, "wedged", 999), (NOON, "", "", None), (NOON, ACME, "claimed", 0)])
        if txn.dialect == "sqlite":  # it keeps any type in any column
            txn.execute(
                "INSERT INTO codeRunner_executions (subdomain_hash, subdomain, status, error_code,"
                " error_message, debug, times, queued_at, started_at, finished_at, job_id)"
                " VALUES (X'FF', X'C328', X'00', 'abc', X'ff', 'x', 'many', 'yesterday', '', 12,"
                " 'j')"
            )

    database.transact(connection, odd)
    found = [record for page in pages(database, connection, limit=1) for record in page.records]
    words = [record.shown for record in found]
    assert words[-3:] == ["queued", "", "wedged"]
    for record in found:
        record.as_json()
        full = database.read(connection, records.execution, record.execution_id)
        assert full is not None
        assert full.record == record
    if database.dialect == "sqlite":
        assert len(found) == 4
        assert (found[0].queued_at, found[0].error_code) == ("yesterday", "abc")
        assert found[0].as_json()["queuedAt"] == "yesterday"


def test_durations_of_reaped_rows_are_not_made_up(database: Database, connection: Any) -> None:
    """
    The end of a row closed as 303 is when it was noticed, so it has no duration (brief §6).
    """

    def make(txn: Cursor) -> None:
        for code, word in ((None, "success"), (303, "failed")):
            txn.execute(
                "INSERT INTO codeRunner_executions (subdomain_hash, status, error_code, queued_at,"
                " started_at, finished_at) VALUES ('a', ?, ?, ?, ?, ?)",
                (word, code, instant_text(NOON), instant_text(NOON), instant_text(NOON + 1.6)),
            )

    database.transact(connection, make)
    page = database.read(connection, records.page, Filters())
    assert [record.seconds for record in page.records] == [None, 1.6]


def test_pages_read_their_index(database: Database, connection: Any) -> None:
    """
    A page walks an index in its order and stops: no sort, no scan, however long the log is.
    """
    many = [(NOON + n, (ACME, OTHER)[n % 2], "success", None) for n in range(2000)]
    database.transact(connection, insert, many)
    if database.dialect == "mysql":
        connection.cursor().execute("ANALYZE TABLE codeRunner_executions")
    seen: list[str] = []
    watched = Database(database.url, observe=seen.append)
    cursor = watched.read(connection, records.page, Filters(), None, 10).cursor
    watched.read(connection, records.page, Filters(accounts=(ACME,)), cursor, 10)
    first, second = (sql for sql in seen if sql.startswith("SELECT"))
    position = (instant_text(NOON + 1990), instant_text(NOON + 1990), 1990)
    for sql, values, index in (
        (first, (11,), "idx_queued_at"),
        (second, (ACME, *position, 11), "idx_account_queued_at"),
    ):
        plan = explained(database, connection, sql, values)
        assert index in plan
        assert "filesort" not in plan
        assert "TEMP B-TREE" not in plan


def explained(database: Database, connection: Any, sql: str, values: tuple[object, ...]) -> str:
    """
    How the database would run a statement.
    """
    word = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"

    def ask(txn: Cursor) -> str:
        return str(txn.execute(f"{word} {sql}", values).all())

    return database.read(connection, ask)


def test_execution_in_full(database: Database, connection: Any) -> None:
    """
    One execution is shown with its source, who ran it and how it ended; there is no other.
    """
    number = rows.admit(database, connection, source_code="x = '→'\n", identifier="rule 7")
    (claimed,) = rows.claim(database, connection, at=NOON + 1)
    rows.start(database, connection, claimed, at=NOON + 2)
    outcome = Outcome(Status.FAILED, 301, "boom")
    database.transact(connection, executions.finish, number, outcome, NOON + 3.5)
    full = database.read(connection, records.execution, number)
    assert full is not None
    shown = full.as_json()
    assert (shown["sourceCode"], shown["identifier"]) == ("x = '→'\n", "rule 7")
    assert (shown["drainerId"], shown["workerId"]) == ("d1", "worker")
    assert (shown["shown"], shown["errorCode"], shown["seconds"]) == ("failed", 301, 1.5)
    assert shown["startedAt"] == "2026-03-02T12:00:02.000Z"
    assert claimed.nonce not in str(shown)
    for missing in (0, -1, number + 1, 2**31, 2**63, 10**40):
        assert database.read(connection, records.execution, missing) is None


def test_depth(database: Database, connection: Any) -> None:
    """
    What waits is counted by account, with the oldest; what is claimed or ended does not count.
    """
    assert database.read(connection, records.depth) == records.Depth(0, False, None, {})
    rows.admit(database, connection, at=NOON)
    rows.claim(database, connection, at=NOON)
    for at in (NOON + 3, NOON + 2):
        rows.admit(database, connection, at=at)
    rows.admit(database, connection, "other", at=NOON + 4)
    depth = database.read(connection, records.depth)
    assert depth == records.Depth(3, False, NOON + 2, {ACME: 2, OTHER: 1})


def test_depth_is_counted_up_to_a_limit(
    database: Database, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Beyond the limit the count says that it is a lower bound (I8).
    """
    monkeypatch.setattr(records, "COUNT_LIMIT", 3)
    for _ in range(4):
        rows.admit(database, connection)
    depth = database.read(connection, records.depth)
    assert (depth.total, depth.capped) == (3, True)


def test_report_out_of_the_database(database: Database, connection: Any) -> None:
    """
    Without a daemon's pulse the report still says what waits, what runs, for whom, and since when.
    """
    for at, account in ((NOON, "acme"), (NOON + 1, "acme"), (NOON + 2, "other")):
        rows.admit(database, connection, account, account, at=at)
    rows.claim(database, connection, at=NOON + 3, gates={SEALER.key("other"): NOON + 60})
    database.transact(connection, heartbeat.write, Beat("d1", NOON, NOON + 3, 0.1))
    reading = database.read(connection, status.read)
    assert reading.keys == tuple(sorted((SEALER.key("acme"), SEALER.key("other"))))
    gates = GateReading({SEALER.key("other"): NOON + 60})
    report = status.report(reading, gates, LIMITS, NOON + 4)
    assert (report.depth, report.in_flight, report.oldest_queued_age) == (1, 2, 2.0)
    assert report.verdict is Verdict.GATED
    found = [(a.subdomain, a.queued, a.in_flight) for a in report.accounts]
    assert found == [("other", 1, 0), ("acme", 0, 2)]
    (gate,) = report.gates
    assert (gate.until, gate.accounts) == (NOON + 60, (OTHER,))


def test_instants_are_read_as_people_write_them() -> None:
    """
    A date, an instant with or without a zone; anything else is a ValueError with a hint.
    """
    assert records.instant_given("2026-03-02T12:00:00Z") == NOON
    assert records.instant_given("2026-03-02 12:00") == NOON
    assert records.instant_given("2026-03-02T14:00:00+02:00") == NOON
    assert records.instant_given("2026-03-02") == NOON - 43_200
    for text in ("", "yesterday", "12:00", "2026-02-30", "0001-01-01T00:00:00+23:00", "9" * 99):
        with pytest.raises(ValueError, match="2026"):
            records.instant_given(text)


def test_record_without_instants_has_no_duration() -> None:
    """
    A row that never started has none.
    """
    record = Record(
        *(1, None, "acme", ACME, None, None, "queued", None, None, False, 1),
        *("2026-03-02 12:00:00.000", None, None, None),
    )
    assert record.seconds is None
