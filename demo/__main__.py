"""
The command line of the demo.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console

from crq.model import Limits
from demo.automate import automate
from demo.checks import examine
from demo.load import load
from demo.play import DemoFailed, play, running
from demo.show import automation, result, watching
from tests.installation import Installation
from tests.servers import ServerFailed


@click.command()
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C.")
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.05, 1.0),
    help="Fewer executions and shorter waits, by this factor.",
)
def main(keep: bool, scale: float) -> None:
    """
    Run three accounts against a throttled API and check what crqueue promises.

    Everything is in a temporary directory and on free ports of its own; nothing stays behind.
    """
    console = Console()
    # So that these end the processes and remove the directory, as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory(prefix="crq-demo-") as directory:
            good = _run(console, Path(directory), scale, keep)
    except (DemoFailed, ServerFailed) as error:
        console.print(f"The demo failed: {error}", markup=False, highlight=False)
        good = False
    except KeyboardInterrupt:
        console.print("Stopped.")
        sys.exit(130)
    sys.exit(0 if good else 1)


def _run(console: Console, directory: Path, scale: float, keep: bool) -> bool:
    work = load(scale)
    console.print("Starting the daemon, the executor and an API with rate limits …")
    with running(directory, work) as installation:
        with watching(console, work) as show:
            automated = automate(installation, show)
            show.say("Submitting " + ", ".join(f"{a.count} of {a.name}" for a in work.accounts))
            waiting = dict.fromkeys(automated.executions, automated.account)
            played = play(installation, work, show, waiting)
        console.print(result(played, work))
        console.print(automation(automated, played.calls))
        checks = examine(played.admitted, played.rows, played.calls, Limits(), automated)
        for check in checks:
            mark = "[green]holds[/]" if check.holds else "[red]BROKEN[/]"
            console.print(f"{mark}  {check.claim}: {check.detail}", highlight=False, soft_wrap=True)
        good = all(check.holds for check in checks)
        console.print(
            f"All {len(checks)} checks hold, after {played.seconds:.0f} s."
            if good
            else f"{sum(not check.holds for check in checks)} of {len(checks)} checks are broken.",
            style="bold",
            highlight=False,
        )
        if keep:
            _keep(console, installation)
    return good


def _keep(console: Console, installation: Installation) -> None:
    address = f"http://127.0.0.1:{installation.web_port}"
    console.print(
        f"\nStill running. The daemon: {address}  (try /ui, with the token below)\n"
        f"Executor: {installation.config.executor.url}\n"
        f"Files:    {installation.directory}\n"
        f"Token:    {installation.token}\n\n"
        "Ctrl-C ends everything and deletes the files.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()


if __name__ == "__main__":
    main(prog_name="python -m demo")
