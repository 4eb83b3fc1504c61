"""
Values as php-memcached stores them: numbers, strings, and lists of three of these.

The low 16 bits of the flags are php-memcached's: four say of which type a value is, four more
whether and how it is compressed. All its serialisers are read (php, igbinary, json, msgpack), and
the compressions that builds choose by default (fastlz, zlib). What other clients mean by the same
bits does not matter: whatever is read here is a number or a text, or `Unreadable`; no class is ever
looked up and no object made.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NoReturn, TypeAlias

import msgpack

Scalar: TypeAlias = int | Decimal | str | bool | None

LIMIT = 4096  # bytes, as stored or unpacked by zlib; a gate that means something has under 100
LIST = 3  # the framework's list: value, time of writing, TTL
NUMBER = rb"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE]\+?[0-9]{1,2})?"

_TYPE = 0b1111
_BOOL, _SERIALISED, _IGBINARY, _JSON, _MSGPACK = range(3, 8)
_COMPRESSED, _ZLIB, _FASTLZ = 1 << 4, 1 << 5, 1 << 6  # 1 << 7 is zstd, which no build chooses
_LENGTH = struct.Struct("<I")  # before compressed bytes: their length once unpacked

_PLAIN = re.compile(NUMBER)
_ITEM = re.compile(
    rb"(?:i:(?P<int>-?[0-9]{1,20})|d:(?P<float>" + NUMBER + rb")|b:(?P<bool>[01])|(?P<null>N)"
    rb'|s:(?P<length>[0-9]{1,4}):"(?P<text>[^"]*)");'
)
_LIST = re.compile(rb"a:3:\{(?P<items>.*)\}", re.DOTALL)
_HEADERS = (b"\0\0\0\1", b"\0\0\0\2")  # igbinary's versions
_INTEGERS: Final = {  # igbinary's types: bytes, sign
    0x06: (1, 1),
    0x07: (1, -1),
    0x08: (2, 1),
    0x09: (2, -1),
    0x0A: (4, 1),
    0x0B: (4, -1),
    0x20: (8, 1),
    0x21: (8, -1),
}


class Unreadable(Exception):
    """
    The bytes are no number, no text and no list of three of these.
    """


def decode(data: bytes, flags: int) -> Scalar | tuple[Scalar, ...]:
    """
    Read a stored value.

    :return: a scalar, or a list of `LIST` of them as a tuple.
    :raise Unreadable: it is anything else, or longer than `LIMIT`.
    """
    if len(data) > LIMIT:
        raise Unreadable
    reader = _READERS.get(flags & _TYPE)
    if reader is None:
        raise Unreadable
    if flags & _COMPRESSED:
        data = _unpacked(data, flags)
    try:
        return _checked(reader(data))
    except (ValueError, LookupError, RecursionError, msgpack.UnpackException):
        raise Unreadable from None


def _checked(value: Any) -> Scalar | tuple[Scalar, ...]:
    items = value if isinstance(value, (list, tuple)) else (value,)
    if isinstance(value, (list, tuple)) and len(items) != LIST:
        raise Unreadable
    found = tuple(Decimal(item) if isinstance(item, float) else item for item in items)
    if not all(item is None or isinstance(item, (int, Decimal, str)) for item in found):
        raise Unreadable
    return found if items is value else found[0]


# -- compression


def _unpacked(data: bytes, flags: int) -> bytes:
    if len(data) <= _LENGTH.size:
        raise Unreadable
    (length,) = _LENGTH.unpack_from(data)
    packed = data[_LENGTH.size :]
    try:
        if flags & _ZLIB:
            plain = zlib.decompressobj().decompress(packed, LIMIT)
        elif flags & _FASTLZ:
            plain = _fastlz(packed)
        else:
            raise Unreadable
    except (zlib.error, IndexError):
        raise Unreadable from None
    if len(plain) != length:
        raise Unreadable
    return plain


def _fastlz(data: bytes) -> bytes:
    """
    Unpack FastLZ, level 1: the level of everything below 64 kB.

    A control byte below 32 is followed by that many bytes and one more, as they are. Any other says
    how many bytes to repeat (its upper three bits; 7 adds the next byte) and how far back they lie.
    Three bytes make at most 264, so what is unpacked stays small.
    """
    if data[0] >> 5:
        raise Unreadable
    plain = bytearray()
    control, at = data[0] & 31, 1
    while True:
        if control < 32:
            run = data[at : at + control + 1]
            if len(run) <= control:
                raise Unreadable
            plain += run
            at += control + 1
        else:
            count = (control >> 5) + 2
            if count == 9:
                count += data[at]
                at += 1
            start = len(plain) - (((control & 31) << 8) + data[at] + 1)
            at += 1
            if start < 0:
                raise Unreadable
            for place in range(start, start + count):  # what is repeated may be what was repeated
                plain.append(plain[place])
        if at == len(data):
            return bytes(plain)
        control, at = data[at], at + 1


# -- serialisers


def _text(data: bytes) -> Any:
    """
    Read a plain number, or PHP's serialize(): some store that as a string of their own making.
    """
    if _PLAIN.fullmatch(data):
        return Decimal(data.decode("ascii"))
    found = _LIST.fullmatch(data)
    if found is None:
        item, end = _item(data, 0)
        if end != len(data):
            raise Unreadable
        return item
    items, at = [], 0
    for index in range(LIST):
        key, at = _item(found["items"], at)
        if isinstance(key, bool) or key != index:
            raise Unreadable
        item, at = _item(found["items"], at)
        items.append(item)
    if at != len(found["items"]):
        raise Unreadable
    return items


def _item(data: bytes, at: int) -> tuple[Scalar, int]:
    found = _ITEM.match(data, at)
    if found is None:
        raise Unreadable
    if found["int"] is not None:
        return int(found["int"]), found.end()
    if found["float"] is not None:
        return Decimal(found["float"].decode("ascii")), found.end()
    if found["text"] is not None:
        if len(found["text"]) != int(found["length"]):
            raise Unreadable
        return found["text"].decode("utf-8"), found.end()
    return None if found["null"] else found["bool"] == b"1", found.end()


def _igbinary(data: bytes) -> Any:
    if data[:4] not in _HEADERS:
        raise Unreadable
    if data[4] != 0x14:  # an array of up to 255
        item, end = _igbinary_item(data, 4)
    else:
        if data[5] != LIST:
            raise Unreadable
        item, end = [], 6
        for index in range(LIST):
            key, end = _igbinary_item(data, end)
            if isinstance(key, bool) or key != index:
                raise Unreadable
            value, end = _igbinary_item(data, end)
            item.append(value)
    if end != len(data):
        raise Unreadable
    return item


def _igbinary_item(data: bytes, at: int) -> tuple[Any, int]:
    kind, at = data[at], at + 1
    if kind in _INTEGERS:
        size, sign = _INTEGERS[kind]
        return sign * int.from_bytes(_some(data, at, size), "big"), at + size
    if kind == 0x0C:
        return struct.unpack(">d", _some(data, at, 8))[0], at + 8
    if kind == 0x11:  # a string of up to 255 bytes
        size = data[at]
        return _some(data, at + 1, size).decode("utf-8"), at + 1 + size
    plain = {0x00: None, 0x04: False, 0x05: True, 0x0D: ""}
    return plain[kind], at


def _some(data: bytes, at: int, size: int) -> bytes:
    found = data[at : at + size]
    if len(found) < size:
        raise Unreadable
    return found


def _json(data: bytes) -> Any:
    return json.loads(data.decode("utf-8"), parse_float=Decimal, parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _msgpack(data: bytes) -> Any:
    return msgpack.unpackb(data, max_ext_len=0, max_map_len=0)


def _bool(data: bytes) -> Any:
    return data == b"1"


_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    **dict.fromkeys((0, 1, 2, _SERIALISED), _text),  # string, integer, float: plain text all
    _BOOL: _bool,
    _IGBINARY: _igbinary,
    _JSON: _json,
    _MSGPACK: _msgpack,
}
