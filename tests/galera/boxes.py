"""
Three boxes, each with a node, an executor and a daemon of its own; one queue.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from crq.instants import instant_of
from tests import invariants, journal
from tests.galera.cluster import Cluster, Node
from tests.installation import Installation, companion
from tests.invariants import History
from tests.journal import Change
from tests.servers import HOST, free_port
from tests.site import Site

DATABASE = "boxes"
WALL = 8.0  # s; where a worker's lock is not to be trusted, a dead one's slot is free after it
SETTINGS: dict[str, dict[str, object]] = {
    "database": {"cluster": "galera", "timeout": 4.0},
    "executor": {
        "liveness": "wall",
        "wall": WALL,
        "deadline": WALL + 4,
        "grace": 2.0,
        "workers": 3,
        "memory_mb": 256,
    },
    "drainer": {"tick": 0.5, "drain_limit": 2.0, "stop_limit": 4.0, "slots": 2},
}


class Boxes:
    """
    All of it; `close` ends it, except for the cluster, which is whoever's made it.

    :ivar site: the first box, with the API and the journal.
    :ivar daemons: of the boxes, in the order of the nodes.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        settings: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self.cluster = cluster
        first, *others = cluster.nodes
        first.create_database(DATABASE)
        given = {section: dict(options) for section, options in SETTINGS.items()}
        for section, options in (settings or {}).items():
            given.setdefault(section, {}).update(options)
        self.site = Site(folder, first.dsn(DATABASE), given)
        self.daemons = [self.site.installation]
        for node in others:
            self.daemons.append(self._box(folder / f"box{node.number}", node))

    def _box(self, folder: Path, node: Node) -> Installation:
        port = free_port()
        own: dict[str, dict[str, object]] = {
            "database": {"url": node.dsn(DATABASE)},
            "executor": {"url": f"http://{HOST}:{port}", "bind": f"{HOST}:{port}"},
        }
        made = companion(self.site.installation, folder, f"box{node.number}", own)
        made.executor_port = port
        return made

    def start(self) -> None:
        """
        Start all executors and daemons.
        """
        for daemon in self.daemons:
            daemon.start_executor()
            daemon.start_daemon(wait=False)

    def close(self) -> None:
        """
        End them.
        """
        for daemon in self.daemons[1:]:
            daemon.close()
        self.site.close()

    def reconnect(self) -> None:
        """
        Look at the rows over another connection, of any node that lives.
        """
        for daemon in self.daemons:
            with suppress(Exception):
                connection = daemon.config.open_database().connect()
                self.site.connection.close()
                self.site.connection = connection
                return

    def submit(self, turn: int, key: str, fields: Mapping[str, Any]) -> str | None:
        """
        Submit at one of the doors, as behind a balancer; None: it has not answered as it should.
        """
        words = {200: "queued", 202: "queued", 429: "rejected"}
        with suppress(OSError, ValueError):
            status, _ = self.daemons[turn % len(self.daemons)].submit(key, **fields)
            return words.get(status)
        return None

    def changes(self) -> list[Change]:
        """
        All changes, by the clock that all nodes share here: each node numbers its own.
        """
        found = journal.changes(self.site.database, self.site.connection)
        return sorted(found, key=lambda change: (change.at, change.seq))

    def problems(self) -> list[str]:
        """
        What does not hold of I1 to I4, I6 and I7, when all is quiet.
        """
        limits = self.site.config.limits.limits()
        rows = self.site.rows()
        return [
            *invariants.stored(rows),
            *History(limits).tell(self.changes()).problems,
            *invariants.effects(rows, self.site.api.effects),
            *invariants.accepted(rows, self.site.answers),
            *invariants.caps(self.site.api.most, limits),
            *depths(self.changes(), limits.queued_per_account, limits.queued_total),
        ]

    def failover(self, since: float) -> float | None:
        """
        Seconds from a wall instant to the next claim by anybody; None: there was none.
        """
        later = [
            instant_of(change.claimed_at or "")
            for change in self.changes()
            if change.new == "claimed" and change.at > since
        ]
        return min(later) - since if later else None

    def until_ended(self, within: float) -> bool:
        """
        Wait until nothing waits and nothing runs.
        """
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            try:
                if self.site.all_ended():
                    return True
            except Exception:
                self.reconnect()
            time.sleep(0.1)
        return False


def depths(changes: list[Change], per_account: int, total: int) -> list[str]:
    """
    I7: how many waited at once, counted over the changes. What goes back to the queue was admitted
    before and counts against nobody.
    """
    waiting: dict[int, str] = {}
    problems = []
    for change in changes:
        if change.new == "queued":
            waiting[change.execution_id] = change.account
            own = sum(account == change.account for account in waiting.values())
            if change.old is None and (own > per_account or len(waiting) > total):
                problems.append(f"I7: {own} of its account, {len(waiting)} in all: {change}")
        else:
            waiting.pop(change.execution_id, None)
    return problems
