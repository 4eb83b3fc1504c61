"""
What a check has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum

from attrs import frozen


class Severity(IntEnum):
    """
    How bad it is.

    OK: as it should be. NOTE: worth knowing, or not to be seen from here. WARNING: works, and will
    cost something some day. ERROR: executions stand still, or what was promised does not hold.
    """

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """
        As it is shown.
        """
        return self.name.lower()


@frozen
class Finding:
    """
    One check: what was found, and what is to be done if it is not in order.
    """

    name: str
    severity: Severity
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    """
    In order.
    """
    return Finding(name, Severity.OK, found)


def note(name: str, found: str, remedy: str = "") -> Finding:
    """
    Worth knowing.
    """
    return Finding(name, Severity.NOTE, found, remedy)


def warning(name: str, found: str, remedy: str) -> Finding:
    """
    Will cost something some day.
    """
    return Finding(name, Severity.WARNING, found, remedy)


def error(name: str, found: str, remedy: str) -> Finding:
    """
    Does not work, or breaks a promise.
    """
    return Finding(name, Severity.ERROR, found, remedy)


def worst(findings: Iterable[Finding]) -> Severity:
    """
    The worst of them; OK when there are none.
    """
    return max((finding.severity for finding in findings), default=Severity.OK)


def exit_code(findings: Iterable[Finding]) -> int:
    """
    0: nothing worse than a note. 1: a warning. 2: an error.
    """
    return max(0, worst(findings) - Severity.NOTE)


def guarded(name: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """
    Look, and make a finding of whatever keeps us from it: one blind eye must not close the others.
    """
    found: list[Finding] = []
    try:
        for finding in look():
            found.append(finding)  # what was seen before the fault counts
    except Exception as fault:  # noqa: BLE001 - the boundary of one group of checks
        text = f"could not be looked at: {type(fault).__name__}: {fault}"
        remedy = "see that the user who runs crq doctor may read it"
        found.append(error(name, text, remedy))
    return found
