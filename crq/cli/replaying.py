"""
``crq replay``.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from crq.cli.base import EXIT_CODES, NO, Failed, State, emit, json_option

if TYPE_CHECKING:
    from crq.config import Config
    from crq.replay.play import Health
    from crq.replay.report import Report, Spread
    from crq.replay.scripts import Writer
    from crq.replay.trace import Trace

LOOPBACK = ("127.0.0.1", "localhost")


@click.command(
    epilog="\b\nExamples:\n  crq replay traces/2026-08-24-1208.csv --speed 20\n"
    "  crq replay traces/two-weeks.csv --since 1036800 --until 1040400 --speed 60\n"
    "  crq replay my.csv --speed 10 --health http://127.0.0.1/healthcheck.php --json\n\n"
    "A replay runs scripts. They call an API that the replay itself serves, at the address of"
    " api.base_url, which must be on this machine: replay on an installation made for it, never on"
    " the one customers use. Its waits and walls should be divided by the speed as well"
    " (executor.wall, gates.margin, api.wait_unauthorized and so on).\n" + EXIT_CODES
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--speed",
    type=click.FloatRange(0.1, 10_000),
    default=1.0,
    show_default=True,
    help="Seconds of the trace that pass in one.",
)
@click.option("--since", type=float, default=0.0, help="Only from this offset on, in seconds.")
@click.option("--until", type=float, default=float("inf"), help="Only before this offset.")
@click.option(
    "--longest-pause", type=float, help="Shorten pauses between arrivals to so many seconds."
)
@click.option(
    "--within",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    help="Seconds to wait for the end after the last arrival.",
)
@click.option("--health", metavar="URL", help="Measure this health check, before and meanwhile.")
@click.option(
    "--health-every",
    type=click.FloatRange(0.01),
    default=1.0,
    show_default=True,
    help="Seconds between two looks at it, however long each takes.",
)
@click.option(
    "--idle",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Seconds to measure it before.",
)
@click.option(
    "--script",
    type=click.Path(exists=True, dir_okay=False),
    help="Template of the scripts, with {calls} and {milliseconds}, for another language.",
)
@json_option
@click.pass_obj
def replay(
    state: State,
    file: str,
    speed: float,
    since: float,
    until: float,
    longest_pause: float | None,
    within: float,
    health: str | None,
    health_every: float,
    idle: float,
    script: str | None,
    as_json: bool,
) -> None:
    """
    Play the arrivals of a trace FILE against this installation and say what became of them.

    Exit code 1: an execution has not ended, or a cap on the queue's depth has fired.
    """
    from crq.config import http_url
    from crq.replay import play
    from crq.replay import trace as traces

    try:
        trace = traces.read(file).between(since, until)
    except traces.TraceError as error:
        raise click.UsageError(f"{file}: {error}") from None
    if longest_pause is not None:
        trace = trace.squeezed(longest_pause)
    if not trace.arrivals:
        raise click.UsageError(f"{file}: no arrival between --since and --until")
    probe = None
    if health is not None:
        problem = http_url(health)
        if problem is not None:
            raise click.BadParameter(problem, param_hint="--health")
        probe = play.Health(
            health, health_every, play.Clock(state.wall, time.monotonic, time.sleep)
        )
    write = _writer(state.config, script)
    found, ended = _play(state, trace, speed, within, probe, idle, write)
    if as_json:
        emit(found.as_json())
    else:
        _print(found)
    if not ended:
        raise Failed(f"not all has ended {within:g} s after the last arrival", NO)
    if found.refused:
        raise click.exceptions.Exit(NO)


def _writer(config: Config, script: str | None) -> Writer:
    from crq.replay import scripts

    if script is not None:
        try:
            return scripts.template(Path(script).read_text("utf-8"))
        except ValueError as error:
            raise click.UsageError(f"{script}: {error}") from None
    return scripts.starlark if config.script.language == "starlark" else scripts.lines


def _address(config: Config) -> tuple[str, int]:
    parts = urlsplit(config.api.base_url.replace("{subdomain}", "account"))
    if parts.scheme != "http" or parts.hostname not in LOOPBACK or not parts.port:
        raise click.UsageError(
            f"api.base_url: {config.api.base_url} is not on this machine. A replay serves the API"
            " of its scripts there; take an installation made for it, with an address such as"
            " http://127.0.0.1:8099/api"
        )
    return parts.hostname, parts.port


def _play(
    state: State,
    trace: Trace,
    speed: float,
    within: float,
    probe: Health | None,
    idle: float,
    write: Writer,
) -> tuple[Report, bool]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from crq.replay import api, play, report

    clock = play.Clock(state.wall, time.monotonic, time.sleep)
    config = state.config
    with ExitStack() as held:
        try:
            served = api.ReplayApi(
                _address(config), config.api.key_header, trace.quotas, speed, time.monotonic
            )
        except OSError as error:
            raise Failed(f"api.base_url: cannot listen there: {error.strerror}", NO) from None
        held.callback(served.close)
        database, connection = held.enter_context(state.database())
        queue = play.Queue(config, database, connection, write, clock)
        bars = held.enter_context(
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                console=Console(stderr=True),
                transient=True,
            )
        )
        before = [] if probe is None else probe.looks(idle)
        meanwhile = [] if probe is None else held.enter_context(probe.watching())
        total = len(trace.arrivals)
        submitted = bars.add_task("submitted", total=total)
        ended = bars.add_task("ended", total=total)
        began = clock.monotonic()
        try:
            play.arrive(
                trace,
                queue.submit,
                speed,
                clock,
                lambda done: bars.update(submitted, completed=done),
            )
        except play.NotPlayable as error:
            raise Failed(str(error), NO) from None
        whole = play.wait_for_end(
            queue.open_ones, within, clock, lambda left: bars.update(ended, completed=total - left)
        )
        seconds = clock.monotonic() - began
        found = report.report(
            queue.played(),
            speed=speed,
            seconds=seconds,
            limits=dict(served.quotas.refused),
            refused=dict(queue.refused),
            idle=before,
            health=meanwhile,
        )
    return found, whole


def _print(found: Report) -> None:
    from crq.cli import tables

    pairs: list[tuple[str, object]] = [
        ("submitted", found.submitted),
        *((state, count) for state, count in sorted(found.states.items())),
        ("refused for depth", ", ".join(f"{n} ({cap})" for cap, n in found.refused.items()) or 0),
        ("died at the wall", found.at_the_wall),
        ("429s met", sum(found.limits.values())),
        ("most in flight", found.most[""]),
        ("seconds", f"{found.seconds:.1f} (the trace ran at {found.speed:g} times its speed)"),
    ]
    for name, spread in (("health check, idle", found.idle), ("health check", found.health)):
        if spread is not None:
            text = f"p95 {spread.p95 * 1000:.1f} ms, max {spread.longest * 1000:.1f} ms"
            pairs.append((name, text))
    if found.sick:
        pairs.append(("health checks failed", found.sick))
    rows: list[tuple[Any, ...]] = [
        (account, found.most[account], *_shown(spread)) for account, spread in found.waits.items()
    ]
    columns = ("account", "most in flight", "started", "wait p50", "wait p95", "wait max")
    tables.show(tables.pairs(pairs), tables.table(columns, rows))


def _shown(spread: Spread) -> tuple[object, ...]:
    return (
        spread.count,
        *(f"{value:.2f} s" for value in (spread.p50, spread.p95, spread.longest)),
    )
