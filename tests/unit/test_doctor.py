"""
What the doctor makes of what it has read.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from crq.config import Config, DatabaseOptions, DrainerOptions, ExecutorOptions, SecretOptions
from crq.configfile import ConfigError
from crq.doctor import (
    cache,
    clocks,
    executor,
    host,
    process,
    rowfindings,
    rowrules,
    server,
    tables,
    units,
    versions,
)
from crq.doctor.clocks import Skew
from crq.doctor.examination import Examination
from crq.doctor.executor import Health
from crq.doctor.findings import (
    Finding,
    Severity,
    error,
    exit_code,
    guarded,
    note,
    ok,
    warning,
    worst,
)
from crq.doctor.host import Room, Secret
from crq.doctor.rows import Broken, Found, Jobs, Some
from crq.model import InFlight, Lane, Limits, Status
from crq.pulse import Beat, Origin

OK, NOTE, WARNING, ERROR = Severity.OK, Severity.NOTE, Severity.WARNING, Severity.ERROR
NEEDS = server.Needs(packet=2_000_000, connections=22, named_locks=True)
MYSQL = {
    "version": "8.0.36",
    "version_comment": "MySQL Community Server - GPL",
    "sql_mode": "STRICT_TRANS_TABLES,NO_ZERO_DATE",
    "time_zone": "+00:00",
    "autocommit": "ON",
    "transaction_isolation": "READ-COMMITTED",
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_doublewrite": "ON",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "sync_binlog": "1",
    "read_only": "OFF",
    "super_read_only": "OFF",
    "wait_timeout": "28800",
    "max_connections": "151",
    "max_allowed_packet": "67108864",
    "threads_connected": "12",
}
MEMCACHED = {
    "version": "1.6.18",
    "uptime": "90000",
    "bytes": "2000",
    "limit_maxbytes": "67108864",
    "evictions": "0",
    "curr_connections": "10",
    "listen_disabled_num": "0",
    "settings.maxconns": "1024",
    "settings.item_size_max": "1048576",
    "settings.evictions": "on",
}
UNIT = """
[Unit]
StartLimitIntervalSec=0
# a comment
[Service]
Type=notify
WatchdogSec=1min
Restart=always
TimeoutStopSec=90
LimitNOFILE=16384
KillMode=mixed
"""


class FindingTests(SynchronousTestCase):
    """
    Findings and what they add up to.
    """

    def test_the_worst_decides(self) -> None:
        """
        Nothing and notes are 0, a warning is 1, an error is 2.
        """
        fine, seen = ok("a", "x"), note("b", "x")
        bad, worse = warning("c", "x", "y"), error("d", "x", "y")
        self.assertEqual([exit_code(f) for f in ([], [fine], [fine, seen])], [0, 0, 0])
        self.assertEqual(exit_code([bad, seen]), 1)
        self.assertEqual(exit_code([fine, worse, bad]), 2)
        self.assertIs(worst([seen, fine]), NOTE)

    def test_a_blind_eye_is_a_finding(self) -> None:
        """
        What was seen before a fault counts, and the fault is an error with its reason.
        """

        def look() -> Iterable[Finding]:
            yield ok("first", "seen")
            raise PermissionError("not for you")

        first, fault = guarded("group", look)
        self.assertEqual(first.name, "first")
        self.assertEqual((fault.name, fault.severity), ("group", ERROR))
        self.assertIn("PermissionError: not for you", fault.found)

    def test_a_broken_configuration_ends_it(self) -> None:
        """
        It is the one thing to correct first; nothing else is asked.
        """
        fault = ConfigError("limits.in_flight: 'many' is not a whole number")
        found = Examination(fault, None, lambda: 0.0, lambda: 0.0).findings()
        self.assertEqual(found[-1].name, "configuration")
        self.assertIn("limits.in_flight", found[-1].found)
        self.assertEqual(exit_code(found), 2)


class VersionTests(SynchronousTestCase):
    """
    Python and packages.
    """

    def test_python(self) -> None:
        """
        3.11 is the oldest.
        """
        self.assertIs(versions.python((3, 11, 0), "CPython").severity, OK)
        self.assertIs(versions.python((3, 10, 9), "CPython").severity, ERROR)

    def test_packages(self) -> None:
        """
        What is missing or too old is named; what another Python or an extra needs is not asked.
        """
        needed = [
            "Twisted>=25.5",
            "attrs>=24.2",
            'pytest>=9.0; extra == "test"',
            'old>=1; python_version < "3"',
            "not a requirement!!",
        ]
        there = {"Twisted": "26.10.0", "attrs": "26.1.0"}
        found = versions.packages(needed, there.get)
        self.assertEqual((found.severity, found.found), (OK, "all 2 are there, none too old"))
        found = versions.packages(needed, {"Twisted": "24.1"}.get)
        self.assertIs(found.severity, ERROR)
        self.assertEqual(found.found, "Twisted 24.1 is not >=25.5; attrs is missing")

    def test_this_environment_is_good(self) -> None:
        """
        The tests run in an environment that the doctor has nothing against.
        """
        self.assertEqual([f.severity for f in versions.look()], [OK, OK])


class HostTests(SynchronousTestCase):
    """
    Files and disks.
    """

    def test_secrets_are_for_their_owner(self) -> None:
        """
        Everybody may neither read nor change nor replace them; a group may read, not write.
        """
        for mode, severity in (
            (0o600, OK),
            (0o400, OK),
            (0o640, OK),
            (0o660, WARNING),
            (0o604, ERROR),
            (0o602, ERROR),
            (0o644, ERROR),
        ):
            found = host.secret(Secret("secrets.salt_file", "/x/salt", mode))
            self.assertIs(found.severity, severity, oct(mode))
        self.assertIs(host.secret(Secret("o", "/x", None)).severity, ERROR)
        self.assertIs(host.secret(Secret("o", "/x/y", 0o600, replaceable=True)).severity, ERROR)
        self.assertIs(host.secret(Secret("o", "/x", 0o644, open=True)).severity, OK)
        self.assertIs(host.secret(Secret("o", "/x", 0o646, open=True)).severity, ERROR)

    def test_modes_as_they_are(self) -> None:
        """
        Modes are read off the files themselves; a configuration without a secret may be read.
        """
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        folder = Path(made.name)
        config, salt = folder / "crqueue.toml", folder / "salt"
        config.write_text('[secrets]\nsalt_file = "salt"\n')
        config.chmod(0o644)
        salt.write_text("x")
        salt.chmod(0o644)
        given = Config(
            database=DatabaseOptions("mysql://u:p@h/n"), secrets=SecretOptions(salt_file=str(salt))
        )

        def modes() -> list[tuple[str, Severity]]:
            found = host.look(given, str(config))
            return [(f.name, f.severity) for f in found if f.name.startswith("mode of")]

        first = ("mode of the configuration", OK), ("mode of secrets.salt_file", ERROR)
        self.assertEqual(modes(), list(first))
        salt.chmod(0o600)
        config.write_text('[database]\nurl = "mysql://u:sesame@h/n"\n')
        second = ("mode of the configuration", ERROR), ("mode of secrets.salt_file", OK)
        self.assertEqual(modes(), list(second))
        config.chmod(0o600)
        folder.chmod(0o777)
        self.assertEqual([severity for _, severity in modes()], [ERROR, ERROR])
        folder.chmod(0o1777)
        self.assertEqual([severity for _, severity in modes()], [OK, OK])

    def test_room(self) -> None:
        """
        Little room warns, hardly any is an error; so are used up inodes.
        """
        gb = 10**9
        for free, total, inodes, severity in (
            (50 * gb, 100 * gb, 10**6, OK),
            (2 * gb, 100 * gb, None, OK),
            (gb // 2, 100 * gb, 10**6, WARNING),
            (gb // 2, 2 * gb, 10**6, OK),  # a small disk, a quarter of it free
            (gb // 20, 100 * gb, 10**6, ERROR),
            (50 * gb, 100 * gb, 10, ERROR),
        ):
            found = host.room(Room("/x", free, total, inodes))
            self.assertIs(found.severity, severity, (free, total, inodes))

    def test_network_disks(self) -> None:
        """
        SQLite on a network filesystem is an error.
        """
        self.assertIs(host.filesystem("/x", "nfs4").severity, ERROR)
        self.assertIs(host.filesystem("/x", "ext4").severity, OK)
        self.assertIs(host.filesystem("/x", None).severity, OK)


class ServerTests(SynchronousTestCase):
    """
    Settings of a session.
    """

    def judge(self, **changes: str) -> dict[str, Severity]:
        """
        What is not in order with these changes.
        """
        found = server.judge("mysql", MYSQL | changes, NEEDS)
        return {f.name: f.severity for f in found if f.severity is not OK}

    def test_good_ones(self) -> None:
        """
        MySQL 8 and MariaDB 10.6, as they should be, are in order.
        """
        self.assertEqual(self.judge(), {})
        mariadb = {"version": "10.11.6-MariaDB-0+deb12u1", "version_comment": "Debian 12"}
        self.assertEqual(self.judge(**mariadb), {})
        older = {k: v for k, v in MYSQL.items() if k != "transaction_isolation"}
        older |= mariadb | {"tx_isolation": "READ-COMMITTED"}
        bad = [f for f in server.judge("mysql", older, NEEDS) if f.severity is not OK]
        self.assertEqual(bad, [])

    def test_each_fault(self) -> None:
        """
        One setting off is one finding, as bad as what it costs.
        """
        for changes, name, severity in (
            ({"version": "5.7.44"}, "database version", ERROR),
            ({"version": "10.5.21-MariaDB"}, "database version", ERROR),
            ({"version": "8.0.11-TiDB-v7.5.0"}, "database version", ERROR),
            ({"version": "unknown"}, "database version", ERROR),
            ({"sql_mode": ""}, "session", ERROR),
            ({"sql_mode": "STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES"}, "session", ERROR),
            ({"time_zone": "SYSTEM"}, "session", ERROR),
            ({"autocommit": "OFF"}, "session", ERROR),
            ({"character_set_connection": "latin1"}, "session", ERROR),
            ({"transaction_isolation": "REPEATABLE-READ"}, "isolation", ERROR),
            ({"innodb_flush_log_at_trx_commit": "2"}, "durability", WARNING),
            ({"innodb_flush_log_at_trx_commit": "0"}, "durability", ERROR),
            ({"innodb_doublewrite": "OFF"}, "durability", WARNING),
            ({"sync_binlog": "0"}, "binary log", WARNING),
            ({"binlog_format": "STATEMENT"}, "binary log", ERROR),
            ({"read_only": "ON"}, "writable", ERROR),
            ({"super_read_only": "ON"}, "writable", ERROR),
            ({"wsrep_on": "ON"}, "cluster", ERROR),
            ({"max_allowed_packet": "1048576"}, "server limits", ERROR),
            ({"max_connections": "10"}, "server limits", ERROR),
            ({"threads_connected": "150"}, "server limits", WARNING),
            ({"wait_timeout": "5"}, "server limits", NOTE),
        ):
            self.assertEqual(self.judge(**changes), {name: severity}, changes)

    def test_what_does_not_matter(self) -> None:
        """
        Without a binary log its settings cost nothing; MariaDB's 3 is as durable as 1; Galera is
        fine where locks are not trusted.
        """
        self.assertEqual(self.judge(log_bin="OFF", sync_binlog="0", binlog_format="STATEMENT"), {})
        self.assertEqual(self.judge(innodb_flush_log_at_trx_commit="3"), {})
        self.assertEqual(self.judge(innodb_snapshot_isolation="ON"), {})
        trusted = evolve(NEEDS, named_locks=False)
        for galera, waits, severity in (
            (False, "0", WARNING),
            (True, "0", ERROR),
            (True, "7", OK),
        ):
            variables = MYSQL | {"wsrep_on": "ON", "wsrep_sync_wait": waits}
            found = server.judge("mysql", variables, evolve(trusted, galera=galera))
            self.assertIs(worst(found), severity, (galera, waits))

    def test_sqlite(self) -> None:
        """
        FULL is what a commit promises; WAL is what lets readers be.
        """
        good = {"version": "3.40.1", "synchronous": "2", "journal_mode": "wal"}
        for changes, severity in (
            ({}, OK),
            ({"version": "3.34.0"}, ERROR),
            ({"synchronous": "1"}, ERROR),
            ({"journal_mode": "delete"}, WARNING),
        ):
            found = server.judge("sqlite", good | changes, NEEDS)
            self.assertIs(worst(found), severity, changes)


class TableTests(SynchronousTestCase):
    """
    Tables as the server describes them.
    """

    def test_engines_charsets_indexes(self) -> None:
        """
        Another engine, a narrow character set and a lost index are errors that name the place.
        """
        table = "codeRunner_executions"
        self.assertIs(tables.engines([(table, "InnoDB")]).severity, OK)
        found = tables.engines([(table, "InnoDB"), ("codeRunner_jobs", "MyISAM")])
        self.assertIn("codeRunner_jobs is MyISAM", found.found)
        good = [(table, "identifier", "utf8mb4"), (table, "status", "ascii")]
        good += [("codeRunner_jobs", "async_nonce", "latin1")]
        self.assertIs(tables.charsets(good).severity, OK)
        found = tables.charsets([*good, (table, "error_message", "utf8mb3")])
        self.assertIs(found.severity, ERROR)
        self.assertIn(f"{table}.error_message is utf8mb3", found.found)
        self.assertIs(tables.indexes(tables.INDEXES).severity, OK)
        self.assertIn("idx_lane", tables.indexes(tables.INDEXES[1:]).found)


class ClockTests(SynchronousTestCase):
    """
    Clocks of others.
    """

    def test_a_trip_takes_time(self) -> None:
        """
        The answer is from some instant of the trip; its half is the doubt.
        """
        seconds = iter((10.0, 10.4))
        skew = clocks.measure(lambda: 105.2, lambda: 100.0, lambda: next(seconds))
        assert skew is not None
        self.assertAlmostEqual(skew.ahead, 5.0)
        self.assertAlmostEqual(skew.give, 0.2)
        self.assertIsNone(clocks.measure(lambda: None, lambda: 100.0, lambda: 0.0))

    def test_a_coarse_clock_is_given_its_second(self) -> None:
        """
        A clock of whole seconds is half a second behind on average, and that much in doubt.
        """
        skew = clocks.measure(lambda: 100.0, lambda: 100.9, lambda: 0.0, coarse=1.0)
        assert skew is not None
        self.assertAlmostEqual(skew.ahead, -0.4)
        self.assertIs(clocks.judge("c", "cache", skew).severity, OK)

    def test_how_far_is_too_far(self) -> None:
        """
        In favour of the doubt, and alike in both directions.
        """
        for skew, severity in (
            (None, NOTE),
            (Skew(0.1), OK),
            (Skew(3.0, 2.0), OK),
            (Skew(3.0), WARNING),
            (Skew(-3.0), WARNING),
            (Skew(61.0), ERROR),
            (Skew(-3600.0), ERROR),
        ):
            self.assertIs(clocks.judge("clock", "database", skew).severity, severity, skew)
        self.assertIn("behind", clocks.judge("clock", "database", Skew(-5.0)).found)


class CacheTests(SynchronousTestCase):
    """
    memcached's counters.
    """

    def test_each_fault(self) -> None:
        """
        Evictions and refusals warn, a young server is worth a note.
        """
        for changes, severity in (
            ({}, OK),
            ({"evictions": "3"}, WARNING),
            ({"settings.evictions": "off"}, WARNING),
            ({"curr_connections": "1000"}, WARNING),
            ({"listen_disabled_num": "2"}, WARNING),
            ({"settings.item_size_max": "512"}, ERROR),
            ({"uptime": "5"}, NOTE),
        ):
            found = cache.judge("h:1", MEMCACHED | changes)
            self.assertIs(found.severity, severity, changes)

    def test_a_server_of_another_kind(self) -> None:
        """
        Counters that are missing or no numbers are no fault of the check.
        """
        self.assertIs(cache.judge("h:1", {"uptime": "soon"}).severity, NOTE)


class ExecutorTests(SynchronousTestCase):
    """
    Health, wall and agreement.
    """

    def test_reachable(self) -> None:
        """
        Silence and faults are errors with their reason; another kind of executor is a note.
        """
        for health, severity in (
            (Health(200, told={"version": "1"}), OK),
            (Health(0, "ConnectionRefusedError"), ERROR),
            (Health(503, "does not answer"), ERROR),
            (Health(302), ERROR),
            (Health(404), NOTE),
        ):
            found = executor.reachable("http://h:1", health)
            self.assertIs(found.severity, severity, health)
            self.assertIn(health.problem, found.found)

    def test_a_plain_endpoint(self) -> None:
        """
        Any answer will do; silence is an error; secrets in the clear and short stops are told.
        """

        def found(answer: int, limit: float = 600.0, **more: Any) -> dict[str, Severity]:
            options = ExecutorOptions(contract="plain", **more)
            drainer = DrainerOptions(drain_limit=limit, stop_limit=limit)
            config = Config(executor=options, drainer=drainer)
            looked = executor.endpoint(config, Health(answer, "refused"))
            return {finding.name: finding.severity for finding in looked}

        self.assertEqual(found(405), {"executor": OK})
        self.assertEqual(found(0), {"executor": ERROR})
        self.assertEqual(found(200, 60.0), {"executor": OK, "stops": NOTE})
        clear = {"executor": OK, "secrets in the clear": WARNING}
        for url, more, told in (
            ("http://10.0.0.7/run", {"send_apikey": True}, clear),
            ("http://10.0.0.7/run", {"token_file": "t"}, clear),
            ("http://10.0.0.7/run", {}, {"executor": OK}),
            ("http://[::1]:8081", {"send_apikey": True}, {"executor": OK}),
            ("http://localhost/", {"send_apikey": True}, {"executor": OK}),
            ("https://far.example", {"send_apikey": True}, {"executor": OK}),
        ):
            self.assertEqual(found(200, url=url, **more), told, url)

    def test_the_wall_comes_before_the_deadline(self) -> None:
        """
        A wall at or behind our deadline is an error, another one than we believe a warning.
        """
        for wall, believed, limit, severity in (
            (300.0, 300.0, 330.0, OK),
            (330.0, 300.0, 330.0, ERROR),
            (600.0, 300.0, 330.0, ERROR),
            (200.0, 300.0, 330.0, WARNING),
            (300.0, 300.0, 302.0, WARNING),
        ):
            found = executor.deadline(wall, believed, limit)
            self.assertIs(found.severity, severity, (wall, believed, limit))

    def test_agreement(self) -> None:
        """
        Locks and gates must be kept in the same way on both sides; what is not told is not judged.
        """
        config = Config(executor=ExecutorOptions())
        told: dict[str, Any] = {"wall": 300, "liveness": "lock", "gates": "database"}
        self.assertIs(worst(executor.agreed(config, Health(200, told=told))), OK)
        for changes in ({"liveness": "wall"}, {"gates": "memcached"}):
            self.assertIs(worst(executor.agreed(config, Health(200, told=told | changes))), ERROR)
        self.assertIs(worst(executor.agreed(config, Health(200))), NOTE)
        self.assertEqual(list(executor.agreed(config, Health(404))), [])
        self.assertIs(worst(executor.agreed(config, Health(200, told={"wall": True}))), NOTE)


class UnitTests(SynchronousTestCase):
    """
    Units as they are installed.
    """

    def unit(self, *lines: str) -> units.Unit:
        return units.parsed("\n".join((UNIT, "[Service]", *lines)))

    def test_the_shipped_units_are_good(self) -> None:
        """
        With the default configuration the doctor has nothing against what we ship.
        """
        deploy = Path(__file__).parents[2] / "deploy"
        found = list(units.look(Config(), (str(deploy),)))
        self.assertEqual([f for f in found if f.severity is not OK], [])
        self.assertGreater(len(found), 5)

    def test_no_unit_is_a_note(self) -> None:
        """
        Where no systemd is, nothing is wrong.
        """
        (found,) = units.look(Config(), ("/nonexistent",))
        self.assertIs(found.severity, NOTE)

    def test_the_last_word_counts(self) -> None:
        """
        Drop-ins are read after the unit, in the order of their names, the first folder's instead
        of another one's of the same name.
        """
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        etc, lib = Path(made.name) / "etc", Path(made.name) / "lib"
        for folder in (etc, lib):
            (folder / "crqueue.service.d").mkdir(parents=True)
        (lib / units.DAEMON).write_text(UNIT)
        (lib / "crqueue.service.d" / "10.conf").write_text("[Service]\nTimeoutStopSec=10\n")
        (etc / "crqueue.service.d" / "10.conf").write_text("[Service]\nTimeoutStopSec=20\n")
        (etc / "crqueue.service.d" / "05.conf").write_text("[Service]\nTimeoutStopSec=5\n")
        unit = units.installed(units.DAEMON, (str(etc), str(lib)))
        assert unit is not None
        self.assertEqual(unit["Service.TimeoutStopSec"], "20")
        (etc / units.DAEMON).write_text("[Service]\nRestart=no\n")
        unit = units.installed(units.DAEMON, (str(etc), str(lib)))
        assert unit is not None
        self.assertEqual(unit["Service.Restart"], "no")

    def test_time_spans(self) -> None:
        """
        As systemd writes them; zero and infinity are no limit.
        """
        for text, expected in (
            ("90", 90.0),
            ("1min 30s", 90.0),
            ("2h", 7200.0),
            ("500ms", 0.5),
            ("1.5min", 90.0),
            ("infinity", None),
            ("0", None),
            ("", 7.0),
            (None, 7.0),
        ):
            self.assertEqual(units.seconds(text, 7.0), expected, text)
        for text in ("soon", "5 fortnights", "-5"):
            with self.assertRaises(ValueError):
                units.seconds(text, 7.0)

    def test_limits_against_the_configuration(self) -> None:
        """
        Each limit that leaves too little room is found.
        """
        drainer = DrainerOptions()
        stop = drainer.stop_limit
        self.assertIs(units.stopping(self.unit(), stop).severity, OK)
        self.assertIs(units.stopping(self.unit("TimeoutStopSec=60"), stop).severity, WARNING)
        self.assertIs(units.stopping(self.unit("TimeoutStopSec=infinity"), stop).severity, OK)
        self.assertIs(units.stopping(units.parsed("[Service]\n"), stop).severity, OK)  # 90
        self.assertIs(units.files(self.unit()).severity, OK)
        self.assertIs(units.files(self.unit("LimitNOFILE=1024:4096")).severity, WARNING)
        self.assertIs(units.files(units.parsed("[Service]\n")).severity, WARNING)
        self.assertIs(units.files(self.unit("LimitNOFILE=infinity")).severity, OK)
        self.assertIs(units.draining(self.unit(), 60.0).severity, OK)
        self.assertIs(units.draining(self.unit(), 300.0).severity, WARNING)
        mixed = self.unit("KillMode=control-group")
        self.assertIs(units.draining(mixed, 60.0).severity, WARNING)

    def test_restarts(self) -> None:
        """
        Only what comes back for ever is in order (F41).
        """
        self.assertIs(units.restarts("x", self.unit()).severity, OK)
        self.assertIs(units.restarts("x", self.unit("Restart=on-failure")).severity, WARNING)
        limited = units.parsed("[Service]\nRestart=always\n")
        self.assertIs(units.restarts("x", limited).severity, WARNING)

    def test_watchdog(self) -> None:
        """
        Off or not notified warns; shorter than some ticks kills a healthy daemon.
        """
        for lines, tick, timeout, severity in (
            ((), 1.0, 10.0, OK),
            (("Type=simple",), 1.0, 10.0, WARNING),
            (("WatchdogSec=0",), 1.0, 10.0, WARNING),
            (("WatchdogSec=3",), 1.0, 10.0, ERROR),
            (("WatchdogSec=30",), 1.0, 10.0, WARNING),
            ((), 30.0, 10.0, ERROR),
            ((), 1.0, 100.0, WARNING),
        ):
            found = units.watchdog(self.unit(*lines), tick, timeout)
            self.assertIs(found.severity, severity, (lines, tick, timeout))


class ProcessTests(SynchronousTestCase):
    """
    The daemon from outside.
    """

    def test_a_lock_that_is_somewhere(self) -> None:
        """
        A relative path is relative to where the daemon was started, which is not known here.
        """
        (found,) = process.look(Config(drainer=DrainerOptions(lock_file="crqueue.lock")))
        self.assertEqual((found.name, found.severity), ("daemon", NOTE))
        self.assertIn("relative", found.found)

    def test_descriptors(self) -> None:
        """
        What systemd gives by default is too little.
        """
        self.assertIs(process.descriptors(1, 16384).severity, OK)
        self.assertIs(process.descriptors(1, 1024).severity, WARNING)

    def test_beats(self) -> None:
        """
        A drainer that is silent, whose ticks fail, or that cannot reach others, is found.
        """
        well = Beat("d", 0.0, 1000.0, last_good_age=0.5)
        for beat, severity in (
            (well, OK),
            (evolve(well, beat_at=900.0), WARNING),
            (evolve(well, last_good_age=None), ERROR),
            (evolve(well, last_good_age=None, started_at=999.0), NOTE),
            (evolve(well, last_good_age=50.0), ERROR),
            (evolve(well, alarm="refused"), ERROR),
            (evolve(well, gates_reachable=False), WARNING),
        ):
            (found,) = process.judge_beats([beat], 1005.0, 1.0)
            self.assertIs(found.severity, severity, beat)
        self.assertIs(worst(process.judge_beats([], 1005.0, 1.0)), NOTE)

    def test_a_name_in_use_elsewhere_is_found(self) -> None:
        """
        A daemon runs here while one with another lock file reports by its name, and lives.
        """
        beat = Beat("d", 0.0, 1000.0, origin=Origin("a", "elsewhere", "1", "theirs"))

        def judged(pid: int | None, lock: str, found: Beat) -> list[Finding]:
            return list(process.judge_name("d", pid, lock, [found], 1005.0))

        (wrong,) = judged(17, "ours", beat)
        self.assertIs(wrong.severity, ERROR)
        self.assertIn("on elsewhere reports by it; process 17 here stands by", wrong.found)
        for pid, lock, found in (
            (None, "ours", beat),
            (17, "theirs", beat),
            (17, "ours", evolve(beat, beat_at=900.0)),
            (17, "ours", evolve(beat, drainer_id="e")),
            (17, "ours", evolve(beat, origin=Origin())),
        ):
            self.assertEqual(judged(pid, lock, found), [])


NOON, LATER = "2026-03-02 12:00:00.000", "2026-03-02 12:00:01.000"
BLANK: dict[str, Any] = dict.fromkeys(
    ("job_id", "subdomain_hash", "apikey_hash", "nonce_hash", "claim_epoch")
)


def row(status: Any, **given: Any) -> rowrules.Row:
    instants = dict.fromkeys(("claimed_at", "started_at", "finished_at"))
    fields = {"execution_id": 1, "status": status, "queued_at": NOON, **BLANK, **instants, **given}
    return rowrules.Row(**fields)


class RowTests(SynchronousTestCase):
    """
    I1, row by row.
    """

    claimed = {"claimed_at": NOON, "claim_epoch": 1}
    started = {**claimed, "started_at": NOON}
    ended = {**started, "finished_at": LATER}
    good = (
        row("queued"),
        row("claimed", nonce_hash="n", **claimed),
        row("running", **started),
        row("running", started_at=NOON),  # dispatched by another program
        row("success", **ended),
        row("success", started_at=NOON, finished_at=NOON),  # from before the queue
        row("failed", **ended),
        row("failed", finished_at=LATER),
        row("failed", finished_at=LATER, **claimed),
        row("rejected", finished_at=NOON),
        row("cancelled", finished_at=LATER),
        row(b"queued"),  # SQLite keeps what it is given
    )

    def test_rows_of_every_state(self) -> None:
        """
        What transitions make is in order.
        """
        for each in self.good:
            self.assertIsNone(rowrules.broken(each), each)

    def test_each_contradiction(self) -> None:
        """
        One instant too many, too few, out of order or none at all is found and named.
        """
        for each, told in (
            (row("queued", started_at=NOON), "is queued and has started_at"),
            (row("queued", claimed_at=NOON), "is queued and has claimed_at"),
            (row("queued", finished_at=NOON), "is queued and has finished_at"),
            (row("queued", nonce_hash="n"), "has a nonce although it is not claimed"),
            (row("claimed", claimed_at=NOON), "is claimed and has no nonce_hash"),
            (row("claimed", nonce_hash="n", claimed_at=NOON), "has no claim_epoch"),
            (row("claimed", nonce_hash="n", claim_epoch=1), "has no claimed_at"),
            (row("running"), "is running and has no started_at"),
            (row("running", claim_epoch=1, started_at=NOON), "has no claimed_at"),
            (row("running", **self.ended), "is running and has finished_at"),
            (row("success", finished_at=NOON), "is success and has no started_at"),
            (row("success", **self.started), "is success and has no finished_at"),
            (row("failed", **self.started), "is failed and has no finished_at"),
            (row("rejected"), "is rejected and has no finished_at"),
            (row("cancelled", **self.ended), "is cancelled and has started_at"),
            (row("queued", queued_at=None), "has no queued_at"),
            (row("queued", queued_at="yesterday"), "has an instant that is none"),
            (row("queued", queued_at="0000-00-00 00:00:00"), "has an instant that is none"),
            (row("done"), "has the unknown status 'done'"),
            (row(None), "has the unknown status None"),
            (
                row("success", started_at=LATER, finished_at=NOON),
                "has finished_at before started_at",
            ),
        ):
            self.assertIn(told, rowrules.broken(each) or "nothing", each)


LANE = Lane("a", "k")
FOUND = Found(
    locks=frozenset({"codeRunner_drain", "codeRunner_admit"}),
    statuses=frozenset({"queued", "success"}),
    broken=Broken(7, {}),
    in_flight=(),
    lanes=(LANE,),
    queued=Counter(a=3),
    jobs=Jobs(Some(), Some(), Some(), 3),
    caps=Limits(),
    ahead=Some(),
    oldest=None,
    unscrubbed=Some(),
)
NOW = 10_000_000.0


class RowFindingTests(SynchronousTestCase):
    """
    All rows together.
    """

    patience = rowfindings.Patience.of(Config())

    def judge(self, **changes: Any) -> dict[str, Severity]:
        """
        What is not in order with these changes.
        """
        found = rowfindings.judge(evolve(FOUND, **changes), self.patience, NOW)
        return {f.name: f.severity for f in found if f.severity is not OK}

    def test_good_ones(self) -> None:
        """
        A queue at work is in order.
        """
        flights = (
            InFlight(1, LANE, Status.RUNNING, 1, "d", NOW - 300, NOW - 299),
            InFlight(2, LANE, Status.CLAIMED, 2, "d", NOW - 200),
        )
        self.assertEqual(self.judge(in_flight=flights, oldest=NOW - 90 * 86400), {})

    def test_each_fault(self) -> None:
        """
        One kind of broken row is one finding.
        """
        three = tuple(InFlight(n, LANE, Status.RUNNING, 1, "d", NOW, NOW) for n in range(3))
        old = InFlight(1, LANE, Status.CLAIMED, 1, "d", NOW - 600)
        for changes, name, severity in (
            ({"locks": frozenset({"codeRunner_admit"})}, "lock rows", ERROR),
            ({"statuses": frozenset({"queued", "done"})}, "statuses", ERROR),
            ({"broken": Broken(9, {"is odd": (4, 5)})}, "states", ERROR),
            ({"in_flight": (old,)}, "claimed", WARNING),
            ({"in_flight": (evolve(old, claimed_at=None),)}, "claimed", WARNING),
            (
                {"in_flight": (evolve(old, status=Status.RUNNING, started_at=NOW - 1200),)},
                "running",
                ERROR,
            ),
            ({"lanes": (LANE, Lane("a", None))}, "lanes", NOTE),
            ({"lanes": (Lane(sha256(b"").hexdigest(), "k"),)}, "accounts", ERROR),
            ({"jobs": Jobs(Some(1, (4,)), Some(), Some(), 0)}, "jobs", ERROR),
            ({"jobs": Jobs(Some(), Some(1, (4,)), Some(), 0)}, "jobs", ERROR),
            ({"jobs": Jobs(Some(), Some(), Some(1, (4,)), 1)}, "jobs", ERROR),
            ({"in_flight": three}, "in flight", WARNING),
            ({"queued": Counter(a=501)}, "depth", WARNING),
            ({"queued": Counter({str(n): 400 for n in range(4)})}, "depth", WARNING),
            ({"ahead": Some(1, (4,))}, "instants", WARNING),
            ({"oldest": NOW - 100 * 86400}, "purge", WARNING),
            ({"unscrubbed": Some(2, (4, 5))}, "API keys", WARNING),
        ):
            self.assertEqual(self.judge(**changes), {name: severity}, changes)

    def test_caps_that_operators_set_count(self) -> None:
        """
        An account with a cap of its own is judged by that.
        """
        three = tuple(InFlight(n, LANE, Status.RUNNING, 1, "d", NOW, NOW) for n in range(3))
        self.assertEqual(self.judge(in_flight=three, caps=Limits(accounts={"a": 3})), {})

    def test_examples_are_named(self) -> None:
        """
        A finding names rows to look at, and says if there are more.
        """
        broken = Broken(9, {"is odd": (4, 5), "is older": (6,)})
        found = rowfindings.states(broken).found
        self.assertIn("3 of 9 rows", found)
        self.assertIn("execution 4 is odd, and 1 more; execution 6 is older", found)
        found = rowfindings.ahead(Some(9, (1, 2, 3))).found
        self.assertIn("9 rows (1, 2, 3, …)", found)
