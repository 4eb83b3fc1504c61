"""
Secrets: salted hashes to look up by, single-use nonces, sealed API keys, tokens.

Nothing here logs, and no error text carries a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from attrs import field, frozen
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from crq.messages import SealedSubmission, Submission

NONCE_TTL = 300.0  # s from the claim to the start (brief §3, landmine)


class Unsealable(Exception):
    """
    A sealed API key cannot be opened with the keys at hand. Trying again cannot help.
    """


def sha256_hex(text: str) -> str:
    """
    SHA-256 of a text's UTF-8 bytes as 64 hex digits.
    """
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def new_nonce() -> str:
    """
    Mint a single-use nonce: 256 random bits, URL-safe. Only `sha256_hex` of it is ever stored.
    """
    return secrets.token_urlsafe(32)


def same_secret(given: bytes, digest_hex: str) -> bool:
    """
    Compare a presented secret with a stored SHA-256, in a time that tells nothing.

    Any bytes are allowed: both sides are digests of one length before they are compared.
    """
    presented = hashlib.sha256(given).hexdigest().encode("ascii")
    return hmac.compare_digest(presented, digest_hex.encode("utf-8"))


@frozen
class Sealer:
    """
    The installation's salt and sealing keys.

    :ivar salt: mixed into every hash; never empty (ruling 12: two rows had the hash of nothing).
    :ivar seal_keys: Fernet keys, newest first: the first seals, all of them open.
    :ivar salted_keys: whether the salt is mixed into the hashes of API keys, too; whoever writes a
        gate must come to the same hash.
    """

    salt: str = field(repr=False)
    seal_keys: tuple[str, ...] = field(repr=False)
    salted_keys: bool = True

    @salt.validator
    def _salted(self, _attribute: object, value: str) -> None:
        if not value.strip():
            raise ValueError("the salt is empty")

    @seal_keys.validator
    def _keyed(self, _attribute: object, value: Iterable[str]) -> None:
        keys = list(value)
        if not keys:
            raise ValueError("there is no sealing key")
        for key in keys:
            Fernet(key)  # raises ValueError for a key that is none

    def account(self, subdomain: str) -> str:
        """
        The account's hash: SHA-256(salt + subdomain). An empty subdomain is an error.
        """
        return _hash(self.salt, subdomain, "subdomain")

    def key(self, apikey: str) -> str:
        """
        The API key's hash: SHA-256(salt + key), or of the key alone. An empty key is an error.
        """
        return _hash(self.salt if self.salted_keys else "", apikey, "apikey")

    def seal(self, submission: Submission) -> SealedSubmission:
        """
        Make a submission fit to be stored.
        """
        return SealedSubmission(
            subdomain=submission.subdomain,
            subdomain_hash=self.account(submission.subdomain),
            apikey_hash=self.key(submission.apikey),
            sealed_apikey=self.seal_text(submission.apikey),
            source_code=submission.source_code,
            identifier=submission.identifier,
            payload=submission.payload,
            debug=submission.debug,
            idempotency_key=sha256_hex(submission.idempotency_key or secrets.token_urlsafe(32)),
            traceparent=submission.traceparent,
            named=submission.idempotency_key is not None,
        )

    def seal_text(self, secret: str) -> str:
        """
        Seal any secret; `unseal` opens it.
        """
        return self._fernet().encrypt(secret.encode("utf-8")).decode("ascii")

    def unseal(self, sealed_apikey: str | None) -> str:
        """
        Open a sealed API key.

        :raise Unsealable: it was scrubbed, damaged, or sealed with a key that is not at hand.
        """
        if sealed_apikey is None:
            raise Unsealable("the API key has been scrubbed")
        try:
            return self._fernet().decrypt(sealed_apikey.encode("utf-8")).decode("utf-8")
        except (InvalidToken, UnicodeDecodeError):
            raise Unsealable("the API key cannot be opened with the sealing keys at hand") from None

    def _fernet(self) -> MultiFernet:
        return MultiFernet([Fernet(key) for key in self.seal_keys])


def _hash(salt: str, text: str, name: str) -> str:
    if not text:
        raise ValueError(f"{name} is empty")
    return sha256_hex(salt + text)
