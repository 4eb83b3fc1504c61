"""
What the stores of gates share: what a key is called, and how a value is read.

A gate in memcached is an instant in whole POSIX seconds, in any form PHP gives it. php-memcached
stores numbers and strings as plain text and everything else as PHP serialises it; CodeIgniter's
cache wraps every value in a list of value, time of writing and TTL unless told not to. The low four
bits of the flags say which it was, but only to php-memcached: other clients mean other things by
them. So the bytes decide, and nothing is ever unpickled or made into an object.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from crq.sealing import sha256_hex

KEY_LENGTH = 64  # an API key's hash
LATEST = 253_402_300_799  # 9999-12-31 23:59:59: what lies behind it is not meant as seconds
_SHOWN = 40  # bytes of an unreadable value that go into the log
_PHP_TYPE = 0b1111
_PHP_BOOL = 3  # true is stored as "1", which would pass for an instant

_LEGAL_KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_LENGTH}}}")
_NUMBER = rb"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE]\+?[0-9]{1,2})?"
_PLAIN = re.compile(_NUMBER)
_SCALAR = (
    rb"(?:i:(?P<int>[0-9]{1,20});|d:(?P<float>"
    + _NUMBER
    + rb');|s:(?P<length>[0-9]{1,2}):"(?P<text>'
    + _NUMBER
    + rb')";)'
)
_SERIALISED = re.compile(_SCALAR)
_WRAPPED = re.compile(
    rb"a:3:\{i:0;" + _SCALAR + rb"i:1;i:-?[0-9]{1,20};i:2;(?:i:-?[0-9]{1,20};|N;)\}"
)


class GatesUnreachable(Exception):
    """
    The gates could not be read, or a gate could not be written. Trying again later may help.
    """


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
    if flags & _PHP_TYPE == _PHP_BOOL:
        return None
    if _PLAIN.fullmatch(data):
        return _instant(data)
    match = _SERIALISED.fullmatch(data) or _WRAPPED.fullmatch(data)
    if match is None:
        return None
    text: bytes | None = match["text"]
    if text is not None and len(text) != int(match["length"]):
        return None
    return _instant(match["int"] or match["float"] or match["text"])


def shown(data: bytes, flags: int) -> str:
    """
    Describe a value that cannot be read, for the log: short, and in one line.
    """
    rest = "…" if len(data) > _SHOWN else ""
    return f"{data[:_SHOWN]!r}{rest} (flags {flags})"


def _instant(number: bytes) -> int | None:
    # Decimal, because a float cannot hold twenty digits and a fraction must not get lost.
    instant = math.ceil(Decimal(number.decode("ascii")))
    return instant if instant <= LATEST else None
