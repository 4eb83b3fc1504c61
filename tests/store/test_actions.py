"""
What an operator can do: done, audited, and the same the second time.
"""

from __future__ import annotations

from typing import Any

import pytest

from crq import actions, audit, controls, executions, gatehistory, records, tokens
from crq.actions import By, Done
from crq.audit import Action, Entry
from crq.config import Token
from crq.database import Cursor, Database
from crq.messages import Outcome
from crq.model import Limits, Status
from crq.records import Filters
from crq.sealing import sha256_hex
from crq.submissions import Refusal
from tests import rows
from tests.rows import LIMITS, NOON, SEALER

ACME, OTHER = SEALER.account("acme"), SEALER.account("other")
KEY = SEALER.key("key")
BY = By("token:ops", NOON, "because")


class Desk:
    """
    An operator at one database.
    """

    def __init__(self, database: Database, connection: Any) -> None:
        self.database = database
        self.connection = connection

    def do(self, function: Any, *args: Any) -> Any:
        def all_of_it(txn: Cursor) -> Any:
            return function(txn, *args, BY)

        return self.database.transact(self.connection, all_of_it)

    def refused(self, status: int, function: Any, *args: Any) -> str:
        before = self.entries()
        with pytest.raises(Refusal) as raised:
            self.do(function, *args)
        assert raised.value.http_status == status, raised.value
        assert self.entries() == before
        return str(raised.value)

    def entries(self, target: str | None = None) -> list[Entry]:
        return list(self.database.read(self.connection, audit.page, target))

    def last(self) -> tuple[str, str, str, Any, Any]:
        entry = self.entries()[0]
        assert (entry.done_at, entry.note) == ("2026-03-02 12:00:00.000", "because")
        return entry.who, entry.action, entry.target, entry.before, entry.after

    def admit(self, account: str = "acme", **more: Any) -> int:
        return rows.admit(self.database, self.connection, account, **more)

    def status(self, number: int) -> tuple[str, int | None]:
        row = rows.row(self.database, self.connection, number)
        return row["status"], row["error_code"]

    def started(self) -> int:
        number = self.admit("solo", key="solo")
        claimed = rows.claim(self.database, self.connection)
        (mine,) = (one for one in claimed if one.execution_id == number)
        assert rows.start(self.database, self.connection, mine)
        return number

    def unknown(self) -> int:
        number = self.started()
        assert self.database.transact(self.connection, executions.died, number, NOON + 1)
        return number


@pytest.fixture
def desk(database: Database, connection: Any) -> Desk:
    """
    An operator.
    """
    return Desk(database, connection)


@pytest.mark.parametrize(
    ("scope", "name", "target"),
    [("all", "", "all"), ("account", ACME, f"account:{ACME}"), ("key", KEY, f"key:{KEY}")],
)
def test_pause_and_resume(desk: Desk, scope: str, name: str, target: str) -> None:
    """
    Each is audited with how it was before and after; the second time nothing is changed or written.
    """
    done = desk.do(actions.pause, scope, name)
    assert (done.changed, done.before, done.after["setBy"]) == (True, None, "token:ops")
    assert desk.last() == ("token:ops", "pause", target, None, done.after)
    assert desk.do(actions.pause, scope, name) == Done(False, done.after, done.after)
    over = desk.do(actions.resume, scope, name)
    assert (over.changed, over.before, over.after) == (True, done.after, None)
    assert desk.last() == ("token:ops", "resume", target, done.after, None)
    assert desk.do(actions.resume, scope, name) == Done(False)
    assert len(desk.entries()) == 2


def test_caps(desk: Desk) -> None:
    """
    A cap is set, changed and taken away, and each time the audit has both values.
    """
    for account, target in ((None, "all"), (ACME, f"account:{ACME}")):
        assert desk.do(actions.cap, account, 3, LIMITS, 8).changed
        assert not desk.do(actions.cap, account, 3, LIMITS, 8).changed
        assert desk.do(actions.cap, account, 1, LIMITS, 8).changed
        who, action, aim, before, after = desk.last()
        assert (who, action, aim) == ("token:ops", "cap", target)
        assert (before["value"], after["value"]) == (3, 1)
        assert desk.do(actions.uncap, account).changed
        assert not desk.do(actions.uncap, account).changed
    for value in (0, 9):
        desk.refused(422, actions.cap, None, value, LIMITS, 8)
    assert desk.do(actions.cap, None, 9, Limits(in_flight=12), 8).changed


def test_drain(desk: Desk) -> None:
    """
    A drain begins once and ends once.
    """
    changes = [
        desk.do(act).changed
        for act in (actions.drain, actions.drain, actions.end_drain, actions.end_drain)
    ]
    assert changes == [True, False, True, False]
    assert [entry.action for entry in desk.entries()] == ["end drain", "drain"]


def test_cancel_one(desk: Desk) -> None:
    """
    What waits is cancelled; what is cancelled already is that; what has been claimed is not.
    """
    number = desk.admit()
    assert desk.do(actions.cancel, number).changed
    assert desk.last()[1:] == (
        *("cancel", f"execution:{number}"),
        *({"status": "queued"}, {"status": "cancelled"}),
    )
    assert not desk.do(actions.cancel, number).changed
    claimed = desk.started()
    assert "running" in desk.refused(409, actions.cancel, claimed)
    desk.refused(404, actions.cancel, claimed + 1)
    assert len(desk.entries()) == 1


def test_cancel_what_fits_the_filters(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Account, key and instants choose; the count says before what the cancelling does after, batch by
    batch, each with a line of its own.
    """
    monkeypatch.setattr(actions, "BATCH", 2)
    for n in range(5):
        desk.admit(at=NOON + n)
    other = desk.admit("other", at=NOON + 2)
    second = desk.admit(key="second", at=NOON + 2)
    for filters, count in (
        (Filters(), 7),
        (Filters(accounts=(ACME,)), 6),
        (Filters(accounts=()), 0),
        (Filters(accounts=(ACME, OTHER)), 7),
        (Filters(apikey_hash=SEALER.key("second")), 1),
        (Filters(since=NOON + 1, until=NOON + 3), 4),
    ):
        assert desk.database.read(desk.connection, actions.count_waiting, filters) == (count, False)
    wanted = Filters(accounts=(ACME,), apikey_hash=KEY)
    assert desk.do(actions.cancel_some, wanted, 9) == (2, True)
    assert desk.do(actions.cancel_some, wanted, 1) == (1, True)
    assert desk.do(actions.cancel_some, wanted, 9) == (2, True)
    assert desk.do(actions.cancel_some, wanted, 9) == (0, False)
    assert [desk.status(n)[0] for n in (1, 2, 3, 4, 5)] == ["cancelled"] * 5
    assert desk.status(other)[0] == desk.status(second)[0] == "queued"
    lines = desk.entries("queue")
    assert sum(entry.after["cancelled"] for entry in lines) == 5
    assert lines[0].after["filters"] == {"accounts": [ACME], "key": KEY}


def test_the_count_has_a_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Beyond it the count says that there are more.
    """
    monkeypatch.setattr(records, "COUNT_LIMIT", 2)
    for _ in range(3):
        desk.admit()
    counted = desk.database.read(desk.connection, actions.count_waiting, Filters())
    assert counted == (2, True)


def test_run_one_is_for_what_is_paused(desk: Desk) -> None:
    """
    What is not paused starts by itself; under a drain nothing starts; what runs cannot be started.
    """
    number = desk.admit()
    assert "by itself" in desk.refused(409, actions.run_one, number)
    desk.do(actions.drain)
    assert "drain" in desk.refused(409, actions.run_one, number)
    desk.do(actions.end_drain)
    desk.do(actions.pause, "key", KEY)
    assert desk.do(actions.run_one, number).changed
    assert not desk.do(actions.run_one, number).changed
    started = desk.started()
    desk.do(actions.pause, "all", "")
    desk.refused(409, actions.run_one, started)
    desk.refused(404, actions.run_one, 999)


@pytest.mark.parametrize(
    ("outcome", "code", "stored"),
    [
        ("success", None, ("success", None)),
        ("failed", None, ("failed", 302)),
        ("failed", 301, ("failed", 301)),
    ],
)
def test_settle_by_hand(
    desk: Desk, outcome: str, code: int | None, stored: tuple[str, int | None]
) -> None:
    """
    An unknown outcome becomes a known one, with who said so; saying it again changes nothing, and
    saying the opposite is refused.
    """
    number = desk.unknown()
    assert desk.do(actions.settle, number, outcome, code).changed
    assert desk.status(number) == stored
    message = rows.row(desk.database, desk.connection, number)["error_message"]
    assert message == "settled by hand by token:ops: because"
    assert desk.last()[1:4] == (
        *("settle", f"execution:{number}"),
        {"status": "failed", "errorCode": 303},
    )
    assert not desk.do(actions.settle, number, outcome, code).changed
    opposite = "failed" if outcome == "success" else "success"
    desk.refused(409, actions.settle, number, opposite, None)


def test_only_unknown_outcomes_are_settled(desk: Desk) -> None:
    """
    Not what waits, runs, has ended or never started; and not with an outcome that is none.
    """
    waiting, running = desk.admit(), desk.started()
    for number in (waiting, running):
        desk.refused(409, actions.settle, number, "success", None)
    for outcome, code in (("wedged", None), ("success", 301), ("failed", 303), ("failed", 107)):
        desk.refused(422, actions.settle, running, outcome, code)
    desk.refused(404, actions.settle, 999, "success", None)
    rows.claim(desk.database, desk.connection)
    aged = desk.admit("third")
    desk.database.transact(desk.connection, executions.reap_queued, NOON + 9, NOON + 9)
    assert desk.status(aged) == ("failed", 303)
    desk.refused(409, actions.settle, aged, "success", None)


def test_a_late_outcome_does_not_undo_a_settlement(desk: Desk) -> None:
    """
    What an operator has looked at and said stays, when the executor reports after all.
    """
    number = desk.unknown()
    desk.do(actions.settle, number, "success", None)
    late = Outcome(Status.FAILED, 301, "boom")
    assert not desk.database.transact(desk.connection, executions.finish, number, late, NOON + 9)
    assert desk.status(number) == ("success", None)


def test_gates_by_hand_have_a_history(desk: Desk) -> None:
    """
    Who closed a gate, why and until when stands in the history of gates and in the audit; opening
    it ends the closing.
    """
    desk.do(actions.close_gate, KEY, NOON + 600)
    (closing,) = desk.database.read(desk.connection, gatehistory.closings, [KEY])
    assert closing.cause == "closed by hand by token:ops: because"
    assert (closing.limits, closing.opened_at) == (0, None)
    assert desk.last()[1:] == (
        *("close gate", f"key:{KEY}", None),
        {"until": "2026-03-02T12:10:00.000Z"},
    )
    desk.do(actions.open_gate, KEY)
    (closing,) = desk.database.read(desk.connection, gatehistory.closings, [KEY])
    assert closing.opened_at == "2026-03-02 12:00:00.000"
    desk.do(actions.gate_failed, KEY, "refused")
    assert [entry.action for entry in desk.entries()] == [
        *("gate failed", "open gate", "close gate"),
    ]


def test_an_action_and_its_line_are_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    When the line cannot be written, nothing has been done.
    """

    def broken(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("the disk is full")

    number = desk.admit()
    monkeypatch.setattr(audit, "record", broken)
    for act in (
        (actions.pause, "all", ""),
        (actions.cancel, number),
        (actions.cancel_some, Filters(), 9),
    ):
        with pytest.raises(RuntimeError):
            desk.do(*act)
    assert desk.status(number)[0] == "queued"
    assert desk.database.read(desk.connection, controls.listed) == ()


def test_the_audit_is_read_page_by_page_and_pruned(desk: Desk) -> None:
    """
    Newest first, by target or all; what is older than its time goes, oldest first, in batches.
    """
    for n in range(5):

        def add(txn: Cursor, n: int = n) -> None:
            audit.record(txn, "who", Action.PAUSE, f"key:{n % 2}", NOON + n, after={"n": n})

        desk.database.transact(desk.connection, add)
    numbers = [entry.after["n"] for entry in desk.entries()]
    assert numbers == [4, 3, 2, 1, 0]
    assert [entry.after["n"] for entry in desk.entries("key:1")] == [3, 1]
    first = desk.database.read(desk.connection, audit.page, None, None, 2)
    second = desk.database.read(desk.connection, audit.page, None, first[-1].audit_id, 2)
    assert [entry.after["n"] for entry in (*first, *second)] == [4, 3, 2, 1]
    assert desk.database.transact(desk.connection, audit.prune, NOON + 3, 2) == 2
    assert desk.database.transact(desk.connection, audit.prune, NOON + 3, 2) == 1
    assert [entry.after["n"] for entry in desk.entries()] == [4, 3]


def test_tokens(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A token is added once under its name, is valid until it is revoked, and only its hash is kept.
    """

    def add(name: str, **more: Any) -> None:
        token = Token(name=name, sha256=sha256_hex(name), **more)
        desk.database.transact(desk.connection, tokens.add, token, "cli:ops", NOON)

    def revoke(name: str) -> bool:
        return desk.database.transact(desk.connection, tokens.revoke, name, "cli:ops", NOON + 1)

    add("portal", scopes=("admit",), accounts=("acme", "other"))
    add("night", scopes=("read", "operate"))
    active = desk.database.read(desk.connection, tokens.active)
    assert [(t.name, t.scopes, t.accounts) for t in active] == [
        ("portal", ("admit",), ("acme", "other")),
        ("night", ("read", "operate"), ()),
    ]
    for name, status in (("portal", 409), ("", 422), ("a b", 422), ("x" * 65, 422)):
        with pytest.raises(Refusal) as raised:
            add(name)
        assert raised.value.http_status == status
    assert (revoke("portal"), revoke("portal")) == (True, False)
    with pytest.raises(Refusal):
        revoke("nobody")
    assert [t.name for t in desk.database.read(desk.connection, tokens.active)] == ["night"]
    with pytest.raises(Refusal):
        add("portal")
    listed = desk.database.read(desk.connection, tokens.listed)
    assert [(each.token.name, each.revoked_at is None) for each in listed] == [
        *(("night", True), ("portal", False)),
    ]
    assert sha256_hex("night") not in str([each.as_json() for each in listed])
    assert [entry.action for entry in desk.entries()] == ["revoke token", "add token", "add token"]
    monkeypatch.setattr(tokens, "LIMIT", 1)
    with pytest.raises(Refusal, match="revoke some"):
        add("one-too-many")


def test_a_row_that_is_claimed_meanwhile_is_not_cancelled(desk: Desk) -> None:
    """
    Between choosing the rows and cancelling them a claim may win: what it took stays its own.
    """
    first, second = desk.admit(), desk.admit()

    class Late(Cursor):
        def execute(self, sql: str, parameters: Any = ()) -> Cursor:
            if "SET status = 'cancelled'" in sql:
                super().execute(
                    "UPDATE codeRunner_executions SET status = 'claimed' WHERE execution_id = ?",
                    (first,),
                )
            return super().execute(sql, parameters)

    def act(txn: Cursor) -> tuple[int, bool]:
        late = Late(desk.connection.cursor(), txn.dialect, None)
        return actions.cancel_some(late, Filters(), 9, BY)

    assert desk.database.transact(desk.connection, act) == (1, False)
    assert (desk.status(first)[0], desk.status(second)[0]) == ("claimed", "cancelled")
