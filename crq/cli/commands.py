"""
The group of all commands and the options before them.
"""

from __future__ import annotations

import click

from crq import __version__
from crq.cli.acting import submit
from crq.cli.automating import automations
from crq.cli.base import EXIT_CODES, Group, State
from crq.cli.cancelling import cancel
from crq.cli.configuring import config, token
from crq.cli.doctoring import doctor
from crq.cli.explaining import accounts, audit, drainers, explain, history
from crq.cli.gating import gates
from crq.cli.keeping import db, init
from crq.cli.operating import cap, drain, pause, resume, run_one, settle
from crq.cli.reading import logs, show, status
from crq.cli.replaying import replay
from crq.cli.simulating import simulate
from crq.cli.topping import top

EXAMPLES = """
\b
Examples:
  crq init
  crq submit rule.star --subdomain acme --apikey-file acme.key
  crq --config /etc/crqueue/crqueue.toml status
  crq --set database.timeout=2 logs --status failed --since 2026-08-24
"""


@click.group(cls=Group, epilog=EXAMPLES + EXIT_CODES)
@click.version_option(__version__, prog_name="crq")
@click.option(
    "--config",
    "path",
    metavar="FILE",
    help="TOML file; else $CRQ_CONFIG, ./crqueue.toml, /etc/crqueue/crqueue.toml.",
)
@click.option(
    "--set",
    "settings",
    metavar="SECTION.NAME=VALUE",
    multiple=True,
    help="Set one option, over file and environment; may be given many times.",
)
@click.pass_context
def main(context: click.Context, path: str | None, settings: tuple[str, ...]) -> None:
    """
    Look after a durable dispatch queue: set it up, put work in, see what became of it.

    Commands work on the database itself, whether or not the daemon runs.

    Completion: put `eval "$(_CRQ_COMPLETE=bash_source crq)"` into ~/.bashrc (zsh_source, and
    fish_source, for the others).
    """
    context.obj = State(path, settings)


for command in (init, db, submit, status, logs, show, cancel, config, token, replay, doctor):
    main.add_command(command)
main.add_command(automations)
for command in (explain, accounts, drainers, gates, history, audit, top, simulate):
    main.add_command(command)
for command in (pause, resume, cap, drain, run_one, settle):
    main.add_command(command)
