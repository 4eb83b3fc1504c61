"""
The caller's place in a trace: the ``traceparent`` header of W3C Trace Context, level 1.
"""

from __future__ import annotations

import re

_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<more>-.*)?"
)


def traceparent(text: str | None) -> str | None:
    """
    Read a traceparent and return it as version 00 writes it; None: there is none that is valid.

    As the recommendation wants it, one that is not valid is as good as none: what a proxy adds to a
    request must not cost its admission. Of a later version what version 00 knows is kept.
    """
    match = _FORM.fullmatch(text.strip(" \t")) if text is not None else None
    if match is None or match["version"] == "ff":
        return None
    if match["version"] == "00" and match["more"] is not None:
        return None
    if not match["trace"].strip("0") or not match["parent"].strip("0"):
        return None
    return f"00-{match['trace']}-{match['parent']}-{match['flags']}"
