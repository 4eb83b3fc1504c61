"""
The daemon: options of ``twistd crqueue``, and `makeService`, the only place that constructs.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve
from twisted.application import strports
from twisted.application.service import MultiService, Service
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from crq import configfile, executions, parts, plain, schema, sockets
from crq.config import Config
from crq.database import Database, is_outage
from crq.drainer import Drainer
from crq.gatememory import GateMemory
from crq.gates import open_store
from crq.lifecycle import Daemon, LastResort, Reloader, Signals
from crq.liveness import Liveness
from crq.logs import Logs
from crq.meters import Meters
from crq.notify import Notify, watchdog_seconds
from crq.origin import of_this_process
from crq.poke import Poke, PokeListener
from crq.pool import Pool
from crq.presence import Presence
from crq.pulse import Pulse
from crq.reaper import Reaper
from crq.sealing import new_nonce
from crq.supervision import Supervision
from crq.suspects import Suspects
from crq.watch import Watch
from crq.web.app import site
from crq.web.tokens import TokenBook

ROLES = ("admit", "drain", "all")
FIRST_LOOK = 2.0  # s that a start waits for the database before it goes on without


class Options(UsageOptions):
    """
    Options of ``twistd crqueue``.
    """

    optParameters = [
        ["config", "c", None, "TOML file (default: $CRQ_CONFIG, ./crqueue.toml, /etc/crqueue/)"],
        ["roles", "r", "all", "admit: only admission; drain: all but admission; all: both"],
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
        if self["roles"] not in ROLES:
            raise UsageError(f"--roles: {self['roles']!r} is none; use one of {', '.join(ROLES)}")
        self["config"] = configfile.found(self["config"])
        try:
            self["loaded"] = self.load()
            self["sealer"] = self["loaded"].sealer()
            self["loaded"].executor.token()
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
    admits_only = options["roles"] == "admit"
    # A lock for each of the two: they run side by side.
    lock = take_lock(Path(config.drainer.lock_file + (".admit" if admits_only else "")))
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
    if admits_only:
        return named(Daemon(logs), admission(options, logs, lock, reactor))

    pulse = Pulse(started_at=time.time(), origin=of_this_process(config.drainer.lock_file))

    def repeated(_error: BaseException) -> None:
        pulse.repeats += 1

    database = evolve(config.open_database(), repeated=repeated)
    pool = Pool(database, reactor, config.database.pool)
    threads = parts.GateThreads(reactor)
    # Where the gates are in the database, its outage is one and the same.
    shared = pool.outage if config.gates.backend == "database" else None
    gates = GateMemory(open_store(config, database), threads.run, reactor, shared)
    meters = Meters()
    begun_by = None
    if config.executor.contract == "plain":
        begun_by = plain.mark(config.drainer.id, secrets.token_hex(8))
    transport, dispatcher = parts.outward(
        config, options["sealer"], pool, gates, pulse, meters, reactor, begun_by
    )
    liveness = Liveness(database, Path(config.executor.lock_dir))
    trusted = config.executor.liveness == "lock"
    over = config.executor.wall + config.executor.grace
    presence = Presence(pool, pulse, config.drainer.id, reactor, time.time)
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
        begun_by=begun_by,
        capped=transport.limit,
        meters=meters,
        presence=presence,
        slots=config.drainer.slots or None,
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
    types = parts.installed(config, options["sealer"], database, lambda: drainer.limits)
    desk, previews = parts.reception(config, options["sealer"], database, types, reactor)
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
        reception=desk,
        limits=lambda: drainer.limits,
        meters=meters,
        book=book,
        admits=options["roles"] == "all",
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
        presence=presence,
    )
    services: dict[str, Service] = {
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
        services["manhole"] = manhole.service(config.manhole, options["manhole"], names, reactor)
    if config.drainer.wake_socket:
        services["wake"] = PokeListener(config.drainer.wake_socket, reactor, drainer.wake)
    if config.automations.scheduler == "on":
        services |= parts.automations(config, options["sealer"], database, pool, reactor, types)
    return named(Daemon(logs), services)


def named(root: MultiService, services: Mapping[str, Service]) -> MultiService:
    """
    Put services under a root, by name.
    """
    for name, service in services.items():
        service.setName(name)
        service.setServiceParent(root)
    return root


def admission(options: Options, logs: Logs, lock: int, reactor: Any) -> dict[str, Service]:
    """
    The services of a process that only admits, by name: a door and what stands behind it.

    No drainer, no janitor, no beat, no schedules: it goes on while all of those are dead, and
    whoever drains is poked, on this host, or finds the rows with its next tick.
    """
    config: Config = options["loaded"]
    in_force = [config.limits.limits()]

    def apply(changed: Config) -> None:
        in_force[0] = changed.limits.limits()

    database = config.open_database()
    pool = Pool(database, reactor, config.database.pool)
    threads = parts.GateThreads(reactor)
    shared = pool.outage if config.gates.backend == "database" else None
    types = parts.installed(config, options["sealer"], database, lambda: in_force[0])
    desk, previews = parts.reception(config, options["sealer"], database, types, reactor)
    door = site(
        config=config,
        pool=pool,
        sealer=options["sealer"],
        pulse=None,
        gates=GateMemory(open_store(config, database), threads.run, reactor, shared),
        wake=Poke(config.drainer.wake_socket) if config.drainer.wake_socket else lambda: None,
        wall=time.time,
        monotonic=reactor.seconds,
        reactor=reactor,
        reception=desk,
        limits=lambda: in_force[0],
    )
    last_resort = LastResort(config.drainer.stop_limit, lock)
    reloader = Reloader(options.load, config, logs, apply, lambda: None, lambda: None)
    signals = Signals(reactor, reloader.reload, reloader.reopen, lambda: None, last_resort.hurry)
    return {
        "last resort": last_resort,
        "signals": signals,
        "gates": threads,
        "previews": previews,
        "http": strports.service(sockets.backlogged(config.web.listen), door, reactor=reactor),
    }


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
