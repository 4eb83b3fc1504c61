"""
``crq simulate``: each option, and what it prints.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from crq.cli import main
from crq.simulate.watch import Watch

TRACE = """\
# Two accounts; one comes all at once.
# quota key-a 4 60
offset,account,key,service,outcome
0.0,acme,key-a,0.8,success
0.0,acme,key-a,0.8,success
0.0,acme,key-a,0.8,error
0.0,acme,key-a,0.8,success
1.0,bravo,key-b,2.0,success
1.5,bravo,key-b,2.0,wall
100.25,bravo,key-b,2.0,success
"""


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """
    Run it on a small trace, away from every configuration.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CRQ_CONFIG", raising=False)
    (tmp_path / "trace.csv").write_text(TRACE)

    def run(*words: str, before: tuple[str, ...] = (), file: str = "trace.csv") -> Result:
        arguments = [*before, "simulate", *([file] if file else []), "--jobs", "1", *words]
        return CliRunner().invoke(main, arguments)

    return run


def told(result: Result) -> dict[str, Any]:
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def one(result: Result) -> dict[str, Any]:
    (found,) = told(result)["results"]
    assert found["problems"] == []
    return dict(found)


def test_one_result_for_people(simulate: Callable[..., Result]) -> None:
    """
    One set of rules is told in full: outcomes, slots, refusals, gates, waits, curves.
    """
    result = simulate()
    assert result.exit_code == 0
    for text in (
        "2 of 4, half-open, fifo",
        "failed (301)",
        "refused: 2 (429)",
        "1 closings",
        "0 did not hold",
        "caps fired       none",
        "waiting |",
    ):
        assert text in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines() if " s  " in line][-2:] == [
        "acme",
        "bravo",
    ]


def test_json(simulate: Callable[..., Result]) -> None:
    """
    With --json there is one object with the load and each result; the same twice.
    """
    first = simulate("--json")
    found = told(first)
    assert found["load"] == {
        "file": "trace.csv",
        "seed": 1,
        "factor": 1.0,
        "executions": 7,
        "seconds": 100.25,
    }
    result = one(first)
    assert result["outcomes"] == {"301": 1, "success": 6}
    assert result["accounts"]["acme"]["count"] == 4
    assert result["api"]["refused"] == {"429": 2}
    assert result["gates"]["closings"] == 1
    assert len(result["depth"]["curve"]["most"]) == 240
    assert simulate("--json").stdout == first.stdout


def test_rules_side_by_side(simulate: Callable[..., Result]) -> None:
    """
    Every combination is a row, without those that no cap could reach; --inline adds a last one.
    """
    found = told(
        simulate(
            *("--per-account", "1,3", "--global", "2,4", "--half-open", "on,off"),
            *("--order", "fifo,round-robin", "--inline", "--workers", "3", "--json"),
        )
    )
    policies = [each["policy"] for each in found["results"]]
    assert len(policies) == 3 * 2 * 2 + 1
    assert {(each.get("perAccount"), each.get("global")) for each in policies[:-1]} == {
        (1, 2),
        (1, 4),
        (3, 4),
    }
    assert {each["order"] for each in policies[:-1]} == {"fifo", "round-robin"}
    assert {each["halfOpen"] for each in policies[:-1]} == {True, False}
    assert policies[-1] == {"inline": True, "workers": 3}
    assert found["results"][-1]["slots"]["of"] == 3
    table = simulate("--per-account", "1,2", "--inline", "--account", "bravo").stdout
    lines = [line for line in table.splitlines() if line.strip()]
    assert "bravo p95" in lines[0]
    assert "acme p95" not in lines[0]
    assert [line.split(" of ")[0].strip() for line in lines[2:4]] == ["1", "2"]
    assert lines[4].strip().startswith("no queue, 40 workers")


def test_who_inserts(simulate: Callable[..., Result]) -> None:
    """
    --admission sql lets rows wait for the next tick.
    """
    assert one(simulate("--json", "--since", "50"))["waits"]["max"] == 0.0
    polled = one(simulate("--json", "--since", "50", "--admission", "sql"))
    assert polled["waits"]["max"] == 0.75


def test_a_part_of_the_load(simulate: Callable[..., Result]) -> None:
    """
    --since and --until cut a part out; --load multiplies it.
    """
    assert one(simulate("--json", "--since", "1", "--until", "50"))["executions"] == 2
    assert (
        one(simulate("--json", "--since", "1", "--until", "50", "--load", "3"))["executions"] == 6
    )


def test_limits_of_the_options(simulate: Callable[..., Result]) -> None:
    """
    Limits of the options are those of every key and replace the trace's.
    """
    assert one(simulate("--json", "--minute-limit", "100"))["api"]["refused"] == {}
    assert one(simulate("--json", "--hour-limit", "2"))["outcomes"]["301"] > 1
    found = one(simulate("--json", "--minute-limit", "100", "--method-limit", "1", "--calls", "8"))
    assert found["api"]["refused"]["401"] > 0


def test_calls(simulate: Callable[..., Result]) -> None:
    """
    --calls is for all, --calls-of for one account.
    """
    free = ("--json", "--minute-limit", "1000")
    assert one(simulate(*free, "--calls", "3"))["api"]["calls"] == 21
    found = one(simulate(*free, "--calls", "0", "--calls-of", "bravo=5"))
    assert found["api"]["calls"] == 15


def test_the_configuration_counts(simulate: Callable[..., Result]) -> None:
    """
    Caps, wall, ladder and tick are those of the configuration.
    """
    settings = ("limits.in_flight=1", "limits.per_account=1", "limits.queued_per_account=2")
    before = tuple(word for each in settings for word in ("--set", each))
    found = one(simulate("--json", before=before))
    assert found["policy"]["global"] == 1
    assert found["capsFired"] == {"account": 1}
    walled = one(simulate("--json", before=("--set", "executor.wall=1", "--set", "api.timeout=1")))
    assert walled["outcomes"]["303"] == 3
    slow = one(simulate("--json", "--admission", "sql", before=("--set", "drainer.tick=10")))
    assert slow["waits"]["max"] > 5


def test_curves(simulate: Callable[..., Result], tmp_path: Path) -> None:
    """
    --plot writes the curves of all results as one picture.
    """
    assert simulate("--plot", "depth.svg", "--inline").exit_code == 0
    picture = ElementTree.parse(tmp_path / "depth.svg").getroot()
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 4


def test_without_a_file(simulate: Callable[..., Result]) -> None:
    """
    Without a trace it is the 14 days of the brief, with their quota; another seed, another load.
    """
    part = ("--json", "--since", "1088580", "--until", "1088640")  # 2026-08-24 14:23
    found = told(simulate(*part, file=""))
    assert found["load"]["file"] is None
    assert found["load"]["executions"] == 137
    assert found["results"][0]["api"]["refused"]["429"] > 0
    assert told(simulate(*part, "--seed", "2", file=""))["results"] != found["results"]


def test_a_public_trace(simulate: Callable[..., Result], tmp_path: Path) -> None:
    """
    A trace of Azure Functions is simulated as it is published.
    """
    (tmp_path / "azure.csv").write_text(
        "app,func,end_timestamp,duration\na1,f1,10,2\na1,f2,10,2\na1,f1,11,3\na2,f1,12,1\n"
    )
    found = one(simulate("--json", file="azure.csv"))
    assert (found["executions"], found["outcomes"]) == (4, {"success": 4})
    assert set(found["accounts"]) == {"a1", "a2"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--per-account", "0"), "numbers from 1 to 1000"),
        (("--half-open", "maybe"), "'maybe' is none of them; give on, off or on,off"),
        (("--order", "lifo"), "give fifo, round-robin or both"),
        (("--calls-of", "acme"), "write ACCOUNT=N"),
        (("--account", "nobody"), "nothing of 'nobody' arrives"),
        (("--since", "5000"), "nothing arrives between --since and --until"),
        (("--per-account", "3", "--global", "2"), "every --per-account is above every --global"),
    ],
)
def test_wrong_words(simulate: Callable[..., Result], words: tuple[str, ...], text: str) -> None:
    """
    What makes no sense is refused with what is wrong and what to give instead.
    """
    result = simulate(*words)
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_wrong_file(simulate: Callable[..., Result], tmp_path: Path) -> None:
    """
    A file that is no trace is refused with its line.
    """
    (tmp_path / "bad.csv").write_text("app,func,end_timestamp,duration\na,f,1,soon\n")
    result = simulate(file="bad.csv")
    assert result.exit_code == 2
    assert "bad.csv: line 2: duration: 'soon' is no number" in result.stderr


def test_an_invariant_that_does_not_hold(
    simulate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A broken invariant is told and is exit code 4, after the result.
    """
    monkeypatch.setattr(Watch, "problems", lambda _: ["I4: 5 in flight"])
    result = simulate("--json")
    assert result.exit_code == 4
    assert "an invariant did not hold: I4: 5 in flight" in result.stderr
    assert json.loads(result.stdout)["results"][0]["problems"] == ["I4: 5 in flight"]
