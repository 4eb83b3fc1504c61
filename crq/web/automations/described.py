"""
The automations' part of the OpenAPI description.
"""

from __future__ import annotations

from typing import Any

from crq.automations import limits
from crq.automations.model import Effect, Mode, RunStatus, Trigger, Verdict
from crq.web.operations import WRITING, between, errors, get, json_answer, parameter
from crq.web.schemas import (
    COUNT,
    FLAG,
    INSTANT,
    TEXT,
    Schema,
    array,
    mapping,
    or_null,
    record,
    ref,
    words,
)

HIGHEST = 2**62

_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": limits.NAME_CHARACTERS}
_CONFIG: Schema = {"type": "object", "description": "the type's settings; secrets are hidden"}
_FIELDS: Schema = {
    "cron": {"type": "string", "description": "five fields, by the rules of Debian cron"},
    "zone": {"type": "string", "description": "IANA name of the zone the fields are meant in"},
    "config": {
        "type": "object",
        "description": "the type's settings, see /automations/types; a secret is sealed at once",
    },
}
_CAPS: Schema = {
    "maxItemsPerRun": or_null(between(1, limits.MAX_ITEMS_CEILING)),
    "maxChangesPerRun": or_null(between(1, limits.MAX_CHANGES_CEILING)),
    "owner": or_null({"type": "string", "maxLength": 100}),
}
_AUTOMATION: Schema = {
    "automationId": COUNT,
    "uuid": TEXT,
    "tenant": TEXT,
    "name": TEXT,
    "type": TEXT,
    "config": _CONFIG,
    "configRevision": COUNT,
    "mode": words(Mode),
    "enabled": FLAG,
    "cron": TEXT,
    "zone": TEXT,
    "nextRunAt": or_null(INSTANT),
    "maxItemsPerRun": COUNT,
    "maxChangesPerRun": COUNT,
    "owner": TEXT,
    "problem": or_null(TEXT),
    "skippedCount": COUNT,
    "promotedBy": or_null(TEXT),
    "promotedAt": or_null(INSTANT),
    "promotedRunId": or_null(COUNT),
    "promotedWouldCount": or_null(COUNT),
    "lastRunId": or_null(COUNT),
    "lastRunStatus": or_null(words(RunStatus)),
    "lastRunAt": or_null(INSTANT),
    "lastRunSummary": or_null(TEXT),
    "createdAt": INSTANT,
    "changedAt": INSTANT,
}
_DECISION: Schema = {
    "subjectType": TEXT,
    "subjectId": TEXT,
    "verdict": words(Verdict),
    "reason": TEXT,
    "intent": {"type": "object"},
}
_EVIDENCE: Schema = record({"runId": COUNT, "configRevision": COUNT, "wouldCount": COUNT})

SCHEMAS: Schema = {
    "Automation": record(_AUTOMATION),
    "AutomationInFull": record({**_AUTOMATION, "occurrences": array(ref("Occurrence"))}),
    "Automations": record({"automations": array(ref("Automation")), "after": or_null(COUNT)}),
    "Occurrence": record({"local": TEXT, "utc": INSTANT}),
    "Occurrences": record({"occurrences": array(ref("Occurrence"))}),
    "Setting": record(
        {
            "name": TEXT,
            "kind": TEXT,
            "default": {},
            "required": FLAG,
            "meaning": TEXT,
            "secret": FLAG,
            "choices": array({}),
        }
    ),
    "AutomationType": record(
        {
            "name": TEXT,
            "summary": TEXT,
            "acts": FLAG,
            "repeatable": FLAG,
            "settings": array(ref("Setting")),
        }
    ),
    "AutomationTypes": record({"types": array(ref("AutomationType")), "faults": array(TEXT)}),
    "Run": record(
        {
            "runId": COUNT,
            "automationId": COUNT,
            "tenant": TEXT,
            "trigger": words(Trigger),
            "scheduledFor": INSTANT,
            "skipped": COUNT,
            "type": TEXT,
            "config": _CONFIG,
            "configRevision": COUNT,
            "mode": words(Mode),
            "status": words(RunStatus),
            "why": or_null(TEXT),
            "waitsFor": or_null(TEXT),
            "cursor": {},
            "chunks": COUNT,
            "itemCount": COUNT,
            "declinedCount": COUNT,
            "wouldCount": COUNT,
            "intendedCount": COUNT,
            "approvedCount": COUNT,
            "failedCount": COUNT,
            "unknownCount": COUNT,
            "withdrawnCount": COUNT,
            "outstandingCount": COUNT,
            "reasons": mapping(COUNT),
            "notices": array(TEXT),
            "createdAt": INSTANT,
            "startedAt": or_null(INSTANT),
            "finishedAt": or_null(INSTANT),
            "durationMs": or_null(COUNT),
        }
    ),
    "Runs": record({"runs": array(ref("Run")), "before": or_null(COUNT)}),
    "Item": record(
        {
            "itemId": COUNT,
            "runId": COUNT,
            **_DECISION,
            "effect": words(Effect),
            "detail": or_null(TEXT),
            "decidedAt": INSTANT,
            "appliedAt": or_null(INSTANT),
        }
    ),
    "Items": record({"items": array(ref("Item")), "after": or_null(COUNT)}),
    "AutomationEntry": record(
        {
            "auditId": COUNT,
            "automationId": COUNT,
            "runId": or_null(COUNT),
            "at": INSTANT,
            "actor": TEXT,
            "action": TEXT,
            "before": {},
            "after": {},
        }
    ),
    "AutomationAudit": record({"audit": array(ref("AutomationEntry")), "before": or_null(COUNT)}),
    "Decision": record(_DECISION),
    "Preview": record(
        {
            "decisions": array(ref("Decision")),
            "reasons": mapping(COUNT),
            "notices": array(TEXT),
            "more": FLAG,
            "problem": or_null(TEXT),
        }
    ),
    "Obstacle": record(
        {
            "precondition": words(("type", "evidence", "cap", "authority")),
            "problem": TEXT,
            "remedy": TEXT,
        }
    ),
    "Promotion": record(
        {
            "automationId": COUNT,
            "mode": words(Mode),
            "configRevision": COUNT,
            "maxChangesPerRun": COUNT,
            "evidence": or_null(_EVIDENCE),
            "obstacles": array(ref("Obstacle")),
        }
    ),
    "Declaration": record({"tenant": TEXT, "name": _NAME, "type": TEXT, **_FIELDS}, _CAPS),
    "Edit": record(
        {},
        {
            "name": or_null(_NAME),
            "type": or_null(TEXT),
            **{name: or_null(schema) for name, schema in _FIELDS.items()},
            **_CAPS,
            "revision": {
                **or_null(between(0, 2**53 - 1)),
                "description": "the one that was seen; refused if it is another by now",
            },
        },
    ),
    "Promote": record(
        {},
        {
            "evidenceRunId": {
                **or_null(between(0, 2**53 - 1)),
                "description": "the run that was seen; refused if it rests on another by now",
            }
        },
    ),
    "Nothing": record({}),
    "RunMade": record({"automationId": COUNT, "runId": COUNT}),
}


def paths() -> dict[str, Any]:
    """
    The operations.
    """
    one = parameter("automation_id", "path", between(1, HIGHEST))
    run = parameter("run_id", "path", between(1, HIGHEST))
    after = parameter("after", "query", between(0, HIGHEST))
    before = parameter("before", "query", between(0, HIGHEST))
    limit = parameter("limit", "query", between(1, limits.PAGE_ROWS))
    text = {"type": "string"}
    missing = ("404",)
    deed = "/automations/{automation_id}/"

    def of_one(method: str, operation: dict[str, Any]) -> dict[str, Any]:
        return {"parameters": [one], method: operation}

    return {
        "/automations": {
            "get": get(
                "automations by number",
                "Automations",
                [parameter("tenant", "query", text), after, limit],
            ),
            "post": _does("declare an automation", "AutomationInFull", "Declaration", code="201"),
        },
        "/automations/preview": {
            "post": _does("decide for a draft and keep nothing", "Preview", "Declaration")
        },
        "/automations/types": {"get": get("the installed types", "AutomationTypes")},
        "/automations/occurrences": {
            "get": get(
                "when a schedule comes next",
                "Occurrences",
                [
                    {**parameter("cron", "query", text), "required": True},
                    parameter("zone", "query", text),
                ],
            )
        },
        "/automations/{automation_id}": {
            "parameters": [one],
            "get": get("one automation", "AutomationInFull", more=missing),
            "patch": _does("change an automation", "AutomationInFull", "Edit"),
        },
        deed + "runs": of_one(
            "get",
            get(
                "runs of an automation, newest first",
                "Runs",
                [parameter("status", "query", words(RunStatus)), before, limit],
                missing,
            ),
        ),
        deed + "audit": of_one(
            "get",
            get("who did what to an automation", "AutomationAudit", [before, limit], missing),
        ),
        deed + "promotion": of_one(
            "get",
            get("what a promotion rests on and what stands in its way", "Promotion", None, missing),
        ),
        deed + "observe": of_one("post", _does("let it observe", "AutomationInFull")),
        deed + "promote": of_one(
            "post", _does("let it act", "AutomationInFull", "Promote", scope="promote")
        ),
        deed + "demote": of_one("post", _does("take it back to observe", "AutomationInFull")),
        deed + "enable": of_one("post", _does("switch it on", "AutomationInFull")),
        deed + "disable": of_one("post", _does("switch it off", "AutomationInFull")),
        deed + "run-now": of_one("post", _does("make a run outside the schedule", "RunMade")),
        deed + "preview": of_one("post", _does("decide now and keep nothing", "Preview")),
        "/automations/runs/{run_id}": {
            "parameters": [run],
            "get": get("one run", "Run", more=missing),
        },
        "/automations/runs/{run_id}/items": {
            "parameters": [run],
            "get": get(
                "what a run decided",
                "Items",
                [
                    parameter("verdict", "query", words(Verdict)),
                    parameter("effect", "query", words(Effect)),
                    parameter("reason", "query", text),
                    after,
                    limit,
                ],
                missing,
            ),
        },
    }


def _does(
    summary: str, answer: str, body: str = "Nothing", code: str = "200", scope: str = "operate"
) -> dict[str, Any]:
    return {
        "operationId": summary.replace(" ", "-"),
        "summary": summary,
        "description": f"Scope {scope}. What changes something is in the automation's audit.",
        "requestBody": {
            "required": body in ("Declaration", "Edit"),
            "content": {"application/json": {"schema": ref(body)}},
        },
        "responses": {code: json_answer("done", answer), **errors(WRITING)},
    }
