"""
Instants, words and secrets.
"""

from __future__ import annotations

from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from crq.instants import instant_of, instant_text, iso
from crq.messages import Submission
from crq.model import shown_as
from crq.sealing import Sealer, Unsealable, new_nonce, same_secret, sha256_hex

KEY, OTHER = Fernet.generate_key().decode(), Fernet.generate_key().decode()


class InstantTests(SynchronousTestCase):
    """
    Instants as text.
    """

    @given(st.integers(0, 4_000_000_000_000))
    def test_milliseconds_survive(self, milliseconds: int) -> None:
        """
        Every instant of whole milliseconds reads back as the same float and the same text.
        """
        text = instant_text(milliseconds / 1000)
        self.assertEqual(instant_of(text), milliseconds / 1000)
        self.assertEqual(instant_text(instant_of(text)), text)

    def test_instants_are_cut(self) -> None:
        """
        The sub-millisecond part is cut, never rounded up into the next day.
        """
        self.assertEqual(instant_text(86_399.9996), "1970-01-01 23:59:59.999")
        self.assertEqual(iso(0.0), "1970-01-01T00:00:00.000Z")
        self.assertIsNone(iso(None))

    def test_early_years_sort_too(self) -> None:
        """
        Texts of instants are compared, so each has four digits for its year.
        """
        self.assertEqual(
            instant_text(instant_of("0203-12-18 19:38:52.000")), "0203-12-18 19:38:52.000"
        )


class ShownTests(SynchronousTestCase):
    """
    The customer's word for a state.
    """

    def test_words(self) -> None:
        """
        Claimed is queued, 303 after a start is unknown, failed without a start never started.
        """
        for status, code, started, word in (
            ("queued", None, None, "queued"),
            ("claimed", None, None, "queued"),
            ("running", None, 1.0, "running"),
            ("failed", 301, 1.0, "failed"),
            ("failed", 303, 1.0, "outcome unknown"),
            ("failed", 303, None, "never started"),
            ("failed", 106, None, "never started"),
            ("rejected", 107, None, "rejected"),
            ("odd", None, None, "odd"),
        ):
            self.assertEqual(shown_as(status, code, started), word)


class SealingTests(SynchronousTestCase):
    """
    Hashes, nonces and sealed keys.
    """

    def test_hashes_need_salt_and_text(self) -> None:
        """
        Nothing empty is ever hashed: neither the salt nor the account nor the key (ruling 12).
        """
        for salt in ("", "  \n"):
            with self.assertRaisesRegex(ValueError, "salt is empty"):
                Sealer(salt, (KEY,))
        with self.assertRaisesRegex(ValueError, "no sealing key"):
            Sealer("salt", ())
        with self.assertRaises(ValueError):
            Sealer("salt", ("short",))
        sealer = Sealer("salt", (KEY,))
        self.assertEqual(sealer.account("acme"), sha256_hex("saltacme"))
        for hashed in (sealer.account, sealer.key):
            with self.assertRaisesRegex(ValueError, "is empty"):
                hashed("")

    def test_a_key_opens_with_any_of_the_keys(self) -> None:
        """
        What an older key sealed still opens after a rotation; without that key it does not.
        """
        sealed = Sealer("salt", (KEY,)).seal(Submission("acme", "secret", "x")).sealed_apikey
        self.assertEqual(Sealer("salt", (OTHER, KEY)).unseal(sealed), "secret")
        for damaged in (sealed, sealed[:-4], "", "ü", None):
            with self.assertRaises(Unsealable):
                Sealer("salt", (OTHER,)).unseal(damaged)

    def test_secrets_do_not_show(self) -> None:
        """
        Neither keys nor salt nor scripts appear when values are printed.
        """
        sealer = Sealer("very-salty", (KEY,))
        shown = repr(sealer) + repr(sealer.seal(Submission("acme", "secret", "the script")))
        shown += repr(Submission("acme", "secret", "the script"))
        for hidden in ("very-salty", KEY, "secret", "the script"):
            self.assertNotIn(hidden, shown)

    def test_secrets_compare_as_bytes(self) -> None:
        """
        Any bytes can be presented as a token, and only the right ones fit (F110).
        """
        digest = sha256_hex("token")
        self.assertTrue(same_secret(b"token", digest))
        for wrong in (b"", b"\xe9", b"tok", b"token2", b"x" * 1_000_000):
            self.assertFalse(same_secret(wrong, digest))
        self.assertFalse(same_secret(b"token", "é"))

    def test_nonces_differ(self) -> None:
        """
        Each nonce is new and long.
        """
        self.assertEqual(len({new_nonce() for _ in range(1000)}), 1000)
        self.assertGreaterEqual(len(new_nonce()), 43)
