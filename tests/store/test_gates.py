"""
One contract over both stores of gates: a table on SQLite and MariaDB, and a real memcached.
"""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from attrs import evolve
from zope.interface.verify import verifyObject

from crq import policy
from crq.database import Database
from crq.gates import CLOSE_ATTEMPTS, DatabaseGates, GatesUnreachable, MemcachedGates
from crq.gatetable import CHUNK, FORGET_AFTER, FORGET_AT_ONCE
from crq.instants import instant_text
from crq.interfaces import IGateStore
from crq.model import GateReading
from tests.servers import HOST, MariaDB, Memcached, free_port

NOW = float(int(time.time()))  # memcached counts a TTL by its own clock
A, B, C = ("a" * 64, "b" * 64, "c" * 64)
PREFIX = "cr_api_avail_"
TIMEOUT = 0.5


class Contract:
    """
    What holds for every store.
    """

    def test_provides_the_interface(self, store: IGateStore) -> None:
        """
        Each method is there, with its arguments.
        """
        assert verifyObject(IGateStore, store)

    def test_reads_what_is_closed(self, store: IGateStore) -> None:
        """
        Closed keys appear with their instant; open and unknown ones do not.
        """
        assert store.read([A, B], NOW) == GateReading()
        assert store.close(A, NOW + 65, NOW) == NOW + 65
        assert store.close(B, NOW + 3600, NOW) == NOW + 3600
        assert store.read([A, B, C], NOW) == GateReading({A: NOW + 65, B: NOW + 3600})
        assert store.read([C], NOW) == GateReading()

    def test_a_passed_gate_is_open(self, store: IGateStore) -> None:
        """
        A gate ends at its instant, although its value is kept longer.
        """
        store.close(A, NOW + 10, NOW)
        assert A in store.read([A], NOW + 9.999).closed
        assert store.read([A], NOW + 10) == GateReading()
        assert store.read([A], NOW + 100) == GateReading()

    def test_a_shorter_gate_never_shortens_a_longer_one(self, store: IGateStore) -> None:
        """
        Ruling 7; whoever closes learns until when the key is closed in fact.
        """
        store.close(A, NOW + 3600, NOW)
        assert store.close(A, NOW + 65, NOW + 1) == NOW + 3600
        assert store.read([A], NOW + 1).closed == {A: NOW + 3600}
        assert store.close(A, NOW + 7200, NOW + 2) == NOW + 7200
        assert store.read([A], NOW + 2).closed == {A: NOW + 7200}

    def test_a_passed_gate_is_closed_again(self, store: IGateStore) -> None:
        """
        What is left of an old gate is in nobody's way.
        """
        store.close(A, NOW + 10, NOW)
        assert store.close(A, NOW + 85, NOW + 20) == NOW + 85
        assert store.read([A], NOW + 20).closed == {A: NOW + 85}

    def test_a_fraction_is_rounded_up(self, store: IGateStore) -> None:
        """
        Gates are whole seconds in both stores, and never shorter than asked for.
        """
        assert store.close(A, NOW + 64.0001, NOW) == NOW + 65
        assert store.read([A], NOW).closed == {A: NOW + 65}

    def test_open_forgets_a_gate(self, store: IGateStore) -> None:
        """
        An opened key is open; opening an open key does nothing.
        """
        store.close(A, NOW + 3600, NOW)
        store.close(B, NOW + 3600, NOW)
        store.open(A)
        store.open(A)
        assert store.read([A, B], NOW).closed == {B: NOW + 3600}
        assert store.close(A, NOW + 5, NOW) == NOW + 5

    def test_many_keys_in_one_reading(self, store: IGateStore) -> None:
        """
        Two thousand lanes with as many keys are read at once.
        """
        keys = [f"{number:064x}" for number in range(2000)]
        for key in keys[::400]:
            store.close(key, NOW + 60, NOW)
        assert store.read(keys, NOW).closed == dict.fromkeys(keys[::400], NOW + 60)
        assert store.read([], NOW) == GateReading()

    def test_no_key_can_stop_a_reading(self, store: IGateStore) -> None:
        """
        F67: whatever stands in a row's key column, it has a gate of its own and the others theirs.
        """
        odd = ["", "a b", "a\r\nflush_all\r\n", "ä", "\x00", "k" * 300, "'; DROP TABLE x", "%s?"]
        store.close(A, NOW + 60, NOW)
        for key in odd:
            assert store.read([*odd, A], NOW).closed == {A: NOW + 60}
            assert store.close(key, NOW + 30, NOW) == NOW + 30
            assert store.read([*odd, A], NOW).closed == {key: NOW + 30, A: NOW + 60}
            store.open(key)

    def test_parallel_writers_leave_the_longest_gate(self, store: IGateStore) -> None:
        """
        Four threads close one key for different times: the longest stands, and each one is told
        of a gate at least as long as its own.
        """
        untils = [NOW + 60 + (number * 7919) % 500 for number in range(40)]

        def close(until: float) -> float:
            # So many at once are no case of real life: being overtaken too often is an answer.
            while True:
                try:
                    return store.close(A, until, NOW)
                except GatesUnreachable:
                    continue

        with ThreadPoolExecutor(4) as threads:
            standing = list(threads.map(close, untils))
        assert all(told >= until for told, until in zip(standing, untils, strict=True))
        assert store.read([A], NOW).closed == {A: max(untils)}


class TestDatabaseGates(Contract):
    """
    The table.
    """

    @pytest.fixture
    def store(self, database: Database) -> Iterator[DatabaseGates]:
        store = DatabaseGates(database)
        yield store
        store.disconnect()

    def test_a_reading_is_one_statement(self, database: Database) -> None:
        """
        Its cost does not depend on the number of keys, up to 500.
        """
        statements: list[str] = []
        store = DatabaseGates(evolve(database, observe=statements.append))
        store.read([f"{number:064x}" for number in range(CHUNK)], NOW)
        assert len(statements) == 1
        store.read([f"{number:064x}" for number in range(CHUNK + 1)], NOW)
        assert len(statements) == 3
        store.disconnect()

    def test_a_gate_carries_the_instant_of_its_own_closing(
        self, store: DatabaseGates, connection: Any
    ) -> None:
        """
        A shorter gate leaves no trace; a longer one brings its own instant.
        """
        for until, at, expected in ((100, 1, 1), (50, 2, 1), (200, 3, 3)):
            store.close(A, NOW + until, NOW + at)
            assert _value(connection, "MAX(closed_at)") == instant_text(NOW + expected)

    def test_an_outage_is_said(self, database: Database) -> None:
        """
        A database that is not there makes every question raise, and never look like open gates.
        """
        url = "sqlite:////nonexistent/gates.db"
        if database.dialect == "mysql":
            url = f"mysql://crq:secret@{HOST}:{free_port()}/crq"
        store = DatabaseGates(Database(url))
        for question in _questions(store):
            with pytest.raises(GatesUnreachable) as raised:
                question()
            assert "secret" not in str(raised.value)

    def test_a_fault_in_a_statement_is_no_outage(self, database: Database) -> None:
        """
        What is wrong with us is not blamed on the database; the next question works.
        """
        faults = [pymysql.err.ProgrammingError(1064, "syntax"), TypeError("no")]

        def observe(_: str) -> None:
            if faults:
                raise faults.pop()

        store = DatabaseGates(evolve(database, observe=observe))
        with pytest.raises(TypeError):
            store.read([A], NOW)
        with pytest.raises(pymysql.err.ProgrammingError):
            store.read([A], NOW)
        assert store.read([A], NOW) == GateReading()
        store.disconnect()

    def test_a_database_that_comes_back_is_used_again(self, database: Database) -> None:
        """
        Each outage costs one question, and the gates are there again after it.
        """
        outages: list[Exception] = []

        def observe(_: str) -> None:
            if outages:
                raise outages.pop()

        store = DatabaseGates(evolve(database, observe=observe))
        store.close(A, NOW + 60, NOW)
        for _ in range(3):
            outages += [_outage(database)]
            with pytest.raises(GatesUnreachable):
                store.read([A], NOW)
            assert store.read([A], NOW).closed == {A: NOW + 60}
        store.disconnect()

    def test_long_passed_gates_are_deleted(self, store: DatabaseGates, connection: Any) -> None:
        """
        A close tidies up a bounded number of rows that have passed a day ago, and no other.
        """
        past, day_ago = instant_text(NOW - FORGET_AFTER - 1), instant_text(NOW - FORGET_AFTER)
        rows = [(f"{number:064x}", past) for number in range(FORGET_AT_ONCE + 1)]
        for key, until in (*rows, (B, day_ago)):
            connection.cursor().execute(
                f"INSERT INTO codeRunner_gates VALUES ('{key}', '{until}', '{past}')"
            )
        store.close(A, NOW + 60, NOW)
        assert _value(connection, "COUNT(*)") == 3
        store.close(A, NOW + 60, NOW)
        assert _value(connection, "COUNT(*)") == 2

    def test_tidying_up_never_fails_a_close(self, database: Database) -> None:
        """
        The gate stands, so that is what the writer is told.
        """

        def observe(sql: str) -> None:
            if sql.startswith("SELECT apikey_hash FROM"):
                raise _outage(database)

        store = DatabaseGates(evolve(database, observe=observe))
        assert store.close(A, NOW + 60, NOW) == NOW + 60
        assert store.read([A], NOW).closed == {A: NOW + 60}
        store.disconnect()


def test_garbage_in_a_table_is_unreadable(tmp_path: Any, sqlite_template: bytes) -> None:
    """
    SQLite keeps any text; what is no instant is told as it was found. (A DATETIME takes no other.)
    """
    path = tmp_path / "gates.db"
    path.write_bytes(sqlite_template)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO codeRunner_gates VALUES (?, 'soon', 'now')", (A,))
    connection.close()
    store = DatabaseGates(Database(f"sqlite:///{path}"))
    assert store.read([A, B], NOW) == GateReading(unreadable={A: "'soon'"})
    store.disconnect()


def test_a_killed_connection_goes_unnoticed(mariadb: MariaDB) -> None:
    """
    The server has closed the idle connection: the next question opens another and is answered.
    """
    mariadb.create_database("gates")
    database = Database(mariadb.url_socket("gates"))
    mariadb.execute(
        "CREATE TABLE gates.codeRunner_gates (apikey_hash CHAR(64) PRIMARY KEY,"
        " closed_until DATETIME(3), closed_at DATETIME(3))"
    )
    store = DatabaseGates(database)
    store.close(A, NOW + 60, NOW)
    for question in _questions(store):
        for (number,) in mariadb.execute(
            "SELECT id FROM information_schema.processlist WHERE db = 'gates'"
        ):
            mariadb.execute(f"KILL {number}")
        question()
    store.disconnect()


class TestMemcachedGates(Contract):
    """
    memcached, with one server.
    """

    @pytest.fixture
    def store(self, memcached: Memcached) -> Iterator[MemcachedGates]:
        _raw(memcached, b"flush_all")
        store = _gates(memcached)
        yield store
        store.disconnect()

    def test_a_gate_is_stored_as_php_reads_it(
        self, store: MemcachedGates, memcached: Memcached
    ) -> None:
        """
        Brief §8: the key with its prefix, the seconds as digits, no flags, and a TTL of
        max(300, wait + 120).
        """
        for wait, ttl in ((5, 300), (180, 300), (181, 301), (3600, 3720)):
            until = policy.gate_until(wait, NOW)
            store.close(A, until, NOW)
            answer = _raw(memcached, f"mg {PREFIX}{A} v f t".encode()).split()
            assert answer[0] == b"VA"
            assert answer[2] == b"f0"
            assert ttl - 2 <= int(answer[3].removeprefix(b"t")) <= ttl
            assert answer[4] == b"%d" % until

    @pytest.mark.parametrize("wait", [2_591_880, 2_591_881, 10**9])
    def test_a_gate_of_a_month_does_not_vanish(self, store: MemcachedGates, wait: int) -> None:
        """
        F66: a TTL above 30 days is sent as an instant, so memcached does not take it for 1970.
        """
        until = policy.gate_until(wait, NOW)
        store.close(A, until, NOW)
        assert store.read([A], NOW).closed == {A: until}

    def test_what_php_wrote_is_read(self, store: MemcachedGates, memcached: Memcached) -> None:
        """
        F68: plain and wrapped values close the key; what cannot be understood is told as found.
        """
        until = int(NOW) + 65
        readable = {
            "1": (0, b"%d" % until),
            "2": (1, b"%d" % until),
            "3": (2, b"%d.25" % (until - 1)),
            "4": (4, b"a:3:{i:0;i:%d;i:1;i:%d;i:2;i:300;}" % (until, NOW)),
            "5": (4 | 1 << 31, b"i:%d;" % until),
        }
        unreadable = {
            "6": (0, b"abc"),
            "7": (4, b"a:2:{i:0;i:%d;i:1;i:%d;}" % (until, NOW)),
            "8": (4, b"a:0:{}"),
            "9": (1, b"cposix\nsystem\n(S'exit 1'\ntR."),
        }
        for key, (flags, data) in (readable | unreadable).items():
            answer = _raw(memcached, f"set {PREFIX}{key} {flags} 60 {len(data)}".encode(), data)
            assert answer == b"STORED\r\n"
        reading = store.read([*readable, *unreadable, A], NOW)
        assert reading.closed == dict.fromkeys(readable, until)
        assert set(reading.unreadable) == set(unreadable)
        assert reading.unreadable["6"] == "b'abc' (flags 0)"

    def test_a_value_that_cannot_be_read_is_overwritten(
        self, store: MemcachedGates, memcached: Memcached
    ) -> None:
        """
        A new gate does not wait for garbage to expire.
        """
        _raw(memcached, f"set {PREFIX}{A} 0 60 3".encode(), b"abc")
        assert store.close(A, NOW + 60, NOW) == NOW + 60
        assert store.read([A], NOW) == GateReading({A: NOW + 60})

    def test_a_writer_that_is_overtaken_looks_again(
        self, store: MemcachedGates, memcached: Memcached
    ) -> None:
        """
        Between its look and its write somebody else closes the key for longer: that gate stands.
        """
        store.close(A, NOW + 10, NOW)
        for meanwhile in ("set", "delete"):
            other = MemcachedGates([_address(memcached)], PREFIX, TIMEOUT)
            client, gets = _client(store), _client(store).gets
            longer = NOW + 3600 if meanwhile == "set" else NOW + 60

            def overtaken(
                name: str,
                what: str = meanwhile,
                gets: Any = gets,
                client: Any = client,
                other: MemcachedGates = other,
            ) -> Any:
                seen = gets(name)
                client.gets = gets
                other.close(A, NOW + 3600, NOW) if what == "set" else other.open(A)
                return seen

            client.gets = overtaken
            assert store.close(A, NOW + 60, NOW) == longer
            assert store.read([A], NOW).closed == {A: longer}
            store.open(A)
            store.close(A, NOW + 10, NOW)
            other.disconnect()

    def test_a_writer_that_is_always_overtaken_says_so(self, store: MemcachedGates) -> None:
        """
        The number of attempts is bounded, and a gate that was not written is never reported.
        """
        attempts: list[str] = []
        _client(store).add = lambda name, **_: attempts.append(name)
        with pytest.raises(GatesUnreachable, match="others changed"):
            store.close(A, NOW + 60, NOW)
        assert len(attempts) == CLOSE_ATTEMPTS

    def test_a_restart_goes_unnoticed(self) -> None:
        """
        F73: the pooled connections died with the server; neither a reading nor a write fails.
        """
        with Memcached() as server:
            store = _gates(server)
            store.close(A, NOW + 60, NOW)
            for question in _questions(store):
                server.kill()
                server.start()
                question()
            server.kill()
            for question in _questions(store):
                with pytest.raises(GatesUnreachable):
                    question()
            server.start()
            assert store.read([A], NOW) == GateReading()
            store.disconnect()


def test_each_of_several_servers_has_every_gate() -> None:
    """
    Whichever of two servers a PHP client takes for a key, it finds our gate there and we find its;
    the longer one counts.
    """
    with Memcached() as first, Memcached() as second:
        store, php, other_php = _gates(first, second), _gates(first), _gates(second)
        store.close(A, NOW + 60, NOW)
        for each in (php, other_php):
            assert each.read([A], NOW).closed == {A: NOW + 60}
        php.close(A, NOW + 90, NOW)
        other_php.close(B, NOW + 30, NOW)
        assert store.read([A, B, C], NOW).closed == {A: NOW + 90, B: NOW + 30}
        assert store.close(A, NOW + 70, NOW) == NOW + 90
        store.open(A)
        assert store.read([A, B], NOW).closed == {B: NOW + 30}
        for each in (store, php, other_php):
            each.disconnect()


def test_one_of_several_servers_away_is_an_outage_that_tells_what_was_seen() -> None:
    """
    A key may be closed on the one that is away; what the other one says is told all the same, and
    a write goes as far as it can.
    """
    with Memcached() as first, Memcached() as second:
        store = _gates(first, second)
        store.close(A, NOW + 60, NOW)
        first.kill()
        for _ in range(3):
            with pytest.raises(GatesUnreachable) as outage:
                store.read([A, B], NOW)
            assert outage.value.seen == GateReading({A: NOW + 60})
        with pytest.raises(GatesUnreachable):
            store.close(B, NOW + 60, NOW)
        first.start()
        assert store.read([A, B], NOW).closed == {A: NOW + 60, B: NOW + 60}
        store.disconnect()


def _gates(*servers: Memcached) -> MemcachedGates:
    return MemcachedGates([_address(server) for server in servers], PREFIX, TIMEOUT)


def _client(store: MemcachedGates) -> Any:
    return store._servers[0].client


def _address(server: Memcached) -> str:
    return "{}:{}".format(*server.address)


def _raw(server: Memcached, *lines: bytes) -> bytes:
    with socket.create_connection(server.address, timeout=5) as connection:
        connection.sendall(b"\r\n".join((*lines, b"")))
        return connection.recv(4096)


def _value(connection: Any, what: str) -> Any:
    cursor = connection.cursor()
    cursor.execute(f"SELECT {what} FROM codeRunner_gates")
    return cursor.fetchone()[0]


def _outage(database: Database) -> Exception:
    if database.dialect == "sqlite":
        return sqlite3.OperationalError("disk I/O error")
    return pymysql.err.OperationalError(1290, "the server is read-only")


def _questions(store: IGateStore) -> tuple[Callable[[], Any], ...]:
    return (
        lambda: store.read([A], NOW),
        lambda: store.close(A, NOW + 60, NOW),
        lambda: store.open(A),
    )
