"""
The executor's door: who may ask what, and what is answered.
"""

from __future__ import annotations

import io
import json
import sqlite3
from typing import Any

from attrs import evolve

from crq.config import Config, SecretOptions
from crq.configfile import ConfigError
from crq.executor import app, interpret
from tests import rows
from tests.fake_api import Answer, FakeApi
from tests.rows import NOON, SEALER
from tests.workers import LIMITED, READER, TOKEN, DoorCase


class TrialTests(DoorCase):
    """
    ``/codeRunner/test``: at once, for a person who waits.
    """

    def setUp(self) -> None:
        self.api = FakeApi()
        self.addCleanup(self.api.close)
        self.base_url = self.api.url
        super().setUp()

    def trial(self, token: str | None = TOKEN, **fields: Any) -> tuple[int, dict[str, Any]]:
        given = {"subdomain": "acme", "apikey": "key", "source_code": "print(payload)", **fields}
        header = {} if token is None else {"HTTP_AUTHORIZATION": f"Bearer {token}"}
        return self.request("POST", "/codeRunner/test", json.dumps(given).encode(), **header)

    def test_outcome_and_output(self) -> None:
        """
        The answer has the outcome and what was printed; no row knows of it.
        """
        status, answer = self.trial(payload={"a": "שלום"}, source_code="print(payload['a'])\nx=1")
        self.assertEqual(status, 200)
        self.assertEqual(
            answer,
            {"status": "success", "errorCode": None, "errorMessage": None, "output": "שלום\n"},
        )
        (count,) = self.rows.execute("SELECT COUNT(*) FROM codeRunner_executions").fetchone()
        self.assertEqual(count, 0)

    def test_a_failure_says_where(self) -> None:
        """
        A script that fails is answered with its code, line and column, and what it printed.
        """
        for source, code, line in (("x = 1\ny = = 2", 201, 2), ("print(1)\n1//0", 301, 2)):
            status, answer = self.trial(source_code=source)
            self.assertEqual((status, answer["errorCode"], answer["line"]), (200, code, line))
            self.assertIn("column", answer)
        self.assertEqual(answer["output"], "1\n")

    def test_output_has_an_end(self) -> None:
        """
        A script that prints without end does not fill the memory.
        """
        answer = self.trial(source_code="for i in range(9999):\n  print('x' * 100)")[1]
        self.assertLess(len(answer["output"]), interpret.OUTPUT_LENGTH + 200)
        self.assertIn("is cut", answer["output"])

    def test_it_closes_gates(self) -> None:
        """
        A 429 in a trial closes the key's gate as any other does.
        """
        self.api.answer(Answer(429, {}, {"Retry-After": "3600"}))
        self.assertEqual(self.trial(source_code="api.get('/x')")[1]["errorCode"], 301)
        self.assertEqual(self.gates.closings[0][0], SEALER.key("key"))

    def test_who_may(self) -> None:
        """
        A token with the scope to admit, and only for the accounts it is limited to.
        """
        self.assertEqual(self.trial(READER)[0], 403)
        self.assertEqual(self.trial(LIMITED)[0], 200)
        self.assertEqual(self.trial(LIMITED, subdomain="ACME")[0], 200)
        self.assertEqual(self.trial(LIMITED, subdomain="beta")[0], 403)
        self.assertEqual(self.api.calls, [])

    def test_no_token(self) -> None:
        """
        Whatever is not a known token is 401, before the body is looked at.
        """
        for token in (None, "", "é", "x" * 1_000_000, TOKEN[:-1], TOKEN + "x"):
            self.assertEqual(self.trial(token)[0], 401, token)
            self.assertEqual(self.headers["WWW-Authenticate"], "Bearer")
        for header in (TOKEN, f"Basic {TOKEN}", "Bearer", "\xe9"):
            status, _ = self.request(
                "POST", "/codeRunner/test", b"nonsense", HTTP_AUTHORIZATION=header
            )
            self.assertEqual(status, 401, header)

    def test_fields(self) -> None:
        """
        What is missing, unknown or malformed is named, and no secret is repeated.
        """
        for fields, field in (
            ({"source_code": None}, "source_code"),
            ({"apikey": "secret\n"}, "apikey"),
            ({"subdomain": "a.b"}, "subdomain"),
            ({"sourcecode": "x"}, "sourcecode"),
        ):
            status, answer = self.trial(**fields)
            self.assertEqual((status, answer["field"]), (422, field))
            self.assertNotIn("secret", json.dumps(answer))
        for body in (b"", b"{", b"[]", b"\xff"):
            status, answer = self.request(
                "POST", "/codeRunner/test", body, HTTP_AUTHORIZATION=f"Bearer {TOKEN}"
            )
            self.assertEqual((status, answer["field"]), (400, "body"))


class DoorTests(DoorCase):
    """
    What is asked wrongly.
    """

    def test_paths_and_methods(self) -> None:
        """
        An unknown path is 404, a method that does not fit 405 with the one that does.
        """
        self.assertEqual(self.request("GET", "/")[0], 404)
        self.assertEqual(self.request("GET", "/codeRunner/runAsync")[0], 405)
        self.assertEqual(self.headers["Allow"], "POST")
        self.assertEqual(self.request("POST", "/health")[0], 405)
        self.assertEqual(self.headers["Allow"], "GET")

    def test_a_body_too_long(self) -> None:
        """
        A body over the limit is 413, whether it says so or not, and is not read.
        """

        class Endless(io.RawIOBase):
            asked = 0

            def read(self, size: int = -1) -> bytes:
                self.asked += size
                return b"x" * size

        body = Endless()
        for length in (str(10**10), ""):
            status, answer = self.request(
                "POST", "/codeRunner/runAsync", body, CONTENT_LENGTH=length
            )
            self.assertEqual((status, answer["field"]), (413, "body"))
        self.assertEqual(body.asked, app.FORM_LIMIT + 1)

    def test_a_body_that_breaks(self) -> None:
        """
        A length that is none is the sender's fault; a body that does not arrive is nobody's, and
        costs no row: 400 would.
        """

        class Torn(io.RawIOBase):
            def read(self, size: int = -1) -> bytes:
                raise ConnectionResetError

        path = "/codeRunner/runAsync"
        for length in ("-1", "x"):
            self.assertEqual(self.request("POST", path, CONTENT_LENGTH=length)[0], 400)
        self.assertEqual(self.request("POST", path, Torn())[0], 408)

    def test_an_error_of_ours(self) -> None:
        """
        What nobody foresaw is 500 with a hint, and a traceback in the log alone.
        """

        def disturb(name: str) -> None:
            raise ZeroDivisionError("inner words")

        self.connection.disturb = disturb
        with self.assertLogs("crq.executor", "ERROR"):
            status, answer = self.dispatch(self.claimed())
        self.assertEqual((status, answer["field"]), (500, "server"))
        self.assertNotIn("inner", json.dumps(answer))

    def test_health(self) -> None:
        """
        Healthy while the database answers and has our schema; what the doctor compares is told.
        """
        status, answer = self.request("GET", "/health")
        self.assertEqual((status, answer["status"]), (200, "ok"))
        self.assertEqual((answer["wall"], answer["liveness"]), (300.0, "lock"))
        self.assertEqual((answer["gates"], answer["time"]), ("database", NOON))
        self.rows.execute("UPDATE alembic_version SET version_num = '0001'")
        status, answer = self.request("GET", "/health")
        self.assertEqual(status, 503)
        self.assertIn("crq db upgrade", answer["problem"])

        def disturb(name: str) -> None:
            raise sqlite3.OperationalError("away")

        self.connection.disturb = disturb
        status, answer = self.request("GET", "/health")
        self.assertEqual((status, answer["problem"]), (503, "does not answer"))


class FactoryTests(DoorCase):
    """
    `make_app`.
    """

    def secret(self, **more: Any) -> Config:
        keys = SecretOptions(salt="pepper", seal_keys=SEALER.seal_keys[0])
        return evolve(self.config, secrets=keys, **more)

    def test_of_a_configuration(self) -> None:
        """
        What the factory makes executes what was admitted under the same secrets.
        """
        self.app = app.make_app(self.secret())
        self.addCleanup(self.app.executor.connection.close)
        rows.admit(self.database, self.rows)
        connection = self.database.connect()
        self.addCleanup(connection.close)
        self.app.executor.clock = self.time.clock
        (claimed,) = rows.claim(self.database, connection)
        self.assertEqual(self.dispatch(claimed)[0], 200)
        self.assertEqual(list((self.folder / "locks").iterdir()), [])

    def test_liveness_by_the_wall(self) -> None:
        """
        Where locks are not to be trusted none is made.
        """
        options = evolve(self.config.executor, liveness="wall")
        made = app.make_app(self.secret(executor=options))
        self.assertIsNone(made.executor.liveness)

    def test_what_cannot_work_does_not_start(self) -> None:
        """
        Another language or contract, or no secrets: the factory says which option is wrong.
        """
        other = evolve(self.config.script, language="opaque")
        plain = evolve(self.config.executor, contract="plain")
        for config, option in (
            (self.secret(script=other), "script.language"),
            (self.secret(executor=plain), "executor.contract"),
            (self.config, "secrets.salt_file"),
        ):
            error = self.assertRaises(ConfigError, app.make_app, config)
            self.assertIn(option, str(error))
