"""
What an error of a database means: to be repeated, lost, read-only, an outage, or a fault of ours.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import pymysql

# Deadlock, lock wait, changed since read; a Galera node that is not ready, a table that was altered
# meanwhile, a transaction that Group Replication has undone.
REPEATABLE: Final = frozenset({1213, 1205, 1020, 1047, 1412, 3101})
# Gone, cut off (by the server, by either end), idle, killed, stopping; the network.
LOST: Final = frozenset({2006, 2013, 2055, 4031, 1927, 1053, *range(1158, 1162)})
READ_ONLY: Final = frozenset({1290, 1792, 1836})  # see crq.database
# What PyMySQL calls operational and is a fault of a statement: unknown column, wrong count of
# values, mixed collations, a value that does not fit, an unknown function.
FAULTS: Final = frozenset({1054, 1136, 1241, 1267, 1271, 1292, 1305, 1364, 1582, 1690})


class CommitUnknown(Exception):
    """
    The connection was lost between COMMIT and its answer. Read before you try again.
    """


def is_lost(error: BaseException) -> bool:
    """
    Whether the connection is gone (PyMySQL says ``InterfaceError(0, '')`` once it has noticed).
    """
    if isinstance(error, pymysql.err.InterfaceError):
        return True
    return isinstance(error, pymysql.err.MySQLError) and _code(error) in LOST


def is_repeatable(error: BaseException) -> bool:
    """
    Whether the whole transaction may be run again because the database undid it.
    """
    if isinstance(error, sqlite3.OperationalError):
        return "locked" in str(error)
    return isinstance(error, pymysql.err.MySQLError) and _code(error) in REPEATABLE


def is_read_only(error: BaseException) -> bool:
    """
    Whether the server takes no writes.
    """
    return isinstance(error, pymysql.err.MySQLError) and _code(error) in READ_ONLY


def is_outage(error: BaseException) -> bool:
    """
    Whether the database is away, full, read-only, broken or overloaded; not a fault in a statement.
    """
    if isinstance(error, sqlite3.DatabaseError):
        # SQLITE_ERROR is a statement's fault; CORRUPT and NOTADB are no operational errors.
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return type(error) is sqlite3.OperationalError
        return code & 0xFF not in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE) and (
            type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError)
        )
    if isinstance(
        error,
        (pymysql.err.OperationalError, pymysql.err.InterfaceError, pymysql.err.InternalError),
    ):
        return _code(error) not in FAULTS
    return isinstance(error, CommitUnknown)


def _code(error: pymysql.err.MySQLError) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0
