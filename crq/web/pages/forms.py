"""
The form of an automation: its fields, made of what its type's settings are, and read back; pure.

A field that is left empty is not given: its default counts, and a sealed secret stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from crq.automations import limits, settings
from crq.automations.model import Automation, Json
from crq.automations.settings import Described
from crq.submissions import Refusal

SETTING = "s."  # before the name of a setting: a type may have one called like a field of ours
TEXT = "a text"
MOST_ROWS = 24  # of a field for a script
DEFAULTS = {"cron": "0 3 * * *", "zone": "UTC"}
WHOLE = ("maxItemsPerRun", "maxChangesPerRun")


@frozen
class Field:
    """
    One field of the form.

    :ivar look: ``line``, ``text``, ``secret`` or ``choice``.
    :ivar value: the text in it; of a secret, nothing.
    :ivar problem: what is wrong with it, and the remedy.
    """

    name: str
    label: str
    look: str
    value: str
    hint: str
    required: bool = False
    choices: tuple[str, ...] = ()
    rows: int = 1
    problem: str | None = None


def fields(
    kind: Any,
    form: Mapping[str, str],
    before: Automation | None = None,
    refused: Refusal | None = None,
) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """
    The automation's own fields, and those of its type's settings.

    :param form: what was typed already; empty: what is stored.
    :param before: the automation that is edited; None: a new one.
    :param refused: why the form was not taken.
    """
    problem = None if refused is None else f"{refused.problem}; {refused.remedy}"
    described = settings.described(kind.settings)
    at = None if refused is None else _place(refused.field, described)
    stored = _stored(before)

    def own(name: str, label: str, hint: str, required: bool = True) -> Field:
        value = form.get(name, stored.get(name, ""))
        return Field(
            name, label, "line", value, hint, required, problem=problem if at == name else None
        )

    cap_items, cap_changes = limits.MAX_ITEMS_CEILING, limits.MAX_CHANGES_CEILING
    empty = (f"; empty: {limits.MAX_ITEMS:,}", f"; empty: {limits.MAX_CHANGES}")
    empty = empty if before is None else ("", "")
    tenant = () if before is not None else (own("tenant", "Account", "its subdomain"),)
    mine = (
        *tenant,
        own("name", "Name", f"at most {limits.NAME_CHARACTERS} characters"),
        own(
            "cron",
            "Schedule",
            "minute, hour, day of month, month, day of week; Debian cron's rules",
        ),
        own("zone", "Zone", "IANA name, such as Europe/Berlin"),
        own(WHOLE[0], "Records a run", f"at most {cap_items:,}" + empty[0], False),
        own(
            WHOLE[1],
            "Changes a live run",
            f"at most {cap_changes:,}" + empty[1],
            False,
        ),
        own("owner", "Owner", "whom to ask about it", False),
    )
    config = {} if before is None else before.config
    theirs = tuple(
        _setting(one, form, config, problem if at == SETTING + one.name else None)
        for one in described
    )
    return mine, theirs


def elsewhere(kind: Any, refused: Refusal) -> bool:
    """
    Whether a refusal is about no field of the form.
    """
    return _place(refused.field, settings.described(kind.settings)) is None


def given(kind: Any, form: Mapping[str, str]) -> dict[str, Json]:
    """
    What a form gives for an automation, by the desk's names.
    """
    found: dict[str, Json] = {
        name: form.get(name, "").strip() for name in ("name", "cron", "zone", "owner")
    }
    for name, inside in zip(WHOLE, ("max_items_per_run", "max_changes_per_run"), strict=True):
        text = form.get(name, "").strip()
        found[inside] = (int(text) if _digits(text) else text) if text else None
    found["config"] = {
        one.name: _value(one, text)
        for one in settings.described(kind.settings)
        if (text := form.get(SETTING + one.name, "").replace("\r\n", "\n")).strip()
    }
    return found


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _value(one: Described, text: str) -> Json:
    if one.secret:
        return text.strip("\n")
    if one.choices:
        return next((each for each in one.choices if _word(each) == text), text)
    if one.kind == TEXT:
        return text if "\n" in text else text.strip()
    try:
        return json.loads(text)
    except ValueError:
        return text  # the desk says what it should have been


def _setting(
    one: Described, form: Mapping[str, str], config: Mapping[str, Json], problem: str | None
) -> Field:
    stored = config.get(one.name)
    name = SETTING + one.name
    if one.secret:
        kept = one.name in config
        hint = f"{one.meaning}; " + (
            "empty: it stays as it is" if kept else "sealed when it is saved"
        )
        return Field(name, one.name, "secret", "", hint, one.required and not kept, problem=problem)
    value = form.get(name, "" if stored is None else _text(one, stored))
    hint = one.meaning
    if not one.required:
        hint += f"; empty: {_word(one.default) or 'empty'}"
    if one.choices:
        words = tuple(map(_word, one.choices))
        return Field(name, one.name, "choice", value, hint, one.required, words, problem=problem)
    lines = value.count("\n") + 1
    return Field(
        name,
        one.name,
        "text" if one.kind == TEXT else "line",
        value,
        hint if one.kind == TEXT else f"{hint} ({one.kind})",
        one.required,
        rows=min(MOST_ROWS, lines + 1 if lines > 1 else 1),
        problem=problem,
    )


def _stored(before: Automation | None) -> Mapping[str, str]:
    if before is None:
        return DEFAULTS
    return {
        "name": before.name,
        "cron": before.cron,
        "zone": before.zone,
        "owner": before.owner,
        "maxItemsPerRun": str(before.max_items_per_run),
        "maxChangesPerRun": str(before.max_changes_per_run),
    }


def _place(field: str, described: tuple[Described, ...]) -> str | None:
    if field in ("tenant", "name", "cron", "zone", "owner", *WHOLE):
        return field
    return SETTING + field if any(one.name == field for one in described) else None


def _text(one: Described, value: Json) -> str:
    return (
        _word(value) if one.kind == TEXT or one.choices else json.dumps(value, ensure_ascii=False)
    )


def _word(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=list)
