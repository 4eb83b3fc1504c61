"""
Admits, kills and faults at random from a seed, with all real parts, and counts what was wrong.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from attrs import frozen

from benchmarks.report import Figure, Measured, Stage
from benchmarks.soak import schedule
from benchmarks.soak.judge import judge, live, write_down
from benchmarks.soak.load import Load
from benchmarks.soak.works import Works

ENGINES = ("mariadb", "sqlite")
QUIET_WITHIN = 180.0  # s, after the last fault, until everything has ended
LATE = 2.0  # s in which an outcome may still replace an "unknown"


@frozen
class Soaked:
    """
    What a soak found.

    :ivar folder: where its logs are; None: nothing was wrong, and they are gone.
    """

    measured: Measured
    violations: tuple[str, ...]
    folder: Path | None


def run(
    stage: Stage,
    minutes: float = 30.0,
    seed: int = 1,
    engine: str = "mariadb",
    drainers: int = 1,
) -> Soaked:
    """
    Soak for so many minutes, or until something is plainly wrong; then wait until all is quiet.

    The logs of a soak that was wrong, or that was interrupted, are kept.

    :param drainers: daemons that share the queue; each is killed, stopped and paused by itself.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"crq-soak-{seed}-"))
    stage(f"starting, log in {folder}")
    works = Works(folder, engine, drainers)
    load = Load(works.daemons, seed)
    begun = time.monotonic()
    try:
        works.mend()
        works.site.until(
            lambda: works.site.installation.get("/health/ready")[0] == 200, "not ready"
        )
        works.gates.start()
        load.start()
        _act(stage, works, load, minutes * 60, seed)
        stage("waiting until all is quiet")
        load.end()
        unquiet = _quiet(works)
        verdict = judge(works, load, time.monotonic() - begun, seed)
        violations = (*unquiet, *verdict.violations)
        if violations:
            write_down(works, violations, folder)
        versions = {}
        if works.server is not None:
            versions["mariadb"] = str(works.server.execute("SELECT VERSION()")[0][0])
    except BaseException as error:
        error.add_note(f"the logs are kept in {folder}")
        raise
    finally:
        load.abandon()
        works.close()
    if not violations:
        shutil.rmtree(folder)
    figures = {**verdict.figures, "violations": Figure(len(violations), "violations")}
    return Soaked(Measured(figures, versions), violations, folder if violations else None)


def _act(stage: Stage, works: Works, load: Load, seconds: float, seed: int) -> None:
    begun = time.monotonic()
    several = len(works.daemons) > 1
    for action in schedule.actions(seed, seconds, works.server is not None, several):
        while (left := begun + action.at - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
        works.watch()
        text = f"{load.counts['queued']} admitted, {works.done.total()} kills and faults"
        stage(f"{text}; {action.kind}", int(time.monotonic() - begun), int(seconds))
        works.do(action)
        if wrong := live(works, load):
            works.note(f"stopped early: {wrong}")
            return


def _quiet(works: Works) -> list[str]:
    works.settle()
    works.reconnect()
    deadline = time.monotonic() + QUIET_WITHIN
    while not works.site.all_ended():
        if time.monotonic() > deadline:
            return [f"I3: not everything has ended {QUIET_WITHIN:g} s after the last fault"]
        works.watch()
        time.sleep(0.1)
    time.sleep(LATE)
    works.gates.end()
    return []
