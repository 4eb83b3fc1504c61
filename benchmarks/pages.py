"""
Sections of a page that a command writes, between two markers; what stands around them is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

RELIABILITY = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"


def put(section: str, text: str, page: Path = RELIABILITY) -> None:
    """
    Replace a section's text.

    :raise ValueError: the page does not have its markers, once and in order.
    """
    before, begin, rest = page.read_text("utf-8").partition(f"<!-- {section}: begin -->\n")
    _, end, after = rest.partition(f"<!-- {section}: end -->")
    if not begin or not end:
        raise ValueError(f"{page.name} has no markers of the section {section!r}; add both of them")
    page.write_text(f"{before}{begin}{text.strip()}\n{end}{after}", "utf-8")


def figures(report: Mapping[str, Any]) -> str:
    """
    A report's figures as a table, with when and on what it was made.
    """
    lines = ["| figure | value | unit |", "|---|---|---|"]
    lines += (
        f"| {name.replace('_', ' ')} | {figure['value']:,} | {figure['unit']} |"
        for name, figure in report["figures"].items()
    )
    box = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines += ["", f"{report['at'][:10]}, {box['cores']} cores of {box['cpu']}; {versions}."]
    return "\n".join(lines)
