"""
Tokens of the database are good at the executor's door too.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from crq import tokens
from crq.config import Token
from crq.sealing import sha256_hex
from tests.rows import NOON
from tests.workers import DoorCase


class TokenTests(DoorCase):
    """
    ``/codeRunner/test`` with a token that no file knows.
    """

    def trial(self, token: str) -> tuple[int, dict[str, Any]]:
        body = {"subdomain": "acme", "apikey": "key", "source_code": "x = 1"}
        return self.request(
            "POST",
            "/codeRunner/test",
            json.dumps(body).encode(),
            HTTP_AUTHORIZATION=f"Bearer {token}",
        )

    def test_until_it_is_revoked(self) -> None:
        """
        It runs what its scope and its accounts allow, and nothing once it is revoked.
        """
        for name, scope, accounts in (
            ("all", "admit", ()),
            ("reader", "read", ()),
            ("other", "admit", ("other",)),
        ):
            token = Token(name=name, sha256=sha256_hex(name), scopes=(scope,), accounts=accounts)
            self.database.transact(self.rows, tokens.add, token, "cli:ops", NOON)
        found = [self.trial(name)[0] for name in ("all", "reader", "other", "unknown")]
        self.assertEqual(found, [200, 403, 403, 401])
        self.database.transact(self.rows, tokens.revoke, "all", "cli:ops", NOON)
        self.assertEqual(self.trial("all")[0], 401)

    def test_nobody_is_let_in_on_a_guess(self) -> None:
        """
        While the database is away nobody knows whose token it is: 503, and neither 401 nor 200.
        """

        def away(_name: str) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        self.connection.disturb = away
        status, answer = self.trial("all")
        self.assertEqual((status, answer["field"]), (503, "database"))
