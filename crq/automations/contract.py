"""
Pure: what a type must keep to in a chunk; whoever breaks it ends the run.

# Note [Cursors]

A type that says "more" for ever with cursors it has given before would never end. Comparing each
cursor with one earlier one, which moves on at distances of 1, 2, 4, … chunks (Brent), finds every
cycle within three times its length, and needs one remembered cursor. A cursor that counts for ever
is ended by `limits.CHUNKS_PER_RUN`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from crq.automations import limits
from crq.automations.model import Chunk, Decision, Guard, Json, Verdict
from crq.sealing import sha256_hex

BEGINNING: Final = "null"  # the cursor of a first chunk, as it is stored


class BadChunk(Exception):
    """
    A type broke its contract; the text says how. The run ends.
    """


def check_chunk(chunk: object, limit: int, subject_types: Collection[str]) -> Chunk:
    """
    Make sure that a chunk is what was asked for.

    :raise BadChunk: it is not.
    """
    if not isinstance(chunk, Chunk):
        raise BadChunk(f"evaluate returned {type(chunk).__name__} instead of a Chunk")
    if len(chunk.decisions) > limit:
        raise BadChunk(f"evaluate returned {len(chunk.decisions)} decisions, asked for {limit}")
    seen = set()
    for decision in chunk.decisions:
        _check_decision(decision, subject_types)
        seen.add((decision.subject_type, decision.subject_id))
    if len(seen) != len(chunk.decisions):
        raise BadChunk("evaluate decided about one subject twice in one chunk")
    if not isinstance(chunk.has_more, bool):
        raise BadChunk("has_more is neither True nor False")
    if not all(isinstance(notice, str) for notice in chunk.notices):
        raise BadChunk("a notice is no text")
    return chunk


def _check_decision(decision: object, subject_types: Collection[str]) -> None:
    if not isinstance(decision, Decision):
        raise BadChunk(f"a decision is a {type(decision).__name__}")
    subject = decision.subject_id
    if decision.subject_type not in subject_types:
        raise BadChunk(f"decided about {decision.subject_type!r}, which is no subject of this type")
    if not isinstance(subject, str) or not 1 <= len(subject) <= limits.SUBJECT_CHARACTERS:
        raise BadChunk(f"a subject's id is a text of 1 to {limits.SUBJECT_CHARACTERS} characters")
    # Databases take a trailing blank for none, and then two subjects for one.
    if not subject.isprintable() or subject != subject.strip():
        raise BadChunk(f"subject {subject!r} has control characters, or blanks around it")
    if not isinstance(decision.verdict, Verdict):
        raise BadChunk(f"the verdict of {subject!r} is neither approved nor declined")
    reason = decision.reason
    if not isinstance(reason, str) or not 1 <= len(reason) <= limits.REASON_CHARACTERS:
        raise BadChunk(f"a reason is a text of 1 to {limits.REASON_CHARACTERS} characters")
    if not isinstance(decision.intent, Mapping):
        raise BadChunk(f"the intent of {subject!r} is no mapping")
    json_text(dict(decision.intent), "an intent", limits.INTENT_BYTES)


def json_text(value: Json, what: str, limit: int = limits.CURSOR_BYTES) -> str:
    """
    A value as JSON text that comes back as the same value.

    :raise BadChunk: it cannot, or is too long.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=True, sort_keys=True)
        same = json.loads(text) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise BadChunk(f"{what} is not JSON: {str(error)[:200]}") from None
    if len(text) > limit:
        raise BadChunk(f"{what} has {len(text)} bytes of JSON; {limit} are allowed")
    if not same:
        # A tuple comes back as a list, the key 1 as the key "1".
        raise BadChunk(f"{what} does not come back from JSON as the same value")
    return text


def moved(guard: Guard, before: str, after: str) -> Guard:
    """
    Note that a run's cursor has moved (see note [Cursors]).

    :param before: the cursor the chunk began at, as JSON text; so ``after``.
    :raise BadChunk: it has not, or it has been there before.
    """
    mark = sha256_hex(after)
    if after == before:
        raise BadChunk("there is more, but the cursor has not moved")
    if mark == guard.anchor:
        raise BadChunk("there is more, but the cursor is back where it has been before")
    steps = guard.steps + 1
    return (
        Guard(mark, 0, guard.power * 2)
        if steps == guard.power
        else Guard(guard.anchor, steps, guard.power)
    )


def first_guard() -> Guard:
    """
    The guard of a run that has not begun.
    """
    return Guard(sha256_hex(BEGINNING))
