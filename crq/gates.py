"""
The gates: until when an API key is closed, in memcached or (`crq.gatetable`) in the database.

Synchronous and without Twisted, because the executor writes gates too; the daemon asks through
`crq.gatememory`. A store that does not answer, or refuses, raises `GatesUnreachable`: neither an
outage nor a lost write passes for an open gate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from attrs import frozen
from pymemcache.client.base import PooledClient
from pymemcache.exceptions import MemcacheError, MemcacheUnexpectedCloseError
from zope.interface import implementer

from crq import policy
from crq.config import Config
from crq.database import Database
from crq.gatetable import DatabaseGates
from crq.gatevalues import KEY_LENGTH, GatesUnreachable, name_of, read_value, shown
from crq.instants import Instant
from crq.interfaces import IGateStore
from crq.model import GateReading

T = TypeVar("T")

__all__ = ["DatabaseGates", "GatesUnreachable", "MemcachedGates", "open_store"]

NAME_LIMIT = 250  # bytes of a key in memcached
CLOSE_ATTEMPTS = 5  # of one write that others keep overtaking
RELATIVE_TTL_LIMIT = 30 * 86_400  # s; memcached takes a larger TTL for an instant, of 1970
POOLED = 2  # connections that may have died unnoticed: one for a reading, one for a write
LATEST_EXPIRY = 2**31 - 1  # memcached reads it as 32 bits with a sign

# The connection had died while it was idle: the server was restarted, or hung up.
_STALE: Final = (MemcacheUnexpectedCloseError, ConnectionResetError, BrokenPipeError)
# What pymemcache raises for a server that is away, refuses, or talks nonsense: in the last case
# the plain errors of its parser get out.
_FAILED: Final = (MemcacheError, OSError, ValueError, LookupError)


def open_store(config: Config, database: Database) -> IGateStore:
    """
    The store that the configuration names. Nothing is connected yet.

    :param database: where the rows are; it keeps the gates unless memcached does.
    """
    if config.gates.backend == "memcached":
        return MemcachedGates(config.gates.servers, config.gates.prefix, config.gates.timeout)
    return DatabaseGates(database)


class _Raw:
    """
    pymemcache's serialiser that leaves bytes alone and passes the flags on.
    """

    def serialize(self, key: object, value: bytes) -> tuple[bytes, int]:
        return value, 0

    def deserialize(self, key: object, value: bytes, flags: int) -> tuple[bytes, int]:
        return value, flags


@implementer(IGateStore)
class MemcachedGates:
    """
    Gates as PHP keeps them: ``cr_api_avail_<apikey_hash>``, POSIX seconds as text (brief §8).

    Of several servers each keeps every gate, and a key is as closed as any of them says: which
    server a PHP client takes for a key depends on its version and settings, and gates are few.
    """

    def __init__(self, servers: Sequence[str], prefix: str, timeout: float) -> None:
        """
        Take the servers' addresses. Nothing is connected yet.

        :param timeout: seconds to connect, and again for each answer.
        :raise ValueError: the prefix cannot be part of a key.
        """
        longest = NAME_LIMIT - KEY_LENGTH
        if not re.fullmatch(rf"[\x21-\x7e]{{0,{longest}}}", prefix):
            raise ValueError(
                f"gates.prefix: {prefix!r} cannot be part of a key; use at most {longest}"
                " printable ASCII characters, no spaces"
            )
        options: dict[str, Any] = {
            "serde": _Raw(),
            "key_prefix": prefix.encode("ascii"),
            "connect_timeout": timeout,
            "timeout": timeout,
            "no_delay": True,
            "default_noreply": False,  # a write that nobody acknowledged is not a write
            "ignore_exc": False,  # an outage must not look like open gates
        }
        self._servers = tuple(_Server(PooledClient(server, **options)) for server in servers)

    def read(self, keys: Collection[str], now: Instant) -> GateReading:
        """
        Tell which of these keys are closed, in one round trip (to each server).
        """
        names = {key: name_of(key) for key in keys}
        answers, failures = self._each(lambda server: server.ask("get_many", [*names.values()]))
        closed: dict[str, Instant] = {}
        unreadable: dict[str, str] = {}
        for key, name in names.items():
            for data, flags in (found[name] for found in answers if name in found):
                until = read_value(data, flags)
                if until is None:
                    unreadable[key] = shown(data, flags)
                elif until > now:
                    closed[key] = max(float(until), closed.get(key, 0.0))
        reading = GateReading(closed, unreadable)
        if failures:
            raise GatesUnreachable(*failures, seen=reading)
        return reading

    def close(self, key: str, until: Instant, now: Instant) -> Instant:
        """
        Close a key until an instant and return until when it is closed now.
        """
        name, until = name_of(key), math.ceil(until)
        standing, failures = self._each(lambda server: server.close(name, until, now))
        if failures:
            raise GatesUnreachable(*failures)
        return max(standing)

    def open(self, key: str) -> None:
        """
        Forget a key's gate.
        """
        _, failures = self._each(lambda server: server.ask("delete", name_of(key)))
        if failures:
            raise GatesUnreachable(*failures)

    def disconnect(self) -> None:
        """
        Let go of the connections; the next question opens one.
        """
        for server in self._servers:
            server.client.close()

    def _each(self, what: Callable[[_Server], T]) -> tuple[list[T], list[GatesUnreachable]]:
        answers: list[T] = []
        failures: list[GatesUnreachable] = []
        for server in self._servers:
            try:
                answers.append(what(server))
            except GatesUnreachable as failure:
                failures.append(failure)
        return answers, failures


@frozen
class _Server:
    """
    One memcached.
    """

    client: Any

    def close(self, name: str, until: int, now: Instant) -> Instant:
        """
        Write a gate unless a longer one stands; returns the one that stands then.
        """
        gate = {"value": b"%d" % until, "expire": _expiry(until, now)}
        for _ in range(CLOSE_ATTEMPTS):
            found, token = self.ask("gets", name)
            if found is None:
                stored = self.ask("add", name, **gate)
            else:
                standing = read_value(*found)
                if standing is not None and standing >= until:
                    return float(standing)
                stored = self.ask("cas", name, cas=token, **gate)
            if stored:
                return float(until)
        raise GatesUnreachable(f"others changed the gate in each of {CLOSE_ATTEMPTS} attempts")

    def ask(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """
        Ask, and ask anew when the connection had died unnoticed.
        """
        # Whatever is asked here may be asked twice: if the first write did arrive, the second one
        # finds the gate changed, as if by somebody else.
        try:
            for _ in range(POOLED):
                with suppress(*_STALE):
                    return getattr(self.client, command)(*args, **kwargs)
            return getattr(self.client, command)(*args, **kwargs)
        except _FAILED as error:
            raise GatesUnreachable(f"memcached: {type(error).__name__}: {error}") from error


def _expiry(until: int, now: Instant) -> int:
    ttl = policy.gate_ttl(until, now)
    return ttl if ttl <= RELATIVE_TTL_LIMIT else min(math.ceil(now) + ttl, LATEST_EXPIRY)
