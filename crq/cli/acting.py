"""
``crq submit`` and ``crq cancel``.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from crq.cli.base import APIKEY, EXIT_CODES, NO, OK, Failed, State, emit, json_option


@click.command(
    epilog="\b\nExamples:\n  crq submit rule.star --subdomain acme --apikey-file acme.key\n"
    "  crq submit - --subdomain acme --payload '{\"card\": 7}' < rule.star\n\n"
    f"The API key comes from --apikey-file or ${APIKEY}, never from the command line itself, where"
    " other users of the machine could read it.\n" + EXIT_CODES
)
@click.argument("file", type=click.File("rb"))
@click.option("--subdomain", required=True, help="The account.")
@click.option(
    "--apikey-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=False),
    help="File with the API key.",
)
@click.option("--payload", metavar="JSON", help="Handed to the script.")
@click.option("--identifier", help="A name of yours for it, shown in the log.")
@click.option("--debug", is_flag=True, help="Ask the executor to say more.")
@click.option(
    "--idempotency-key", metavar="KEY", help="Submitting again with the same key finds the first."
)
@json_option
@click.pass_obj
def submit(
    state: State,
    file: click.File,
    subdomain: str,
    apikey_file: str | None,
    payload: str | None,
    identifier: str | None,
    debug: bool,
    idempotency_key: str | None,
    as_json: bool,
) -> None:
    """
    Put the script in FILE (- for standard input) in the queue.

    Prints the execution's number. Exit code 1: refused, because the queue is full, the script does
    not parse, or the idempotency key is taken; the log has it too.
    """
    from crq import admission, records
    from crq.configfile import ConfigError
    from crq.messages import Admitted

    wanted = admission.submission(
        {
            "subdomain": subdomain,
            "apikey": _apikey(apikey_file),
            "source_code": _utf8(file.read(), "FILE"),  # type: ignore[attr-defined]
            "identifier": identifier,
            "payload": None if payload is None else admission.json_value(payload, "payload"),
            "debug": debug,
        },
        idempotency_key,
    )
    config = state.config
    try:
        sealer = config.sealer()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    with state.database() as (database, connection):
        answer = admission.admit(
            database,
            connection,
            wanted,
            sealer,
            config.limits.limits(),
            state.wall(),
            config.script.language,
        )
        body = admission.as_json(answer)
        taken = isinstance(answer, Admitted)
        if isinstance(answer, Admitted) and answer.repeated:
            found = database.read(connection, records.execution, answer.execution_id)
            body["status"] = "purged" if found is None else found.record.shown
    if as_json:
        emit(body)
        raise click.exceptions.Exit(OK if taken else NO)
    if not taken:
        code = body.get("errorCode")
        what = f"refused ({code})" if code else "refused"
        raise Failed(
            f"execution {answer.execution_id} {what}: {body['problem']}; {body['remedy']}", NO
        )
    known = ", admitted before" if body["repeated"] else ""
    click.echo(f"execution {answer.execution_id}: {body['status']}{known}")


def _apikey(path: str | None) -> str:
    if path is not None:
        return _utf8(Path(path).read_bytes(), path).rstrip("\r\n")
    if APIKEY not in os.environ:
        raise click.UsageError(f"no API key: give --apikey-file or set {APIKEY}")
    return os.environ[APIKEY]


def _utf8(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"{name} is not UTF-8 text") from None


@click.command(epilog="\b\nExample:\n  crq cancel 4711\n" + EXIT_CODES)
@click.argument("execution_id", metavar="ID", type=click.IntRange(1))
@json_option
@click.pass_obj
def cancel(state: State, execution_id: int, as_json: bool) -> None:
    """
    Cancel an execution that still waits.

    What has been claimed or has begun is not stopped: exit code 1.
    """
    from crq import executions, records
    from crq.database import CommitUnknown

    with state.database() as (database, connection):
        try:
            done = database.transact(connection, executions.cancel, execution_id, state.wall())
        except CommitUnknown:
            done = False  # the row itself says, below
        found = database.read(connection, records.execution, execution_id)
    if found is None:
        raise Failed(f"there is no execution {execution_id}", NO)
    cancelled = done or found.record.status == "cancelled"
    if as_json:
        shown = {"executionId": execution_id, "status": found.record.shown, "cancelled": cancelled}
        emit(shown)
        raise click.exceptions.Exit(OK if cancelled else NO)
    if not cancelled:
        stored = found.record.status
        raise Failed(f"execution {execution_id} does not wait any more: it is {stored}", NO)
    click.echo(f"execution {execution_id} cancelled")
