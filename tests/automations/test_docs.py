"""
docs/automations.md says what is true: its tutorial is run, its table is compared with the code.
"""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crq.automations import limits
from crq.automations.model import Mode, RunStatus
from crq.automations.types import discover
from crq.database import Database
from tests.automations.house import House
from tests.installation import CHECKOUT
from tests.rows import NOON

PAGE = (CHECKOUT / "docs" / "automations.md").read_text("utf-8")
LINES = 100  # of the tutorial's type


def files() -> dict[str, str]:
    """
    The code of the page that names its file.
    """
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.S)
    return dict(blocks)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """
    An author's project, made of the page.
    """
    for name, text in files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("overdue", "test_overdue"):
        sys.modules.pop(name, None)


def test_the_tutorial_is_short() -> None:
    """
    A type that acts, with settings and SQL, is under a hundred lines.
    """
    assert set(files()) == {"overdue.py", "test_overdue.py", "twisted/plugins/overdue_plugin.py"}
    assert files()["overdue.py"].count("\n") < LINES


def test_the_tutorial_passes_the_kit(project: Path) -> None:
    """
    The type of the page keeps the contract, as its author would find out.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "unittest", "-v", "test_overdue"],
        cwd=project,
        env={"PYTHONPATH": f"{project}:{CHECKOUT}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"Ran 10 tests", done.stderr), done.stderr


BROKEN = [
    ("number > ?", "number >= ?", "a subject comes twice|cursor has not moved"),
    ("len(found) >= limit", "False", "other decisions at limit"),
    ("ORDER BY number", "ORDER BY due_at DESC", "other decisions|a subject comes twice|back where"),
    ("after = found[-1][0] if found else cursor", "after = (0,)", "does not come back from JSON"),
    ("cursor or 0, limit)", "cursor or 0, 100)", "decisions, asked for"),
    ('AND overdue = 0",', '",', "applied twice is not as good as once"),
    ("context.read(unpaid", "__import__('random').random() and context.transact(unpaid", "nothing"),
]


@pytest.mark.parametrize(("right", "wrong", "told"), BROKEN, ids=lambda value: str(value)[:20])
def test_the_kit_finds_what_is_broken(
    project: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, told: str
) -> None:
    """
    A cursor that repeats, an early end, another order, a tuple, more than asked for, an effect that
    is not repeatable, a write while evaluating: each turns the kit red.
    """
    source = (project / "overdue.py").read_text()
    assert source.count(right) == 1
    source = source.replace(right, wrong)
    if "applied twice" in told:
        source = source.replace("SET overdue = 1", "SET overdue = overdue + 1")
    (project / "overdue.py").write_text(source)
    monkeypatch.chdir(project)
    tests = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("test_overdue"))
    output = io.StringIO()
    result = unittest.TextTestRunner(output).run(tests)
    assert not result.wasSuccessful(), "the kit is green"
    assert re.search(told, output.getvalue()), output.getvalue()


def test_the_tutorial_from_declaring_to_acting(
    project: Path, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    """
    Installed as the page says, the type is found, observed, promoted, and acts.
    """
    import twisted.plugins

    plugins = str(project / "twisted" / "plugins")
    monkeypatch.setattr(twisted.plugins, "__path__", [plugins, *twisted.plugins.__path__])
    kinds, faults = discover()
    assert faults == []
    (kind,) = (kind for kind in kinds if kind.name == "overdue")
    assert type(kind).__module__ == importlib.import_module("overdue").__name__
    house = House(database, None, kind)
    house.sql("DROP TABLE IF EXISTS invoices")
    house.sql(
        "CREATE TABLE invoices (number INTEGER PRIMARY KEY, tenant VARCHAR(63),"
        " due_at VARCHAR(23), paid INTEGER, overdue INTEGER)"
    )
    for number, tenant, due in (
        (1, "acme", "2026-02-01 00:00:00.000"),
        (2, "acme", "2026-02-27 00:00:00.000"),
        (3, "bravo", "2026-02-01 00:00:00.000"),
    ):
        house.sql("INSERT INTO invoices VALUES (?, ?, ?, 0, 0)", number, tenant, due)
    automation = house.live(config={"days": 14}, cron="0 8 * * *")
    assert marked(house) == []
    house.clocks.step = NOON + 20 * 3600 - house.clocks.seconds()
    house.tick()
    run = house.runs(automation)[-1]
    assert (run.mode, run.status) == (Mode.LIVE, RunStatus.COMPLETED)
    assert run.reason_counts == {"overdue": 1, "not due yet": 1}
    assert marked(house) == [1]
    house.sql("DROP TABLE invoices")
    house.close()


def marked(house: House) -> list[Any]:
    return [row[0] for row in house.sql("SELECT number FROM invoices WHERE overdue = 1")]


def test_the_numbers_of_the_page_are_the_code_s() -> None:
    """
    Every limit that the page names has the value that the page says.
    """
    table = re.findall(r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \| ([\d,; ]+) \|", PAGE, re.M)
    assert len(table) > 12
    for names, values in table:
        told = [float(value.replace(",", "")) for value in values.split(";")]
        found = [float(getattr(limits, name.strip("`"))) for name in names.split(", ")]
        assert told == found, names


def test_the_statuses_of_the_page_are_the_code_s() -> None:
    """
    Every end of a run is on the page.
    """
    table = PAGE.partition("## How a run ends")[2].partition("## Schedules")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.M))
    assert told == {status.value for status in RunStatus} - {"queued", "running"}
