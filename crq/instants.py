"""
Instants: floats of POSIX seconds (UTC) inside, text with milliseconds at rest.

Both databases keep, sort and return the very same text.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TypeAlias

Instant: TypeAlias = float


def instant_text(at: Instant) -> str:
    """
    Write an instant as the databases keep it: ``YYYY-MM-DD HH:MM:SS.mmm``, UTC, cut to the ms.

    It is cut here because MariaDB cuts and MySQL rounds, and 23:59:59.9996 rounded is another day.
    """
    # By way of microseconds: 1234.567 * 1000 is a hair under 1234567 as a float.
    milliseconds = math.floor(round(at * 1_000_000) / 1000)
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    # Not %Y, which does not pad the years before 1000: texts of instants are compared.
    return f"{moment.year:04d}-{moment:%m-%d %H:%M:%S}.{milliseconds % 1000:03d}"


def instant_of(text: str) -> Instant:
    """
    Read an instant that `instant_text` (or a DATETIME column of any precision) wrote.

    :raise ValueError: the text is not of that form.
    """
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def iso(at: Instant | None) -> str | None:
    """
    Show an instant to people and machines outside: RFC 3339, UTC, milliseconds.
    """
    return None if at is None else instant_text(at).replace(" ", "T") + "Z"
