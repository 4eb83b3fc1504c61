"""
The window of 12:08, twice on the same parts: dispatched inline as it was then, and through crqueue.

    python -m benchmarks.incident run --speed 1      # two hours; 20: minutes, with waits scaled
    python -m benchmarks.incident write              # the plot and the table in docs/

Real MariaDB, memcached, PHP-FPM with both pools, Apache and twistd, as in tests/acceptance. Inline
means: each request runs its script in the shared pool at once, and sleeps on a 429 for as long as
it takes. A load balancer's look at the health check comes every 10 seconds of the trace.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from benchmarks.plot import Band, figure
from crq.replay import scripts, trace
from crq.replay.api import ReplayApi
from crq.replay.play import PROBE_TIMEOUT, Clock, Health, Queue, arrive, wait_for_end
from crq.replay.report import Probe, Spread, report
from crq.replay.trace import Arrival, Trace
from tests.acceptance.site import Site
from tests.servers import HOST, MariaDB, Memcached

ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "traces" / "2026-08-24-1208.csv"
FIGURES = ROOT / "docs" / "incident.json"
PAGE = ROOT / "docs" / "incident.md"
PLOT = ROOT / "docs" / "incident.svg"
LOOK_EVERY = 10.0  # s of the trace between two looks of the load balancer
SAMPLE_EVERY = 5.0  # s of the trace between two looks at the pools
IDLE = 600.0  # s of the trace that the health check is measured before
FIRE_AND_FORGET = 2.0  # s; CURLOPT_TIMEOUT of the dispatch in those days
DONE, DIED = "inline done", "execution timed out"  # lines of FPM's log
CLOCK = Clock(time.time, time.monotonic, time.sleep)


class Samples:
    """
    Looks at both pools, and at the queue, at a steady pace.

    :ivar rows: seconds of the trace, busy workers of the shared pool, busy workers of the scripts'
        pool, scripts that wait.
    """

    def __init__(self, site: Site, waiting: Callable[[int], int]) -> None:
        """
        Take the site.

        :param waiting: how many scripts wait, given the busy workers of the shared pool.
        """
        self.rows: list[tuple[float, int, int, int]] = []
        self._site = site
        self._waiting = waiting
        self._over = threading.Event()

    @contextmanager
    def taking(self) -> Iterator[None]:
        """
        Take samples meanwhile.
        """
        thread = threading.Thread(target=self._take, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _take(self) -> None:
        began = time.monotonic()
        while not self._over.wait(SAMPLE_EVERY / self._site.speed):
            at = (time.monotonic() - began) * self._site.speed
            with suppress(AssertionError, OSError):  # a restart, or an Apache without a free thread
                www, ours = (
                    self._site.apache.status(pool)["active processes"]
                    for pool in ("www", "codeRunner")
                )
                self.rows.append((round(at, 1), www, ours, self._waiting(www)))


def measure(
    site: Site,
    played: Trace,
    inline: bool,
    within: float,
    idle_for: float = IDLE,
    patience: float = PROBE_TIMEOUT,
) -> dict[str, Any]:
    """
    Play the window once and say what it did.

    :param within: seconds to wait for the end after the last arrival.
    :param idle_for: seconds of the trace that the health check is measured before.
    :param patience: seconds after which a look at the health check has failed.
    """
    speed = site.speed
    health = Health(f"{site.apache.url}/healthcheck.php", LOOK_EVERY / speed, CLOCK, patience)
    api = ReplayApi((HOST, site.api_port), "apikey", played.quotas, speed, time.monotonic)
    dispatched: list[Arrival] = []

    def in_front(busy: int) -> int:
        log = site.fpm.log()  # FPM cannot tell how long the queue of a unix socket is
        ended = log.count(DONE) + log.count(DIED)
        return max(0, len(dispatched) - ended - busy)

    samples = Samples(site, in_front if inline else lambda _: site.states()["queued"])
    try:
        idle = health.looks(idle_for / speed)
        before = site.apache.status("www")["accepted conn"]
        began = time.monotonic()
        with samples.taking(), health.watching() as probes:
            if inline:
                found = _inline(site, played, within, dispatched)
            else:
                found = _queue(site, played, within)
        window = began + played.length / speed
        in_window = [probe for probe in probes if probe.at <= window]
        www, ours = (site.apache.status(pool) for pool in ("www", "codeRunner"))
        return {
            "inline": inline,
            "speed": speed,
            "requests": len(played.arrivals),
            **found,
            "limits": sum(api.quotas.refused.values()),
            "calls": sum(api.quotas.calls.values()),
            "healthIdle": _spread(idle),
            "health": _spread(in_window),
            "healthFailed": sum(not probe.good for probe in in_window),
            "wwwMostBusy": www["max active processes"],
            "mostWaiting": max((row[3] for row in samples.rows), default=0),
            "wwwCeilingReached": www["max children reached"],
            "wwwRequests": www["accepted conn"] - before,
            "scriptsMostBusy": ours["max active processes"],
            "scriptsCeilingReached": ours["max children reached"],
            "samples": samples.rows,
            "looks": sorted(
                (round((probe.at - began) * speed, 1), round(probe.seconds, 4)) for probe in probes
            ),
        }
    finally:
        api.close()


def _queue(site: Site, played: Trace, within: float) -> dict[str, Any]:
    config = site.installation.config
    database = config.open_database()
    connection = database.connect()
    queue = Queue(config, database, connection, scripts.lines, CLOCK)
    began = time.monotonic()
    arrive(played, queue.submit, site.speed, CLOCK)
    wait_for_end(queue.open_ones, within, CLOCK)
    rows = queue.played()
    seconds = time.monotonic() - began
    found = report(rows, speed=site.speed, seconds=seconds, limits={}, refused=queue.refused)
    connection.close()
    return {
        "seconds": round(found.seconds, 1),
        "done": found.states.get("success", 0),
        "diedAtTheWall": found.at_the_wall,
        "states": dict(found.states),
        "refused": dict(found.refused),
        "mostInFlight": found.most[""],
        "waits": {account: spread.as_json() for account, spread in found.waits.items()},
    }


def _inline(site: Site, played: Trace, within: float, dispatched: list[Arrival]) -> dict[str, Any]:
    def dispatch(arrival: Arrival) -> None:
        body = urlencode({"apikey": arrival.key, "source_code": scripts.lines(arrival)})
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        site.apache.ask("POST", "/inline.php", body, form, FIRE_AND_FORGET)

    began = time.monotonic()
    with ThreadPoolExecutor(64) as pool:

        def submit(arrival: Arrival) -> None:
            pool.submit(dispatch, arrival)
            dispatched.append(arrival)

        arrive(played, submit, site.speed, CLOCK)

    def ended(what: str) -> int:
        return site.fpm.log().count(what)

    wait_for_end(lambda: len(dispatched) - ended(DONE) - ended(DIED), within, CLOCK)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "done": ended(DONE),
        "diedAtTheWall": ended(DIED),
    }


def _spread(probes: list[Probe]) -> dict[str, Any]:
    spread = Spread.of(probe.seconds for probe in probes)
    return {} if spread is None else spread.as_json()


@click.group()
def main() -> None:
    """
    Replay the incident, and put its figures into docs/.
    """


@main.command()
@click.option("--speed", default=1.0, show_default=True, type=click.FloatRange(0.5, 60))
@click.option("--until", default=math.inf, help="Only the first so many seconds of the window.")
@click.option("--only", type=click.Choice(("inline", "queue")), help="Only one of the two.")
@click.option("--into", default=str(FIGURES), type=click.Path(dir_okay=False))
def run(speed: float, until: float, only: str | None, into: str) -> None:
    """
    Play the window inline, then through crqueue.
    """
    played = trace.read(TRACE).between(0.0, until)
    path = Path(into)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    with MariaDB() as mariadb, Memcached() as memcached:
        for name in ("inline", "queue"):
            if only not in (None, name):
                continue
            with Site(mariadb, memcached, f"incident_{name}", speed) as site:
                found[name] = measure(site, played, name == "inline", 7200 / speed)
            path.write_text(json.dumps(found) + "\n")
            shown = {key: value for key, value in found[name].items() if key not in SERIES}
            click.echo(json.dumps({name: shown}, indent=1))


SERIES = ("samples", "looks")


@main.command()
def write() -> None:
    """
    Write the plot and the table.
    """
    found = json.loads(FIGURES.read_text("utf-8"))
    PLOT.write_text(plot(found), "utf-8")
    text = PAGE.read_text("utf-8")
    for name, lines in (("figures", table(found)), ("waits", waits(found["queue"]))):
        text = put(text, name, lines)
    PAGE.write_text(text, "utf-8")


def put(page: str, name: str, text: str) -> str:
    """
    A page with the part between two marks replaced.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of the {name} -->"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    if not found or not ended:
        raise click.ClickException(f"{PAGE.name} has no marks for the {name}")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def waits(queue: dict[str, Any]) -> str:
    """
    How long each account waited, in Markdown; the small ones together.
    """
    lines = ["| account | executions | p50 | p95 | longest |", "|---|---|---|---|---|"]
    for account, spread in queue["waits"].items():
        if not account.startswith("other"):
            shown = " | ".join(f"{spread[key]:,.1f} s" for key in ("p50", "p95", "max"))
            lines.append(f"| `{account}` | {spread['count']} | {shown} |")
    others = [one for name, one in queue["waits"].items() if name.startswith("other")]
    count, longest = sum(one["count"] for one in others), max(one["max"] for one in others)
    lines.append(f"| {len(others)} others | {count} | | | {longest:,.1f} s |")
    return "\n".join(lines)


def table(found: dict[str, Any]) -> str:
    """
    Both runs side by side, in Markdown.
    """
    inline, queue = found["inline"], found["queue"]

    def health(one: dict[str, Any], key: str) -> str:
        seconds = one[key]["p95"]
        return f"{seconds:,.0f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"

    rows = [
        ("requests", str(inline["requests"]), str(queue["requests"])),
        ("scripts that came to their end", str(inline["done"]), str(queue["done"])),
        ("died at the wall of 300 s", str(inline["diedAtTheWall"]), str(queue["diedAtTheWall"])),
        (
            "most scripts at once",
            f"{inline['wwwMostBusy']} of 40 workers",
            str(queue["mostInFlight"]),
        ),
        ("`[www]`: most workers busy", str(inline["wwwMostBusy"]), str(queue["wwwMostBusy"])),
        ("most scripts that waited", str(inline["mostWaiting"]), str(queue["mostWaiting"])),
        (
            "`[www]`: ceiling reached",
            str(inline["wwwCeilingReached"]),
            str(queue["wwwCeilingReached"]),
        ),
        ("`[codeRunner]`: ceiling reached", "–", str(queue["scriptsCeilingReached"])),
        ("health check, p95 when idle", health(inline, "healthIdle"), health(queue, "healthIdle")),
        ("health check, p95 in the window", health(inline, "health"), health(queue, "health")),
        ("429s that the API gave", f"{inline['limits']:,}", f"{queue['limits']:,}"),
    ]
    lines = ["| | inline, as it was | through crqueue |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def plot(found: dict[str, Any]) -> str:
    """
    Busy workers of the shared pool and the health check, over the window.
    """
    window = trace.read(TRACE).length

    def series(name: str, column: int) -> list[tuple[float, float]]:
        return [(row[0], row[column]) for row in found[name]["samples"] if row[0] <= window]

    def looks(name: str) -> list[tuple[float, float]]:
        return [(at, max(seconds, 0.001)) for at, seconds in found[name]["looks"] if at <= window]

    return figure(
        "2026-08-24, 12:08, played twice",
        window,
        (
            Band(
                "busy workers of the shared pool [www], of 40",
                40,
                {"inline": series("inline", 1), "through crqueue": series("queue", 1)},
            ),
            Band(
                "health check, seconds (each look; logarithmic)",
                300,
                {"inline": looks("inline"), "through crqueue": looks("queue")},
                logarithmic_from=0.001,
                dots=True,
            ),
            Band(
                "scripts that wait: in front of [www], and in the queue",
                None,
                {"inline": series("inline", 3), "through crqueue": series("queue", 3)},
            ),
        ),
    )


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.incident")
