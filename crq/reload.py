"""
What a configuration that was read again changes, and what it cannot change before a restart; pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import evolve, fields, frozen

from crq.config import Config

RELOADED = ("limits", "log")  # sections that change while the daemon runs


@frozen
class Change:
    """
    One option that is different now.
    """

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name} {self.old} -> {self.new}"


@frozen
class Difference:
    """
    What became of a configuration that was read again.

    :ivar config: what is in force from now on.
    :ivar changes: options that have changed; none of them is a secret.
    :ivar waiting: names of options that are different in the file and need a restart. Only names:
        some of their values are secret.
    """

    config: Config
    changes: tuple[Change, ...]
    waiting: tuple[str, ...]


def difference(running: Config, read: Config) -> Difference:
    """
    Compare what is in force with what has been read.
    """
    changes: list[Change] = []
    waiting: list[str] = []
    for name, old, new in _differing(running, read):
        if name.partition(".")[0] in RELOADED:
            changes.append(Change(name, old, new))
        else:
            waiting.append(name)
    in_force = evolve(running, **{section: getattr(read, section) for section in RELOADED})
    return Difference(in_force, tuple(changes), tuple(waiting))


def _differing(running: Config, read: Config) -> Iterator[tuple[str, Any, Any]]:
    for section in fields(Config):
        old, new = getattr(running, section.name), getattr(read, section.name)
        if isinstance(old, tuple):
            if old != new:
                yield section.name, old, new
            continue
        for option in fields(type(old)):
            values = getattr(old, option.name), getattr(new, option.name)
            if values[0] != values[1]:
                yield f"{section.name}.{option.name}", *values
