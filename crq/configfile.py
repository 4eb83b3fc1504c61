"""
Where the configuration comes from: TOML file, then environment, then command line.

A later source wins. Unknown names, wrong types and impossible combinations are refused with the
option's full name and a remedy; relative paths of the file are relative to the file.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attrs import Attribute, fields, has

from crq import config
from crq.config import Config, Token

ENVIRONMENT = "CRQ_"
NOT_OPTIONS = ("CRQ_CONFIG", "CRQ_TOKEN", "CRQ_APIKEY")  # read elsewhere
SEARCHED = ("crqueue.toml", "/etc/crqueue/crqueue.toml")
_PATHS = {
    ("secrets", "salt_file"),
    ("secrets", "seal_keys_file"),
    ("drainer", "lock_file"),
    ("drainer", "wake_socket"),
    ("executor", "lock_dir"),
    ("executor", "token_file"),
    ("manhole", "authorized_keys_file"),
    ("manhole", "host_key_file"),
}


class ConfigError(Exception):
    """
    The configuration cannot be used; the text is for the person who wrote it.
    """


def found(path: str | None = None, environment: Mapping[str, str] | None = None) -> str | None:
    """
    The absolute path of the TOML file that `load` reads; None: there is none.
    """
    environment = os.environ if environment is None else environment
    path = path or environment.get("CRQ_CONFIG") or next(filter(os.path.exists, SEARCHED), None)
    return None if path is None else os.path.abspath(path)


def load(
    path: str | None = None,
    environment: Mapping[str, str] | None = None,
    settings: Iterable[str] = (),
) -> Config:
    """
    Put the configuration together.

    :param path: the TOML file; None: CRQ_CONFIG, or the first of ``SEARCHED`` that exists, or none.
    :param environment: ``CRQ_SECTION_NAME`` variables (os.environ when None).
    :param settings: ``section.name=value`` from the command line.
    :raise ConfigError: with one line a person can act on.
    """
    environment = os.environ if environment is None else environment
    path = found(path, environment)
    tree: dict[str, Any] = {} if path is None else _read(Path(path))
    if path is not None:
        _anchor(tree, Path(path).parent)
    for name, text in environment.items():
        if name.startswith(ENVIRONMENT) and name not in NOT_OPTIONS:
            section, _, key = name[len(ENVIRONMENT) :].lower().partition("_")
            _put(tree, section, key, text, name)
    for setting in settings:
        full, equals, text = setting.partition("=")
        section, _, key = full.partition(".")
        if not equals:
            raise ConfigError(f"--set {setting}: write it as section.name=value")
        _put(tree, section, key, text, f"--set {full}")
    return build(tree)


def build(tree: Mapping[str, Any]) -> Config:
    """
    Make a configuration of nested mappings.

    :raise ConfigError: as in `load`.
    """
    hints = get_type_hints(Config)
    _known(tree, Config, "")
    sections: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "tokens":
            if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                raise ConfigError("tokens: write each token as a table: [[tokens]]")
            sections[name] = tuple(_section(Token, item, "tokens.") for item in value)
        else:
            if not isinstance(value, dict):
                raise ConfigError(f"{name}: is a section; write [{name}] and its options below")
            sections[name] = _section(hints[name], value, f"{name}.")
    try:
        return Config(**sections)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _section(kind: type, values: Mapping[str, Any], prefix: str) -> Any:
    _known(values, kind, prefix)
    hints = get_type_hints(kind, vars(config))
    arguments = {name: _typed(value, hints[name], prefix + name) for name, value in values.items()}
    for attribute in fields(kind):
        if attribute.name not in arguments and _required(attribute):
            raise ConfigError(f"{prefix}{attribute.name}: is missing; give it a value")
    try:
        return kind(**arguments)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _required(attribute: Attribute[Any]) -> bool:
    return repr(attribute.default) == "NOTHING"


def _known(values: Mapping[str, Any], kind: type, prefix: str) -> None:
    names = [attribute.name for attribute in fields(kind)]
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(names)}"
            raise ConfigError(f"{prefix}{name}: there is no such option; {hint}")


def _typed(value: Any, hint: Any, name: str) -> Any:
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(get_args(hint))}")
    if get_origin(hint) is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise ConfigError(f'{name}: must be a list of texts, such as ["one", "two"]')
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        if hint is float and not abs(value) < float("inf"):
            raise ConfigError(f"{name}: {value!r} is no usable number")
        return value
    wanted = {int: "a whole number", float: "a number", str: "a text in quotes"}[hint]
    raise ConfigError(f"{name}: {value!r} is not {wanted}")


def _put(tree: dict[str, Any], section: str, key: str, text: str, origin: str) -> None:
    kind = get_type_hints(Config).get(section)
    if not (isinstance(kind, type) and has(kind)):
        names = [a.name for a in fields(Config) if a.name != "tokens"]
        raise ConfigError(f"{origin}: there is no section {section!r}; known: {', '.join(names)}")
    _known({key: text}, kind, f"{section}.")
    hint = get_type_hints(kind, vars(config))[key]
    value: Any = text
    if get_origin(hint) is tuple:
        value = text.split(",") if text else []
    elif hint in (int, float):
        try:
            value = hint(text)
        except ValueError:
            raise ConfigError(f"{section}.{key} ({origin}): {text!r} is not a number") from None
    tree.setdefault(section, {})[key] = value


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def _anchor(tree: dict[str, Any], folder: Path) -> None:
    for section, key in _PATHS:
        values = tree.get(section)
        if isinstance(values, dict) and isinstance(values.get(key), str) and values[key]:
            values[key] = str(folder / values[key])
    database = tree.get("database")
    url = database.get("url") if isinstance(database, dict) else None
    if isinstance(url, str) and url.startswith("sqlite:///") and not url.startswith("sqlite:////"):
        database["url"] = f"sqlite:///{folder / url.removeprefix('sqlite:///')}"  # type: ignore[index]
