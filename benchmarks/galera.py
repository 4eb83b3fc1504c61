"""
Three boxes on three nodes of Galera, under load; each minute a node is killed, another isolated.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks import nodes
from benchmarks.report import Figure, Measured, Stage
from benchmarks.soak.run import Soaked
from tests.effects import script
from tests.galera.boxes import Boxes
from tests.galera.cluster import Cluster

ACCOUNTS = 6
WAIT = (0.02, 0.2)  # s that a script takes
REST = 0.1  # s between two submissions, on average
ROUND = 60.0  # s; in each: a node is killed, comes back, another is isolated, and found again
KILLED, BACK, ISOLATED, FOUND = 5.0, 20.0, 35.0, 45.0  # s into a round
QUIET_WITHIN = 120.0  # s after the last of them


class Callers(threading.Thread):
    """
    Submit at one door after the other, and again until there is an answer.
    """

    def __init__(self, boxes: Boxes, seed: int) -> None:
        super().__init__(name="galera-load", daemon=True)
        self.again = 0
        self._boxes = boxes
        self._draw = random.Random(seed)
        self._over = threading.Event()

    def run(self) -> None:
        """
        Submit until `end`.
        """
        number = turn = 0
        while not self._over.is_set():
            number += 1
            account = f"account{self._draw.randrange(ACCOUNTS)}"
            identifier = f"{number}/1"
            fields = {
                "subdomain": account,
                "apikey": f"{account}.0",
                "source_code": script(number, self._draw.uniform(*WAIT)),
                "identifier": identifier,
            }
            while True:
                turn += 1
                word = self._boxes.submit(turn, str(number), fields)
                if word is not None:
                    break
                self.again += 1
                time.sleep(0.1)
            self._boxes.site.answers[identifier] = word
            self._over.wait(self._draw.expovariate(1 / REST))

    def end(self) -> None:
        """
        Submit no more; returns when the last one is answered.
        """
        self._over.set()
        self.join(60.0)


def run(stage: Stage, minutes: float = 10.0, seed: int = 1) -> Soaked:
    """
    Go through so many rounds, then wait until all is quiet and judge.
    """
    folder = Path(tempfile.mkdtemp(prefix="crq-galera-run-"))
    stage(f"starting, logs in {folder}")
    draw = random.Random(seed)
    away: list[tuple[str, float]] = []
    with Cluster() as cluster:
        stage("measuring claims")
        claiming = nodes.figures(cluster)
        boxes = Boxes(cluster, folder)
        callers = Callers(boxes, seed)
        begun = time.monotonic()
        try:
            boxes.start()
            boxes.site.until(
                lambda: all(each.get("/health/ready")[0] == 200 for each in boxes.daemons),
                "not ready",
            )
            callers.start()
            for number in range(max(1, round(minutes * 60 / ROUND))):
                stage(f"round {number + 1}", number, max(1, round(minutes)))
                away += _round(cluster, draw)
            stage("waiting until all is quiet")
            callers.end()
            seconds = time.monotonic() - begun
            boxes.reconnect()
            violations = [] if boxes.until_ended(QUIET_WITHIN) else ["I3: not everything has ended"]
            violations += boxes.problems()
            figures = _figures(boxes, callers, away, seconds, seed) | claiming
            version = str(cluster.nodes[0].execute("SELECT VERSION()")[0][0])
            provider = cluster.nodes[0].status("wsrep_provider_version")
        except BaseException as error:
            error.add_note(f"the logs are kept in {folder}")
            raise
        finally:
            callers.end()
            boxes.close()
            for node in cluster.nodes:
                (folder / f"node{node.number}.log").write_text(node.log()[-1_000_000:])
    figures["violations"] = Figure(len(violations), "violations")
    if violations:
        (folder / "violations.txt").write_text("\n".join(violations) + "\n")
    else:
        shutil.rmtree(folder)
    measured = Measured(figures, {"mariadb": version, "galera": provider})
    return Soaked(measured, tuple(violations), folder if violations else None)


def _round(cluster: Cluster, draw: random.Random) -> list[tuple[str, float]]:
    begun = time.monotonic()

    def wait(until: float) -> None:
        time.sleep(max(0.0, begun + until - time.monotonic()))

    killed, isolated = draw.sample(cluster.nodes, 2)
    wait(KILLED)
    away = [("killed", time.time())]
    killed.kill()
    wait(BACK)
    killed.start()
    wait(ISOLATED)
    away.append(("isolated", time.time()))
    isolated.isolate()
    wait(FOUND)
    isolated.rejoin()
    cluster.until(len(cluster.nodes))
    wait(ROUND)
    return away


def _figures(
    boxes: Boxes, callers: Callers, away: list[tuple[str, float]], seconds: float, seed: int
) -> dict[str, Figure]:
    changes = boxes.changes()
    kinds = Counter((change.old, change.new) for change in changes)
    ended = boxes.site.statuses()
    figures = {
        "seed": Figure(seed, "seed"),
        "seconds": Figure(round(seconds, 1), "s"),
        "admitted": Figure(kinds[None, "queued"], "executions"),
        "submitted_again": Figure(callers.again, "requests"),
        "claims_per_s": Figure(round(kinds["queued", "claimed"] / seconds, 1), "1/s"),
        "released": Figure(kinds["claimed", "queued"], "claims"),
        "success": Figure(ended["success"], "executions"),
        "unknown_303": Figure(ended["303"], "executions"),
        "most_at_once": Figure(boxes.site.api.most["total"], "scripts"),
    }
    for kind in ("killed", "isolated"):
        found = [boxes.failover(at) for word, at in away if word == kind]
        took = [each for each in found if each is not None]
        figures[f"nodes_{kind}"] = Figure(len(found), "nodes")
        if took:
            figures[f"failover_{kind}_median_s"] = Figure(round(statistics.median(took), 2), "s")
            figures[f"failover_{kind}_most_s"] = Figure(round(max(took), 2), "s")
    return figures
