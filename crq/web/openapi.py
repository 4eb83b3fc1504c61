"""
``GET /openapi.json``: the HTTP door described in OpenAPI 3.1. A test holds it to the routes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from twisted.web.iweb import IRequest

from crq import __version__, audit, records
from crq.model import Status
from crq.search import SHOWN
from crq.web.answers import Reply
from crq.web.automations import described
from crq.web.door import Door, routes
from crq.web.operations import (
    ERRORS,
    READING,
    act,
    between,
    both,
    errors,
    get,
    json_answer,
    parameter,
    unsigned,
)
from crq.web.schemas import COUNT, HASH, INSTANT, LABEL, SCHEMAS, TEXT, Schema, ref, words

IDEMPOTENCY: Schema = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$"}
MAY_BE_HASH: Schema = {"anyOf": [LABEL, HASH]}


@routes.route("/openapi.json", methods=["GET"])
def openapi(door: Door, request: IRequest) -> bytes:
    """
    The description itself; it tells nothing about anybody, so it needs no token.
    """
    return door.reply(request, Reply(200, document()))


@cache
def document() -> dict[str, Any]:
    """
    The description.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "crqueue",
            "version": __version__,
            "license": {"name": "MIT", "identifier": "MIT"},
            "description": "Admission to a durable dispatch queue, its log, and its controls.",
        },
        "security": [{"bearer": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {**SCHEMAS, **described.SCHEMAS},
            "responses": {
                code: {
                    "description": text,
                    "content": {"application/problem+json": {"schema": ref("Problem")}},
                }
                for code, text in ERRORS.items()
            },
        },
    }


def _paths() -> dict[str, Any]:
    number = parameter("execution_id", "path", {**COUNT, "minimum": 1, "maximum": 2**62})
    account = parameter("name", "path", MAY_BE_HASH)
    key = parameter("key", "path", HASH)
    return {
        "/codeRunner": {"post": _submission()},
        "/codeRunner/logs/data": {"get": get("a page of the log", "Page", _log_query())},
        "/codeRunner/executions/{execution_id}": {
            "parameters": [number],
            "get": get("one execution", "Execution", more=("404",)),
        },
        "/codeRunner/executions/{execution_id}/explain": {
            "parameters": [number],
            "get": get("why it waits, and when it can start", "Explanation", more=("404",)),
        },
        "/codeRunner/executions/{execution_id}/cancel": {
            "parameters": [number],
            "post": act("cancel what waits", "Done", "Note"),
        },
        "/codeRunner/executions/{execution_id}/run-one": {
            "parameters": [number],
            "post": act("start it under a pause", "Done", "Note"),
        },
        "/codeRunner/executions/{execution_id}/settle": {
            "parameters": [number],
            "post": act("say how an unknown outcome ended", "Done", "Settlement", True),
        },
        "/codeRunner/executions/cancel": {
            "post": act("count or cancel all that fits", "Cancelled", "Cancellation")
        },
        "/status": {"get": get("how the queue is", "Status")},
        "/accounts": {"get": get("how each account fares", "Accounts")},
        "/drainers": {"get": get("who drains, and what each has in flight", "Drainers")},
        "/wake": {"post": _wake()},
        "/gates": {
            "get": get(
                "closed gates and their history",
                "Gates",
                [
                    parameter("key", "query", HASH),
                    parameter("before", "query", INSTANT),
                    parameter("limit", "query", between(1, 500)),
                ],
            )
        },
        "/gates/{key}": {
            "parameters": [key],
            "put": act("close a gate by hand", "GateByHand", "ClosingByHand", True),
            "delete": act("open a gate by hand", "GateByHand", "Note"),
        },
        "/series": {
            "get": get(
                "the minutes of a span",
                "Series",
                [parameter("since", "query", INSTANT), parameter("until", "query", INSTANT)],
            )
        },
        "/controls": {"get": get("what operators have set", "Controls")},
        "/controls/pause/all": both("pause everything", "resume everything"),
        "/controls/pause/account/{name}": {
            "parameters": [account],
            **both("pause an account", "resume an account"),
        },
        "/controls/pause/key/{key}": {
            "parameters": [key],
            **both("pause an API key", "resume an API key"),
        },
        "/controls/cap/all": {
            "put": act("change the cap over all", "Done", "Cap", True),
            "delete": act("let the configured cap count", "Done", "Note"),
        },
        "/controls/cap/account/{name}": {
            "parameters": [account],
            "put": act("change an account's cap", "Done", "Cap", True),
            "delete": act("let the account's configured cap count", "Done", "Note"),
        },
        "/controls/drain": both("start nothing any more", "let work start again"),
        "/audit": {
            "get": get(
                "who did what",
                "Audit",
                [
                    parameter("target", "query", TEXT),
                    parameter("below", "query", {**COUNT, "maximum": 2**62}),
                    parameter("limit", "query", between(1, audit.PAGE_LIMIT)),
                ],
            )
        },
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "what Prometheus scrapes",
                "responses": {
                    "200": {
                        "description": "text format",
                        "content": {"text/plain": {"schema": TEXT}},
                    },
                    **errors(READING),
                },
            }
        },
        "/health/live": {"get": unsigned("this process answers", "Live")},
        "/health/ready": {"get": unsigned("this process starts work", "Ready", ready=True)},
        "/health/verdict": {"get": unsigned("503 while the queue is stalled", "Word", ready=True)},
        "/openapi.json": {
            "get": {
                "operationId": "openapi",
                "summary": "this description",
                "security": [],
                "responses": {
                    "200": {
                        "description": "OpenAPI 3.1",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                    **errors(("400", "431", "500")),
                },
            }
        },
        **described.paths(),
    }


def _submission() -> dict[str, Any]:
    body = {"schema": ref("Submission")}
    return {
        "operationId": "submit",
        "summary": "admit one execution",
        "parameters": [
            {
                **parameter("Idempotency-Key", "header", IDEMPOTENCY),
                "description": "a repetition with the same key finds the first",
            },
            {
                **parameter("traceparent", "header", {"type": "string"}),
                "description": "W3C Trace Context; kept, and sent on to the executor",
            },
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": body, "application/x-www-form-urlencoded": body},
        },
        "responses": {
            "202": json_answer("queued", "Admitted"),
            "200": json_answer("admitted before", "Admitted"),
            **errors((*READING, "413", "415")),
        },
    }


def _wake() -> dict[str, Any]:
    return {
        "operationId": "wake",
        "summary": "look for work now",
        "description": "Scope admit. For those who insert rows by SQL: without it they are found"
        " within drainer.tick. Any number of calls make one look at a time.",
        "responses": {"200": json_answer("it looks", "Woken"), **errors(READING)},
    }


def _log_query() -> list[dict[str, Any]]:
    return [
        parameter("subdomain", "query", LABEL),
        parameter("account", "query", HASH),
        parameter("key", "query", HASH),
        parameter("status", "query", words(Status)),
        parameter("shown", "query", words(SHOWN)),
        parameter("errorCode", "query", between(0, 99_999)),
        parameter("since", "query", INSTANT),
        parameter("until", "query", INSTANT),
        parameter("limit", "query", between(1, records.PAGE_LIMIT)),
        parameter("cursor", "query", TEXT),
    ]
