"""
Bearer tokens in the database: only the SHA-256 of each, what it may do and for whom.

They come beside those of the configuration, and need no restart. A name is used once and for all:
the audit speaks of tokens by their names.
"""

from __future__ import annotations

import json
import re
from typing import Any

from attrs import frozen

from crq import audit
from crq.audit import Action
from crq.config import Token
from crq.database import Cursor
from crq.instants import Instant, instant_text
from crq.recordvalues import shown_instant, text_of
from crq.submissions import Refusal

LIMIT = 1000  # tokens that are valid at once: a door keeps them all in memory
NAME = re.compile(r"[A-Za-z0-9][\w.:@-]{0,63}", re.A)


@frozen
class StoredToken:
    """
    A token of the database.

    :ivar created_at: the stored text.
    :ivar revoked_at: the same; None while it is valid.
    """

    token: Token
    created_at: str | None
    revoked_at: str | None

    def as_json(self) -> dict[str, Any]:
        """
        The token for a machine; of its hash only enough to tell it from others.
        """
        return {
            "name": self.token.name,
            "sha256": self.token.sha256[:8],
            "scopes": list(self.token.scopes),
            "accounts": list(self.token.accounts),
            "createdAt": shown_instant(self.created_at),
            "revokedAt": shown_instant(self.revoked_at),
        }


def add(txn: Cursor, token: Token, who: str, now: Instant) -> None:
    """
    Make a token known.

    :raise Refusal: its name cannot be used, or was used before, or there are too many.
    """
    if NAME.fullmatch(token.name) is None:
        remedy = "use 1 to 64 letters, digits, dots, colons, at signs and dashes"
        raise Refusal("name", "is no name for a token", remedy)
    if get(txn, token.name) is not None:
        raise Refusal("name", "a token had it before", "choose another one", 409)
    if len(active(txn)) >= LIMIT:
        raise Refusal("name", f"{LIMIT} tokens are valid already", "revoke some first", 409)
    scopes, accounts = list(token.scopes), list(token.accounts)
    txn.execute(
        "INSERT INTO codeRunner_tokens (name, sha256, scopes, accounts, created_at)"
        " VALUES (?, ?, ?, ?, ?)",
        (
            token.name,
            token.sha256,
            " ".join(scopes),
            json.dumps(accounts) if accounts else None,
            instant_text(now),
        ),
    )
    after = {"scopes": scopes, "accounts": accounts}
    audit.record(txn, who, Action.ADD_TOKEN, f"token:{token.name}", now, after=after)


def revoke(txn: Cursor, name: str, who: str, now: Instant) -> bool:
    """
    Make a token worth nothing; says whether it was worth something until now.

    :raise Refusal: there is no such token in the database.
    """
    found = get(txn, name)
    if found is None:
        remedy = "`crq token list` knows their names; those of a file are revoked in the file"
        raise Refusal("name", "there is no such token in the database", remedy, 404)
    txn.execute(
        "UPDATE codeRunner_tokens SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL",
        (instant_text(now), name),
    )
    if txn.rowcount != 1:
        return False
    audit.record(txn, who, Action.REVOKE_TOKEN, f"token:{name}", now)
    return True


def get(txn: Cursor, name: str) -> StoredToken | None:
    """
    Find a token by its name.
    """
    row = txn.execute(f"{_SELECT} WHERE name = ?", (name,)).one()
    return None if row is None else _token(row)


def active(txn: Cursor) -> tuple[Token, ...]:
    """
    Read all tokens that are valid.
    """
    rows = txn.execute(
        f"{_SELECT} WHERE revoked_at IS NULL ORDER BY token_id LIMIT ?", (LIMIT,)
    ).all()
    return tuple(_token(row).token for row in rows)


def listed(txn: Cursor, limit: int = LIMIT) -> tuple[StoredToken, ...]:
    """
    Read tokens, the newest first, revoked ones too.
    """
    rows = txn.execute(f"{_SELECT} ORDER BY token_id DESC LIMIT ?", (limit,)).all()
    return tuple(map(_token, rows))


_SELECT = "SELECT name, sha256, scopes, accounts, created_at, revoked_at FROM codeRunner_tokens"


def _token(row: tuple[Any, ...]) -> StoredToken:
    name, sha256, scopes, accounts, created_at, revoked_at = row
    return StoredToken(
        Token(
            name=name,
            sha256=sha256,
            scopes=tuple(scopes.split()),
            accounts=tuple(json.loads(accounts)) if accounts else (),
        ),
        text_of(created_at),
        text_of(revoked_at),
    )
