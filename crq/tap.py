"""
The daemon: options of ``twistd crqueue``, and `makeService`, the only place that constructs.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, evolve
from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from crq import configfile, schema
from crq.config import Config
from crq.database import Database, is_outage
from crq.dispatcher import Dispatcher
from crq.drainer import Drainer
from crq.gatememory import GateMemory
from crq.gates import open_store
from crq.liveness import Liveness
from crq.pool import Pool
from crq.pulse import Pulse
from crq.reaper import Reaper
from crq.sealing import new_nonce
from crq.suspects import Suspects
from crq.transport import Transport
from crq.web.app import site

FIRST_LOOK = 2.0  # s that a start waits for the database before it goes on without
_log = Logger()


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
        try:
            self["loaded"] = configfile.load(self["config"], settings=self["set"])
            self["sealer"] = self["loaded"].sealer()
        except (configfile.ConfigError, ValueError) as error:
            raise UsageError(str(error)) from None


def makeService(options: Options, reactor: Any = None) -> MultiService:
    """
    Build the daemon.

    :raise SystemExit: another daemon holds the lock, or the schema is not ours.
    """
    config: Config = options["loaded"]
    lock = take_lock(Path(config.drainer.lock_file))
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
    gates = GateMemory(open_store(config, database), threads.run, reactor)
    dispatcher = Dispatcher(
        pool=pool,
        gates=gates,
        transport=Transport.to_executor(reactor, config),
        pulse=pulse,
        clock=reactor,
        wall=time.time,
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
    )
    reaper = Reaper(pool, config.reaper, reactor, time.time, liveness if trusted else None)
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
    )
    http = StreamServerEndpointService(serverFromString(reactor, config.web.listen), door)
    root = MultiService()
    root.setName("crqueue")
    parts = {
        "last resort": LastResort(reactor, config.drainer.stop_limit, lock),
        "gates": threads,
        "drainer": drainer,
        "reaper": reaper,
        "http": http,
    }
    for name, service in parts.items():
        service.setName(name)
        service.setServiceParent(root)
    return root


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
        _log.warn(
            "the database is away ({error}); starting, not ready until it is back",
            action="database away",
            error=str(error),
        )


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


@define(eq=False)
class LastResort(Service):
    """
    Ends the process when a stop takes longer than its limit, whatever it is that hangs.

    A thread inside a database call would otherwise keep the process for ever (Twisted #10124). It
    is safe at any instant: the rows say what was begun.
    """

    reactor: Any
    limit: float
    lock: int

    def stopService(self) -> None:
        """
        Start the count-down; it ends with the process.
        """
        super().stopService()
        timer = threading.Timer(self.limit, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        _log.error("the stop took over {limit} s: ending now", action="forced", limit=self.limit)
        os._exit(1)
