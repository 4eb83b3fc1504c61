"""
Who is asking: bearer tokens, what they may do and for which accounts (ruling 17).
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen
from twisted.web.http_headers import Headers

from crq.config import Token
from crq.sealing import Sealer, same_secret


@frozen
class Caller:
    """
    Somebody with a token.

    :ivar accounts: hashes of the accounts it is limited to; None: all.
    """

    token: Token
    accounts: frozenset[str] | None

    def may(self, scope: str) -> bool:
        """
        Whether the token has a scope.
        """
        return scope in self.token.scopes

    def owns(self, account: str | None) -> bool:
        """
        Whether the token may see and use an account, by its hash.
        """
        return self.accounts is None or account in self.accounts


def callers(tokens: Iterable[Token], sealer: Sealer) -> tuple[Caller, ...]:
    """
    Make the callers of a configuration.
    """
    return tuple(
        Caller(
            token,
            frozenset(sealer.account(name.lower()) for name in token.accounts)
            if token.accounts
            else None,
        )
        for token in tokens
    )


def who(headers: Headers, known: Iterable[Caller]) -> Caller | None:
    """
    Find whose token a request carries; None: no such token, or nothing that looks like one.

    Any bytes may come. Every known token is compared, so that the time tells nothing.
    """
    given = headers.getRawHeaders(b"Authorization") or []
    scheme, _, secret = given[0].strip().partition(b" ") if len(given) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        return None
    secret = secret.strip()
    found = None
    for caller in known:
        if same_secret(secret, caller.token.sha256):
            found = caller
    return found
