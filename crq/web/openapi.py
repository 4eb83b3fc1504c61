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
from crq.web.door import Door, routes
from crq.web.schemas import COUNT, HASH, INSTANT, LABEL, SCHEMAS, TEXT, Schema, ref, words

ERRORS = {
    "400": "the request cannot be read",
    "401": "no known token",
    "403": "the token may not do this",
    "404": "there is no such thing",
    "409": "the state of things does not allow it",
    "413": "the body is too long",
    "415": "the body is of another kind",
    "422": "a field is not as it must be",
    "429": "too deep, or too often",
    "431": "a header is too long",
    "500": "a fault in crqueue",
    "503": "the database, or the gates' store, does not answer",
}
READING = ("400", "401", "403", "422", "429", "431", "500", "503")
WRITING = (*READING, "404", "409", "413", "415")
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
            "schemas": SCHEMAS,
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
    number = _parameter("execution_id", "path", {**COUNT, "minimum": 1, "maximum": 2**62})
    account = _parameter("name", "path", MAY_BE_HASH)
    key = _parameter("key", "path", HASH)
    return {
        "/codeRunner": {"post": _submission()},
        "/codeRunner/logs/data": {"get": _get("a page of the log", "Page", _log_query())},
        "/codeRunner/executions/{execution_id}": {
            "parameters": [number],
            "get": _get("one execution", "Execution", more=("404",)),
        },
        "/codeRunner/executions/{execution_id}/explain": {
            "parameters": [number],
            "get": _get("why it waits, and when it can start", "Explanation", more=("404",)),
        },
        "/codeRunner/executions/{execution_id}/cancel": {
            "parameters": [number],
            "post": _act("cancel what waits", "Done", "Note"),
        },
        "/codeRunner/executions/{execution_id}/run-one": {
            "parameters": [number],
            "post": _act("start it under a pause", "Done", "Note"),
        },
        "/codeRunner/executions/{execution_id}/settle": {
            "parameters": [number],
            "post": _act("say how an unknown outcome ended", "Done", "Settlement", True),
        },
        "/codeRunner/executions/cancel": {
            "post": _act("count or cancel all that fits", "Cancelled", "Cancellation")
        },
        "/status": {"get": _get("how the queue is", "Status")},
        "/accounts": {"get": _get("how each account fares", "Accounts")},
        "/drainers": {"get": _get("who drains, and what each has in flight", "Drainers")},
        "/wake": {"post": _wake()},
        "/gates": {
            "get": _get(
                "closed gates and their history",
                "Gates",
                [
                    _parameter("key", "query", HASH),
                    _parameter("before", "query", INSTANT),
                    _parameter("limit", "query", _range(1, 500)),
                ],
            )
        },
        "/gates/{key}": {
            "parameters": [key],
            "put": _act("close a gate by hand", "GateByHand", "ClosingByHand", True),
            "delete": _act("open a gate by hand", "GateByHand", "Note"),
        },
        "/series": {
            "get": _get(
                "the minutes of a span",
                "Series",
                [_parameter("since", "query", INSTANT), _parameter("until", "query", INSTANT)],
            )
        },
        "/controls": {"get": _get("what operators have set", "Controls")},
        "/controls/pause/all": _both("pause everything", "resume everything"),
        "/controls/pause/account/{name}": {
            "parameters": [account],
            **_both("pause an account", "resume an account"),
        },
        "/controls/pause/key/{key}": {
            "parameters": [key],
            **_both("pause an API key", "resume an API key"),
        },
        "/controls/cap/all": {
            "put": _act("change the cap over all", "Done", "Cap", True),
            "delete": _act("let the configured cap count", "Done", "Note"),
        },
        "/controls/cap/account/{name}": {
            "parameters": [account],
            "put": _act("change an account's cap", "Done", "Cap", True),
            "delete": _act("let the account's configured cap count", "Done", "Note"),
        },
        "/controls/drain": _both("start nothing any more", "let work start again"),
        "/audit": {
            "get": _get(
                "who did what",
                "Audit",
                [
                    _parameter("target", "query", TEXT),
                    _parameter("below", "query", {**COUNT, "maximum": 2**62}),
                    _parameter("limit", "query", _range(1, audit.PAGE_LIMIT)),
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
                    **_errors(READING),
                },
            }
        },
        "/health/live": {"get": _open("this process answers", "Live")},
        "/health/ready": {"get": _open("this process starts work", "Ready", ready=True)},
        "/health/verdict": {"get": _open("503 while the queue is stalled", "Word", ready=True)},
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
                    **_errors(("400", "431", "500")),
                },
            }
        },
    }


def _submission() -> dict[str, Any]:
    body = {"schema": ref("Submission")}
    return {
        "operationId": "submit",
        "summary": "admit one execution",
        "parameters": [
            {
                **_parameter("Idempotency-Key", "header", IDEMPOTENCY),
                "description": "a repetition with the same key finds the first",
            },
            {
                **_parameter("traceparent", "header", {"type": "string"}),
                "description": "W3C Trace Context; kept, and sent on to the executor",
            },
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": body, "application/x-www-form-urlencoded": body},
        },
        "responses": {
            "202": _json("queued", "Admitted"),
            "200": _json("admitted before", "Admitted"),
            **_errors((*READING, "413", "415")),
        },
    }


def _wake() -> dict[str, Any]:
    return {
        "operationId": "wake",
        "summary": "look for work now",
        "description": "Scope admit. For those who insert rows by SQL: without it they are found"
        " within drainer.tick. Any number of calls make one look at a time.",
        "responses": {"200": _json("it looks", "Woken"), **_errors(READING)},
    }


def _log_query() -> list[dict[str, Any]]:
    return [
        _parameter("subdomain", "query", LABEL),
        _parameter("account", "query", HASH),
        _parameter("key", "query", HASH),
        _parameter("status", "query", words(Status)),
        _parameter("shown", "query", words(SHOWN)),
        _parameter("errorCode", "query", _range(0, 99_999)),
        _parameter("since", "query", INSTANT),
        _parameter("until", "query", INSTANT),
        _parameter("limit", "query", _range(1, records.PAGE_LIMIT)),
        _parameter("cursor", "query", TEXT),
    ]


def _get(
    summary: str,
    answer: str,
    parameters: list[dict[str, Any]] | None = None,
    more: tuple[str, ...] = (),
) -> dict[str, Any]:
    return {
        "operationId": summary.replace(" ", "-").replace(",", ""),
        "summary": summary,
        "parameters": parameters or [],
        "responses": {"200": _json("as asked", answer), **_errors((*READING, *more))},
    }


def _act(summary: str, answer: str, body: str, required: bool = False) -> dict[str, Any]:
    return {
        "operationId": f"{summary} {body} {answer}".replace(" ", "-").replace("'", ""),
        "summary": summary,
        "description": "Scope operate. Audited; asking twice changes nothing the second time.",
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": ref(body)}},
        },
        "responses": {"200": _json("done", answer), **_errors(WRITING)},
    }


def _both(put: str, delete: str) -> dict[str, Any]:
    return {"put": _act(put, "Done", "Note"), "delete": _act(delete, "Done", "Note")}


def _open(summary: str, answer: str, ready: bool = False) -> dict[str, Any]:
    responses = {"200": _json("yes", answer), **_errors(("400", "429", "431", "500"))}
    if ready:
        responses["503"] = {
            "description": "no, or nobody can tell",
            "content": {
                "application/json": {"schema": ref(answer)},
                "application/problem+json": {"schema": ref("Problem")},
            },
        }
    return {
        "operationId": summary.replace(" ", "-"),
        "summary": summary,
        "security": [],
        "responses": responses,
    }


def _json(description: str, name: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": ref(name)}}}


def _errors(codes: tuple[str, ...]) -> dict[str, Any]:
    return {code: {"$ref": f"#/components/responses/{code}"} for code in sorted(set(codes))}


def _parameter(name: str, place: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _range(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}
