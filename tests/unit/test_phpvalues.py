"""
Values as php-memcached stores them: bytes that a real PHP 8.2 has written, and what must not pass.

The same values are written by PHP anew, and read, in tests/acceptance/test_php_gates.py.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from crq.gatevalues import read_value
from crq.phpvalues import LIMIT, Unreadable, decode

STRING, LONG, DOUBLE, BOOL, SERIALISED, IGBINARY, JSON, MSGPACK = range(8)
ZLIB, FASTLZ, ZSTD = 1 << 4 | 1 << 5, 1 << 4 | 1 << 6, 1 << 4 | 1 << 7
UNTIL, WRITTEN = 1_788_000_065, 1_788_000_000
LIST = (UNTIL, WRITTEN, 300)
LISTS = {
    SERIALISED: b"a:3:{i:0;i:1788000065;i:1;i:1788000000;i:2;i:300;}",
    IGBINARY: b"\x00\x00\x00\x02\x14\x03\x06\x00\x0aj\x92\xb7A\x06\x01\x0aj\x92\xb7\x00"
    b"\x06\x02\x08\x01,",
    JSON: b"[1788000065,1788000000,300]",
    MSGPACK: b"\x93\xcej\x92\xb7A\xcej\x92\xb7\x00\xcd\x01,",
}
PACKED = {  # the same by FastLZ, as PHP packs them when its threshold is low
    SERIALISED: b"2\x00\x00\x00\x0fa:3:{i:0;i:17880 \x00\x0165@\x0c@\x03\xa0\x10"
    b"\x000@\x1d\x082;i:300;}",
    IGBINARY: b"\x19\x00\x00\x00\x18" + LISTS[IGBINARY],
    JSON: b"\x1b\x00\x00\x00\x05[17880 \x00\x0365,1\xa0\n\x0600,300]",
    MSGPACK: b"\x0e\x00\x00\x00\x0d" + LISTS[MSGPACK],
}
HEADER = b"\x00\x00\x00\x02"


class DecodeTests(SynchronousTestCase):
    """
    `decode`.
    """

    def unreadable(self, data: bytes, flags: int) -> None:
        with self.assertRaises(Unreadable, msg=f"{data!r} {flags:#x}"):
            decode(data, flags)

    def test_the_list_of_the_framework_in_each_form(self) -> None:
        """
        Value, time of writing and TTL come out of every serialiser, and out of both compressions.
        """
        for kind, data in LISTS.items():
            self.assertEqual(decode(data, kind), LIST)
            self.assertEqual(decode(PACKED[kind], kind | FASTLZ), LIST)
            packed = struct.pack("<I", len(data)) + zlib.compress(data)
            self.assertEqual(decode(packed, kind | ZLIB), LIST)

    def test_scalars_in_each_form(self) -> None:
        """
        Integers of every size and sign, floats, texts, null and booleans.
        """
        for data, kind, value in (
            (b"1788000065", STRING, Decimal(UNTIL)),
            (b"1788000064.25", DOUBLE, Decimal("1788000064.25")),
            (b"1", BOOL, True),
            (b"", BOOL, False),
            (b"i:-1;", SERIALISED, -1),
            (b"b:1;", SERIALISED, True),
            (b"N;", SERIALISED, None),
            (b's:2:"ab";', SERIALISED, "ab"),
            (b"d:0.5;", SERIALISED, Decimal("0.5")),
            (HEADER + b"\x00", IGBINARY, None),
            (HEADER + b"\x04", IGBINARY, False),
            (HEADER + b"\x05", IGBINARY, True),
            (HEADER + b"\x06\xff", IGBINARY, 255),
            (HEADER + b"\x07\x01", IGBINARY, -1),
            (HEADER + b"\x08\x01\x00", IGBINARY, 256),
            (HEADER + b"\x09\x01\x00", IGBINARY, -256),
            (HEADER + b"\x0aj\x92\xb7A", IGBINARY, UNTIL),
            (HEADER + b"\x0b\x00\x00\x00\x02", IGBINARY, -2),
            (HEADER + b"\x20\x00\x00\xa2\x9e\x1e\xdf\x8e\xa0", IGBINARY, 178_800_006_500_000),
            (HEADER + b"\x21\x00\x00\x00\x00\x00\x00\x00\x02", IGBINARY, -2),
            (HEADER + b"\x0cA\xda\xa4\xad\xd0\x10\x00\x00", IGBINARY, Decimal("1788000064.25")),
            (HEADER + b"\x0d", IGBINARY, ""),
            (HEADER + b"\x11\x02ab", IGBINARY, "ab"),
            (b"\x00\x00\x00\x01\x06\x07", IGBINARY, 7),
            (b"null", JSON, None),
            (b"1788000064.25", JSON, Decimal("1788000064.25")),
            (b'"ab"', JSON, "ab"),
            (b"\xc0", MSGPACK, None),
            (b"\xcbA\xda\xa4\xad\xd0\x10\x00\x00", MSGPACK, Decimal("1788000064.25")),
            (b"\xa2ab", MSGPACK, "ab"),
            (b"\xff", MSGPACK, -1),
        ):
            found = decode(data, kind)
            self.assertEqual((found, type(found)), (value, type(value)), data)

    def test_the_users_own_flags_do_not_matter(self) -> None:
        """
        The upper half of the flags is the program's that wrote the value.
        """
        self.assertEqual(decode(LISTS[SERIALISED], SERIALISED | 0xFFFF_0000), LIST)

    def test_what_is_no_list_of_three_scalars(self) -> None:
        """
        Shorter and longer lists, nested ones, maps and objects are nothing that is known here.
        """
        for data, kind in (
            (b"a:0:{}", SERIALISED),
            (b"a:2:{i:0;i:1;i:1;i:2;}", SERIALISED),
            (b"a:4:{i:0;i:1;i:1;i:2;i:2;i:3;i:3;i:4;}", SERIALISED),
            (b"a:3:{i:0;i:1;i:1;i:2;i:2;i:3;i:3;i:4;}", SERIALISED),
            (b"a:3:{i:0;i:1;i:2;i:2;i:1;i:3;}", SERIALISED),
            (b"a:3:{b:0;i:1;b:1;i:2;i:2;i:3;}", SERIALISED),
            (b"a:3:{i:0;a:1:{i:0;i:1788000065;}i:1;i:2;i:2;i:3;}", SERIALISED),
            (b'a:3:{s:5:"value";i:1;s:4:"time";i:2;s:3:"ttl";i:3;}', SERIALISED),
            (b'O:8:"stdClass":1:{s:1:"t";i:1788000065;}', SERIALISED),
            (b'C:3:"Foo":2:{ab}', SERIALISED),
            (b's:9:"ab";', SERIALISED),
            (b"i:1;i:2;", SERIALISED),
            (HEADER + b"\x14\x02\x06\x00\x06\x01\x06\x01\x06\x02", IGBINARY),
            (HEADER + b"\x14\x03\x06\x00\x06\x01\x06\x02\x06\x02\x06\x01\x06\x03", IGBINARY),
            (HEADER + b"\x14\x03\x04\x06\x01\x05\x06\x02\x06\x02\x06\x03", IGBINARY),
            (
                HEADER + b"\x14\x03\x06\x00\x14\x01\x06\x00\x06\x01\x06\x01\x06\x01\x06\x02",
                IGBINARY,
            ),
            (HEADER + b"\x17\x08stdClass\x14\x00", IGBINARY),
            (HEADER + b"\x06\x01\x00", IGBINARY),
            (b"\x00\x00\x00\x03\x06\x01", IGBINARY),
            (b"[1,2]", JSON),
            (b"[[1],2,3]", JSON),
            (b'{"value":1}', JSON),
            (b"NaN", JSON),
            (b"[1,2,3] ]", JSON),
            (b"\x92\x01\x02", MSGPACK),
            (b"\x93\x91\x01\x02\x03", MSGPACK),
            (b"\x81\xa1a\x01", MSGPACK),
            (b"\xd6\xff\x00\x00\x00\x00", MSGPACK),
            (b"\x01\x02", MSGPACK),
        ):
            self.unreadable(data, kind)

    def test_cut_and_lying_bytes(self) -> None:
        """
        Whatever is cut off, or is longer than it says, is unreadable; nothing else is raised.
        """
        for kind, data in LISTS.items():
            for end in range(len(data)):
                self.unreadable(data[:end], kind)
            for end in range(len(PACKED[kind])):
                self.unreadable(PACKED[kind][:end], kind | FASTLZ)
        for data, flags in (
            (struct.pack("<I", 49) + zlib.compress(LISTS[SERIALISED]), SERIALISED | ZLIB),
            (struct.pack("<I", 51) + zlib.compress(LISTS[SERIALISED]), SERIALISED | ZLIB),
            (struct.pack("<I", 10) + b"1788000065", ZLIB),
            (struct.pack("<I", 3) + b"\x00a\x20\x05", FASTLZ),  # repeats what was not there
            (struct.pack("<I", 5) + b"\x0117\x20\x02", FASTLZ),
            (struct.pack("<I", 3) + b"\x21a\xe0\xff\x00", FASTLZ),  # of level 2
            (struct.pack("<I", 10) + b"1788000065", ZSTD),
            (struct.pack("<I", 10) + b"1788000065", 1 << 4),
        ):
            self.unreadable(data, flags)

    def test_a_bomb_stays_small(self) -> None:
        """
        Neither a long value nor one that would unpack to megabytes takes memory to speak of.
        """
        megabytes = zlib.compress(b"1" * 4_000_000)
        self.assertLess(len(megabytes), LIMIT)
        for data, flags in (
            (struct.pack("<I", 4_000_000) + megabytes, ZLIB),
            (struct.pack("<I", 343_201) + b"\x00a" + b"\xe0\xff\x00" * 1300, FASTLZ),
            (b"[" + b"1," * 500_000 + b"1]", JSON),
            (b"1" * 5_000_000, STRING),
        ):
            tracemalloc.start()
            try:
                self.assertRaises(Unreadable, decode, data, flags)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            self.assertLess(most, 1_000_000, flags)

    def test_deep_nesting(self) -> None:
        """
        Thousands of brackets end in the same answer, whatever the reader's own limit is.
        """
        for data in (
            b"[" * LIMIT,
            b"\x91" * LIMIT,
            b"\x81" * LIMIT,
            b'{"a":' * 800,
            b"\xdd" * LIMIT,
        ):
            for kind in (JSON, MSGPACK, SERIALISED, IGBINARY):
                self.unreadable(data, kind)

    def test_types_that_php_does_not_have(self) -> None:
        """
        Eight of the sixteen types are nobody's; a pickle under the flags of Python's clients is a
        text that is no number, and is never loaded.
        """
        for kind in range(8, 16):
            self.unreadable(b"1788000065", kind)
        self.unreadable(b"cos\nsystem\n(S'true'\ntR.", 1)
        self.unreadable(b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.", 1)

    def test_random_bytes(self) -> None:
        """
        Ten thousand damaged values each end in an instant or in nothing.
        """
        draw = random.Random(7)
        sound = [*LISTS.items(), *((kind | FASTLZ, data) for kind, data in PACKED.items())]
        for _ in range(10_000):
            flags, data = draw.choice(sound)
            damaged = bytearray(data)
            for _ in range(draw.randrange(1, 4)):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            found = read_value(bytes(damaged), draw.choice((flags, draw.randrange(256))))
            self.assertTrue(found is None or found >= 0, damaged)
