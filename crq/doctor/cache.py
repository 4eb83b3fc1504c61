"""
memcached, where it keeps the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from crq.config import GateOptions
from crq.doctor import clocks
from crq.doctor.findings import Finding, error, note, ok, warning
from crq.gatestats import server_stats
from crq.gatevalues import GatesUnreachable
from crq.instants import Instant

COARSE = 2.0  # s; the second it started in and the seconds since then, both cut
ITEM = 1024  # bytes; a gate has some hundred, with its key
YOUNG = 3600  # s; gates may be closed for a day


def look(
    options: GateOptions, wall: Callable[[], Instant], monotonic: Callable[[], float]
) -> Iterator[Finding]:
    """
    Look at each server that the configuration names.
    """
    if options.backend != "memcached":
        yield ok("gates", "in the database")
        return
    for server in options.servers:
        stats: dict[str, str] = {}

        def ask(server: str = server, stats: dict[str, str] = stats) -> Instant | None:
            stats |= server_stats(server, options.timeout)
            return float(stats["time"]) if stats.get("time", "").isdigit() else None

        try:
            skew = clocks.measure(ask, wall, monotonic, coarse=COARSE)
        except GatesUnreachable as fault:
            yield away(server, str(fault))
            continue
        yield judge(server, stats)
        yield clocks.judge(f"clock of memcached {server}", "cache", skew)


def away(server: str, fault: str) -> Finding:
    """
    A server that does not answer.
    """
    return error(
        f"memcached {server}",
        f"does not answer: {fault}; gates that are remembered hold, unknown keys count as open",
        "see gates.servers, and whether memcached runs and lets this host in",
    )


def judge(server: str, stats: Mapping[str, str]) -> Finding:
    """
    Judge a server's counters.
    """
    name = f"memcached {server}"

    def number(key: str, default: int = 0) -> int:
        text = stats.get(key, "")
        return int(text) if text.isdigit() else default

    text = (
        f"version {stats.get('version', 'unknown')}, up for {number('uptime')} s,"
        f" {number('bytes')} of {number('limit_maxbytes')} bytes"
    )
    if number("settings.item_size_max", ITEM) < ITEM:
        return error(name, f"{text}; no item may be larger than 1 kB", "raise -I to 1m")
    evictions = number("evictions")
    if evictions:
        return warning(
            name,
            f"{text}; {evictions} items were pushed out by others: a gate may have been among"
            " them, and its key counted as open",
            "give it more memory (-m), or the gates a memcached of their own",
        )
    if stats.get("settings.evictions") == "off":
        return warning(
            name,
            f"{text}; when it is full it refuses to store (-M), and a gate could not be closed",
            "give the gates a memcached of their own",
        )
    most = number("settings.maxconns", 1024)
    used = number("curr_connections")
    if used > most * 0.9 or number("listen_disabled_num"):
        return warning(
            name,
            f"{text}; {used} of {most} connections are used, and it has refused some"
            f" {number('listen_disabled_num')} times",
            "raise -c, or find who holds them",
        )
    if number("uptime") < YOUNG:
        return note(name, f"{text}: gates that were closed before it started are forgotten")
    return ok(name, text)
