"""
What a soak has counted, and what of it must not be.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from benchmarks.report import Figure
from benchmarks.soak import schedule
from benchmarks.soak.load import Load
from benchmarks.soak.works import Works
from tests import invariants, journal
from tests.invariants import History
from tests.journal import Change

SHOWN = 500  # violations that are written down


@frozen
class Verdict:
    """
    Figures and violations.
    """

    figures: Mapping[str, Figure]
    violations: tuple[str, ...]


def live(works: Works, load: Load) -> list[str]:
    """
    What can be told while it still goes on: from the API alone, and from what ended by itself.
    """
    return [
        *works.problems,
        *([load.problem] if load.problem else []),
        *invariants.caps(works.site.api.most, works.site.config.limits.limits()),
        *invariants.effects((), dict(works.site.api.effects)),
    ]


def judge(works: Works, load: Load, seconds: float, seed: int) -> Verdict:
    """
    Go through rows and journal, when all is quiet.
    """
    site = works.site
    rows = site.rows()
    history = History(site.config.limits.limits())
    behind: list[str] = []
    late = 0
    for change in journal.changes(site.database, site.connection):
        history.note(change)
        behind += works.gates.problems([change])
        late += (change.old, change.new) == ("failed", "success")
    history.end_claim()
    violations = (
        *live(works, load),
        *history.problems,
        *behind,
        *invariants.stored(rows),
        *(each for each in invariants.effects(rows, site.api.effects) if "times" not in each),
        *invariants.accepted(rows, load.answers),
        *outcomes(rows, seed),
    )
    ended = Counter(row["status"] for row in rows)
    codes = Counter(row["error_code"] for row in rows)
    kills = schedule.KILLS | schedule.SERVER_KILLS
    counts: dict[str, tuple[float, str]] = {
        "seed": (seed, "seed"),
        "seconds": (seconds, "s"),
        "admitted": (len(rows) - ended["rejected"], "executions"),
        "refused": (ended["rejected"], "executions"),
        "submitted_again": (load.counts["again"], "requests"),
        "claimed": (history.claims, "claims"),
        "released": (history.releases, "claims"),
        "started": (history.starts.total(), "executions"),
        "success": (ended["success"], "executions"),
        "failed_301": (codes[301], "executions"),
        "unknown_303": (codes[303], "executions"),
        "failed_otherwise": (ended["failed"] - codes[301] - codes[303], "executions"),
        "outcome_after_unknown": (late, "executions"),
        "effects": (site.api.effects.total(), "calls"),
        "most_at_once": (site.api.most["total"], "scripts"),
        "gates_closed": (works.gates.count, "gates"),
        "kills": (sum(count for kind, count in works.done.items() if kind in kills), "kills"),
        "faults": (sum(n for kind, n in works.done.items() if kind not in kills), "faults"),
        **{name.replace(" ", "_"): (n, "times") for name, n in sorted(works.done.items())},
        "violations": (len(violations), "violations"),
    }
    return Verdict({name: Figure(*each) for name, each in counts.items()}, violations)


def outcomes(rows: Iterable[Mapping[str, Any]], seed: int) -> list[str]:
    """
    Every script ended as it does by itself, or as unknown; never otherwise.
    """
    problems = []
    for row in rows:
        if row["status"] in ("rejected", "queued", "claimed", "running"):
            continue
        number = int(str(row["identifier"]).partition("/")[0])
        code = schedule.work(seed, number).code
        if row["error_code"] not in (code, 303):
            problems.append(f"I3: ends with {row['error_code']} instead of {code}: {dict(row)}")
    return problems


def write_down(works: Works, violations: Iterable[str], folder: Path) -> None:
    """
    Keep what is needed to understand violations: themselves, and the whole journal.
    """
    (folder / "violations.txt").write_text("\n".join([*violations][:SHOWN]) + "\n")
    with (folder / "journal.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(each.name for each in attrs.fields(Change))
        for change in journal.changes(works.site.database, works.site.connection):
            writer.writerow(attrs.astuple(change))
