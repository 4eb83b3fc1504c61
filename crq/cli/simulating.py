"""
``crq simulate``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from crq.cli.base import BROKEN, EXIT_CODES, Failed, State, emit, json_option

if TYPE_CHECKING:
    from crq.replay.trace import Trace
    from crq.simulate.api import Quota
    from crq.simulate.queued import Model


def _several(of: Callable[[str], Any], what: str) -> Callable[..., tuple[Any, ...] | None]:
    """
    An option's values, separated by commas.
    """

    def values(
        _context: click.Context, _param: click.Parameter, given: str | None
    ) -> tuple[Any, ...] | None:
        if given is None:
            return None
        found = []
        for text in given.split(","):
            try:
                found.append(of(text.strip()))
            except (KeyError, ValueError):
                raise click.BadParameter(f"{text!r} is none of them; give {what}") from None
        return tuple(dict.fromkeys(found))

    return values


def _cap(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise ValueError
    return value


_caps = _several(_cap, "numbers from 1 to 1000, separated by commas")
_switches = _several({"on": True, "off": False}.__getitem__, "on, off or on,off")
_orders = _several(
    {"fifo": "fifo", "round-robin": "round-robin"}.__getitem__,
    "fifo, round-robin or both, separated by a comma",
)


def _calls_of(
    _context: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> dict[str, int]:
    found = {}
    for text in given:
        account, _, count = text.rpartition("=")
        if not account or not count.isascii() or not count.isdecimal():
            raise click.BadParameter(f"{text!r}; write ACCOUNT=N, such as acme=12")
        found[account] = int(count)
    return found


@click.command(
    epilog="\b\nExamples:\n  crq simulate\n"
    "  crq simulate --per-account 1,2,3 --half-open on,off --inline\n"
    "  crq simulate --load 2.7 --global 4,8 --plot depth.svg\n"
    "  crq simulate traces/2026-08-24-1208.csv --json\n"
    "  crq simulate trace.csv --since 3600 --until 7200 --minute-limit 60 --hour-limit 1000\n\n"
    "Caps, ladders, gates, wall and tick are those of the configuration, where no option says"
    " otherwise: try others by --set before the command.\n" + EXIT_CODES
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--seed", type=int, default=1, show_default=True, help="Of all that is random.")
@click.option("--since", type=click.FloatRange(0), default=0.0, help="Only from this second on.")
@click.option("--until", type=click.FloatRange(0), default=float("inf"), help="Only before it.")
@click.option(
    "--load",
    "factor",
    type=click.FloatRange(0.01, 1000),
    default=1.0,
    show_default=True,
    help="So many times what arrives.",
)
@click.option(
    "--per-account", metavar="N,N…", callback=_caps, help="Caps of an account, one or several."
)
@click.option(
    "--global", "in_flight", metavar="N,N…", callback=_caps, help="Caps over all accounts."
)
@click.option(
    "--half-open",
    metavar="on,off",
    callback=_switches,
    default="on",
    show_default=True,
    help="After a gate one execution of its key goes first, or all that may.",
)
@click.option(
    "--order",
    metavar="fifo,round-robin",
    callback=_orders,
    default="fifo",
    show_default=True,
    help="Oldest first, or the account first that started longest ago.",
)
@click.option(
    "--admission",
    type=click.Choice(["daemon", "sql"]),
    default="daemon",
    show_default=True,
    help="Who inserts rows: the daemon wakes itself; what SQL inserts waits for the next tick.",
)
@click.option("--inline", is_flag=True, help="And once without a queue, into a shared pool.")
@click.option(
    "--workers",
    type=click.IntRange(1, 10_000),
    default=40,
    show_default=True,
    help="Of the pool of --inline.",
)
@click.option("--minute-limit", type=click.IntRange(1), help="Calls of a key in a minute.")
@click.option("--hour-limit", type=click.IntRange(1), help="Calls of a key in an hour.")
@click.option(
    "--method-limit",
    type=click.IntRange(1),
    help="Calls in a minute of the one method that answers 401 beyond; each fourth call is of it.",
)
@click.option("--calls", type=click.IntRange(0, 10_000), help="Calls of an execution.")
@click.option(
    "--calls-of",
    metavar="ACCOUNT=N",
    multiple=True,
    callback=_calls_of,
    help="Calls of an execution of this account; may be given many times.",
)
@click.option("--account", "accounts", multiple=True, help="Compare the waits of this account.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Write curves to this file, as SVG.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="the processors",
    help="Simulations at once.",
)
@json_option
@click.pass_obj
def simulate(state: State, /, as_json: bool, plot: str | None, jobs: int, **given: Any) -> None:
    """
    Ask what the queue would do with a load, and compare rules: the real loop, claim and gates on a
    virtual clock, before a modelled executor and API.

    The load is a trace FILE (as `crq replay` takes it, or a public one of Azure Functions);
    without one, 14 days made from what was measured before the queue was built. Limits of the API
    are those of the trace or of the options; for the 14 days there are some by default.

    The invariants are checked at every step; exit code 4: one did not hold.
    """
    from crq.cli import simulated
    from crq.simulate import compare

    trace, model = _asked(state, given)
    rules = _rules(state, given)
    questions = [compare.Question(trace.arrivals, model, each) for each in rules]
    with _progress(len(questions)) as done:
        results = compare.ask(questions, jobs, done)
    if plot is not None:
        simulated.draw(results, plot)
    if as_json:
        emit({"load": _load_json(trace, given), "results": [each.as_json() for each in results]})
    elif len(results) == 1:
        simulated.print_one(results[0])
    else:
        simulated.print_all(results, given["accounts"])
    problems = [problem for result in results for problem in result.problems]
    if problems:
        raise Failed(f"an invariant did not hold: {problems[0]}", BROKEN)


# -- what is asked


def _asked(state: State, given: dict[str, Any]) -> tuple[Trace, Model]:
    from crq.replay.trace import Trace, TraceError
    from crq.simulate import brief, compare, faas
    from crq.simulate.queued import Model
    from crq.simulate.scripts import Ladder, Work

    file, begins = given["file"], brief.BEGINS
    if file is None:
        trace, quota = Trace(tuple(brief.load(given["seed"]))), brief.QUOTA
        calls: int | None = brief.OTHER_CALLS
        calls_of = dict(brief.CALLS)
    else:
        try:
            trace = faas.read(file)
        except TraceError as error:
            raise click.UsageError(f"{file}: {error}") from None
        quota, calls, calls_of = _quota_of(trace), None, {}
    trace = trace.between(given["since"], given["until"])
    if given["factor"] != 1.0:
        trace = compare.scaled(trace, given["factor"], given["seed"])
    if not trace.arrivals:
        raise click.UsageError("nothing arrives between --since and --until")
    if given["calls"] is not None:
        calls, calls_of = given["calls"], {}
    for name in given["accounts"]:
        if all(arrival.account != name for arrival in trace.arrivals):
            raise click.UsageError(f"--account: nothing of {name!r} arrives; name another")
    config = state.config
    api = config.api
    return trace, Model(
        begins=begins + given["since"],
        quota=_limited(quota, given),
        work=Work(
            calls,
            {**calls_of, **given["calls_of"]},
            config.executor.wall,
            config.executor.script_seconds,
        ),
        ladder=Ladder(
            api.attempts,
            api.wait_below,
            api.wait_unauthorized,
            config.gates.shortest_wait,
            config.gates.margin,
        ),
        tick=config.drainer.tick,
    )


def _quota_of(trace: Trace) -> Quota:
    from crq.simulate.api import Quota, Window

    keys: dict[str, tuple[Window, ...]] = {}
    for each in trace.quotas:
        keys[each.key] = (*keys.get(each.key, ()), Window(each.calls, each.seconds))
    return Quota(keys=keys)


def _limited(quota: Quota, given: dict[str, Any]) -> Quota:
    """
    The quota with the limits of the options, which are those of every key.
    """
    from attrs import evolve

    from crq.simulate.api import HOUR, MINUTE, Quota, Window

    minute, hour, method = (given[f"{name}_limit"] for name in ("minute", "hour", "method"))
    if minute is not None or hour is not None:
        limits = ((minute, MINUTE), (hour, HOUR))
        quota = Quota(tuple(Window(calls, each) for calls, each in limits if calls is not None))
    return quota if method is None else evolve(quota, method=Window(method, MINUTE))


def _rules(state: State, given: dict[str, Any]) -> list[Any]:
    from crq.simulate import compare

    limits = state.config.limits.limits()
    rules: list[Any] = list(
        compare.policies(
            limits,
            given["per_account"] or (limits.per_account,),
            given["in_flight"] or (limits.in_flight,),
            given["half_open"],
            given["order"],
            given["admission"] == "daemon",
        )
    )
    if not rules:
        raise click.UsageError(
            "every --per-account is above every --global; lower it or raise that"
        )
    return [*rules, compare.Without(given["workers"])] if given["inline"] else rules


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("simulated"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        task = bars.add_task("", total=total)
        yield lambda done: bars.update(task, completed=done)


def _load_json(trace: Trace, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": given["file"],
        "seed": given["seed"],
        "factor": given["factor"],
        "executions": len(trace.arrivals),
        "seconds": trace.length,
    }
