"""
The manhole refuses what could let others in (F39).
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from attrs import evolve
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from twisted.trial.unittest import SynchronousTestCase

from crq import manhole
from crq.config import Config, ManholeOptions
from crq.manhole import Unsafe, checked


def public_key() -> bytes:
    """
    A key as people have them in authorized_keys.
    """
    key = Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


class ManholeTests(SynchronousTestCase):
    """
    `checked`.
    """

    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        self.keys = self.folder / "authorized_keys"
        self.write(self.keys, b"# me\n" + public_key() + b" me@here\n\n" + public_key() + b"\n")
        self.options = ManholeOptions(
            listen="tcp:2222:interface=127.0.0.1",
            authorized_keys_file=str(self.keys),
            host_key_file=str(self.folder / "manhole.key"),
        )

    def write(self, path: Path, text: bytes, mode: int = 0o600) -> None:
        path.write_bytes(text)
        path.chmod(mode)

    def assert_unsafe(self, name: str, options: ManholeOptions) -> None:
        """
        Check that it refuses, naming the option and a remedy.
        """
        with self.assertRaises(Unsafe) as raised:
            checked(options)
        self.assertTrue(str(raised.exception).startswith(f"manhole.{name}: "), raised.exception)
        self.assertIn(";", str(raised.exception))

    def test_off_by_default(self) -> None:
        """
        Nothing listens unless it is told to.
        """
        self.assertEqual(Config().manhole.listen, "")

    def test_loopback_and_unix_sockets_alone(self) -> None:
        """
        What others could reach is refused, however it is written.
        """
        for listen in (
            "tcp:2222",
            "tcp:2222:interface=0.0.0.0",
            "tcp:2222:interface=",
            "tcp:2222:interface=192.0.2.1",
            "tcp:2222:interface=localhost",
            "tcp6:2222",
            "tcp:2222:interface=127.0.0.1:interface=0.0.0.0",
            "ssl:2222:interface=127.0.0.1",
            "unix:relative.sock",
            "unix:/run/x:mode=666",
            "systemd:domain=INET:index=0",
        ):
            self.assert_unsafe("listen", evolve(self.options, listen=listen))
        for listen in (
            "tcp:2222:interface=127.0.0.1",
            "tcp:2222:interface=\\:\\:1",
            "unix:/run/crqueue/manhole.sock",
        ):
            self.assertEqual(len(checked(evolve(self.options, listen=listen)).authorized), 2)

    def test_keys_are_needed(self) -> None:
        """
        No file, an empty one, one without keys, or one that is none.
        """
        self.assert_unsafe("authorized_keys_file", evolve(self.options, authorized_keys_file=""))
        gone = evolve(self.options, authorized_keys_file=str(self.folder / "gone"))
        self.assert_unsafe("authorized_keys_file", gone)
        for text in (b"", b"# nobody\n\n", b"ssh-ed25519 nonsense\n", b"hello\n", b"\xff\xfe"):
            self.write(self.keys, text)
            self.assert_unsafe("authorized_keys_file", self.options)

    def test_files_of_others_are_refused(self) -> None:
        """
        What the world can read or others can write is no secret and no proof.
        """
        for mode in (0o644, 0o666, 0o620, 0o604, 0o660):
            self.keys.chmod(mode)
            self.assert_unsafe("authorized_keys_file", self.options)
        self.keys.chmod(0o640)
        checked(self.options)
        key = self.folder / "manhole.key"
        for mode in (0o640, 0o604):
            key.chmod(mode)
            self.assert_unsafe("host_key_file", self.options)
        if os.geteuid() == 0:
            key.chmod(0o600)
            os.chown(self.keys, 12345, 0)
            self.assert_unsafe("authorized_keys_file", self.options)

    def test_a_host_key_is_made_once(self) -> None:
        """
        Private, and the same from then on; one that is none is refused.
        """
        first = checked(self.options).host
        path = self.folder / "manhole.key"
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(checked(self.options).host.public(), first.public())
        self.write(path, b"nonsense")
        self.assert_unsafe("host_key_file", self.options)
        nowhere = evolve(self.options, host_key_file=str(self.folder / "no" / "key"))
        self.assert_unsafe("host_key_file", nowhere)

    def test_the_banner_says_what_is_safe(self) -> None:
        """
        Before anybody types.
        """
        for word in ("status()", "explain(17)", "plan()", "Not safe"):
            self.assertIn(word, manhole.BANNER)
