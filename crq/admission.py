"""
The way of a submission into the queue: parse its script, seal it, admit it or say why not.

Used by the HTTP door and by the command line alike; knows neither. What a submission may be is
checked in `crq.submissions`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from attrs import evolve, frozen

from crq import executions, script
from crq.database import CommitUnknown, Cursor, Database
from crq.instants import Instant
from crq.messages import Admitted, Invalid, Mismatch, Rejected, SealedSubmission, Submission
from crq.model import ErrorCode, Limits
from crq.script import SyntaxFault
from crq.sealing import Sealer
from crq.submissions import Refusal, json_value, submission

__all__ = [
    "Answer",
    "Prepared",
    "Refusal",
    "admit",
    "admit_in",
    "as_json",
    "json_value",
    "prepare",
    "settle_in",
    "submission",
]

Answer: TypeAlias = Admitted | Rejected | Invalid | Mismatch


@frozen
class Prepared:
    """
    A checked submission with its script parsed: what one transaction needs.

    :ivar fault: why the script does not parse; None when it does, or is not to be parsed.
    """

    sealed: SealedSubmission
    fault: SyntaxFault | None = None


def prepare(
    submission: Submission, sealer: Sealer, language: Literal["starlark", "opaque"]
) -> Prepared:
    """
    Seal a submission and parse its script. Takes milliseconds: not for a reactor's thread.
    """
    fault = None
    if language != "opaque":
        try:
            script.parse(submission.source_code)
        except SyntaxFault as error:
            fault = error
    return Prepared(sealer.seal(submission), fault)


def admit_in(txn: Cursor, prepared: Prepared, limits: Limits, now: Instant) -> Answer:
    """
    Admit a prepared submission, or refuse it with a row that says so, in one transaction.
    """
    fault = prepared.fault
    if fault is None:
        return executions.admit(txn, prepared.sealed, limits, now)
    # A key that was used for a sound script before is not spoilt by a faulty one.
    return executions.find(txn, prepared.sealed) or executions.record_invalid(
        txn, prepared.sealed, fault.message, fault.line, fault.column, now
    )


def settle_in(txn: Cursor, prepared: Prepared) -> Answer:
    """
    Say what became of an admission whose COMMIT was not answered.

    :raise CommitUnknown: nothing is stored, or it was a refusal; to try again is safe, with the
        same idempotency key even if the COMMIT arrives late.
    """
    found = executions.find(txn, prepared.sealed)
    if found is None:
        raise CommitUnknown
    return evolve(found, repeated=False) if isinstance(found, Admitted) else found


def admit(
    database: Database,
    connection: Any,
    submission: Submission,
    sealer: Sealer,
    limits: Limits,
    now: Instant,
    language: Literal["starlark", "opaque"] = "starlark",
) -> Answer:
    """
    Prepare and admit in one synchronous call, for Python callers.

    :param connection: of this database.
    :raise CommitUnknown: as in `settle_in`.
    """
    prepared = prepare(submission, sealer, language)
    try:
        return database.transact(connection, admit_in, prepared, limits, now)
    except CommitUnknown:
        return database.read(connection, settle_in, prepared)


def as_json(answer: Answer) -> dict[str, Any]:
    """
    An answer for a machine; what was not taken says what is wrong and what to do about it.
    """
    match answer:
        case Admitted(execution_id=number, repeated=repeated):
            return {"executionId": number, "status": "queued", "repeated": repeated}
        case Rejected(execution_id=number, depth=depth, limit=limit):
            whose = "this account" if depth == "account" else "all accounts"
            return {
                "executionId": number,
                "status": "rejected",
                "errorCode": int(ErrorCode.QUEUE_FULL),
                "field": "queue",
                "problem": f"{limit} executions of {whose} are waiting already",
                "remedy": "submit it again later; this one will not run",
            }
        case Invalid(execution_id=number, message=message, line=line, column=column):
            return {
                "executionId": number,
                "status": "failed",
                "errorCode": int(ErrorCode.SCRIPT_INVALID),
                "field": "source_code",
                "problem": message,
                "remedy": f"correct line {line}, column {column}",
                "line": line,
                "column": column,
            }
        case Mismatch(execution_id=number):
            return {
                "executionId": number,
                "field": "idempotency_key",
                "problem": "it belongs to an earlier, different submission",
                "remedy": "repeat that submission unchanged, or use a new key",
            }
