"""
Python and the packages: is what is installed what this version needs?
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement

from crq import __version__
from crq.doctor.findings import Finding, error, ok, warning

PYTHON = (3, 11)


def look() -> Iterator[Finding]:
    """
    Look at this environment.
    """
    yield python(sys.version_info[:3], platform.python_implementation())
    try:
        needed = metadata.requires("crqueue") or []
    except metadata.PackageNotFoundError:
        yield warning(
            "packages",
            "crqueue itself is not installed here; it runs out of a directory",
            "pip install . into the environment that twistd and gunicorn run in",
        )
        return
    yield packages(needed, _installed)


def python(version: tuple[int, ...], implementation: str) -> Finding:
    """
    Judge the interpreter.
    """
    text = f"{implementation} {'.'.join(map(str, version))}, crqueue {__version__}"
    if version < PYTHON:
        return error("python", text, "install Python 3.11 or newer and crqueue into it")
    return ok("python", text)


def packages(needed: Iterable[str], installed: Callable[[str], str | None]) -> Finding:
    """
    Judge the packages.

    :param needed: requirements, as the package's metadata has them.
    :param installed: tells the version of a package; None: it is missing.
    """
    wrong: list[str] = []
    count = 0
    for line in needed:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        version = installed(requirement.name)
        if version is None:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        return error("packages", "; ".join(wrong), "run pip install --upgrade crqueue there")
    return ok("packages", f"all {count} are there, none too old")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
