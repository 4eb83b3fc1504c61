"""
What a memcached says of itself, for those who look after the gates.
"""

from __future__ import annotations

from typing import Any

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError

from crq.gatevalues import GatesUnreachable


def server_stats(server: str, timeout: float) -> dict[str, str]:
    """
    Read a server's counters, and its settings under ``settings.``, as text by name.

    :param server: ``host:port``, or the path of a socket.
    :param timeout: seconds to connect, and again for each answer.
    :raise GatesUnreachable: it does not answer.
    """
    client = Client(server, connect_timeout=timeout, timeout=timeout, no_delay=True)
    try:
        found = _texts(client.stats())
        settings = _texts(client.stats("settings"))
    except (MemcacheError, OSError, ValueError, LookupError) as error:
        raise GatesUnreachable(f"memcached: {type(error).__name__}: {error}") from error
    finally:
        client.close()
    return found | {f"settings.{name}": value for name, value in settings.items()}


def _texts(stats: dict[Any, Any]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in stats.items()}


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
