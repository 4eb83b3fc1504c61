"""
``crq submit``.
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
@click.option(
    "--traceparent", metavar="VALUE", help="The place in a trace (W3C) that it belongs to."
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
    traceparent: str | None,
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
        _trace(traceparent),
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


def _trace(given: str | None) -> str | None:
    from crq.traceparent import traceparent

    valid = traceparent(given)
    if given is not None and valid is None:
        raise click.UsageError("--traceparent is none; write it as 00-TRACE-PARENT-01 in hex")
    return valid


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
