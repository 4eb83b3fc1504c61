"""
Writes docs/configuration.md from `crq.config`, so that it says what is true.

    python scripts/configuration.py          print it
    python scripts/configuration.py --write  write it
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from attrs import NOTHING, Factory, fields

from crq import config
from crq.config import Config, Token

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
HEAD = """\
# Configuration

Three sources, the later one wins: a TOML file (`--config`, or `$CRQ_CONFIG`, `./crqueue.toml`,
`/etc/crqueue/crqueue.toml`), the environment (`CRQ_SECTION_NAME`, lists separated by commas), the
command line (`--set section.name=value`, as often as needed). Relative paths in a file are relative
to that file. An unknown name, a wrong type or an impossible combination is refused with the
option's name and a remedy; `crq config check` tells before a start does, and `crq config show`
prints what is in force, without secrets.

This page is made from the code by `scripts/configuration.py`; a test keeps them together.
"""


def text() -> str:
    """
    The page.
    """
    parts = [HEAD]
    hints = get_type_hints(Config)
    for attribute in fields(Config):
        kind = Token if attribute.name == "tokens" else hints[attribute.name]
        name = "[[tokens]]" if kind is Token else f"[{attribute.name}]"
        about = " ".join((kind.__doc__ or "").split())
        parts.append(f"## {name}\n\n{about}\n\n| option | default | meaning |\n|---|---|---|\n")
        kinds = get_type_hints(kind, vars(config))
        parts[-1] += "".join(_row(option, kinds[option.name]) for option in fields(kind))
    return "\n".join(parts)


def _row(option: Any, hint: Any) -> str:
    meaning = option.metadata.get("meaning", "who it belongs to, for logs")
    if get_origin(hint) is not None and get_args(hint) and "Literal" in str(hint):
        meaning += f" ({' or '.join(f'`{value}`' for value in get_args(hint))})"
    if option.default is NOTHING:
        default = "required"
    elif isinstance(option.default, type(Factory(list))):
        default = "the host's name"
    else:
        default = f"`{_toml(option.default)}`"
    return f"| `{option.name}` | {default} | {meaning.replace('|', chr(92) + '|')} |\n"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(text(), "utf-8")
    else:
        print(text())
