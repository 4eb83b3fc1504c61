"""
The automation types that are installed: those that ship, and those that others have written.

Others are found as Twisted plugins (a module in ``twisted/plugins/`` with an object that provides
`IAutomation`) and by entry point (group ``crqueue.automations``, an object or a class without
arguments). One that is broken is left out and named in `faults`: it must not keep the daemon from
starting, and runs of it say that their type is not installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any, Final

from attrs import has
from twisted.plugin import getPlugins
from zope.interface.exceptions import Invalid
from zope.interface.verify import verifyObject

from crq.automations.interfaces import IAutomation
from crq.automations.model import Unfit

GROUP: Final = "crqueue.automations"
_WORD = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Types:
    """
    The installed types by name; the first of a name wins.

    :ivar faults: what was left out, and why.
    """

    def __init__(self, *groups: Iterable[Any], faults: Iterable[str] = ()) -> None:
        self._types: dict[str, Any] = {}
        found = list(faults)
        for one in (one for group in groups for one in group):
            problem = broken(one)
            if problem is None and one.name in self._types:
                problem = f"{one.name}: there is another type of this name"
            if problem is None:
                self._types[one.name] = one
            else:
                found.append(problem)
        self.faults = tuple(found)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._types.values())

    def get(self, name: str) -> Any | None:
        """
        A type by its name; None: it is not installed.
        """
        return self._types.get(name)

    def known(self, name: str) -> Any:
        """
        A type that somebody asks for.

        :raise Unfit: it is not installed.
        """
        found = self._types.get(name)
        if found is None:
            names = ", ".join(sorted(self._types)) or "none"
            raise Unfit("type", f"{name!r} is not installed", f"installed: {names}")
        return found


def discover() -> tuple[list[Any], list[str]]:
    """
    Look for the types that others have written; returns them and what went wrong.
    """
    found: list[Any] = list(getPlugins(IAutomation))
    faults: list[str] = []
    for point in entry_points(group=GROUP):
        try:
            loaded = point.load()
            found.append(loaded() if isinstance(loaded, type) else loaded)
        except Exception as error:  # noqa: BLE001 - somebody else's module
            faults.append(f"{point.value}: {type(error).__name__}: {error}")
    return found, faults


def broken(one: Any) -> str | None:
    """
    What is wrong with an automation type, or None.
    """
    called = getattr(one, "name", type(one).__name__)
    try:
        verifyObject(IAutomation, one)
    except Invalid as error:
        return f"{called}: {' '.join(str(error).split())}"
    if not isinstance(one.name, str) or _WORD.fullmatch(one.name) is None:
        return f"{called!r}: a name is lower-case letters, digits and underscores"
    if not (isinstance(one.settings, type) and has(one.settings)):
        return f"{called}: settings is no attrs class"
    subjects = one.subject_types
    if not isinstance(subjects, tuple) or not subjects or not all(map(_WORD.fullmatch, subjects)):
        return f"{called}: subject_types is a tuple of words such as ('invoice',)"
    if not isinstance(one.acts, bool) or not isinstance(one.repeatable, bool):
        return f"{called}: acts and repeatable are True or False"
    return None
