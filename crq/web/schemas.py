"""
JSON Schemas of what the HTTP door takes and gives, for its OpenAPI description.
"""

from __future__ import annotations

from typing import Any

from crq.audit import NOTE_LENGTH
from crq.audit import Action as AuditAction
from crq.controls import Kind as ControlKind
from crq.explanation import Rule
from crq.model import Reason, Status
from crq.policy import RETRY_AFTER_MAXIMUM
from crq.submissions import IDENTIFIER_LIMIT, PAYLOAD_LIMIT, SOURCE_LIMIT
from crq.verdict import Verdict
from crq.web import problems

Schema = dict[str, Any]

HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
LABEL: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$",
    "description": "a subdomain: one DNS label",
}
INSTANT: Schema = {"type": "string", "format": "date-time"}
COUNT: Schema = {"type": "integer", "minimum": 0}
SECONDS: Schema = {"type": "number", "minimum": 0}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NOTE: Schema = {"type": "string", "maxLength": NOTE_LENGTH, "description": "why, for the audit"}
ODD: Schema = {"description": "as it is stored: another program may have written it"}


def or_null(schema: Schema) -> Schema:
    """
    The same, or null.
    """
    return {"anyOf": [schema, {"type": "null"}]}


def words(values: Any) -> Schema:
    """
    One word of a closed set.
    """
    return {"type": "string", "enum": [getattr(value, "value", value) for value in values]}


def array(items: Schema) -> Schema:
    """
    A list.
    """
    return {"type": "array", "items": items}


def mapping(values: Schema) -> Schema:
    """
    An object with names that are not known before.
    """
    return {"type": "object", "additionalProperties": values}


def record(properties: Schema, optional: Schema | None = None, closed: bool = True) -> Schema:
    """
    An object whose properties are all there, and some that may be.
    """
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
        "additionalProperties": not closed,
    }


def ref(name: str) -> Schema:
    """
    A schema of `SCHEMAS`.
    """
    return {"$ref": f"#/components/schemas/{name}"}


_RECORD: Schema = {
    "executionId": COUNT,
    "jobId": ODD,
    "subdomain": or_null(TEXT),
    "account": or_null(TEXT),
    "key": or_null(TEXT),
    "identifier": or_null(TEXT),
    "status": or_null(TEXT),
    "shown": TEXT,
    "errorCode": ODD,
    "errorMessage": or_null(TEXT),
    "debug": FLAG,
    "times": ODD,
    "queuedAt": or_null(TEXT),
    "claimedAt": or_null(TEXT),
    "startedAt": or_null(TEXT),
    "finishedAt": or_null(TEXT),
    "seconds": or_null({"type": "number"}),
}
_CONTROL: Schema = record(
    {
        "kind": words(ControlKind),
        "name": TEXT,
        "value": or_null(COUNT),
        "setAt": INSTANT,
        "setBy": TEXT,
        "note": or_null(TEXT),
    }
)

SCHEMAS: Schema = {
    "Problem": record(
        {
            "type": words(kind.uri for kind in problems.ALL),
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": TEXT,
            "field": TEXT,
            "problem": TEXT,
            "remedy": TEXT,
        },
        {
            "executionId": COUNT,
            "executionStatus": words(Status),
            "errorCode": COUNT,
            "line": COUNT,
            "column": COUNT,
            "obstacles": array(ref("Obstacle")),
        },
    ),
    "Submission": record(
        {
            "subdomain": LABEL,
            "apikey": {
                "type": "string",
                "pattern": "^[\\x21-\\x7e]([\\x20-\\x7e]{0,498}[\\x21-\\x7e])?$",
            },
            "source_code": {"type": "string", "minLength": 1, "maxLength": SOURCE_LIMIT},
        },
        {
            "identifier": or_null({"type": "string", "maxLength": IDENTIFIER_LIMIT}),
            "payload": {"description": f"any JSON of at most {PAYLOAD_LIMIT:,} bytes"},
            "debug": or_null(FLAG),
        },
    ),
    "Admitted": record({"executionId": COUNT, "status": TEXT, "repeated": FLAG}),
    "Record": record(_RECORD),
    "Execution": record(
        {
            **_RECORD,
            "drainerId": or_null(TEXT),
            "workerId": or_null(TEXT),
            "traceparent": or_null(TEXT),
            "sourceCode": or_null(TEXT),
        }
    ),
    "Page": record(
        {
            "executions": array(ref("Record")),
            "cursor": or_null(TEXT),
            "searchedTo": or_null(TEXT),
        }
    ),
    "Why": record(
        {
            "rule": words(Rule),
            "text": TEXT,
            "until": or_null(INSTANT),
            "executions": array(COUNT),
        }
    ),
    "Explanation": record(
        {
            "executionId": COUNT,
            "shown": TEXT,
            "because": TEXT,
            "why": array(ref("Why")),
            "placeInLane": or_null(COUNT),
            "aheadInAccount": or_null(COUNT),
            "capped": FLAG,
            "earliestStart": or_null(INSTANT),
            "expectedStart": or_null(INSTANT),
        }
    ),
    "Gate": record({"key": TEXT, "until": INSTANT, "accounts": array(TEXT)}),
    "Status": record(
        {
            "at": INSTANT,
            "verdict": words(Verdict),
            "because": TEXT,
            "depth": COUNT,
            "depthCapped": FLAG,
            "oldestQueuedAt": or_null(INSTANT),
            "oldestQueuedAge": or_null(SECONDS),
            "inFlight": COUNT,
            "accounts": array(
                record(
                    {
                        "account": TEXT,
                        "subdomain": or_null(TEXT),
                        "queued": COUNT,
                        "inFlight": COUNT,
                    }
                )
            ),
            "gates": array(ref("Gate")),
            "gatesReachable": FLAG,
            "unreadableGates": array(TEXT),
            "holds": {
                "type": "object",
                "propertyNames": words(Reason),
                "additionalProperties": COUNT,
            },
            "limits": record(
                {
                    "inFlight": COUNT,
                    "perAccount": COUNT,
                    "queuedPerAccount": COUNT,
                    "queuedTotal": COUNT,
                    "accounts": mapping(COUNT),
                }
            ),
            "lastStartAt": or_null(INSTANT),
            "proof": array(record({"kind": TEXT, "name": TEXT, "detail": TEXT}, {"account": TEXT})),
            "controls": record(
                {
                    "draining": FLAG,
                    "paused": FLAG,
                    "pausedAccounts": array(TEXT),
                    "pausedKeys": array(TEXT),
                    "inFlight": or_null(COUNT),
                    "perAccount": mapping(COUNT),
                    "runOne": array(COUNT),
                }
            ),
            "drainers": array(
                record(
                    {
                        "id": TEXT,
                        "startedAt": INSTANT,
                        "reportedAt": INSTANT,
                        "alive": FLAG,
                        "stopping": FLAG,
                    }
                )
            ),
            "daemon": {"type": ["object", "null"]},
        }
    ),
    "Account": record(
        {
            "account": TEXT,
            "subdomain": or_null(TEXT),
            "queued": COUNT,
            "queuedCapped": FLAG,
            "oldestQueuedAt": or_null(INSTANT),
            "inFlight": COUNT,
            "cap": COUNT,
            "capSet": FLAG,
            "waitP50": or_null(SECONDS),
            "waitP95": or_null(SECONDS),
            "finishedLastHour": COUNT,
            "finishedCapped": FLAG,
            "pause": or_null(ref("Control")),
        }
    ),
    "Woken": record({"woken": FLAG}),
    "Drainers": record(
        {
            "drainers": array(
                record(
                    {
                        "id": TEXT,
                        "state": words(("alive", "stopping", "dead", "gone")),
                        "alive": FLAG,
                        "host": or_null(TEXT),
                        "version": or_null(TEXT),
                        "startedAt": or_null(INSTANT),
                        "reportedAt": or_null(INSTANT),
                        "reportedAge": or_null(SECONDS),
                        "claimed": COUNT,
                        "running": COUNT,
                        "alarm": or_null(TEXT),
                    }
                )
            )
        }
    ),
    "Accounts": record({"accounts": array(ref("Account"))}),
    "Closing": record(
        {
            "key": TEXT,
            "number": COUNT,
            "closedAt": or_null(TEXT),
            "closedUntil": or_null(TEXT),
            "openedAt": or_null(TEXT),
            "cause": TEXT,
            "executionId": or_null(COUNT),
            "limits": COUNT,
            "held": or_null(COUNT),
            "limitsAfter": or_null(COUNT),
        }
    ),
    "Gates": record(
        {"closed": array(ref("Gate")), "reachable": FLAG, "history": array(ref("Closing"))}
    ),
    "Minute": record(
        {
            "minute": INSTANT,
            "verdict": TEXT,
            "depth": COUNT,
            "oldestAge": or_null(SECONDS),
            "inFlight": COUNT,
            "gatesClosed": COUNT,
            "starts": COUNT,
            "rejected": COUNT,
            "success": COUNT,
            "failed": COUNT,
            "outcomeUnknown": COUNT,
            "neverStarted": COUNT,
            "cancelled": COUNT,
        }
    ),
    "Series": record({"since": INSTANT, "until": INSTANT, "minutes": array(ref("Minute"))}),
    "Control": _CONTROL,
    "Controls": record({"controls": array(ref("Control"))}),
    "Entry": record(
        {
            "auditId": COUNT,
            "at": or_null(TEXT),
            "who": TEXT,
            "action": words(AuditAction),
            "target": TEXT,
            "note": or_null(TEXT),
            "before": {},
            "after": {},
        }
    ),
    "Audit": record({"entries": array(ref("Entry"))}),
    "Note": record({}, {"note": NOTE}),
    "Cap": record({"value": {"type": "integer", "minimum": 1}}, {"note": NOTE}),
    "ClosingByHand": {
        "type": "object",
        "properties": {
            "seconds": {"type": "integer", "minimum": 1, "maximum": RETRY_AFTER_MAXIMUM},
            "until": INSTANT,
            "note": NOTE,
        },
        "additionalProperties": False,
        "oneOf": [{"required": ["seconds"]}, {"required": ["until"]}],
    },
    "Settlement": record(
        {"outcome": {"type": "string", "enum": ["success", "failed"]}},
        {"errorCode": or_null({"type": "integer", "enum": [301, 302]}), "note": NOTE},
    ),
    "Cancellation": record(
        {},
        {
            "filters": record(
                {},
                {
                    "subdomain": LABEL,
                    "account": HASH,
                    "key": HASH,
                    "since": INSTANT,
                    "until": INSTANT,
                },
            ),
            "expected": {
                **or_null({**COUNT, "maximum": 2**53 - 1}),
                "description": "the count that was seen; without it nothing is cancelled",
            },
            "note": NOTE,
        },
    ),
    "Cancelled": record(
        {"count": COUNT, "capped": FLAG, "cancelled": COUNT, "filters": {"type": "object"}}
    ),
    "Done": record({"changed": FLAG, "before": {}, "after": {}}),
    "GateByHand": record({"key": HASH, "until": or_null(INSTANT)}),
    "Live": record({"live": FLAG}),
    "Ready": record({"ready": FLAG}, {"problem": TEXT}),
    "Word": record({"verdict": words(Verdict), "stalled": FLAG}),
}
