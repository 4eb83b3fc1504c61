"""
The types that ship, joined with the real queue: `run_script` and `housekeeping`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from crq import executions, halves, schema
from crq.automations import limits
from crq.automations.drafting import Drafting
from crq.automations.housekeeping import Housekeeper
from crq.automations.model import Automation, Effect, Mode, Run, RunStatus, Unfit
from crq.automations.runscript import RunScript, RunScripts
from crq.automations.sources import JsonSource, SourceFault, Table
from crq.automations.testing import ConformanceTests, Kit
from crq.config import ApiOptions, AutomationOptions, Config, LimitOptions, Token
from crq.database import Cursor, Database
from crq.gatetable import DatabaseGates
from crq.messages import Outcome
from crq.model import Limits, Status
from crq.script import read_json
from tests import rows
from tests.automations.house import House
from tests.fake_api import Answer, FakeApi
from tests.rows import NOON, SEALER

DAY = 86_400.0
RULE = """
def decide(card):
    if card["due"] > now:
        return {"approve": False, "reason": "not due yet"}
    return {"approve": True, "reason": "overdue", "payload": {"card": card["id"]}}
"""
JSON = {
    "source": "json",
    "path": "/cards?open=1",
    "rule": RULE,
    "script": 'api.post("/remind", {"card": payload["card"]})\n',
    "apikey": "key",
}


class Joined(House):
    """
    A scheduler whose types are joined with the queue of the same database.
    """

    def __init__(self, database: Database, api: str = "http://127.0.0.1:9", **more: Any) -> None:
        config = Config(api=ApiOptions(base_url=api), **more)
        self.limits = config.limits.limits()
        queue = halves.Queue(
            config, SEALER, DatabaseGates(database), lambda: self.limits, lambda: self.now
        )
        self.queue = queue
        super().__init__(database, None, *halves.types(config, SEALER, queue))
        self.desk.drafting = Drafting(self.types, SEALER.seal_text, SEALER.unseal)
        self.advancer.unseal = SEALER.unseal

    def declare(self, kind: str, config: Mapping[str, Any], **more: Any) -> Automation:
        self.kind = self.types.get(kind)
        return self.add(config=config, **more)

    def go_live(self, automation: Automation) -> Automation:
        """
        Let it observe once, and promote it.
        """
        self.do(self.desk.run_now, automation.automation_id, "t", self.now)
        self.tick()
        assert self.runs(automation)[-1].status is RunStatus.COMPLETED, self.runs(automation)[-1]
        return self.promote(automation)

    def last(self, automation: Automation) -> Run:
        return self.runs(automation)[-1]

    def waiting(self) -> list[tuple[Any, ...]]:
        """
        What waits in the queue: tenant, source, payload.
        """
        return self.sql(
            "SELECT e.subdomain, e.source_code, j.payload FROM codeRunner_executions e"
            " JOIN codeRunner_jobs j ON j.job_id = e.job_id WHERE e.status = 'queued'"
            " ORDER BY e.execution_id"
        )

    def close(self) -> None:
        self.queue.gates.disconnect()  # type: ignore[attr-defined]
        super().close()


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """
    The tenant's API.
    """
    with FakeApi() as made:
        yield made


@pytest.fixture
def joined(database: Database, api: FakeApi) -> Iterator[Joined]:
    """
    Both halves over one database.
    """
    made = Joined(database, api.url)
    yield made
    made.close()


def cards(*numbers: int, due: float = NOON - DAY) -> list[dict[str, Any]]:
    return [{"id": number, "due": due, "title": f"card {number}"} for number in numbers]


def test_a_rule_decides_and_a_script_is_queued(joined: Joined, api: FakeApi) -> None:
    """
    Approved subjects of a paged JSON source become executions with the rule's payload; declined
    ones do not; observing queues nothing.
    """
    page = [*cards(1, 2, 3), *cards(4, due=NOON + 9 * DAY)]
    pages = [Answer(body=page), Answer(body=[])]
    automation = joined.declare("run_script", JSON, cron="0 * * * *")
    api.answer(*pages)
    joined.go_live(automation)
    observed = joined.last(automation)
    assert (observed.counts.would, observed.counts.declined) == (3, 1)
    assert observed.reason_counts == {"overdue": 3, "not due yet": 1}
    assert joined.waiting() == []
    api.answer(*pages)
    joined.minutes(60)
    run = joined.last(automation)
    assert (run.mode, run.status, run.counts.approved) == (Mode.LIVE, RunStatus.COMPLETED, 3)
    assert [(row[0], read_json(row[2])) for row in joined.waiting()] == [
        ("acme", {"card": number}) for number in (1, 2, 3)
    ]
    details = [item.detail for item in joined.items(run) if item.effect is Effect.APPLIED]
    assert all(detail is not None and detail.startswith("execution ") for detail in details)
    assert [call.path.partition("/api/v2")[2] for call in api.calls[:2]] == [
        "/cards?open=1&limit=100",
        "/cards?open=1&limit=100&after=4",
    ]
    assert api.calls[0].key == "key"


def test_an_effect_is_the_same_execution_after_a_crash(joined: Joined, api: FakeApi) -> None:
    """
    A run that died after an admission and before its item said so admits nothing a second time.
    """
    automation = joined.declare("run_script", JSON, cron="0 * * * *")
    pages = [Answer(body=cards(1, 2)), Answer(body=[])]
    api.answer(*pages, *pages)
    joined.go_live(automation)
    joined.minutes(60)
    assert len(joined.waiting()) == 2
    joined.sql("UPDATE automation_run_items SET effect = 'applying' WHERE effect = 'applied'")
    joined.sql(
        "UPDATE automation_runs SET status = 'running', finished_at = NULL, approved_count = 0,"
        " lease_token = 'dead', lease_until = '2026-03-02 12:30:00.000' WHERE mode = 'live'"
    )
    assert joined.tick().taken_over == 1
    run = joined.last(automation)
    assert (run.status, run.counts.approved) == (RunStatus.COMPLETED, 2)
    assert len(joined.waiting()) == 2


def test_a_full_queue_is_waited_for(joined: Joined, api: FakeApi) -> None:
    """
    Queue full pauses a run: nothing fails, nothing is refused in the log, and when there is room
    it goes on where it was.
    """
    automation = joined.declare("run_script", JSON, cron="0 * * * *")
    pages = [Answer(body=cards(1, 2, 3)), Answer(body=[])]
    api.answer(*pages, *pages)
    joined.go_live(automation)
    joined.limits = Limits(queued_per_account=2)
    joined.minutes(60)
    run = joined.last(automation)
    assert (run.status, run.counts.approved) == (RunStatus.RUNNING, 2)
    assert run.waits_for == "a place in the queue: 2 of the account wait"
    assert joined.sql("SELECT status, COUNT(*) FROM codeRunner_executions GROUP BY status") == [
        ("queued", 2)
    ]
    joined.minutes(1)
    assert joined.last(automation).counts.approved == 2
    joined.limits = Limits()
    joined.minutes(1)
    run = joined.last(automation)
    assert (run.status, run.counts.approved, run.counts.failed) == (RunStatus.COMPLETED, 3, 0)
    joined.check()


def test_a_closed_gate_is_waited_for(joined: Joined, api: FakeApi) -> None:
    """
    While the gate of its key is closed a source is not asked; a 429 of the source closes the gate
    for everybody.
    """
    automation = joined.declare("run_script", JSON, cron="0 * * * *")
    api.answer(Answer(429, headers={"Retry-After": "600"}))
    joined.minutes(60)
    run = joined.last(automation)
    assert run.status is RunStatus.RUNNING
    assert "over the API's limit" in (run.waits_for or "")
    calls = len(api.calls)
    joined.minutes(1)
    assert len(api.calls) == calls
    assert "the gate of its API key, closed until" in (joined.last(automation).waits_for or "")
    joined.queue.gates.open(SEALER.key("key"))
    api.answer(Answer(body=[]))
    joined.minutes(1)
    assert joined.last(automation).status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (Answer(500), RunStatus.RUNNING, "the API, which answers 500"),
        (Answer(404, {}), RunStatus.FAILED, "GET /cards is answered with 404"),
        (Answer(302, {}), RunStatus.FAILED, "GET /cards is answered with 302"),
        (Answer(body=b"<html>"), RunStatus.FAILED, "answered with what is no JSON"),
        (Answer(body={"items": 1}), RunStatus.FAILED, "the answer is no list of records"),
        (Answer(body=[{"no": "id"}]), RunStatus.FAILED, "a record has no 'id'"),
        (Answer(body=cards(2, 1)), RunStatus.FAILED, "is not in the order of 'id'"),
        (Answer(body=cards(1, 1)), RunStatus.FAILED, "repeats a record's 'id'"),
    ],
)
def test_a_source_that_does_not_answer_as_it_must(
    joined: Joined, api: FakeApi, answer: Answer, status: RunStatus, told: str
) -> None:
    """
    What may pass is waited for; what will not is told, and ends the run.
    """
    if joined.database.dialect == "mysql":
        return  # no database is in this
    automation = joined.declare("run_script", JSON, cron="0 * * * *")
    api.answer(answer)
    joined.minutes(60)
    run = joined.last(automation)
    assert run.status is status
    assert told in ((run.waits_for if status is RunStatus.RUNNING else run.why) or "")


def test_a_rule_that_fails_for_one_record(joined: Joined, api: FakeApi) -> None:
    """
    A record that the rule cannot take is declined, counted and named; the others are decided.
    """
    odd = {"id": 2, "due": "soon"}
    api.answer(Answer(body=[*cards(1), odd, *cards(3)]), Answer(body=[]))
    automation = joined.declare("run_script", JSON, cron="0 * * * *")
    joined.minutes(60)
    run = joined.last(automation)
    assert run.reason_counts == {"overdue": 2, "the rule failed": 1}
    assert run.notices[0].startswith("the rule failed for 2: line 3, column 5:")


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("def decide(s):\n    return 7\n", "decide() of 1 returned 7"),
        ("def decide(s):\n    return {'reason': 'x'}\n", "decide() of 1 returned"),
    ],
)
def test_a_rule_that_says_nothing(joined: Joined, api: FakeApi, rule: str, told: str) -> None:
    """
    An answer that means nothing ends the run: nobody knows what was meant.
    """
    api.answer(Answer(body=cards(1)))
    automation = joined.declare("run_script", {**JSON, "rule": rule}, cron="0 * * * *")
    joined.minutes(60)
    assert told in (joined.last(automation).why or "")


def test_a_rule_without_end_is_broken_off(database: Database) -> None:
    """
    A rule that loops is ended when its call's time is up, and the thread comes back.
    """
    joined = allowing(database)
    table(joined, PLAIN, 1)
    rule = "def decide(s):\n    for i in range(2000000000):\n        pass\n"
    automation = joined.declare("run_script", {**TABLE, "rule": rule}, cron="0 * * * *")
    joined.calls.seconds, joined.calls.monotonic = 0.3, time.monotonic
    joined.minutes(60)
    run = joined.last(automation)
    assert run.status is RunStatus.FAILED
    assert "cancelled" in (run.why or "")
    joined.sql("DROP TABLE invoices")
    joined.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rule": "def decide(s) return"}, "rule: does not parse: line 1"),
        ({"rule": "x = 1"}, "rule: defines no function decide(subject)"),
        ({"script": "def"}, "script: does not parse"),
        ({"path": ""}, "path: is missing"),
        ({"path": "http://evil.example/"}, "path: a path begins with one slash"),
        ({"path": "//evil.example/"}, "path: a path begins with one slash"),
        ({"source": "table"}, "table: is missing"),
        ({"source": "ftp"}, 'source: "ftp" is not "json" or "table"'),
        ({"columns": ["a; DROP"]}, "columns: 'a; DROP' is no name of a column"),
    ],
)
def test_settings_that_run_script_refuses(change: dict[str, Any], told: str) -> None:
    """
    A rule that does not parse, a host of one's own, a column that is SQL: refused on save.
    """
    from crq.automations import settings

    with pytest.raises(Unfit) as caught:
        settings.structured(RunScript, {**JSON, **change}, str)
    assert told in str(caught.value)


def test_a_page_with_a_cursor_of_its_own() -> None:
    """
    A source that brings its own cursors is followed to the end it names.
    """
    source = JsonSource("/x", "data.list", "key", "page", "size", "data.next")
    answer = {"data": {"list": [{"key": "b"}, {"key": "a"}], "next": "t2"}}
    page = source.page(answer, None, 10)
    assert ([name for name, _ in page.subjects], page.cursor, page.more) == (["b", "a"], "t2", True)
    assert source.address("t2", 5) == "/x?size=5&page=t2"
    page = source.page({"data": {"list": [], "next": None}}, "t2", 10)
    assert (page.cursor, page.more) == ("t2", False)
    with pytest.raises(SourceFault, match="sent 2 records, asked for 1"):
        source.page(answer, None, 1)


# -- tables


def table(joined: House, sql: str, count: int = 0) -> None:
    """
    A table of the product, in the same database.
    """
    joined.sql("DROP TABLE IF EXISTS invoices")
    joined.sql(sql)

    def fill(txn: Cursor) -> None:
        for first in range(1, count + 1, 500):
            numbers = range(first, min(first + 500, count + 1))
            values = [
                value
                for number in numbers
                for value in (number, "acme" if number % 10 else "bravo", "2026-03-01 00:00:00.000")
            ]
            marks = ", ".join(["(?, ?, ?)"] * len(numbers))
            txn.execute(f"INSERT INTO invoices (id, tenant, at) VALUES {marks}", values)

    joined.do(fill)


PLAIN = "CREATE TABLE invoices (id INTEGER PRIMARY KEY, tenant VARCHAR(63), at VARCHAR(23))"
TABLE = {
    **JSON,
    "source": "table",
    "path": "",
    "table": "invoices",
    "columns": ["at"],
    "rule": 'def decide(s):\n    return {"approve": s["at"] != "", "reason": "old"}\n',
}


def allowing(database: Database) -> Joined:
    options = AutomationOptions(tables=("invoices:tenant:id",))
    return Joined(database, automations=options)


def test_rows_of_one_instant_are_all_seen(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Of 5,000 rows with one and the same instant each is decided once, in pages of 200, and none of
    another tenant's (F99).
    """
    monkeypatch.setattr(limits, "BATCH", 200)
    monkeypatch.setattr(limits, "CHUNKS_PER_TICK", 100)
    joined = allowing(database)
    table(joined, PLAIN, 5000)
    automation = joined.declare("run_script", TABLE, cron="0 * * * *", max_items_per_run=100_000)
    joined.minutes(60)
    run = joined.last(automation)
    assert (run.status, run.counts.would) == (RunStatus.COMPLETED, 4500)
    seen = {int(item.decision.subject_id) for item in joined.items(run)}
    assert seen == {number for number in range(1, 5001) if number % 10}
    joined.sql("DROP TABLE invoices")
    joined.close()


def test_a_late_instant_with_a_low_number_is_seen(database: Database) -> None:
    """
    The order of a page and the cursor are one and the same field: of 202 rows whose instants run
    against their numbers all are visited (F101).
    """
    joined = allowing(database)
    table(joined, PLAIN, 202)
    joined.sql("UPDATE invoices SET at = '2027-01-01 00:00:00.000' WHERE id = 200")
    joined.sql("UPDATE invoices SET tenant = 'acme'")
    source = Table("invoices", "tenant", "id")
    seen: list[str] = []
    cursor, more = None, True
    while more:
        page = joined.read(source.page, "acme", ["at"], cursor, 200)
        seen += [name for name, _ in page.subjects]
        cursor, more = page.cursor, page.more
    assert seen == [str(number) for number in range(1, 203)]
    joined.sql("DROP TABLE invoices")
    joined.close()


def test_an_id_that_is_not_unique_is_noticed(database: Database) -> None:
    """
    A column that does not tell rows apart would lose rows between pages: it is refused.
    """
    joined = allowing(database)
    table(joined, "CREATE TABLE invoices (id INTEGER, tenant VARCHAR(63), at VARCHAR(23))", 3)
    joined.sql("UPDATE invoices SET id = 2, tenant = 'acme'")
    automation = joined.declare("run_script", TABLE, cron="0 * * * *")
    joined.minutes(60)
    assert "invoices.id is not unique" in (joined.last(automation).why or "")
    joined.sql("DROP TABLE invoices")
    joined.close()


def test_only_tables_that_the_operator_names(joined: Joined) -> None:
    """
    A table that is not in the configuration cannot be read, whatever an automation says.
    """
    automation = joined.declare(
        "run_script", {**TABLE, "table": "codeRunner_jobs"}, cron="0 * * * *"
    )
    joined.minutes(60)
    assert "'codeRunner_jobs' is not allowed" in (joined.last(automation).why or "")


# -- housekeeping


def ended(house: House, age: float, account: str = "acme", failed: bool = False) -> int:
    """
    An execution that was queued and ended so many seconds ago.
    """
    connection = house.pool.connection
    at = NOON - age
    number = rows.admit(house.database, connection, account, at=at)
    (claimed,) = rows.claim(house.database, connection, at=at)
    assert rows.start(house.database, connection, claimed, at=at)
    outcome = Outcome(Status.FAILED, 301, "no") if failed else Outcome(Status.SUCCESS)
    assert house.do(executions.finish, number, outcome, at + 1)
    return number


def left(house: House) -> dict[int, bool]:
    """
    Executions that are there, and whether their key is.
    """
    return {
        row[0]: bool(row[1])
        for row in house.sql(
            "SELECT e.execution_id, j.apikey IS NOT NULL FROM codeRunner_executions e"
            " JOIN codeRunner_jobs j ON j.job_id = e.job_id ORDER BY e.execution_id"
        )
    }


def test_housekeeping_observes_and_then_tidies_one_account(joined: Joined) -> None:
    """
    Old executions of the account would go and do go, failed ones stay, keys of younger ones are
    wiped; another account's are not touched.
    """
    old = ended(joined, 40 * DAY)
    old_failed = ended(joined, 40 * DAY, failed=True)
    young = ended(joined, DAY)
    fresh = ended(joined, 600)
    foreign = ended(joined, 40 * DAY, account="bravo")
    waiting = rows.admit(joined.database, joined.pool.connection, at=NOON - 50 * DAY)
    automation = joined.declare("housekeeping", {"keep_days": 30})
    before = left(joined)
    joined.go_live(automation)
    observed = joined.last(automation)
    assert observed.reason_counts == {
        "older than 30 days": 1,
        "ended more than 2 hours ago": 2,
    }
    assert left(joined) == before
    joined.minutes(1)
    assert joined.last(automation).counts.approved == 3
    expected = dict(before)
    del expected[old]
    expected[old_failed] = expected[young] = False
    assert left(joined) == expected
    assert expected[foreign]
    assert expected[fresh]
    assert expected[waiting]
    joined.minutes(1)
    assert joined.last(automation).reason_counts == {"failed ones are kept": 1}


class HousekeepingConformance(ConformanceTests, SynchronousTestCase):
    """
    housekeeping keeps the contract.
    """

    def setUp(self) -> None:
        """
        A database with executions of all ages, several of one instant.
        """
        database = Database(f"sqlite:///{self.mktemp()}")
        schema.upgrade(database)
        self.house = Joined(database)
        self.addCleanup(self.house.close)
        for number in range(9):
            ended(self.house, 40 * DAY + number // 3, failed=number % 4 == 0)
        self.kit = Kit(
            Housekeeper(halves.Shelf(SEALER)),
            {"keep_days": 30},
            database,
            lambda: left(self.house),
            scheduled_for=NOON,
        )


class RunScriptConformance(ConformanceTests, SynchronousTestCase):
    """
    run_script keeps the contract, over a table and the real admission.
    """

    def setUp(self) -> None:
        """
        A database with a table of the product.
        """
        database = Database(f"sqlite:///{self.mktemp()}")
        schema.upgrade(database)
        self.house = allowing(database)
        self.addCleanup(self.house.close)
        table(self.house, PLAIN, 12)
        self.kit = Kit(
            self.house.types.get("run_script"),
            TABLE,
            database,
            lambda: (self.house.waiting(), self.house.sql("SELECT * FROM invoices")),
        )


# -- who may promote


def test_a_token_may_promote_where_it_has_a_say(joined: Joined) -> None:
    """
    A token promotes if it has the scope and the tenant; one that was taken away does not, whether
    it stood in the file or in the database.
    """
    tokens = (
        Token(name="all", sha256="0" * 64, scopes=("promote",)),
        Token(name="acme", sha256="1" * 64, scopes=("promote",), accounts=("acme",)),
        Token(name="reader", sha256="2" * 64, scopes=("read",)),
    )
    ask: Callable[..., str | None] = halves.authority(Config(tokens=tokens))
    for name, tenant, told in (
        ("all", "acme", None),
        ("acme", "acme", None),
        ("acme", "bravo", "has no say about bravo"),
        ("reader", "acme", "may not promote"),
        ("gone", "acme", "there is no valid token 'gone'"),
    ):
        found = joined.read(ask, name, tenant)
        assert (found is None) if told is None else (told in (found or ""))


def test_a_full_configuration_is_used(joined: Joined) -> None:
    """
    The caps of the queue are those in force when an effect is applied, not those at the start.
    """
    assert joined.queue.limits() == LimitOptions().limits()
    joined.limits = Limits(queued_total=1)
    assert joined.queue.limits().queued_total == 1


def test_run_scripts_is_put_together_with_what_the_operator_allows() -> None:
    """
    The tables of the configuration are those of the type.
    """
    options = AutomationOptions(tables=("invoices:tenant:id", "cards:account:card_id"))
    assert set(halves.tables(Config(automations=options))) == {"invoices", "cards"}
    with pytest.raises(ValueError, match="names no table"):
        AutomationOptions(tables=("invoices",))
    nothing: Any = None
    assert RunScripts(nothing, nothing).tables == {}
