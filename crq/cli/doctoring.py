"""
``crq doctor``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from crq.cli.base import APIKEY, State, emit, json_option

if TYPE_CHECKING:
    from crq.doctor.findings import Finding

CODES = """
\b
Exit codes:
  0  all is well, or worth a note
  1  a warning: it works, and will cost something some day
  2  an error: executions stand still, or a promise does not hold; or wrong usage
  4  a fault in crq itself
"""


@click.command(
    epilog="\b\nExamples:\n  crq doctor\n  crq doctor --all\n"
    "  crq doctor --json | jq '.findings[] | select(.severity == \"error\")'\n" + CODES
)
@click.option("--all", "everything", is_flag=True, help="Show what is in order as well.")
@json_option
@click.pass_obj
def doctor(state: State, everything: bool, as_json: bool) -> None:
    """
    Look at this installation and say what is wrong and what to do.

    Configuration, versions, database, rows, gates, executor, clocks, files, disks and units. It
    reads and changes nothing, whether or not the daemon runs; run it as the user that the daemon
    runs as, so that it sees what the daemon sees.
    """
    from crq.doctor.examination import examination
    from crq.doctor.findings import exit_code

    environment = {name: text for name, text in os.environ.items() if name != APIKEY}
    examined = examination(state.path, environment, state.settings, state.wall, time.monotonic)
    findings = examined.findings()
    if as_json:
        emit(as_dict(findings))
    else:
        _print(findings, everything)
    raise click.exceptions.Exit(exit_code(findings))


def as_dict(findings: Collection[Finding]) -> dict[str, Any]:
    """
    Findings for a machine.
    """
    from crq import __version__
    from crq.doctor.findings import worst

    return {
        "version": __version__,
        "worst": worst(findings).word,
        "findings": [
            {
                "name": finding.name,
                "severity": finding.severity.word,
                "found": finding.found,
                "remedy": finding.remedy,
            }
            for finding in findings
        ],
    }


def _print(findings: Collection[Finding], everything: bool) -> None:
    from rich import box
    from rich.table import Table

    from crq.cli import tables
    from crq.doctor.findings import Severity

    shown = [f for f in findings if everything or f.severity is not Severity.OK]
    if shown:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for name in ("severity", "check", "found", "what to do"):
            # What is to be done must be read to its end: lines are folded, not cut.
            table.add_column(name, overflow="fold", no_wrap=name == "severity")
        for finding in sorted(shown, key=lambda finding: -finding.severity):
            cells = (finding.severity.word, finding.name, finding.found, finding.remedy or None)
            table.add_row(*map(tables.cell, cells))
        tables.show(table)
    counts = [
        f"{sum(f.severity is severity for f in findings)} {severity.word}"
        for severity in reversed(Severity)
    ]
    click.echo(f"{len(findings)} checks: {', '.join(counts)}")
