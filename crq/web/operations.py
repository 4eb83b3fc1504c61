"""
Pieces of the OpenAPI description: operations, their parameters and what may be answered.
"""

from __future__ import annotations

from typing import Any

from crq.web.schemas import Schema, ref

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


def get(
    summary: str,
    answer: str,
    parameters: list[dict[str, Any]] | None = None,
    more: tuple[str, ...] = (),
) -> dict[str, Any]:
    """
    A question of scope ``read``.
    """
    return {
        "operationId": summary.replace(" ", "-").replace(",", ""),
        "summary": summary,
        "parameters": parameters or [],
        "responses": {"200": json_answer("as asked", answer), **errors((*READING, *more))},
    }


def act(summary: str, answer: str, body: str, required: bool = False) -> dict[str, Any]:
    """
    An action, audited.
    """
    return {
        "operationId": f"{summary} {body} {answer}".replace(" ", "-").replace("'", ""),
        "summary": summary,
        "description": "Scope operate. Audited; asking twice changes nothing the second time.",
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": ref(body)}},
        },
        "responses": {"200": json_answer("done", answer), **errors(WRITING)},
    }


def both(put: str, delete: str) -> dict[str, Any]:
    """
    What is put, and taken back by DELETE.
    """
    return {"put": act(put, "Done", "Note"), "delete": act(delete, "Done", "Note")}


def unsigned(summary: str, answer: str, ready: bool = False) -> dict[str, Any]:
    """
    A question that needs no token.
    """
    responses = {"200": json_answer("yes", answer), **errors(("400", "429", "431", "500"))}
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


def json_answer(description: str, name: str) -> dict[str, Any]:
    """
    An answer in JSON.
    """
    return {"description": description, "content": {"application/json": {"schema": ref(name)}}}


def errors(codes: tuple[str, ...]) -> dict[str, Any]:
    """
    The problems that may be answered.
    """
    return {code: {"$ref": f"#/components/responses/{code}"} for code in sorted(set(codes))}


def parameter(name: str, place: str, schema: Schema) -> dict[str, Any]:
    """
    A parameter of the path, the query or a header.
    """
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def between(low: int, high: int) -> Schema:
    """
    A whole number of a range.
    """
    return {"type": "integer", "minimum": low, "maximum": high}
