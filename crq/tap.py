"""
The daemon: options of ``twistd crqueue``, and `makeService`, the only place that constructs.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import evolve
from twisted.application import strports
from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from crq import configfile, executions, halves, schema, sockets
from crq.automations.advance import Advancer
from crq.automations.calls import Calls
from crq.automations.rounds import Rounds
from crq.automations.scheduler import Scheduler
from crq.automations.types import Types
from crq.automations.workers import Workers
from crq.config import Config
from crq.database import Database, is_outage
from crq.dispatcher import Dispatcher
from crq.drainer import Drainer
from crq.gatememory import GateMemory
from crq.gates import open_store
from crq.lifecycle import Daemon, LastResort, Reloader, Signals
from crq.liveness import Liveness
from crq.logs import Logs
from crq.meters import Meters
from crq.model import Limits
from crq.notify import Notify, watchdog_seconds
from crq.pool import Pool
from crq.pulse import Pulse
from crq.reaper import Reaper
from crq.sealing import Sealer, new_nonce
from crq.supervision import Supervision
from crq.suspects import Suspects
from crq.transport import Transport
from crq.watch import Watch
from crq.web.app import site
from crq.web.reception import PREVIEW_SECONDS, PREVIEWS, Reception
from crq.web.tokens import TokenBook

FIRST_LOOK = 2.0  # s that a start waits for the database before it goes on without


class Options(UsageOptions):
    """
    Options of ``twistd crqueue``.
    """

    optParameters = [
        ["config", "c", None, "TOML file (default: $CRQ_CONFIG, ./crqueue.toml, /etc/crqueue/)"],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["set"] = []

    def opt_set(self, setting: str) -> None:
        """
        section.name=value: set one option; may be given many times.
        """
        self["set"].append(setting)

    def postOptions(self) -> None:
        """
        Read the configuration and the secrets; a fault is a usage error.
        """
        self["config"] = configfile.found(self["config"])
        try:
            self["loaded"] = self.load()
            self["sealer"] = self["loaded"].sealer()
            if self["loaded"].manhole.listen:
                from crq import manhole  # conch takes a moment to load

                self["manhole"] = manhole.checked(self["loaded"].manhole)
        except (configfile.ConfigError, ValueError) as error:
            raise UsageError(str(error)) from None

    def load(self) -> Config:
        """
        Read the configuration, from where it was read at the start.
        """
        return configfile.load(self["config"], settings=self["set"])


def makeService(options: Options, reactor: Any = None) -> MultiService:
    """
    Build the daemon.

    :raise SystemExit: another daemon holds the lock, or the schema is not ours.
    """
    config: Config = options["loaded"]
    logs = Logs(config.log.level, options.parent, config.log.format)
    lock = take_lock(Path(config.drainer.lock_file))
    try:
        sockets.provide(config.web.connections)
    except ValueError as error:
        raise SystemExit(f"crqueue: {error}") from None
    look_at_schema(config.open_database())
    if reactor is None:
        from twisted.internet import reactor as real_reactor

        reactor = real_reactor
        # All timers of the process on the monotonic clock: a stepped wall clock neither freezes
        # nor fires anything (ruling 10; Twisted #3899). Nothing has been scheduled yet.
        reactor.seconds = time.monotonic

    pulse = Pulse(started_at=time.time())

    def repeated(_error: BaseException) -> None:
        pulse.repeats += 1

    database = evolve(config.open_database(), repeated=repeated)
    pool = Pool(database, reactor, config.database.pool)
    threads = GateThreads(reactor)
    # Where the gates are in the database, its outage is one and the same.
    shared = pool.outage if config.gates.backend == "database" else None
    gates = GateMemory(open_store(config, database), threads.run, reactor, shared)
    transport = Transport.to_executor(reactor, config)
    meters = Meters()
    dispatcher = Dispatcher(
        pool=pool,
        gates=gates,
        transport=transport,
        pulse=pulse,
        clock=reactor,
        wall=time.time,
        meters=meters,
    )
    liveness = Liveness(database, Path(config.executor.lock_dir))
    trusted = config.executor.liveness == "lock"
    over = config.executor.wall + config.executor.grace
    drainer = Drainer(
        pool=pool,
        gates=gates,
        dispatcher=dispatcher,
        liveness=liveness,
        suspects=Suspects(None if trusted else over),
        limits=config.limits.limits(),
        drainer_id=config.drainer.id,
        pulse=pulse,
        clock=reactor,
        wall=time.time,
        mint=new_nonce,
        every=config.drainer.tick,
        drain_limit=config.drainer.drain_limit,
        capped=transport.limit,
        meters=meters,
    )
    supervision = Supervision(
        notify=Notify.of(os.environ),
        watchdog=watchdog_seconds(os.environ, os.getpid()),
        pulse=pulse,
        clock=reactor,
        limits=lambda: drainer.caps,
        tick=config.drainer.tick,
        waits=lambda: pool.read(executions.waits),
    )
    drainer.ticked = supervision.ticked

    def apply(changed: Config) -> None:
        drainer.limits = changed.limits.limits()
        transport.limit(drainer.limits)
        drainer.wake()

    reloader = Reloader(
        options.load, config, logs, apply, supervision.reloading, supervision.reloaded
    )
    last_resort = LastResort(config.drainer.stop_limit, lock)
    signals = Signals(
        reactor, reloader.reload, reloader.reopen, dispatcher.hang_up, last_resort.hurry
    )
    reaper = Reaper(pool, config.reaper, reactor, time.time, liveness if trusted else None)
    book = TokenBook.of(config, options["sealer"], pool, reactor.seconds)
    types = installed(config, options["sealer"], database, lambda: drainer.limits)
    people = halves.desk(config, options["sealer"], types)
    previews = Workers(reactor, reactor, PREVIEWS, PREVIEW_SECONDS)
    door = site(
        config=config,
        pool=pool,
        sealer=options["sealer"],
        pulse=pulse,
        gates=gates,
        wake=drainer.wake,
        wall=time.time,
        monotonic=reactor.seconds,
        reactor=reactor,
        reception=Reception(people, Calls(database, reactor.seconds), previews),
        limits=lambda: drainer.limits,
        meters=meters,
        book=book,
    )
    watch = Watch(
        pool=pool,
        gates=gates,
        pulse=pulse,
        limits=lambda: drainer.limits,
        drainer_id=config.drainer.id,
        options=config.history,
        clock=reactor,
        wall=time.time,
        tick=config.drainer.tick,
        busy=lambda: bool(dispatcher.outstanding),
        also=book.refresh,
    )
    root = Daemon(logs)
    parts = {
        "last resort": last_resort,
        "signals": signals,
        "supervision": supervision,
        "gates": threads,
        "drainer": drainer,
        "reaper": reaper,
        "watch": watch,
        "previews": previews,
        "http": strports.service(sockets.backlogged(config.web.listen), door, reactor=reactor),
    }
    if config.manhole.listen:
        from crq import manhole

        names = manhole.namespace(drainer, watch, pool, gates, config.drainer)
        parts["manhole"] = manhole.service(config.manhole, options["manhole"], names, reactor)
    if config.automations.scheduler == "on":
        parts |= automations(config, options["sealer"], database, pool, reactor, types)
    for name, service in parts.items():
        service.setName(name)
        service.setServiceParent(root)
    return root


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


def take_lock(path: Path) -> int:
    """
    Take the lock of this box and queue; the kernel gives it back when the process is gone.

    A file lock instead of a pid file: a pid may belong to somebody else after a crash.

    :raise SystemExit: another daemon holds it, or the file cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SystemExit(f"crqueue: drainer.lock_file: {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SystemExit(
            f"crqueue: another daemon holds {path}; stop it, or give this one a queue and"
            " drainer.lock_file of its own"
        ) from None
    return descriptor


def look_at_schema(database: Database) -> None:
    """
    Refuse a schema that is not ours; a database that is away is no reason not to start.

    :raise SystemExit: the schema is missing, older or of a later version.
    """
    if database.dialect == "sqlite" and not Path(database.path).exists():
        raise SystemExit(f"crqueue: there is no database at {database.path}; run `crq db upgrade`")
    impatient = evolve(database, timeout=min(database.timeout, FIRST_LOOK))
    try:
        connection = impatient.connect()
        try:
            impatient.read(connection, schema.check)
        finally:
            connection.close()
    except schema.SchemaMismatch as error:
        raise SystemExit(f"crqueue: {error}") from None
    except Exception as error:
        if not is_outage(error):
            raise
        # The first tick says so: not ready until it is back.


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
