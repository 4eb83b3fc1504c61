"""
All checks, one group after the other.

A group that cannot be looked at is a finding of its own, and what depends on it says so by being
left out: without a database nothing is said of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen

from crq import configfile
from crq.config import Config
from crq.configfile import ConfigError
from crq.database import Cursor, Database
from crq.doctor import (
    cache,
    clocks,
    executor,
    host,
    process,
    rowfindings,
    rows,
    server,
    tables,
    units,
    versions,
)
from crq.doctor.findings import Finding, Severity, error, guarded, note, ok
from crq.instants import Instant, instant_of
from crq.sealing import Sealer

PACKET = 2  # times a script's largest size: escaped, it grows
TASKS = 2  # connections of an executor's worker: its rows, its lock
OF_DAEMON = 2  # connections besides the pool: gates, and a second one while the first is replaced


@frozen
class Examination:
    """
    One look at an installation.

    :ivar config: the configuration, or what is wrong with it.
    :ivar path: the file it comes from; None: there is none.
    :ivar wall: the wall clock; ``monotonic`` the other one.
    :ivar unit_folders: where units are looked for.
    """

    config: Config | ConfigError
    path: str | None
    wall: Callable[[], Instant]
    monotonic: Callable[[], float]
    unit_folders: tuple[str, ...] = units.FOLDERS

    def findings(self) -> list[Finding]:
        """
        Look at everything.
        """
        found = guarded("versions", versions.look)
        config = self.config
        if isinstance(config, ConfigError):
            remedy = "correct it; nothing else can be looked at before"
            return [*found, error("configuration", str(config), remedy)]
        found.append(ok("configuration", self.path or "no file: defaults and the environment"))
        sealer, finding = _secrets(config)
        found.append(finding)
        found += guarded("files", lambda: host.look(config, self.path))
        found += guarded("daemon", lambda: process.look(config))
        found += guarded("units", lambda: units.look(config, self.unit_folders))
        found += guarded("database", lambda: self._database(config, sealer))
        found += guarded("gates", lambda: cache.look(config.gates, self.wall, self.monotonic))
        found += guarded("executor", lambda: executor.look(config, self.wall, self.monotonic))
        return found

    def _database(self, config: Config, sealer: Sealer | None) -> Iterator[Finding]:
        database = config.open_database()
        if database.dialect == "sqlite" and not Path(database.path).exists():
            yield error("database", f"there is none at {database.path}", "run `crq db upgrade`")
            return
        try:
            connection = database.connect()
        except Exception as fault:  # noqa: BLE001 - whatever keeps us out is the finding
            yield error(
                "database",
                f"does not let us in: {type(fault).__name__}: {fault}",
                "see database.url, the server, and the account's password and rights",
            )
            return
        try:
            yield ok("database", f"answers, as {database.dialect}")
            yield from self.connected(config, database, connection, sealer)
        finally:
            with suppress(Exception):  # it may have been lost under way
                connection.close()

    def connected(
        self, config: Config, database: Database, connection: Any, sealer: Sealer | None
    ) -> Iterator[Finding]:
        """
        Look at a database over a connection that our own code has prepared.
        """

        def ask(function: Callable[..., Any], *args: Any) -> Any:
            return database.read(connection, function, *args)

        needs = _needs(config)
        yield from guarded(
            "server", lambda: server.judge(database.dialect, ask(server.settings), needs)
        )
        if database.dialect == "mysql":
            skew = clocks.measure(lambda: ask(_time), self.wall, self.monotonic)
            yield clocks.judge("clock of the database", "database", skew)
        revision: Finding = ask(tables.revision)
        yield revision
        if revision.severity is not Severity.OK:
            yield note("rows", "not looked at: the schema is not that of this version")
            return
        yield from guarded("tables", lambda: list(ask(lambda txn: list(tables.look(txn)))))
        now = self.wall()
        yield from guarded("drainers", lambda: self._drainers(config, ask, now))
        yield from guarded("rows", lambda: self._rows(config, sealer, ask, now))

    def _drainers(self, config: Config, ask: Callable[..., Any], now: Instant) -> Iterator[Finding]:
        found = ask(process.beats)
        yield from process.judge_beats(found, now, config.drainer.tick)
        yield from process.named(config, found, now)

    def _rows(
        self, config: Config, sealer: Sealer | None, ask: Callable[..., Any], now: Instant
    ) -> Iterator[Finding]:
        late = rowfindings.LATE * config.reaper.every
        found = ask(
            rows.read,
            config.limits.limits(),
            sealer,
            now + rowfindings.AHEAD,
            now - config.reaper.scrub_after - late,
        )
        return rowfindings.judge(found, rowfindings.Patience.of(config), now)


def examination(
    path: str | None,
    environment: dict[str, str],
    settings: tuple[str, ...],
    wall: Callable[[], Instant],
    monotonic: Callable[[], float],
) -> Examination:
    """
    Prepare a look at the installation that a configuration describes.
    """
    config: Config | ConfigError
    try:
        config = configfile.load(path, environment, settings)
    except ConfigError as fault:
        config = fault
    return Examination(config, configfile.found(path, environment), wall, monotonic)


def _secrets(config: Config) -> tuple[Sealer | None, Finding]:
    try:
        sealer = config.sealer()
        config.executor.token()
    except ValueError as fault:
        return None, error("secrets", str(fault), "see `crq config check`")
    count = len(sealer.seal_keys)
    return sealer, ok("secrets", f"a salt, and {count} sealing key{'s' if count > 1 else ''}")


def _needs(config: Config) -> server.Needs:
    # A plain endpoint neither reads our rows nor takes our locks.
    fenced = config.executor.contract == "fenced"
    workers = config.executor.workers if fenced else 0
    return server.Needs(
        packet=PACKET * config.web.body_limit,
        connections=config.database.pool + OF_DAEMON + TASKS * workers,
        named_locks=fenced and config.executor.liveness == "lock",
        galera=config.database.cluster == "galera",
    )


def _time(txn: Cursor) -> Instant:
    return instant_of(str(txn.execute("SELECT UTC_TIMESTAMP(6)").scalar()))
