"""
Gates that a real PHP writes, and gates of ours that a real PHP reads.

php-memcached of the distribution, with every serialiser and compression it has.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crq import policy
from crq.gates import GatesUnreachable, MemcachedGates
from crq.sealing import Sealer, sha256_hex
from tests.acceptance.php import run_php
from tests.rows import SEALER
from tests.servers import HOST, Memcached, free_port

PREFIX = "cr_api_avail_"
KEY = SEALER.key("key")
VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "retry_after.json"
READABLE = [
    *("int", "string", "float", "whole_float", "list", "list_of_float", "list_of_string"),
    *("list_without_ttl", "list_for_ever"),
]
UNREADABLE = ["true", "null", "word", "empty", "two", "nested", "map", "object", "milliseconds"]


@pytest.fixture
def cache() -> Iterator[Memcached]:
    """
    An empty memcached.
    """
    with Memcached() as server:
        yield server


@contextmanager
def store(*servers: Memcached) -> Iterator[MemcachedGates]:
    """
    Our store of gates.
    """
    gates = MemcachedGates([address(server) for server in servers], PREFIX, 0.5)
    try:
        yield gates
    finally:
        gates.disconnect()


def address(server: Memcached) -> str:
    return "{}:{}".format(*server.address)


@pytest.mark.parametrize("serializer", ["php", "igbinary", "json", "json_array", "msgpack"])
@pytest.mark.parametrize("compression", ["none", "zlib", "fastlz"])
def test_what_php_writes_is_read(cache: Memcached, serializer: str, compression: str) -> None:
    """
    F68: numbers, floats, strings and the framework's list, by every serialiser and compression,
    close the key until the same instant; all else is told as unreadable, and nothing is raised.
    """
    until = int(time.time()) + 600
    written = run_php(
        "gates.php",
        *(address(cache), "write", PREFIX, serializer, compression, until),
        # So that values as short as these are compressed, whether that makes them smaller or not.
        memcached__compression_threshold=0,
        memcached__compression_factor=0.1,
    )
    assert set(written["readable"]) == set(READABLE)
    with store(cache) as gates:
        reading = gates.read([*READABLE, *UNREADABLE], time.time())
    assert reading.closed == dict.fromkeys(READABLE, until)
    assert set(reading.unreadable) == set(written["unreadable"])
    assert set(written["unreadable"]) >= set(UNREADABLE) - {"object"}


def test_by_the_defaults_of_the_distribution(cache: Memcached) -> None:
    """
    F68: as a program writes that configures nothing: the framework's cache, wrapped and raw.
    """
    until = int(time.time()) + 65
    with store(cache) as gates:
        for raw in ((), ("raw",)):
            assert run_php("gates.php", address(cache), "save", PREFIX, KEY, until, 300, *raw)
            assert gates.read([KEY], time.time()).closed == {KEY: until}


def test_what_we_write_php_reads(cache: Memcached) -> None:
    """
    The framework's cache, which unwraps what is a list, and a plain comparison both work.
    """
    until = policy.gate_until(60, time.time())
    with store(cache) as gates:
        gates.close(KEY, until, time.time())
        found = run_php("gates.php", address(cache), "read", PREFIX, KEY)
        assert found == {"value": str(until), "closed": True, "int": until}
        gates.open(KEY)
        found = run_php("gates.php", address(cache), "read", PREFIX, KEY)
        assert (found["value"], found["closed"]) == (None, False)


def test_php_and_we_close_the_same_gate(cache: Memcached) -> None:
    """
    Ruling 7 across both: whoever writes later and shorter changes nothing, and either overwrites
    what cannot be read.
    """
    now = int(time.time())

    def php(seconds: int) -> dict[str, object]:
        found: dict[str, object] = run_php(
            "gates.php", address(cache), "close", PREFIX + KEY, now + seconds, now
        )
        return found

    with store(cache) as gates:
        assert php(60)["value"] == now + 60
        assert gates.close(KEY, now + 30, now) == now + 60
        assert gates.close(KEY, now + 90, now) == now + 90
        assert php(70) == {
            "stands": True,
            "value": str(now + 90),
            "seconds": pytest.approx(0, abs=2),
        }
        assert run_php("gates.php", address(cache), "save", PREFIX, KEY, now + 120, 300)
        assert php(110)["value"] == [now + 120, pytest.approx(now, abs=30), 300]
        assert gates.close(KEY, now + 110, now) == now + 120
        for close in (lambda: php(60)["value"], lambda: gates.close(KEY, now + 60, now)):
            raw(cache, f"set {PREFIX}{KEY} 0 60 3", "abc")
            assert close() == now + 60


@pytest.mark.parametrize("wait", [2_591_880, 2_591_881, 10**9])
def test_a_gate_of_php_does_not_vanish(cache: Memcached, wait: int) -> None:
    """
    F66 with PHP writing: a TTL above 30 days is sent as an instant.
    """
    now = int(time.time())
    until = policy.gate_until(wait, now)
    assert run_php("gates.php", address(cache), "close", PREFIX + KEY, until, now)["stands"]
    with store(cache) as gates:
        assert gates.read([KEY], now).closed == {KEY: until}


def test_a_gate_whose_ttl_php_got_wrong_is_gone_for_both(cache: Memcached) -> None:
    """
    F66: a relative TTL above 30 days is a moment in 1970 to memcached, whoever sends it: the gate
    is open, and no reader can know better. That is why the rule clamps a wait to a day.
    """
    until = int(time.time()) + 2_592_100
    assert run_php("gates.php", address(cache), "save", PREFIX, KEY, until, 2_592_001)
    with store(cache) as gates:
        assert gates.read([KEY], time.time()).closed == {}
    longest = policy.gate_ttl(policy.gate_until(policy.RETRY_AFTER_MAXIMUM, 0.0), 0.0)
    assert longest < 30 * 86_400


def test_keys_that_php_takes_and_we_do_not(cache: Memcached) -> None:
    """
    F67 with PHP writing: a key that is no hash is hashed on our side, so it is simply not found; a
    prefix that cannot be one is refused when the store is made.
    """
    until = int(time.time()) + 60
    odd = "ü" * 60
    run_php("gates.php", address(cache), "save", PREFIX, odd, until, 300)
    with store(cache) as gates:
        assert gates.read([odd, "a b", "", KEY], time.time()).closed == {}
    with pytest.raises(ValueError, match=r"gates\.prefix"):
        MemcachedGates([address(cache)], "cr api avail ", 0.5)


def test_a_prefix_and_a_hash_of_the_php_sides_choice(cache: Memcached) -> None:
    """
    PHP that knows API keys and not the salt hashes the key alone; both sides are told so by
    configuration and meet at one name.
    """
    plain = Sealer("pepper", SEALER.seal_keys, salted_keys=False)
    assert plain.key("key") == sha256_hex("key") != SEALER.key("key")
    assert plain.account("acme") == SEALER.account("acme")
    until = int(time.time()) + 60
    run_php("gates.php", address(cache), "save", "portal:", sha256_hex("key"), until, 300)
    gates = MemcachedGates([address(cache)], "portal:", 0.5)
    assert gates.read([plain.key("key")], time.time()).closed == {plain.key("key"): until}
    gates.disconnect()


def test_of_several_servers_php_takes_one_and_we_ask_all() -> None:
    """
    PHP chooses a server by a hash of its own; whichever it is, its gate is found, and ours by it.
    """
    now = int(time.time())
    with Memcached() as first, Memcached() as second, store(first, second) as gates:
        both = f"{address(first)},{address(second)}"
        keys = [f"{number:064x}" for number in range(12)]
        for key in keys:
            run_php("gates.php", both, "close", PREFIX + key, now + 60, now)
        assert gates.read(keys, now).closed == dict.fromkeys(keys, now + 60)
        gates.close(KEY, now + 90, now)
        assert run_php("gates.php", both, "read", PREFIX, KEY)["int"] == now + 90


@pytest.mark.parametrize("how", ["refuses", "is silent", "takes nothing"])
def test_a_cache_that_fails_holds_up_no_php_worker(how: str) -> None:
    """
    F71 and F74 with PHP writing: the write ends within a second or so and is told as not done,
    never as done; the script goes on without a gate.
    """
    with failing(how) as server:
        found = run_php("gates.php", server, "close", PREFIX + KEY, 1_900_000_000, 1_800_000_000)
    assert found["stands"] is False
    assert found["seconds"] < 5


def test_a_cache_that_comes_back_is_used_again(cache: Memcached) -> None:
    """
    F73 with PHP writing: a restart empties it; the next refusal closes the gate anew, and the
    reader that had it open all the time sees that.
    """
    now = int(time.time())
    with store(cache) as gates:
        run_php("gates.php", address(cache), "close", PREFIX + KEY, now + 60, now)
        assert gates.read([KEY], now).closed == {KEY: now + 60}
        cache.kill()
        with pytest.raises(GatesUnreachable):
            gates.read([KEY], now)
        cache.start()
        assert gates.read([KEY], now).closed == {}
        run_php("gates.php", address(cache), "close", PREFIX + KEY, now + 90, now)
        assert gates.read([KEY], now).closed == {KEY: now + 90}


def test_one_rule_for_retry_after() -> None:
    """
    F54, F56, F59, F60: PHP comes to the same waits, gates and TTLs as Python, vector by vector.
    """
    vectors = json.loads(VECTORS.read_text("utf-8"))
    found = run_php("gates.php", "none:0", "vectors", VECTORS)
    for vector, wait in zip(vectors["waits"], found["waits"], strict=True):
        assert wait == vector["wait"], vector
    for vector, gate in zip(vectors["gates"], found["gates"], strict=True):
        assert gate == [vector["until"], vector["ttl"]], vector
    assert found["others"] == [1, 30, 102]


def raw(server: Memcached, *lines: str) -> None:
    with socket.create_connection(server.address, timeout=5) as connection:
        connection.sendall("\r\n".join((*lines, "")).encode())
        assert connection.recv(100) == b"STORED\r\n"


@contextmanager
def failing(how: str) -> Iterator[str]:
    """
    The address of a memcached that fails in some way.
    """
    if how == "refuses":
        yield f"{HOST}:{free_port()}"
        return
    listener = socket.create_server((HOST, 0))
    listener.settimeout(10)

    def serve() -> None:
        answers = {b"gets": b"END\r\n", b"get": b"END\r\n"}
        try:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    word = line.split(b" ")[0].strip()
                    if how == "takes nothing" and word in (b"gets", b"get", b"add", b"set", b"cas"):
                        full = b"SERVER_ERROR out of memory storing object\r\n"
                        connection.sendall(answers.get(word, full))
        except OSError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"{HOST}:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(10)
