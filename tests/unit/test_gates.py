"""
Gates without a server: what a value means, what a key is called, how long it is kept.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgpack
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from crq.config import Config, GateOptions
from crq.database import Database
from crq.gates import DatabaseGates, MemcachedGates, open_store
from crq.gatevalues import LATEST, name_of, read_value, shown
from crq.interfaces import IGateStore

UNTIL = 1_788_000_065
STRING, LONG, DOUBLE, BOOL, SERIALISED, IGBINARY, JSON, MSGPACK = range(8)  # php-memcached's types


class ValueTests(SynchronousTestCase):
    """
    `read_value`, with values as php-memcached and CodeIgniter write them.
    """

    def test_numbers_are_read_in_every_form_php_writes(self) -> None:
        """
        Plain, serialised or wrapped in the framework's list: the instant is the same.
        """
        for data, flags in (
            (b"1788000065", STRING),
            (b"1788000065", LONG),
            (b"1788000065.0", DOUBLE),
            (b"i:1788000065;", SERIALISED),
            (b"d:1788000065;", SERIALISED),
            (b"d:1.788000065E+9;", SERIALISED),
            (b's:10:"1788000065";', SERIALISED),
            (b"a:3:{i:0;i:1788000065;i:1;i:1788000000;i:2;i:300;}", SERIALISED),
            (b"a:3:{i:0;d:1788000065;i:1;i:1788000000;i:2;i:0;}", SERIALISED),
            (b'a:3:{i:0;s:10:"1788000065";i:1;i:1788000000;i:2;N;}', SERIALISED),
            (b"a:3:{i:0;i:1788000065;i:1;i:1788000000;i:2;i:-1;}", SERIALISED),
        ):
            self.assertEqual(read_value(data, flags), UNTIL, data)

    def test_a_fraction_is_rounded_up(self) -> None:
        """
        A gate never opens a moment early, however small the fraction.
        """
        for data, flags in (
            (b"1788000064.25", DOUBLE),
            (b"1788000064.00000000000000000001", DOUBLE),
            (b"1788000064.9999999", STRING),
            (b"d:1788000064.25;", SERIALISED),
            (b"a:3:{i:0;d:1788000064.25;i:1;i:1788000000;i:2;i:300;}", SERIALISED),
        ):
            self.assertEqual(read_value(data, flags), UNTIL, data)

    def test_everything_else_is_unreadable(self) -> None:
        """
        What is not plainly an instant is never guessed at.
        """
        for data, flags in (
            (b"", STRING),
            (b"abc", STRING),
            (b" 1788000065", STRING),
            (b"1788000065\n", STRING),
            (b"-1788000065", LONG),
            (b"1_788_000_065", STRING),
            ("１７８８".encode(), STRING),
            (b"0x6A930001", STRING),
            (b"1788000065 120", STRING),
            (b"inf", DOUBLE),
            (b"nan", DOUBLE),
            (msgpack.packb(math.inf), MSGPACK),
            (msgpack.packb(math.nan), MSGPACK),
            (b"1", BOOL),
            (b"b:1;", SERIALISED),
            (b"N;", SERIALISED),
            (b"i:1788000065", SERIALISED),
            (b"i:1788000065;i:1;", SERIALISED),
            (b's:9:"1788000065";', SERIALISED),
            (b's:3:"abc";', SERIALISED),
            (b"a:0:{}", SERIALISED),
            (b"a:2:{i:0;i:1788000065;i:1;i:1788000000;}", SERIALISED),
            (b"a:3:{i:0;a:1:{i:0;i:1788000065;}i:1;i:1788000000;i:2;i:300;}", SERIALISED),
            (b'a:3:{i:0;s:3:"abc";i:1;i:1788000000;i:2;i:300;}', SERIALISED),
            (b"a:3:{i:1;i:1788000065;i:2;i:1788000000;i:3;i:300;}", SERIALISED),
            (b'O:8:"stdClass":1:{s:1:"t";i:1788000065;}', SERIALISED),
            (b"\x00\x00\x00\x02\x08\x6a\x93\x00\x01", IGBINARY),
            (b"cos\nsystem\n(S'true'\ntR.", 1),  # a pickle, by the flags of Python's clients
        ):
            self.assertIsNone(read_value(data, flags), data)

    def test_an_instant_beyond_the_calendar_is_unreadable(self) -> None:
        """
        Milliseconds taken for seconds would close a key for ever, and no date could show them.
        """
        self.assertEqual(read_value(b"%d" % LATEST, LONG), LATEST)
        for data in (b"%d" % (LATEST + 1), b"1788000065000", b"9" * 20, b"9" * 5000, b"1e99"):
            self.assertIsNone(read_value(data, LONG), data)

    def test_what_was_found_is_shown_short_and_in_one_line(self) -> None:
        """
        Whatever lies in memcached, the log gets one line of it.
        """
        self.assertEqual(shown(b"a\n\x1b\xff", 4), r"b'a\n\x1b\xff' (flags 4)")
        self.assertLess(len(shown(b"\xff" * 1_000_000, 2**32 - 1)), 200)


class NameTests(SynchronousTestCase):
    """
    Names in memcached (F67).
    """

    def test_a_hash_is_its_own_name(self) -> None:
        """
        PHP computes the same name from the same key.
        """
        self.assertEqual(name_of("ab" * 32), "ab" * 32)

    def test_what_cannot_be_a_name_is_hashed(self) -> None:
        """
        No stored key is too long for memcached or changes the meaning of a command.
        """
        odd = ["", "a b", "a\r\nflush_all", "ä", "\x00", "a" * 65, "a" * 10_000, "\x7f", "\u2028"]
        names = [name_of(key) for key in odd]
        self.assertTrue(all(len(name) == 64 and name.isalnum() for name in names), names)
        self.assertEqual(len(set(names)), len(odd))

    def test_a_prefix_that_cannot_be_part_of_a_name_is_refused(self) -> None:
        """
        Refused when the store is made, with the name of the option.
        """
        for prefix in ("cr api", "ü_", "a\n", "a\x00", "p" * 187):
            error = self.assertRaises(ValueError, MemcachedGates, ["localhost:1"], prefix, 0.5)
            self.assertIn("gates.prefix", str(error))
        MemcachedGates(["localhost:1"], "p" * 186, 0.5)


class OpenStoreTests(SynchronousTestCase):
    """
    `open_store`.
    """

    def test_the_configuration_chooses(self) -> None:
        """
        Either store provides the interface, and neither is connected before it is asked.
        """
        path = Path(self.mktemp())
        database = Database(f"sqlite:///{path}")
        gates = GateOptions(backend="memcached", servers=("192.0.2.1:11211",))
        for config, kind in (
            (Config(), DatabaseGates),
            (Config(gates=gates), MemcachedGates),
        ):
            store = open_store(config, database)
            self.assertIsInstance(store, kind)
            verifyObject(IGateStore, store)
        self.assertFalse(path.exists())
