"""
``crq top``: the queue, full-screen and live.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from crq.cli import reports
from crq.cli.base import EXIT_CODES, State
from crq.cli.reading import report_parts

if TYPE_CHECKING:
    from crq.series import Sample
    from crq.statusreport import StatusReport

BARS = " ▁▂▃▄▅▆▇█"
MINUTES = 60  # of the little plots


@click.command(epilog="\b\nExample:\n  crq top --every 1\n" + EXIT_CODES)
@click.option(
    "--every",
    type=click.FloatRange(0.2, 60),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.pass_obj
def top(state: State, every: float) -> None:
    """
    Watch the queue live: its verdict and why, what waits and runs, gates, the last hour.

    Ctrl-C ends it.
    """
    from rich.live import Live

    from crq import series
    from crq.cli import tables

    with state.database() as (database, connection):
        reporter = reports.Reporter(state, database, connection)
        try:
            with Live(console=tables.console(), screen=True, auto_refresh=False) as live:
                while True:
                    report = reporter.report()
                    span = (report.at - MINUTES * series.MINUTE, report.at)
                    minutes = database.read(connection, series.read, *span)
                    live.update(screen(report, minutes), refresh=True)
                    state.sleep(every)
        except KeyboardInterrupt:
            return
        finally:
            reporter.close()


def screen(report: StatusReport, minutes: Iterable[Sample]) -> Any:
    """
    What is shown at one moment.
    """
    from rich.console import Group
    from rich.text import Text

    from crq import series
    from crq.cli import tables
    from crq.instants import iso

    known = {sample.minute: sample for sample in minutes}
    last = series.minute_of(report.at) - series.MINUTE
    hour = [known.get(last - n * series.MINUTE) for n in reversed(range(MINUTES))]
    plots = [
        ("depth", _bars([None if each is None else each.depth for each in hour])),
        ("starts a minute", _bars([None if each is None else each.ended.starts for each in hour])),
        ("rejected", _bars([None if each is None else each.ended.rejected for each in hour])),
        ("gates closed", _bars([None if each is None else each.gates_closed for each in hour])),
    ]
    return Group(
        Text(f"crqueue  {iso(report.at)}", style="dim"),
        *report_parts(report),
        Text("the last hour, minute by minute (· no drainer ran)", style="dim"),
        tables.pairs(plots),
    )


def _bars(values: list[int | None]) -> str:
    most = max([1, *(value for value in values if value is not None)])
    bars = [
        "·" if value is None else BARS[0 if not value else 1 + value * (len(BARS) - 2) // most]
        for value in values
    ]
    return f"{''.join(bars)} max {most}"
