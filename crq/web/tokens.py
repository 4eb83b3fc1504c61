"""
Who is asking: bearer tokens, what they may do and for which accounts (ruling 17).

Tokens of the configuration are known from the start. Those of the database are read again when
somebody asks and the last reading is `FRESH` seconds old, so that a new one works and a revoked one
stops working within that time; the daemon's watch reads them as well, so that one that was just
made is known before it sends its first long body. While the database is away, what was read last
counts for `STALE` seconds; after that nobody knows, and nobody is let in on a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from attrs import define, field, frozen
from twisted.internet.defer import Deferred
from twisted.web.http_headers import Headers

from crq import tokens
from crq.config import Config, Token
from crq.database import is_outage
from crq.pool import Pool
from crq.sealing import Sealer, same_secret

FRESH = 2.0  # s
STALE = 60.0  # s


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
    Make the callers of some tokens.
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


def bearer(headers: Headers) -> bytes | None:
    """
    Read the secret that a request carries; None: nothing that looks like one.
    """
    given = headers.getRawHeaders(b"Authorization") or []
    scheme, _, secret = given[0].strip().partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return secret.strip() if scheme.lower() == b"bearer" else None


def who(headers: Headers, known: Iterable[Caller]) -> Caller | None:
    """
    Find whose token a request carries; None: no such token, or nothing that looks like one.

    Any bytes may come. Every known token is compared, so that the time tells nothing.
    """
    secret = bearer(headers)
    if secret is None:
        return None
    found = None
    for caller in known:
        if same_secret(secret, caller.token.sha256):
            found = caller
    return found


@define(eq=False)
class TokenBook:
    """
    All tokens that are valid, of the configuration and of the database.

    :ivar read: asks the database for its tokens.
    """

    configured: tuple[Caller, ...]
    sealer: Sealer
    read: Callable[[], Deferred[tuple[Token, ...]]]
    monotonic: Callable[[], float]
    _stored: tuple[Caller, ...] = field(init=False, default=())
    _read_at: float | None = field(init=False, default=None)
    _failed: tuple[float, Exception] | None = field(init=False, default=None)
    _waiting: list[Deferred[None]] | None = field(init=False, default=None)

    @classmethod
    def of(
        cls, config: Config, sealer: Sealer, pool: Pool, monotonic: Callable[[], float]
    ) -> TokenBook:
        """
        The book of a configuration and a database.
        """
        return cls(
            callers(config.tokens, sealer), sealer, lambda: pool.read(tokens.active), monotonic
        )

    @property
    def names(self) -> frozenset[str]:
        """
        The names of all that are known.
        """
        return frozenset(caller.token.name for caller in (*self.configured, *self._stored))

    async def who(self, headers: Headers) -> Caller | None:
        """
        Find whose token a request carries.

        :raise: what the database raised, if it is away and nobody knows.
        """
        caller = who(headers, self.configured)
        if caller is not None or bearer(headers) is None:
            return caller
        await self._make_fresh()
        return who(headers, self._stored)

    def knows(self, headers: Headers) -> bool:
        """
        Whether a request carries a known token. Does not wait: while nobody can tell, it may be
        one; what is old is read again, at the expense of one doubtful caller in `FRESH` seconds.
        """
        if who(headers, (*self.configured, *self._stored)) is not None:
            return True
        if bearer(headers) is None:
            return False
        if self._age() >= FRESH and self._waiting is None:
            Deferred.fromCoroutine(self._make_fresh()).addErrback(lambda _: None)
            return True
        return self._age() >= STALE

    def forget(self) -> None:
        """
        Read the database again for the next request.
        """
        self._read_at = None

    def _age(self) -> float:
        return math.inf if self._read_at is None else self.monotonic() - self._read_at

    async def _make_fresh(self) -> None:
        """
        Read the database if it is time. One reading serves all who ask meanwhile, and a failed one
        those who ask soon after: forged tokens are no flood of questions.
        """
        if self._age() < FRESH:
            return
        if self._failed is not None and self.monotonic() - self._failed[0] < FRESH:
            raise self._failed[1]
        turn: Deferred[None] = Deferred()
        if self._waiting is not None:
            self._waiting.append(turn)
        else:
            self._waiting = [turn]
            Deferred.fromCoroutine(self._read_for_all())  # goes on if the first one hangs up
        await turn

    async def _read_for_all(self) -> None:
        outcome: Exception | None = None
        try:
            await self.refresh()
        except Exception as error:  # noqa: BLE001 - those who wait are told
            outcome = error
        waiting, self._waiting = self._waiting or [], None
        for turn in waiting:
            if not turn.called:  # who hung up waits no more
                turn.callback(None) if outcome is None else turn.errback(outcome)

    async def refresh(self) -> None:
        """
        Read the tokens of the database.

        :raise: what the database raised, if it is away and what is known is too old.
        """
        now = self.monotonic()
        try:
            found = await self.read()
        except Exception as error:
            if is_outage(error) and self._age() < STALE:
                return
            self._failed = (self.monotonic(), error)
            raise
        self._stored = callers(found, self.sealer)
        self._read_at = now
