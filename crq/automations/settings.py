"""
The configuration of an automation: declared by its type, checked when it is saved, sealed at rest.

A type's `settings` is a frozen attrs class whose fields are made by `setting`; a mapping from
outside becomes an instance of it, or an `Unfit` that names the field. A secret field is stored as
``{"sealed": …}`` and opened only to be handed to the type.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from attrs import NOTHING, Attribute, field, fields, frozen
from cattrs import Converter

from crq.automations import limits
from crq.automations.model import Json, Unfit

SEALED: Final = "sealed"
_WANTED: Final = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def setting(
    default: Any,
    meaning: str,
    check: Callable[[Any], str | None] | None = None,
    secret: bool = False,
) -> Any:
    """
    Declare a field of a type's settings.

    :param default: `attrs.NOTHING` for a field that must be given.
    :param meaning: shown to whoever fills it in.
    :param check: says what is wrong with a value and what to do about it, or None.
    :param secret: a text that is sealed at rest and never shown.
    """

    def validate(_instance: object, attribute: Attribute[Any], value: Any) -> None:
        problem = check(value) if check is not None else None
        if problem is not None:
            raise Unfit(attribute.name, problem)

    return field(
        default=default,
        metadata={"meaning": meaning, "secret": secret},
        validator=validate,
        repr=not secret,
        kw_only=True,
    )


@frozen
class Described:
    """
    A field of a type's settings, for people.

    :ivar choices: the values there are; none: any of its kind.
    """

    name: str
    kind: str
    default: Json
    required: bool
    meaning: str
    secret: bool
    choices: tuple[Json, ...] = ()


def described(kind: type) -> tuple[Described, ...]:
    """
    What a type's settings are.
    """
    hints = get_type_hints(kind)
    return tuple(
        Described(
            name=attribute.name,
            kind=_wanted(hints[attribute.name]),
            default=None if attribute.default is NOTHING else attribute.default,
            required=attribute.default is NOTHING,
            meaning=attribute.metadata.get("meaning", ""),
            secret=bool(attribute.metadata.get("secret")),
            choices=_choices(hints[attribute.name]),
        )
        for attribute in fields(kind)
    )


def structured(kind: type, given: object, unseal: Callable[[str], str]) -> Any:
    """
    Make an instance of a type's settings.

    :param unseal: opens a sealed secret.
    :raise Unfit: a field is missing, unknown or not as it must be.
    """
    if not isinstance(given, Mapping):
        raise Unfit("config", "is no JSON object", 'write {"name": value, …}')
    declared = {attribute.name: attribute for attribute in fields(kind)}
    for name in given:
        if name not in declared:
            near = difflib.get_close_matches(str(name), declared, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(declared) or 'none'}"
            raise Unfit(str(name), "there is no such setting", hint)
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, attribute in declared.items():
        if name in given:
            value = given[name]
            if attribute.metadata.get("secret"):
                values[name] = _opened(name, value, unseal)
            else:
                values[name] = _typed(name, value, hints[name])
        elif attribute.default is NOTHING:
            raise Unfit(name, "is missing", attribute.metadata.get("meaning", "give it a value"))
    return kind(**values)


def sealed(
    kind: type,
    given: Mapping[str, Json],
    seal: Callable[[str], str],
    unseal: Callable[[str], str],
) -> dict[str, Json]:
    """
    The configuration as it is stored: what is secret, sealed; what is sealed, as it is.

    :raise Unfit: it is not what `structured` takes, or too long.
    """
    structured(kind, given, unseal)
    found = dict(given)
    for attribute in fields(kind):
        value = found.get(attribute.name)
        if attribute.metadata.get("secret") and isinstance(value, str):
            found[attribute.name] = {SEALED: seal(value)}
    size = len(json.dumps(found))
    if size > limits.CONFIG_BYTES:
        raise Unfit("config", f"has {size} bytes", f"make it at most {limits.CONFIG_BYTES}")
    return found


def shown(config: Mapping[str, Json]) -> dict[str, Json]:
    """
    A stored configuration, for people: secrets are hidden.
    """
    return {name: "(sealed)" if _is_sealed(value) else value for name, value in config.items()}


def only_sealed(config: Mapping[str, Json]) -> dict[str, Json]:
    """
    The sealed secrets of a stored configuration.
    """
    return {name: value for name, value in config.items() if _is_sealed(value)}


def _is_sealed(value: Json) -> bool:
    return isinstance(value, Mapping) and set(value) == {SEALED} and isinstance(value[SEALED], str)


def secrets(kind: type, config: object) -> tuple[str, ...]:
    """
    The secrets in an instance of settings: what no message may repeat.
    """
    return tuple(
        value
        for attribute in fields(kind)
        if attribute.metadata.get("secret") and (value := getattr(config, attribute.name))
    )


def _choices(hint: Any) -> tuple[Json, ...]:
    if hint is bool:
        return (True, False)
    return get_args(hint) if get_origin(hint) is Literal else ()


def _opened(name: str, value: object, unseal: Callable[[str], str]) -> str:
    if _is_sealed(value):
        return unseal(value[SEALED])  # type: ignore[index]
    if not isinstance(value, str) or not value:
        raise Unfit(name, "is no text", "give the secret itself; it is sealed before it is stored")
    return _unicode(name, value)


def _typed(name: str, value: object, hint: Any) -> Any:
    if get_origin(hint) is Literal:
        if value in get_args(hint) and type(value) in {type(one) for one in get_args(hint)}:
            return value
        raise Unfit(name, f"{_shown(value)} is not {_wanted(hint)}", "choose one of them")
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise Unfit(name, "is beyond any float", "give a smaller number") from None
    if hint is str and type(value) is str:
        return _unicode(name, value)
    if hint in _WANTED:
        # cattrs would take "7" for 7 and True for 1.
        if type(value) is hint:
            return value
        raise Unfit(name, f"{_shown(value)} is not {_wanted(hint)}", f"give {_wanted(hint)}")
    if get_origin(hint) is tuple and get_args(hint)[1:] == (Ellipsis,):
        if isinstance(value, list):
            return tuple(_typed(name, each, get_args(hint)[0]) for each in value)
        raise Unfit(name, f"{_shown(value)} is not {_wanted(hint)}", "write [value, …]")
    try:
        return _CONVERTER.structure(value, hint)
    except Exception:  # noqa: BLE001 - cattrs raises what the hint's own class raises
        raise Unfit(name, f"{_shown(value)} is not {_wanted(hint)}", "see its meaning") from None


def _unicode(name: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # JSON may spell half a surrogate pair; nothing seals it, and no parser takes it.
        raise Unfit(name, "is not valid Unicode", "remove the lone surrogate") from None
    return text


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(json.dumps(one) for one in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list of {_wanted(get_args(hint)[0]).split(' ', 1)[-1]}s"
    return _WANTED.get(hint, getattr(hint, "__name__", str(hint)))


_CONVERTER = Converter(forbid_extra_keys=True)
