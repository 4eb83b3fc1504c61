"""
Admission under load and in all its answers, on SQLite and on MariaDB.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from crq import admission, records, schema
from crq.admission import Answer
from crq.database import CommitUnknown, Cursor, Database
from crq.executions.admission import REFUSED_ROWS
from crq.messages import Admitted, Invalid, Mismatch, Rejected, Submission
from crq.model import Limits
from crq.records import Filters
from crq.recordvalues import Record
from tests import rows
from tests.rows import NOON, SEALER
from tests.servers import MariaDB

PARALLEL = 20


def admit(
    database: Database,
    connection: Any,
    account: str = "acme",
    limits: Limits = rows.LIMITS,
    at: float = NOON,
    **more: Any,
) -> Answer:
    """
    Admit as Python callers do.
    """
    wanted = Submission(**{"subdomain": account, "apikey": "k", "source_code": "x = 1", **more})
    return admission.admit(database, connection, wanted, SEALER, limits, at)


def fill(database: Database, connection: Any, account: str, count: int) -> None:
    """
    Queue rows of an account, quickly.
    """
    database.transact(
        connection, rows.insert_queued, SEALER.account(account), SEALER.key("k"), NOON, count
    )


def at_once(database: Database, calls: list[Callable[[Any], Answer]]) -> list[Answer]:
    """
    Make calls in parallel, each on a connection of its own, all starting together.
    """
    barrier = threading.Barrier(len(calls))
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run(call: Callable[[Any], Answer]) -> None:
        connection = database.connect()
        try:
            barrier.wait(30)
            answers.append(call(connection))
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    return answers


def log(database: Database, connection: Any, **filters: Any) -> list[Record]:
    """
    The whole log, filtered.
    """
    page = database.read(connection, records.page, Filters(**filters), None, 500)
    assert page.cursor is None
    return list(page.records)


def test_last_place_is_given_once(database: Database, connection: Any) -> None:
    """
    At 499 queued, one of 20 parallel admissions is taken; each refusal is in the log (F63).
    """
    fill(database, connection, "acme", 499)
    answers = at_once(database, [lambda own: admit(database, own)] * PARALLEL)
    assert Counter(map(type, answers)) == {Admitted: 1, Rejected: PARALLEL - 1}
    assert database.read(connection, records.depth).total == 500
    refused = {answer.execution_id for answer in answers if isinstance(answer, Rejected)}
    shown = log(database, connection, error_code=107)
    assert {record.execution_id for record in shown} == refused
    assert len(refused) == PARALLEL - 1
    assert {record.status for record in shown} == {"rejected"}


def test_last_place_of_all_is_given_once(database: Database, connection: Any) -> None:
    """
    The same at the global cap, with two accounts that are both far from their own (F63).
    """
    fill(database, connection, "acme", 10)
    fill(database, connection, "other", 9)
    limits = Limits(queued_total=20)

    def of(account: str) -> Callable[[Any], Answer]:
        return lambda own: admit(database, own, account, limits)

    answers = at_once(database, [of("acme"), of("other")] * (PARALLEL // 2))
    assert Counter(map(type, answers)) == {Admitted: 1, Rejected: PARALLEL - 1}
    assert {a.depth for a in answers if isinstance(a, Rejected)} == {"total"}
    assert database.read(connection, records.depth).total == 20
    assert len(log(database, connection, error_code=107)) == PARALLEL - 1


def test_one_key_is_admitted_once(database: Database, connection: Any) -> None:
    """
    Twenty parallel repetitions of one submission are one execution, and all are told its number.
    """
    answers = at_once(
        database, [lambda own: admit(database, own, idempotency_key="once")] * PARALLEL
    )
    assert {answer.execution_id for answer in answers} == {answers[0].execution_id}
    assert Counter(answers) == {
        Admitted(answers[0].execution_id): 1,
        Admitted(answers[0].execution_id, repeated=True): PARALLEL - 1,
    }
    assert database.read(connection, records.depth).total == 1


def test_key_of_another_submission_is_a_mismatch(database: Database, connection: Any) -> None:
    """
    Another script, payload or API key under a used key stores nothing; another account is free.
    """
    first = admit(database, connection, idempotency_key="once", payload='{"a":"→"}')
    assert isinstance(first, Admitted)
    for more in ({"source_code": "x = 2"}, {"payload": None}, {"apikey": "other"}):
        given: dict[str, Any] = {"payload": '{"a":"→"}', **more}
        answer = admit(database, connection, idempotency_key="once", **given)
        assert answer == Mismatch(first.execution_id)
    assert isinstance(admit(database, connection, "other", idempotency_key="once"), Admitted)
    assert database.read(connection, records.depth).total == 2


def test_keys_differ_by_every_character(database: Database, connection: Any) -> None:
    """
    Case and blanks at the end make another key, whatever the collation thinks of them.
    """
    numbers = {
        admit(database, connection, idempotency_key=key).execution_id
        for key in ("once", "ONCE", "once ", "önce")
    }
    assert len(numbers) == 4


def test_repetition_of_a_full_queue_is_still_found(database: Database, connection: Any) -> None:
    """
    What was admitted is admitted, also when nothing else fits any more.
    """
    limits = Limits(queued_per_account=1)
    first = admit(database, connection, limits=limits, idempotency_key="once")
    assert isinstance(admit(database, connection, limits=limits), Rejected)
    again = admit(database, connection, limits=limits, idempotency_key="once")
    assert again == Admitted(first.execution_id, repeated=True)


def test_flood_of_refusals_is_counted_not_stored(database: Database, connection: Any) -> None:
    """
    Past 100 refused rows of an account in a minute the last row counts on (ruling 16).
    """
    limits = Limits(queued_per_account=1)
    admit(database, connection, limits=limits)
    answers = [admit(database, connection, limits=limits) for _ in range(REFUSED_ROWS + 50)]
    assert all(isinstance(answer, Rejected) for answer in answers)
    shown = log(database, connection, error_code=107)
    assert len(shown) == REFUSED_ROWS
    assert sum(record.times for record in shown) == REFUSED_ROWS + 50
    assert shown[0].times == 51
    assert {answer.execution_id for answer in answers[REFUSED_ROWS:]} == {shown[0].execution_id}
    # Another account's refusals, and those of a later minute, are rows again.
    admit(database, connection, "other", limits)
    assert isinstance(admit(database, connection, "other", limits), Rejected)
    later = admit(database, connection, limits=limits, at=NOON + 61)
    assert isinstance(later, Rejected)
    assert len(log(database, connection, error_code=107)) == REFUSED_ROWS + 2


def test_faulty_scripts_are_rows_that_never_queue(database: Database, connection: Any) -> None:
    """
    A script that does not parse is failed with 201 and its source, and counts for no cap.
    """
    answer = admit(database, connection, source_code="x = (")
    assert isinstance(answer, Invalid)
    full = database.read(connection, records.execution, answer.execution_id)
    assert full is not None
    assert (full.record.status, full.record.error_code) == ("failed", 201)
    assert full.source_code == "x = ("
    assert database.read(connection, records.depth).total == 0


def test_flood_of_faulty_scripts_is_counted_too(database: Database, connection: Any) -> None:
    """
    The same bound holds for what does not parse.
    """
    for _ in range(REFUSED_ROWS + 5):
        admit(database, connection, source_code="x = (")
    shown = log(database, connection, error_code=201)
    assert (len(shown), shown[0].times) == (REFUSED_ROWS, 6)


def test_lost_answer_to_commit(
    database: Database, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A COMMIT that held is admitted by reading; a repetition finds the same, and one row (F08).
    """
    real = Database.transact

    def lose(self: Database, own: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        real(self, own, function, *args, **kwargs)
        raise CommitUnknown

    with monkeypatch.context() as patch:
        patch.setattr(Database, "transact", lose)
        first = admit(database, connection, idempotency_key="once")
        nameless = admit(database, connection)
    assert isinstance(first, Admitted)
    assert not first.repeated
    assert isinstance(nameless, Admitted)  # by the random key it was given
    again = admit(database, connection, idempotency_key="once")
    assert again == Admitted(first.execution_id, repeated=True)
    assert database.read(connection, records.depth).total == 2


def test_any_text_comes_back(database: Database, connection: Any) -> None:
    """
    Emoji, right-to-left text and all that Unicode has survive in every field (F05).
    """
    text = "👨‍👩‍👧 → שלום \u2028 \x1b \U0010ffff"
    answer = admit(
        database,
        connection,
        source_code=f"# {text}\n",
        identifier=text,
        payload=f'"{text}"',
    )
    full = database.read(connection, records.execution, answer.execution_id)
    assert full is not None
    assert (full.source_code, full.record.identifier) == (f"# {text}\n", text)

    def payload(txn: Cursor) -> object:
        return txn.execute("SELECT payload FROM codeRunner_jobs").scalar()

    assert database.read(connection, payload) == f'"{text}"'


def test_any_text_comes_back_from_a_latin1_server(engine: str) -> None:
    """
    The same on a server whose default character set is latin1 (F05).
    """
    if engine != "mariadb":
        pytest.skip("SQLite has one character set")
    with MariaDB(charset="latin1") as server:
        database = Database(server.create_database("latin"))
        schema.upgrade(database)
        connection = database.connect()
        try:
            test_any_text_comes_back(database, connection)
        finally:
            connection.close()
