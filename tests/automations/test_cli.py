"""
``crq automations``: what it prints, what it changes, what it answers with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from crq import halves
from crq.automations.advance import Advancer
from crq.automations.calls import Calls
from crq.automations.model import Effect, RunStatus
from crq.automations.rounds import Rounds
from crq.automations.scheduler import Scheduler
from crq.cli.runs import EFFECTS, STATUSES
from crq.config import Config
from crq.configfile import load
from crq.gatetable import DatabaseGates
from tests.automations.house import AtOnce
from tests.house import Clocks
from tests.integration.test_cli import Home, failed, run
from tests.support import SynchronousPool

ADD = ("automations", "add", "--tenant", "acme", "--name", "tidy", "--type", "housekeeping")
WHEN = ("--cron", "15 3 * * *", "--zone", "Europe/Berlin")
RULE = 'def decide(card):\n    return {"approve": card["id"] > 1, "reason": "many"}\n'


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A fresh directory after `crq init`.
    """
    folder = tmp_path_factory.mktemp("home")
    result = run("init", str(folder))
    assert result.exit_code == 0
    (folder / "token").write_text(result.stdout.splitlines()[-1])
    return folder


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Home:
    """
    A copy of it, for one test.
    """
    for file in template.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return Home(tmp_path)


def tick(home: Home) -> None:
    """
    A minute of the daemon.
    """
    config: Config = load(str(home.folder / "crqueue.toml"), {})
    database, sealer, clocks = config.open_database(), config.sealer(), Clocks(0.0)
    import time

    clocks.step = time.time()
    pool = SynchronousPool(database)
    gates = DatabaseGates(database)
    queue = halves.Queue(config, sealer, gates, config.limits.limits, clocks.wall)
    advancer = Advancer(
        pool=pool,
        types=halves.types(config, sealer, queue),
        calls=Calls(database, clocks.seconds),
        workers=AtOnce(),
        unseal=sealer.unseal,
        authority=halves.authority(config),
        clock=clocks,
        wall=clocks.wall,
    )
    rounds = Rounds(pool, advancer, clocks, clocks.wall)
    done: list[Any] = []
    Deferred.fromCoroutine(Scheduler(pool, rounds, clocks, clocks.wall).run_once()).addBoth(
        done.append
    )
    pool.close()
    gates.disconnect()
    assert done[0].chunks is not None


def test_from_declaring_to_demoting(home: Home) -> None:
    """
    The whole way: declared, previewed, observed, promoted with a token, demoted; each step says
    what it did, and the audit has it all.
    """
    assert home.ok(*ADD, *WHEN, "--setting", "keep_days=5") == (
        "acme/tidy added: observe, revision 1; switched off\n"
    )
    assert home.read("automations", "preview", "acme/tidy")["decisions"] == []
    assert "acme/tidy observes" in home.ok("automations", "observe", "acme/tidy", "--now")
    token = ("--token-file", str(home.folder / "token"))
    refused = home.run("automations", "promote", "acme/tidy", *token)
    assert refused.exit_code == 1
    assert "evidence: no observe run of revision 1 has completed" in refused.stderr
    tick(home)
    (found,) = home.read("automations", "runs", "acme/tidy")["runs"]
    assert (found["status"], found["mode"]) == ("completed", "observe")
    assert home.ok("automations", "promote", "acme/tidy", *token) == "acme/tidy is live\n"
    assert home.read("automations", "show", "acme/tidy")["promotedBy"] == "first"
    assert "acme/tidy observes: observe" in home.ok("automations", "demote", "1")
    actions = [line["action"] for line in home.read("automations", "audit", "1")["audit"]]
    assert actions == [
        *("demoted", "promoted", "run ended", "not promoted", "run-now", "observed", "added")
    ]
    actors = {
        line["actor"].partition(":")[0] for line in home.read("automations", "audit", "1")["audit"]
    }
    assert actors == {"cli", "first", "scheduler"}


def test_a_type_with_scripts_and_a_secret(home: Home) -> None:
    """
    Scripts and secrets come from files; a secret is shown to nobody and kept by an edit, and a
    setting on the command line cannot be one.
    """
    (home.folder / "rule.star").write_text(RULE)
    (home.folder / "remind.star").write_text('api.get("/x")\n')
    settings = home.folder / "settings.json"
    settings.write_text(json.dumps({"source": "json", "path": "/cards"}))
    where = ("automations", "add", "--tenant", "acme", "--name", "remind", "--type", "run_script")
    files = [
        option
        for name, file in (("rule", "rule.star"), ("script", "remind.star"), ("apikey", "key"))
        for option in ("--from", f"{name}={home.folder / file}")
    ]
    added = home.read(*where, *WHEN, "--settings", str(settings), *files)
    assert added["config"]["apikey"] == "(sealed)"
    assert added["config"]["rule"] == RULE
    assert len(added["occurrences"]) == 10
    edited = home.read("automations", "edit", "acme/remind", "--setting", "path=/open")
    assert (edited["config"]["path"], edited["configRevision"]) == ("/open", 2)
    assert edited["config"]["apikey"] == "(sealed)"
    for words in (("show", "1"), ("audit", "1"), ("list",)):
        assert "sesame" not in home.run("automations", *words).output
    told = home.run("automations", "edit", "1", "--setting", "apikey=sesame")
    assert told.exit_code == 2
    assert "apikey is secret: give it as --from apikey=FILE" in told.stderr


def test_switching(home: Home) -> None:
    """
    What is switched on has a next occurrence; a run by hand needs an automation that is on.
    """
    home.ok(*ADD, *WHEN)
    told = failed(home.run("automations", "run-now", "1"), 2)
    assert "automation: is switched off; enable it, or let it observe" in told
    assert "enabled: observe, revision 1; next at " in home.ok("automations", "enable", "1")
    assert home.ok("automations", "run-now", "1") == "acme/tidy: run 1\n"
    assert "has an open run" in failed(home.run("automations", "run-now", "1"), 2)
    assert home.ok("automations", "disable", "1").endswith("switched off\n")
    tick(home)
    (found,) = home.read("automations", "runs", "1")["runs"]
    assert found["status"] == "stopped"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("show", "7"), 1, "there is no automation 7"),
        (("observe", "acme/x"), 1, "there is none called 'acme/x'"),
        (("items", "7"), 1, "there is no run 7"),
        (("types", "nothing"), 2, "type: 'nothing' is not installed"),
        (("promote", "1"), 2, "no token: give --token-file or set CRQ_TOKEN"),
    ],
)
def test_what_is_not_there(home: Home, words: tuple[str, ...], code: int, told: str) -> None:
    """
    What does not exist is said in one line, with the exit code for it.
    """
    assert told in failed(home.run("automations", *words), code)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--cron", "0 0 31 2 *", "--zone", "UTC"), "cron: the day-of-month of '0 0 31 2 *'"),
        (("--cron", "* * * * *", "--zone", "Europe/Berln"), "did you mean Europe/Berlin?"),
        (("--zone", "UTC"), "give --cron"),
        ((*WHEN, "--setting", "keep_dys=1"), "keep_dys: there is no such setting"),
        ((*WHEN, "--setting", "keep_days=soon"), 'keep_days: "soon" is not a number'),
        ((*WHEN, "--setting", "keep_days"), "--setting keep_days: write it as NAME="),
        ((*WHEN, "--max-items", "0"), "max_items_per_run: 0 is out of range"),
    ],
)
def test_what_cannot_be_declared(home: Home, more: tuple[str, ...], told: str) -> None:
    """
    A fault in what is declared names the field and the remedy, and nothing is stored.
    """
    assert told in failed(home.run(*ADD, *more), 2)
    assert home.read("automations", "list")["automations"] == []


def test_a_token_that_nobody_knows(home: Home) -> None:
    """
    A token that is not valid promotes nothing; it may come from the environment.
    """
    home.ok(*ADD, *WHEN)
    result = home.run("automations", "promote", "1", env={"CRQ_TOKEN": "wrong"})
    assert failed(result, 1) == "Error: nobody knows this token"


def test_people_get_tables(home: Home) -> None:
    """
    Lists are tables for people, with what they ask first; nothing in them obeys a terminal.
    """
    home.ok(*ADD, *WHEN)
    listed = home.ok("automations", "list")
    assert "acme/tidy" in listed
    assert "15 3 * * * Europe/Berlin" in listed
    shown = home.ok("automations", "show", "1")
    assert "in Europe/Berlin" in shown
    assert shown.count("03:15+0") == 10
    assert "keep_days" in home.ok("automations", "types", "housekeeping")
    assert "run_script" in home.ok("automations", "types")
    home.ok("automations", "observe", "1", "--now")
    tick(home)
    assert "nothing was left" in home.ok("automations", "runs", "1")
    assert "subject" in home.ok("automations", "items", "1")
    assert "run ended" in home.ok("automations", "audit", "1")
    assert "subject" in home.ok("automations", "preview", "1")


def test_help_has_examples(home: Home) -> None:
    """
    Each command says what it is for and how it is used.
    """
    top = home.run("automations", "--help").output
    for name in (
        *("list", "add", "edit", "preview", "observe", "promote", "demote", "enable", "disable"),
        *("run-now", "runs", "items", "audit", "show", "types"),
    ):
        assert f"  {name} " in top
        text = home.run("automations", name, "--help").output
        assert "Example" in text, name
        assert "Exit codes" in text, name


def test_the_words_are_those_of_the_model() -> None:
    """
    The states that can be asked for are the states there are.
    """
    assert list(STATUSES) == [status.value for status in RunStatus]
    assert list(EFFECTS) == [effect.value for effect in Effect]
