"""
The small parts: settings, the registry of types, threads with deadlines, the context of a call.
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import pytest
from attrs import NOTHING, frozen
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer
from zope.interface.verify import verifyObject

from crq.automations import limits, settings, types, workers
from crq.automations.context import About, CallContext
from crq.automations.interfaces import IAutomation
from crq.automations.model import Unfit
from crq.automations.settings import setting
from crq.automations.types import Types, broken, discover
from crq.automations.workers import Caller, NoThread, Overdue, Workers
from crq.database import Cursor, Database
from tests.automations.house import Played, Rule
from tests.installation import CHECKOUT


@frozen
class Every:
    """
    Settings of every kind.
    """

    text: str = setting(NOTHING, "a text", lambda value: None if value else "is empty; give one")
    number: int = setting(1, "a number")
    share: float = setting(0.5, "a share")
    on: bool = setting(False, "a switch")
    choice: Literal["a", "b"] = setting("a", "a choice")
    words: tuple[str, ...] = setting((), "some words")
    key: str = setting("", "a secret", secret=True)


def structured(**given: Any) -> Every:
    found: Every = settings.structured(Every, given, lambda sealed: sealed.upper())
    return found


def test_settings_of_every_kind_are_taken() -> None:
    """
    JSON values become the declared kinds; a sealed secret is opened, and never shown.
    """
    found = structured(
        text="x", number=2, share=1, on=True, choice="b", words=["y"], key={"sealed": "abc"}
    )
    assert found == Every(
        text="x", number=2, share=1.0, on=True, choice="b", words=("y",), key="ABC"
    )
    assert isinstance(found.share, float)
    assert "ABC" not in repr(found)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "text: is missing; a text"),
        ({"text": ""}, "text: is empty; give one"),
        ({"text": 1}, "text: 1 is not a text"),
        ({"text": "x", "number": 1.5}, "number: 1.5 is not a whole number"),
        ({"text": "x", "number": "1"}, 'number: "1" is not a whole number'),
        ({"text": "x", "share": True}, "share: true is not a number"),
        ({"text": "x", "on": 1}, "on: 1 is not true or false"),
        ({"text": "x", "choice": "c"}, 'choice: "c" is not "a" or "b"'),
        ({"text": "x", "words": "y"}, 'words: "y" is not a list of texts'),
        ({"text": "x", "words": [1]}, "words: 1 is not a text"),
        ({"text": "x", "key": 1}, "key: is no text"),
        ({"text": "x", "kye": 1}, "kye: there is no such setting; did you mean key?"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, Any], told: str) -> None:
    """
    Each fault names the setting, what is wrong and what to do.
    """
    with pytest.raises(Unfit) as caught:
        structured(**given)
    assert told in str(caught.value)


def test_settings_are_described() -> None:
    """
    A door can build a form: name, kind, default, meaning, whether it is required or secret.
    """
    first, *_, last = settings.described(Every)
    assert (first.name, first.kind, first.required) == ("text", "a text", True)
    assert (last.name, last.secret, last.default) == ("key", True, "")


def test_a_configuration_is_not_a_store() -> None:
    """
    A configuration of more than 256 kB is refused.
    """
    with pytest.raises(Unfit, match="config: has 3000"):
        settings.sealed(Every, {"text": "x" * 300_000}, str, str)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "Has Blanks"}, "a name is lower-case"),
        ({"settings": dict}, "settings is no attrs class"),
        ({"subject_types": ["number"]}, "subject_types is a tuple"),
        ({"subject_types": ()}, "subject_types is a tuple"),
        ({"acts": None}, "acts and repeatable are True or False"),
        ({"evaluate": None}, "evaluate"),
    ],
)
def test_a_type_that_is_none_is_left_out(change: dict[str, Any], told: str) -> None:
    """
    A broken type is left out with its reason, and the others are there.
    """
    kind = Played()
    for name, value in change.items():
        setattr(kind, name, value)
    found = Types([kind, Played("sound")])
    assert [one.name for one in found] == ["sound"]
    (fault,) = found.faults
    assert told in fault


def test_the_first_of_a_name_wins() -> None:
    """
    A type cannot take the name of one that ships.
    """
    first, second = Played(), Played()
    found = Types([first], [second])
    assert found.get("played") is first
    assert found.faults == ("played: there is another type of this name",)


def test_types_are_found_as_plugins_and_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A module in twisted/plugins and an entry point are both found; one that cannot be loaded is
    named and stops nobody.
    """
    plugins = tmp_path / "twisted" / "plugins"
    plugins.mkdir(parents=True)
    (plugins / "crq_test_plugin.py").write_text(
        "from tests.automations.house import Played\nfound_as_plugin = Played('by_plugin')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import twisted.plugins

    monkeypatch.setattr(twisted.plugins, "__path__", [str(plugins), *twisted.plugins.__path__])
    points = [
        EntryPoint("one", "tests.automations.test_parts:ByEntryPoint", types.GROUP),
        EntryPoint("two", "no.such.module:kind", types.GROUP),
    ]
    monkeypatch.setattr(types, "entry_points", lambda group: points)
    found, faults = discover()
    assert {"by_plugin", "by_entry_point"} <= {one.name for one in found}
    assert faults == ["no.such.module:kind: ModuleNotFoundError: No module named 'no'"]


@implementer(IAutomation)
class ByEntryPoint(Played):
    """
    A class without arguments.
    """

    def __init__(self) -> None:
        super().__init__("by_entry_point")


def test_what_ships_is_a_type() -> None:
    """
    The types that ship keep the interface.
    """
    from crq.automations.housekeeping import Housekeeper
    from crq.automations.runscript import RunScripts

    shelf: Any = None
    for kind in (Housekeeper(shelf), RunScripts(shelf, shelf)):
        verifyObject(IAutomation, kind)
        assert broken(kind) is None


class Threads:
    """
    Workers whose calls end when the test says so.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, threads: int = 2) -> None:
        self.clock = Clock()
        self.pending: list[Deferred[Any]] = []
        monkeypatch.setattr(workers, "deferToThreadPool", self.call)
        self.workers = Workers(None, self.clock, threads, seconds=15.0)

    def call(self, reactor: Any, pool: Any, function: Any, *args: Any) -> Deferred[Any]:
        self.pending.append(Deferred())
        return self.pending[-1]

    def ask(self, number: int = 1, tenant: str = "acme") -> list[Any]:
        told: list[Any] = []
        done = self.workers.call(Caller(tenant, f"uuid {number}"), print)
        done.addCallbacks(lambda value: told.append(value), lambda f: told.append(f.value))
        return told


def test_a_call_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A call that comes back in time is an answer, whether it went well or not.
    """
    threads = Threads(monkeypatch)
    first, second = threads.ask(1), threads.ask(2)
    threads.pending[0].callback("well")
    error = ValueError("badly")
    threads.pending[1].errback(error)
    assert (first, second) == (["well"], [error])
    assert threads.clock.getDelayedCalls() == []


def test_a_call_that_does_not_come_back_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    After its deadline a call is not waited for; others get its place; its own automation gets no
    thread until it has come back.
    """
    threads = Threads(monkeypatch, threads=1)
    lost, waiting = threads.ask(1), threads.ask(2)
    assert len(threads.pending) == 1
    threads.clock.advance(15)
    assert isinstance(lost[0], Overdue)
    assert len(threads.pending) == 2, "the next one got no thread"
    threads.pending[1].callback("well")
    assert waiting == ["well"]
    (again,) = threads.ask(1)
    assert isinstance(again, NoThread)
    threads.pending[0].callback("late")
    assert lost[1:] == []
    threads.ask(1)
    assert len(threads.pending) == 3


def test_a_tenant_cannot_take_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Two lost calls of one tenant are enough; another tenant is served.
    """
    threads = Threads(monkeypatch, threads=3)
    for number in range(2):
        threads.ask(number)
    threads.clock.advance(15)
    (refused,) = threads.ask(7)
    assert isinstance(refused, NoThread)
    assert "2 calls of this tenant" in str(refused)
    assert threads.ask(7, "bravo") == []


def test_lost_calls_have_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    When too many calls have been lost no further ones are made, and the text says what to do.
    """
    threads = Threads(monkeypatch, threads=limits.LOST_CALLS)
    for number in range(limits.LOST_CALLS):
        threads.ask(number, f"tenant{number}")
    threads.clock.advance(15)
    (refused,) = threads.ask(1, "another")
    assert "restart the daemon" in str(refused)


@pytest.fixture
def context(database: Database) -> Any:
    """
    The context of a call that may not write.
    """
    about = About("acme", "uuid", 0.0, "key", Rule())
    made = CallContext(about, database, lambda: 5.0, 12.0, writes=False)
    yield made
    made.close()


def test_evaluate_cannot_write(context: CallContext) -> None:
    """
    The database itself refuses a write of a reading call, and there is no transaction to be had.
    """

    def write(txn: Cursor) -> None:
        txn.execute("INSERT INTO automation_tenants (tenant) VALUES ('x')")

    with pytest.raises(Exception, match=r"readonly|READ ONLY|read-only"):
        context.read(write)
    with pytest.raises(RuntimeError, match="evaluate changes nothing"):
        context.transact(write)
    assert context.read(lambda txn: txn.execute("SELECT 1").scalar()) == 1
    assert (context.tenant, context.left()) == ("acme", 7.0)


def test_apply_can_write(context: CallContext) -> None:
    """
    A call that applies has transactions.
    """

    def write(txn: Cursor) -> None:
        txn.execute("INSERT INTO automation_tenants (tenant) VALUES ('x')")

    context.writes = True
    context.transact(write)
    assert context.read(lambda txn: txn.execute("SELECT COUNT(*) FROM automation_tenants").scalar())


def test_the_halves_do_not_meet_here() -> None:
    """
    Importing the scheduler does not import the queue's transitions.
    """
    import subprocess

    program = (
        "import sys, crq.automations.scheduler, crq.automations.desk;"
        "assert not {'crq.executions', 'crq.admission', 'crq.drainer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=True, timeout=60)
