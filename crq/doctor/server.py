"""
The database server: is it new enough, and is it set as durability and isolation need it?

Settings are read in a session that our own code has prepared, since that is what counts: a proxy or
an ``init_connect`` may undo what we ask for.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping

from attrs import frozen

from crq.database import Cursor
from crq.doctor.findings import Finding, error, note, ok, warning

MYSQL = (8, 0)
MARIADB = (10, 6)
SQLITE = (3, 35)
PATIENCE = 60  # s that an idle connection should be kept: our pool uses each within some ticks
STRICT = ("STRICT_TRANS_TABLES", "STRICT_ALL_TABLES")

_VARIABLES = (
    *("version", "version_comment", "sql_mode", "time_zone", "autocommit"),
    *("transaction_isolation", "tx_isolation", "innodb_lock_wait_timeout", "wait_timeout"),
    *("character_set_client", "character_set_connection", "character_set_results"),
    *("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "sync_binlog", "log_bin"),
    *(
        "binlog_format",
        "read_only",
        "super_read_only",
        "wsrep_on",
        "wsrep_sync_wait",
        "max_allowed_packet",
    ),
    *("max_connections", "innodb_snapshot_isolation"),
)


@frozen
class Needs:
    """
    What our configuration asks of a server.

    :ivar packet: bytes of the largest statement.
    :ivar connections: of daemon and executor together.
    :ivar named_locks: whether dead workers are known by named locks.
    :ivar galera: whether daemons and executors may use different nodes.
    """

    packet: int
    connections: int
    named_locks: bool
    galera: bool = False


def settings(txn: Cursor) -> dict[str, str]:
    """
    Read the settings of this session, by name in lower case.
    """
    if txn.dialect == "sqlite":
        names = ("journal_mode", "synchronous", "foreign_keys")
        values = {name: txn.execute(f"PRAGMA {name}").scalar() for name in names}
        return {"version": sqlite3.sqlite_version, **{k: str(v) for k, v in values.items()}}
    places = ", ".join("?" * len(_VARIABLES))
    rows = txn.execute(
        f"SHOW SESSION VARIABLES WHERE Variable_name IN ({places})",
        _VARIABLES,
    ).all()
    found = {str(row[0]).lower(): str(row[1]) for row in rows}
    used = txn.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'").one()
    return found | ({"threads_connected": str(used[1])} if used is not None else {})


def judge(dialect: str, found: Mapping[str, str], needs: Needs) -> Iterator[Finding]:
    """
    Judge the settings of a session.
    """
    if dialect == "sqlite":
        yield _sqlite_version(found["version"])
        yield _sqlite_durability(found)
        return
    yield _version(found.get("version", ""), found.get("version_comment", ""))
    yield _session(found)
    yield _isolation(found)
    yield _durability(found)
    yield _binary_log(found)
    yield _writable(found)
    yield _cluster(found, needs)
    yield _room(found, needs)


def _sqlite_version(version: str) -> Finding:
    text = f"SQLite {version}"
    if _numbers(version) < SQLITE:
        return error("database version", text, "use a Python with SQLite 3.35 or newer")
    return ok("database version", text)


def _sqlite_durability(found: Mapping[str, str]) -> Finding:
    text = f"synchronous = {found['synchronous']}, journal_mode = {found['journal_mode']}"
    if found["synchronous"] not in ("2", "3"):
        return error(
            "durability", f"{text}: a power cut may lose what was accepted", "report this: we set 2"
        )
    if found["journal_mode"] != "wal":
        return warning(
            "durability", f"{text}: readers and writers wait for each other", "run `crq db upgrade`"
        )
    return ok("durability", text)


def _version(version: str, comment: str) -> Finding:
    mariadb = "mariadb" in f"{version} {comment}".lower()
    text = f"{'MariaDB' if mariadb else 'MySQL'} {version}"
    if "tidb" in version.lower():
        return error("database version", text, "use MySQL 8.0 or MariaDB 10.6, or newer")
    least = MARIADB if mariadb else MYSQL
    if _numbers(version) < least:
        wanted = f"{'MariaDB' if mariadb else 'MySQL'} {least[0]}.{least[1]}"
        return error("database version", text, f"upgrade to {wanted} or newer")
    return ok("database version", text)


def _session(found: Mapping[str, str]) -> Finding:
    wrong: list[str] = []
    modes = found.get("sql_mode", "").split(",")
    if not any(mode in STRICT for mode in modes):
        wrong.append("sql_mode is not strict: what does not fit would be cut off in silence")
    if "NO_BACKSLASH_ESCAPES" in modes or "ANSI_QUOTES" in modes:
        wrong.append("sql_mode changes how texts are quoted")
    if found.get("time_zone") not in ("+00:00", "UTC"):
        wrong.append(f"time_zone is {found.get('time_zone')}, not UTC")
    if found.get("autocommit") != "ON":
        wrong.append("autocommit is off: transactions would never end")
    for name in ("client", "connection", "results"):
        charset = found.get(f"character_set_{name}")
        if charset != "utf8mb4":
            wrong.append(f"character_set_{name} is {charset}, not utf8mb4")
    if wrong:
        remedy = "see what stands between us and the server (a proxy, init_connect): we set these"
        return error("session", "; ".join(wrong), remedy)
    return ok("session", f"strict, UTC, utf8mb4; sql_mode = {found.get('sql_mode')}")


def _isolation(found: Mapping[str, str]) -> Finding:
    level = found.get("transaction_isolation") or found.get("tx_isolation") or "unknown"
    if level != "READ-COMMITTED":
        return error(
            "isolation",
            f"our sessions get {level}",
            "see what stands between us and the server: we set READ COMMITTED; under REPEATABLE"
            " READ a claim counts by an old snapshot",
        )
    if found.get("innodb_snapshot_isolation") == "ON":
        return ok("isolation", f"{level}; innodb_snapshot_isolation makes some claims run again")
    return ok("isolation", level)


def _durability(found: Mapping[str, str]) -> Finding:
    flush = found.get("innodb_flush_log_at_trx_commit", "unknown")
    text = f"innodb_flush_log_at_trx_commit = {flush}"
    if flush not in ("1", "3"):  # MariaDB's 3 writes even more often
        when = "a crash of the server" if flush == "0" else "a power cut"
        return (error if flush == "0" else warning)(
            "durability",
            f"{text}: {when} may lose the last second of what was accepted, finished or begun",
            "set it to 1; a start that is forgotten may be repeated",
        )
    if found.get("innodb_doublewrite", "ON").upper() in ("OFF", "0"):
        return warning(
            "durability",
            f"{text}, but innodb_doublewrite is off: a power cut may leave half a page",
            "switch it on, unless the filesystem writes pages whole",
        )
    return ok("durability", text)


def _binary_log(found: Mapping[str, str]) -> Finding:
    if found.get("log_bin") != "ON":
        return ok("binary log", "off")
    sync, kind = found.get("sync_binlog"), found.get("binlog_format", "ROW")
    if kind == "STATEMENT":
        return error(
            "binary log",
            "binlog_format = STATEMENT: InnoDB refuses every write under READ COMMITTED (1665)",
            "set it to ROW or MIXED",
        )
    text = f"binlog_format = {kind}, sync_binlog = {sync}"
    if sync != "1":
        return warning(
            "binary log",
            f"{text}: after a power cut a replica, or a restore from the log, may differ",
            "set sync_binlog = 1",
        )
    return ok("binary log", text)


def _writable(found: Mapping[str, str]) -> Finding:
    on = [n for n in ("read_only", "super_read_only") if found.get(n, "OFF") not in ("OFF", "0")]
    if on:
        return error(
            "writable",
            f"{on[0]} is on: nothing can be admitted, claimed or finished",
            "point database.url at the primary, or switch it off",
        )
    return ok("writable", "yes")


def _cluster(found: Mapping[str, str], needs: Needs) -> Finding:
    if found.get("wsrep_on") != "ON":
        return ok("cluster", "none")
    if needs.named_locks:
        return error(
            "cluster",
            'Galera, and executor.liveness = "lock": a named lock is known to one node alone',
            'set executor.liveness = "wall"',
        )
    if not needs.galera:
        return warning(
            "cluster",
            'Galera, and database.cluster = "none": what other nodes have committed is seen late',
            'set database.cluster = "galera", unless all daemons and executors use one node',
        )
    if found.get("wsrep_sync_wait") != "7":
        return error(
            "cluster",
            f"Galera, and our sessions get wsrep_sync_wait = {found.get('wsrep_sync_wait')}",
            "see what stands between us and the server (a proxy): we set 7",
        )
    return ok("cluster", "Galera, and our sessions wait for what other nodes have committed")


def _room(found: Mapping[str, str], needs: Needs) -> Finding:
    packet = int(found.get("max_allowed_packet", needs.packet))
    if packet < needs.packet:
        return error(
            "server limits",
            f"max_allowed_packet = {packet}: a script of web.body_limit does not fit",
            f"set it to {needs.packet} or more, or lower web.body_limit",
        )
    most = int(found.get("max_connections", "0"))
    used = int(found.get("threads_connected", "0"))
    text = f"{used} of {most} connections are used, we take up to {needs.connections}"
    if most and most < needs.connections:
        return error("server limits", text, "raise max_connections")
    if most and used > most * 0.9:
        return warning("server limits", text, "raise max_connections, or find who holds them")
    idle = int(found.get("wait_timeout", PATIENCE))
    if idle < PATIENCE:
        return note(
            "server limits",
            f"wait_timeout = {idle} s: connections are often opened anew",
            f"set it to {PATIENCE} or more",
        )
    return ok("server limits", text)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (0, 0) if match is None else (int(match[1]), int(match[2]))
