"""
What the stores of gates share: what a key is called, and what a stored value means.

A gate in memcached is an instant in POSIX seconds, in any form PHP gives it: a number as an
integer, a float or a string, alone or as the first of the framework's list of value, time of
writing and TTL; `crq.phpvalues` reads the bytes. What is not plainly an instant is not guessed at.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from crq.model import GateReading
from crq.phpvalues import NUMBER, Scalar, Unreadable, decode
from crq.sealing import sha256_hex

KEY_LENGTH = 64  # an API key's hash
LATEST = 253_402_300_799  # 9999-12-31 23:59:59: what lies behind it is not meant as seconds
NOTHING_SEEN = GateReading()
_SHOWN = 40  # bytes of an unreadable value that go into the log

_LEGAL_KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_LENGTH}}}")
_NUMBER = re.compile(NUMBER.decode("ascii"), re.A)


class GatesUnreachable(Exception):
    """
    The gates could not be read, or a gate could not be written. Trying again later may help.

    :ivar seen: what those of several servers said that did answer: closed gates to be believed, but
        a key that does not appear may be closed all the same.
    """

    def __init__(self, *reasons: object, seen: GateReading = NOTHING_SEEN) -> None:
        super().__init__("; ".join(map(str, reasons)))
        self.seen = seen


def name_of(key: str) -> str:
    """
    The name under which a key's gate is kept: the key itself, which is a hash in hex.

    Whatever else a row may hold is hashed: it must neither stop the reading of all other keys nor
    reach memcached's protocol.
    """
    return key if _LEGAL_KEY.fullmatch(key) else sha256_hex(key)


def read_value(data: bytes, flags: int) -> int | None:
    """
    Read a gate's value: the instant until which the key is closed, a fraction rounded up.

    :return: None when it cannot be understood.
    """
    try:
        value = decode(data, flags)
    except Unreadable:
        return None
    if isinstance(value, tuple):
        value, written, ttl = value
        if not _whole(written) or not (ttl is None or _whole(ttl)):
            return None
    return _instant(value)


def shown(data: bytes, flags: int) -> str:
    """
    Describe a value that cannot be read, for the log: short, and in one line.
    """
    rest = "…" if len(data) > _SHOWN else ""
    return f"{data[:_SHOWN]!r}{rest} (flags {flags})"


def _whole(value: Scalar) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _instant(value: Scalar) -> int | None:
    if isinstance(value, str):
        value = Decimal(value) if _NUMBER.fullmatch(value) else None
    if value is None or isinstance(value, (bool, str)):
        return None
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    # A Decimal holds twenty digits and their fraction, which must not get lost.
    return math.ceil(value) if 0 <= value <= LATEST else None
