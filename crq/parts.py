"""
Parts of a process that `crq.tap` puts together and that are made of several themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from crq import halves
from crq.automations.advance import Advancer
from crq.automations.calls import Calls
from crq.automations.rounds import Rounds
from crq.automations.scheduler import Scheduler
from crq.automations.types import Types
from crq.automations.workers import Workers
from crq.config import Config
from crq.database import Database
from crq.dispatcher import Dispatcher
from crq.gatememory import GateMemory
from crq.gates import open_store
from crq.meters import Meters
from crq.model import Limits
from crq.plaindispatcher import PlainDispatcher
from crq.plaintransport import PlainTransport
from crq.pool import Pool
from crq.pulse import Pulse
from crq.sealing import Sealer
from crq.transport import Transport
from crq.web.reception import PREVIEW_SECONDS, PREVIEWS, Reception


def outward(
    config: Config,
    sealer: Sealer,
    pool: Pool,
    gates: GateMemory,
    pulse: Pulse,
    meters: Meters,
    reactor: Any,
    begun_by: str | None,
) -> tuple[Transport | PlainTransport, Dispatcher]:
    """
    The way to what runs executions, by the contract of the configuration.

    :param begun_by: mark of this process, for a plain endpoint.
    """
    if begun_by is None:
        transport = Transport.to_executor(reactor, config)
        return transport, Dispatcher(
            pool, gates, transport, pulse, reactor, time.time, meters=meters
        )
    endpoint = PlainTransport.to_endpoint(reactor, config, pool, sealer)
    dispatcher = PlainDispatcher(
        pool,
        gates,
        endpoint,
        pulse,
        reactor,
        time.time,
        meters=meters,
        mark=begun_by,
        shortest_wait=config.gates.shortest_wait,
        margin=config.gates.margin,
    )
    endpoint.sent = dispatcher.sent
    return endpoint, dispatcher


def installed(
    config: Config, sealer: Sealer, database: Database, limits: Callable[[], Limits]
) -> Types:
    """
    The automation types; those that are left out are told.
    """
    queue = halves.Queue(config, sealer, open_store(config, database), limits, time.time)
    types = halves.types(config, sealer, queue)
    for fault in types.faults:
        Logger().error("automation type left out: {fault}", action="type left out", fault=fault)
    return types


def reception(
    config: Config, sealer: Sealer, database: Database, types: Types, reactor: Any
) -> tuple[Reception, Service]:
    """
    Where the automations' people come to, and the service of its threads.
    """
    previews = Workers(reactor, reactor, PREVIEWS, PREVIEW_SECONDS)
    people = halves.desk(config, sealer, types)
    return Reception(people, Calls(database, reactor.seconds), previews), previews


def automations(
    config: Config, sealer: Sealer, database: Database, pool: Pool, reactor: Any, types: Types
) -> dict[str, Service]:
    """
    The services that make and advance runs of automations, by name.
    """
    threads = config.automations.threads
    workers = Workers(reactor, reactor, threads)
    advancer = Advancer(
        pool=pool,
        types=types,
        calls=Calls(database, reactor.seconds),
        workers=workers,
        unseal=sealer.unseal,
        authority=halves.authority(config),
        clock=reactor,
        wall=time.time,
    )
    rounds = Rounds(pool, advancer, reactor, time.time, threads)
    scheduler = Scheduler(pool, rounds, reactor, time.time, config.automations.keep_days)
    return {"automation threads": workers, "automations": scheduler}


class GateThreads(Service):
    """
    A small thread pool of the gates' own: a silent cache must not take the database's threads.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._threads = ThreadPool(0, 2, "crqueue-gates")

    def startService(self) -> None:
        """
        Start the threads; they end after all services have stopped.
        """
        super().startService()
        self._threads.start()
        self._reactor.addSystemEventTrigger("during", "shutdown", self._threads.stop)

    def run(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """
        Call a function on one of the threads.
        """
        return deferToThreadPool(self._reactor, self._threads, function, *args)
