"""
Looks at the gates as the drainer could, so that a start behind a closed one is seen afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from attrs import define

from crq.gates import GatesUnreachable, open_store
from crq.instants import instant_of
from tests.journal import Change
from tests.site import Site

EVERY = 0.1  # s
# s after a gate was seen from which on every claim must know it: a row that is admitted in the
# midst of a tick bears a claim's instant that is later than the tick's look at the gates.
KNOWN_AFTER = 1.0


@define
class Closed:
    """
    A key was seen closed.

    :ivar until: when the gate opens, or when the gates were lost.
    """

    seen: float
    until: float


class GateWatch(threading.Thread):
    """
    Watches until `end`.
    """

    def __init__(self, site: Site, keys: Iterable[str]) -> None:
        super().__init__(name="soak-gates", daemon=True)
        self._keys = sorted(keys)
        self._store: Any = open_store(site.config, site.database)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._losses = 0
        self._seen: dict[str, list[Closed]] = {key: [] for key in self._keys}

    @property
    def count(self) -> int:
        """
        How many closings there were.
        """
        with self._lock:
            return sum(len(each) for each in self._seen.values())

    def run(self) -> None:
        """
        Look, again and again.
        """
        while not self._over.wait(EVERY):
            losses = self._losses
            try:
                closed = self._store.read(self._keys, time.time()).closed
            except GatesUnreachable:
                continue
            with self._lock:
                now = time.time()
                if losses != self._losses:
                    continue  # read before the store went away
                for key, until in closed.items():
                    known = self._seen[key]
                    if not known or known[-1].until != until:
                        known.append(Closed(now, until))

    def forget(self, gone_at: float) -> None:
        """
        The store has gone away: what the drainer has not read yet it cannot know from then on.
        """
        with self._lock:
            self._losses += 1
            for known in self._seen.values():
                if known and known[-1].until > gone_at:
                    known[-1].until = gone_at

    def end(self) -> None:
        """
        Watch no more.
        """
        self._over.set()
        self.join()
        self._store.disconnect()

    def problems(self, changes: Iterable[Change]) -> list[str]:
        """
        I5: claims of a key whose gate was closed, and had been for long enough to be known.
        """
        return [
            f"I5: {change} behind a gate seen at {gate.seen:.3f}, closed until {gate.until:.3f}"
            for change in changes
            if change.new == "claimed" and change.apikey is not None
            for gate in self._seen.get(change.apikey, ())
            if gate.seen + KNOWN_AFTER < instant_of(change.claimed_at or "") < gate.until
        ]
