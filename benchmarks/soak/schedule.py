"""
What happens in a soak, drawn from its seed: the same seed gives the same actions and submissions.

Pure. When exactly an action meets what is under way is up to the machine; what is done, to whom, in
which order and how far apart is not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from tests.effects import script

ACCOUNTS = ("acme", "bravo", "carla", "delta", "echo")
KEYS = 2  # of each account
LIMIT = "1"  # s of Retry-After: five at least, and five of margin, so that a gate holds for ten
GAP = (0.4, 5.0)  # s between two actions: some meet what still recovers, some a busy queue
REST = 0.15  # s between two submissions, on average

# Weight by kind. `seconds` of an action lie in the range given: how long something is away.
KILLS: Final[dict[str, tuple[int, tuple[float, float]]]] = {
    "daemon killed": (4, (0.0, 2.0)),
    "daemon stopped": (2, (0.0, 1.0)),
    "executor killed": (2, (0.0, 2.0)),
    "executor stopped": (1, (0.0, 1.0)),
    "worker killed": (5, (0.0, 0.0)),
    "daemon and executor killed": (1, (0.0, 1.0)),
}
FAULTS: Final[dict[str, tuple[int, tuple[float, float]]]] = {
    "answers reset": (3, (0.0, 0.0)),
    "answers replaced by 504": (3, (0.0, 0.0)),
    "daemon paused": (2, (0.2, 2.5)),
    # Shorter than a worker without its lock is waited for: a frozen worker looks like a dead one.
    "worker paused": (2, (0.1, 1.0)),
}
SERVER_KILLS: Final[dict[str, tuple[int, tuple[float, float]]]] = {
    "database killed": (1, (0.0, 2.0)),
    "database restarted": (1, (0.0, 3.0)),
    "memcached killed": (2, (0.0, 2.0)),
}
SERVER_FAULTS: Final[dict[str, tuple[int, tuple[float, float]]]] = {
    "connections killed": (4, (0.0, 0.0)),
    "connections reset": (2, (0.0, 0.0)),
    "answer to a COMMIT lost": (4, (0.0, 0.0)),
    "database paused": (2, (0.2, 2.5)),
    "memcached paused": (2, (0.2, 2.5)),
}
# With several daemons: gone for longer than it takes the others to call it dead, or just paused so.
SEVERAL: Final[dict[str, tuple[int, tuple[float, float]]]] = {
    "daemon away": (2, (35.0, 50.0)),
    "daemon frozen": (1, (35.0, 45.0)),
}


@frozen
class Action:
    """
    One kill or fault.

    :ivar at: seconds since the beginning.
    :ivar seconds: how long what it is done to stays away or paused.
    :ivar which: picks one of several, such as a worker.
    """

    at: float
    kind: str
    seconds: float
    which: int


@frozen
class Work:
    """
    One submission.

    :ivar steps: side effects that it has.
    :ivar code: error code that it ends with if nothing interferes; None: success.
    :ivar rest: seconds until the next one is submitted.
    """

    number: int
    account: str
    key: str
    source_code: str
    steps: int
    code: int | None
    rest: float

    @property
    def identifier(self) -> str:
        """
        As `tests.invariants` reads it.
        """
        return f"{self.number}/{self.steps}"


def kinds(servers: bool, several: bool = False) -> dict[str, tuple[int, tuple[float, float]]]:
    """
    All kinds of actions.

    :param servers: whether there are servers to be taken away: not with SQLite.
    :param several: whether there are several daemons.
    """
    more = (SERVER_KILLS | SERVER_FAULTS if servers else {}) | (SEVERAL if several else {})
    return {**KILLS, **FAULTS, **more}


def actions(seed: int, seconds: float, servers: bool, several: bool = False) -> Iterator[Action]:
    """
    What is done, in order, for so many seconds.
    """
    draw = random.Random(f"actions {seed}")
    known = kinds(servers, several)
    names = list(known)
    weights = [known[name][0] for name in names]
    at = draw.uniform(*GAP)
    while at < seconds:
        (kind,) = draw.choices(names, weights)
        yield Action(at, kind, draw.uniform(*known[kind][1]), draw.randrange(1000))
        at += draw.uniform(*GAP)


def work(seed: int, number: int) -> Work:
    """
    The submission of that number.
    """
    draw = random.Random(f"work {seed} {number}")
    account, key = draw.choice(ACCOUNTS), str(draw.randrange(KEYS))
    waits = [draw.uniform(0.02, 0.4)]
    then, code = "", None
    kind = draw.random()
    if kind < 0.12:
        waits.append(draw.uniform(0.02, 0.2))
    elif kind < 0.20:
        then, code = 'fail("as it should")', 301
    elif kind < 0.23:
        then, code = f'api.get("/limit/{LIMIT}")', 301
    elif kind < 0.27:
        then = f"max(range({draw.randrange(5_000_000, 30_000_000)}))"
    elif kind < 0.30:
        waits = [draw.uniform(2.0, 5.0)]
    source = script(number, *waits, then=then)
    rest = draw.expovariate(1 / REST)
    return Work(number, account, key, source, len(waits), code, rest)
