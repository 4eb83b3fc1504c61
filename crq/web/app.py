"""
The site: all handlers, bound to one door.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from crq.config import Config
from crq.gatememory import GateMemory
from crq.instants import Instant
from crq.meters import Meters
from crq.model import Limits
from crq.pool import Pool
from crq.pulse import Pulse
from crq.sealing import Sealer
from crq.web import admitting, automations, metrics, openapi, operating, pages, reading, wire
from crq.web.door import Door
from crq.web.reception import Reception
from crq.web.tokens import TokenBook
from crq.web.turns import Turns

__all__ = ["HANDLERS", "site"]

HANDLERS = (
    admitting,
    automations,
    metrics,
    openapi,
    operating,
    reading,
    pages,
)  # their routes are known by now


def site(
    *,
    config: Config,
    pool: Pool,
    sealer: Sealer,
    pulse: Pulse | None,
    gates: GateMemory,
    wake: Callable[[], None],
    wall: Callable[[], Instant],
    monotonic: Callable[[], float],
    reactor: IReactorTime,
    reception: Reception,
    limits: Callable[[], Limits] | None = None,
    meters: Meters | None = None,
    book: TokenBook | None = None,
    admits: bool = True,
) -> wire.Site:
    """
    Make the site.

    :param wake: called after each admission and each action.
    :param pulse: of this process's drainer; None: it has none.
    :param admits: whether executions are admitted here.
    :param reception: where the automations' people come to.
    :param limits: tells the configured caps in force; the configuration's when None.
    :param meters: the daemon's; of its own when None.
    :param book: the tokens that are known; one that reads them out of the pool when None.
    """
    limits = limits or config.limits.limits
    meters = meters or Meters()
    book = book or TokenBook.of(config, sealer, pool, monotonic)
    # One connection is always left to the loops, where there is more than one.
    turns = Turns(pool, max(1, pool.size - 1), config.database.timeout, reactor)
    door = Door(
        config=config,
        pool=turns,
        sealer=sealer,
        pulse=pulse,
        gates=gates,
        wake=wake,
        wall=wall,
        monotonic=monotonic,
        limits=limits,
        meters=meters,
        book=book,
        reception=reception,
        admits=admits,
    )
    return wire.Site(
        door.app.resource(),
        reactor,
        config.web.body_limit,
        config.web.request_seconds,
        config.web.connections,
        # Whoever is signed in on the pages is no stranger either.
        lambda headers: door.sessions.knows(headers) or book.knows(headers),
    )
