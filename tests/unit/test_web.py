"""
The HTTP door: what is asked and what is answered.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any
from urllib.parse import urlencode

from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from crq import executions, records
from crq.database import CommitUnknown, Database
from crq.messages import Outcome
from crq.model import Limits, Status
from tests import door, rows
from tests.door import Answer, Door, Wire, request
from tests.rows import NOON, SEALER
from tests.support import SynchronousPool, memory_pool

FORM = [("Content-Type", "application/x-www-form-urlencoded")]
JSON = [("Content-Type", "application/json")]
GOOD = {"subdomain": "acme", "apikey": "k", "source_code": "x = 1"}


class Case(SynchronousTestCase):
    """
    With a door.
    """

    def make(self, **options: Any) -> Door:
        """
        A door that is closed when the test is over.
        """
        made = Door(**options)
        self.addCleanup(made.close)
        return made

    def assert_problem(self, answer: Answer, status: int, field: str) -> None:
        """
        Check that an answer says what is wrong, with what, and what to do; no traceback.
        """
        self.assertEqual((answer.status, answer.json.get("field")), (status, field), answer.body)
        self.assertTrue(answer.json["problem"])
        self.assertTrue(answer.json["remedy"])
        self.assertNotIn(b"Traceback", answer.body)

    def count(self, made: Door) -> int:
        """
        How many executions there are.
        """

        def ask(txn: Any) -> int:
            sql = "SELECT COUNT(*) FROM codeRunner_executions"
            return int(txn.execute(sql).scalar())

        return self.successResultOf(made.pool.read(ask))


class AdmissionTests(Case):
    """
    POST /codeRunner.
    """

    def test_json_is_admitted(self) -> None:
        """
        202 with the number, the row as it was given, and the drainer is woken.
        """
        made = self.make()
        answer = made.submit(payload={"b": 1, "a": [2]}, identifier="rule 7", debug=True)
        self.assertEqual(answer.status, 202)
        self.assertEqual(
            (answer.json["executionId"], answer.json["status"]), (1, "queued"), answer.json
        )
        self.assertEqual(made.woken, 1)
        shown = made.ask("GET", "/codeRunner/executions/1").json
        self.assertEqual(
            (shown["subdomain"], shown["identifier"], shown["debug"], shown["sourceCode"]),
            ("acme", "rule 7", True, "x = 1"),
        )
        self.assertEqual(shown["queuedAt"], "2026-03-02T12:00:00.000Z")

        def payload(txn: Any) -> object:
            return txn.execute("SELECT payload FROM codeRunner_jobs").scalar()

        self.assertEqual(self.successResultOf(made.pool.read(payload)), '{"a":[2],"b":1}')

    def test_form_is_the_same(self) -> None:
        """
        A form with the same fields makes the same submission: the same key finds it.
        """
        made = self.make()
        made.submit(key="once", payload={"a": "é"}, debug=True, source_code="x = 'é'\n")
        form = {
            **GOOD,
            "source_code": "x = 'é'\n",
            "payload": '{ "a" : "\\u00e9" }',
            "debug": "true",
        }
        answer = made.ask(
            "POST",
            "/codeRunner",
            urlencode(form).encode(),
            headers=[*FORM, ("Idempotency-Key", "once")],
        )
        self.assertEqual((answer.status, answer.json["executionId"]), (200, 1))

    def test_repetition_says_how_it_is_now(self) -> None:
        """
        The same key is 200 with the first number and its present state; nobody is woken again.
        """
        made = self.make()
        made.submit(key="once")
        (claimed,) = rows.claim(made.pool.database, made.pool.connection)
        rows.start(made.pool.database, made.pool.connection, claimed)
        self.successResultOf(
            made.pool.transact(executions.finish, 1, Outcome(Status.SUCCESS), NOON + 1)
        )
        answer = made.submit(key="once")
        self.assertEqual(
            (answer.status, answer.json),
            (200, {"executionId": 1, "status": "success", "repeated": True}),
        )
        self.assertEqual((made.woken, self.count(made)), (1, 1))

    def test_key_of_another_submission_is_refused(self) -> None:
        """
        422 with the execution the key belongs to; nothing is stored.
        """
        made = self.make()
        made.submit(key="once")
        answer = made.submit(key="once", payload=1)
        self.assert_problem(answer, 422, "idempotency_key")
        self.assertEqual((answer.json["executionId"], self.count(made)), (1, 1))

    def test_full_queue_refuses_and_records(self) -> None:
        """
        429 with 107 and the number of the row that says so in the log (brief §16).
        """
        made = self.make(limits=Limits(queued_per_account=1))
        made.submit()
        answer = made.submit()
        self.assert_problem(answer, 429, "queue")
        self.assertEqual(
            (answer.json["errorCode"], answer.json["executionId"]), (107, 2), answer.json
        )
        self.assertIn("retry-after", answer.headers)
        log = made.ask("GET", "/codeRunner/logs/data?errorCode=107").json["executions"]
        self.assertEqual([(row["executionId"], row["shown"]) for row in log], [(2, "rejected")])
        self.assertEqual(made.woken, 1)

    def test_faulty_script_is_refused_with_its_place(self) -> None:
        """
        422 with 201, line and column, and the number of the row in the log.
        """
        made = self.make()
        answer = made.submit(source_code="def f(:\n")
        self.assert_problem(answer, 422, "source_code")
        self.assertEqual((answer.json["errorCode"], answer.json["executionId"]), (201, 1))
        self.assertEqual(answer.json["line"], 1)
        self.assertGreater(answer.json["column"], 0)
        self.assertEqual(made.woken, 0)

    def test_opaque_script_is_not_parsed(self) -> None:
        """
        With a language of the executor's own, any text is admitted.
        """
        self.assertEqual(self.make(language="opaque").submit(source_code="<?php(").status, 202)

    def test_bodies_that_cannot_be_read(self) -> None:
        """
        400 for what is no JSON object or no form, 415 for another kind, 422 for a bad field.
        """
        made = self.make()
        cases: tuple[tuple[list[Any], bytes, int, str], ...] = (
            (JSON, b"", 400, "body"),
            (JSON, b"{", 400, "body"),
            (JSON, b"[1]", 400, "body"),
            (JSON, b'"x"', 400, "body"),
            (JSON, b"\xff\xfe", 400, "body"),
            (JSON, b"[" * 4000, 400, "body"),
            (JSON, b'{"subdomain":"a","subdomain":"b"}', 400, "body"),
            (JSON, b'{"nonsense": 1}', 422, "nonsense"),
            (JSON, b"{}", 422, "subdomain"),
            (
                JSON,
                b'{"subdomain": "a", "apikey": "k", "source_code": "\\ud800"}',
                422,
                "source_code",
            ),
            (FORM, b"", 422, "subdomain"),
            (FORM, b"a", 400, "body"),
            (FORM, b"subdomain=%ff", 400, "body"),
            (FORM, "subdomain=é".encode(), 400, "body"),
            (FORM, b"&".join([b"a=1"] * 100), 400, "body"),
            (FORM, b"subdomain=a&subdomain=b", 422, "subdomain"),
            (FORM, b"debug=yes", 422, "debug"),
            (FORM, b"payload=%7B", 422, "payload"),
            ([], b"x", 415, "Content-Type"),
            ([*JSON, *JSON], b"{}", 415, "Content-Type"),
            ([("Content-Type", b"\xe9")], b"x", 415, "Content-Type"),
            ([("Content-Type", "multipart/form-data; boundary=x")], b"--x--", 415, "Content-Type"),
            ([("Content-Type", "application/json; charset=latin-1")], b"{}", 415, "Content-Type"),
            ([*JSON, ("Content-Encoding", "gzip")], b"{}", 415, "Content-Type"),
            (
                [*JSON, ("Idempotency-Key", "a b")],
                json.dumps(GOOD).encode(),
                422,
                "idempotency_key",
            ),
            (
                [*JSON, ("Idempotency-Key", b"\xe9")],
                json.dumps(GOOD).encode(),
                422,
                "idempotency_key",
            ),
            (
                [*JSON, ("Idempotency-Key", "a"), ("Idempotency-Key", "b")],
                json.dumps(GOOD).encode(),
                422,
                "idempotency_key",
            ),
        )
        for headers, body, status, field in cases:
            answer = made.ask("POST", "/codeRunner", body, headers=headers)
            self.assert_problem(answer, status, field)
        self.assertEqual(self.count(made), 0)

    def test_content_type_may_have_a_charset(self) -> None:
        """
        What libraries send is taken.
        """
        for kind in ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'):
            answer = self.make().ask(
                "POST", "/codeRunner", json.dumps(GOOD).encode(), headers=[("Content-Type", kind)]
            )
            self.assertEqual(answer.status, 202)

    def test_secrets_are_not_repeated(self) -> None:
        """
        No answer carries the API key or the token, whatever is wrong with them.
        """
        made = self.make()
        cases: tuple[dict[str, Any], ...] = (
            {"apikey": "sesame\n"},
            {"source_code": ""},
            {"x": 1},
        )
        for fields in cases:
            answer = made.submit(**{"apikey": "sesame", **fields})
            self.assertEqual(answer.status, 422)
            self.assertNotIn(b"sesame", answer.body)
        made.submit(apikey="sesame")
        for path in ("/codeRunner/logs/data", "/codeRunner/executions/1", "/status"):
            self.assertNotIn(b"sesame", made.ask("GET", path).body)


class OutageTests(Case):
    """
    When the database is away.
    """

    def failing(self, words: str, error: Exception) -> Door:
        """
        A door whose database raises an error at each statement that contains some words.
        """

        def observe(sql: str) -> None:
            if self.away and words in sql:
                raise error

        self.away = True
        return self.make(observe=observe)

    def test_no_guard_fails_open(self) -> None:
        """
        An error at any statement of an admission refuses with 503, and nothing is left (F118).
        """
        for words in (
            *("BEGIN", "codeRunner_admit", "idempotency_key = ?", "COUNT(*)", "LIMIT ?"),
            *("INSERT INTO codeRunner_jobs", "INSERT INTO codeRunner_executions", "COMMIT"),
        ):
            made = self.failing(words, sqlite3.OperationalError("disk I/O error"))
            answer = made.submit(key="one")
            self.assert_problem(answer, 503, "database")
            self.assertIn("retry-after", answer.headers)
            self.assertEqual(made.woken, 0)
            self.away = False
            self.assertEqual(self.count(made), 0, words)
            self.assertEqual(made.submit(key="one").status, 202)

    def test_reads_answer_503_too(self) -> None:
        """
        So does every page; a supervisor's question still gets its answer.
        """
        made = self.failing("", sqlite3.OperationalError("unable to open database file"))
        for path in ("/codeRunner/logs/data", "/codeRunner/executions/1", "/status"):
            self.assert_problem(made.ask("GET", path), 503, "database")
        self.assertEqual(made.ask("GET", "/health/live").status, 200)

    def test_fault_of_ours_is_logged_and_not_shown(self) -> None:
        """
        A plain error is 500 without its text, with a full line in the log.
        """
        made = self.failing("", RuntimeError("sesame"))
        answer = made.submit()
        self.assert_problem(answer, 500, "server")
        self.assertNotIn(b"sesame", answer.body)
        (logged,) = self.flushLoggedErrors(RuntimeError)
        self.assertIn("sesame", logged.getErrorMessage())

    def test_lost_commit_is_settled_by_reading(self) -> None:
        """
        When the answer to COMMIT is lost: 202 if the row is there, and then only once (F08).
        """
        pool = Forgetful(Database("sqlite:///:memory:"))
        made = self.make(pool=pool)
        pool.forgets = "after"
        answer = made.submit(key="once")
        self.assertEqual((answer.status, answer.json["executionId"], made.woken), (202, 1, 1))
        self.assertEqual(made.submit(key="once").json["executionId"], 1)
        pool.forgets = "before"
        self.assert_problem(made.submit(key="twice"), 503, "database")
        self.assertEqual((made.submit(key="twice").status, self.count(made)), (202, 2))


class Forgetful(SynchronousPool):
    """
    Loses the answer to one COMMIT: before it was done, or after.
    """

    forgets = ""

    def transact(self, function: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """
        Run a transaction, or pretend to.
        """
        forgets, self.forgets = self.forgets, ""
        answer: Deferred[Any] = Deferred()
        if forgets != "before":
            answer = super().transact(function, *args, **kwargs)
        else:
            answer.errback(CommitUnknown())
        if forgets == "after":
            answer.addCallback(self._lose)
        return answer

    def _lose(self, _answer: object) -> None:
        raise CommitUnknown


class ReadingTests(Case):
    """
    The log, one execution, the status.
    """

    def test_log_goes_page_by_page(self) -> None:
        """
        Newest first; the cursor of a page gives the next, until there is none.
        """
        made = self.make()
        for _ in range(5):
            made.submit()
        seen: list[int] = []
        path = "/codeRunner/logs/data?limit=2"
        cursor = ""
        while cursor is not None:
            page = made.ask("GET", path + (f"&cursor={cursor}" if cursor else "")).json
            seen += [row["executionId"] for row in page["executions"]]
            cursor = page["cursor"]
        self.assertEqual(seen, [5, 4, 3, 2, 1])

    def test_log_is_filtered(self) -> None:
        """
        By account in both spellings, state, code and time; two accounts at once match nothing.
        """
        made = self.make()
        made.submit()
        made.clock.advance(10)
        made.submit(subdomain="other")

        def found(query: str) -> list[int]:
            answer = made.ask("GET", f"/codeRunner/logs/data?{query}")
            self.assertEqual(answer.status, 200, answer.body)
            return [row["executionId"] for row in answer.json["executions"]]

        acme = SEALER.account("acme")
        self.assertEqual(found("subdomain=ACME"), [1])
        self.assertEqual(found(f"account={acme}"), [1])
        self.assertEqual(found(f"account={acme}&subdomain=acme"), [1])
        self.assertEqual(found(f"account={acme}&subdomain=other"), [])
        self.assertEqual(found("subdomain="), [])
        self.assertEqual(found("status=queued"), [2, 1])
        self.assertEqual(found("status=failed"), [])
        self.assertEqual(found("since=2026-03-02T12:00:01Z"), [2])
        self.assertEqual(found("until=2026-03-02T12:00:01Z"), [1])

    def test_bad_filters_are_refused(self) -> None:
        """
        What is unknown, given twice or not of its kind is named, and is never taken for "all".
        """
        made = self.make()
        for query, name in (
            ("nonsense=1", "nonsense"),
            ("%ff=1", "\\xff"),
            ("status=wedged", "status"),
            ("status=queued&status=failed", "status"),
            ("errorCode=x", "errorCode"),
            ("errorCode=-1", "errorCode"),
            ("errorCode=%D9%A3", "errorCode"),  # an Arabic digit
            ("errorCode=" + "9" * 5000, "errorCode"),
            ("limit=0", "limit"),
            ("limit=501", "limit"),
            ("since=yesterday", "since"),
            ("until=", "until"),
            ("cursor=x", "cursor"),
            ("cursor=", "cursor"),
            ("account=acme", "account"),
            ("account=%C3%A9", "account"),
            ("subdomain=%ff", "subdomain"),
        ):
            self.assert_problem(made.ask("GET", f"/codeRunner/logs/data?{query}"), 422, name)

    def test_execution_that_is_not_there(self) -> None:
        """
        404 for any number without a row, and for what is no number.
        """
        made = self.make()
        for number in ("1", "0", "%D9%A3", "9" * 30):
            answer = made.ask("GET", f"/codeRunner/executions/{number}")
            self.assert_problem(answer, 404, "execution")
        for path in ("x", "-1", "1.0", ""):
            answer = made.ask("GET", f"/codeRunner/executions/{path}")
            self.assert_problem(answer, 404, "path")

    def test_stored_text_cannot_break_the_json(self) -> None:
        """
        Markup, quotes and control characters come back as the text they are (F113).
        """
        evil = "</script><img src=x onerror=1>\"'`{{7*7}}\x1b[31m\u2028"
        made = self.make()
        made.submit(identifier=evil, source_code=f"# {evil}")
        answer = made.ask("GET", "/codeRunner/executions/1")
        self.assertEqual(answer.json["identifier"], evil)
        self.assertTrue(answer.headers["content-type"].startswith("application/json"))

    def test_odd_rows_are_served(self) -> None:
        """
        A row with an unknown status, and bytes where text belongs, are on the page (F64).
        """
        made = self.make()

        def odd(txn: Any) -> None:
            txn.execute(
                "INSERT INTO codeRunner_executions (subdomain_hash, status, error_message,"
                " error_code, queued_at) VALUES ('a', 'wedged', X'C328', X'00', 'yesterday')"
            )

        self.successResultOf(made.pool.transact(odd))
        (row,) = made.ask("GET", "/codeRunner/logs/data").json["executions"]
        self.assertEqual((row["shown"], row["queuedAt"]), ("wedged", "yesterday"))
        self.assertEqual(made.ask("GET", "/codeRunner/executions/1").status, 200)

    def test_status_says_how_it_is(self) -> None:
        """
        Depth, oldest age, in flight and closed gates (brief §16).
        """
        made = self.make()
        for name in ("acme", "acme", "other"):
            made.submit(subdomain=name, apikey=name)
        rows.claim(made.pool.database, made.pool.connection, gates={SEALER.key("other"): NOON + 60})
        made.stored_gates.close(SEALER.key("other"), NOON + 60, NOON)
        self.successResultOf(Deferred.fromCoroutine(made.gates.read([SEALER.key("other")], NOON)))
        made.clock.advance(3)
        shown = made.ask("GET", "/status").json
        self.assertEqual(
            (shown["verdict"], shown["depth"], shown["inFlight"], shown["oldestQueuedAge"]),
            ("gated", 1, 2, 3.0),
        )
        self.assertEqual([gate["until"] for gate in shown["gates"]], ["2026-03-02T12:01:00.000Z"])
        self.assertEqual(shown["daemon"]["lastGoodAge"], 3.0)


class HealthTests(Case):
    """
    /health, without a token.
    """

    def ready(self, made: Door) -> tuple[int, str | None]:
        """
        Ask, and say what was answered.
        """
        answer = made.ask("GET", "/health/ready", token=None)
        return answer.status, answer.json.get("problem")

    def test_ready_while_ticks_are_good(self) -> None:
        """
        200 until the last good tick is five seconds old; then 503 with the reason.
        """
        made = self.make()
        made.clock.advance(4.9)
        self.assertEqual(self.ready(made), (200, None))
        made.clock.advance(0.1)
        self.assertEqual(self.ready(made), (503, "no tick has ended well for 5.0 s"))
        made.pulse.last_good_monotonic = made.clock.seconds()
        self.assertEqual(self.ready(made), (200, None))

    def test_not_ready_before_the_first_tick_nor_while_stopping(self) -> None:
        """
        503 with the reason; the text of an error is for those with a token.
        """
        made = self.make()
        made.pulse.last_good_monotonic = None
        made.pulse.last_error = "sesame"
        self.assertEqual(self.ready(made), (503, "no tick has ended well yet"))
        made.pulse.last_good_monotonic = 0.0
        made.pulse.draining = True
        self.assertEqual(self.ready(made), (503, "the daemon is stopping"))

    def test_stepped_wall_clock_changes_nothing(self) -> None:
        """
        The age is measured on the monotonic clock (ruling 10).
        """
        made = self.make()
        made.pulse.last_good_tick = NOON - 86_400
        self.assertEqual(self.ready(made)[0], 200)
        made.pulse.last_good_tick = NOON + 86_400
        self.assertEqual(self.ready(made)[0], 200)

    def test_alive_whatever_is(self) -> None:
        """
        A process that answers is alive.
        """
        made = self.make()
        made.clock.advance(1000)
        self.assertEqual(made.ask("GET", "/health/live", token=None).status, 200)


class ScopeTests(Case):
    """
    Who may do what, and for whom (ruling 17).
    """

    PATHS = ("/codeRunner/logs/data", "/codeRunner/executions/1", "/status")

    def test_without_a_token_nothing_is_done(self) -> None:
        """
        401 with a challenge at each door but health; nothing is stored.
        """
        made = self.make()
        for answer in (
            made.submit(token=None),
            made.submit(token="nonsense"),
            *(made.ask("GET", path, token=None) for path in self.PATHS),
        ):
            self.assert_problem(answer, 401, "Authorization")
            self.assertTrue(answer.headers["www-authenticate"].startswith("Bearer"))
        self.assertEqual(self.count(made), 0)

    def test_without_configured_tokens_nobody_may(self) -> None:
        """
        An empty list of tokens closes the door; it does not open it.
        """
        made = self.make(tokens=())
        for token in (door.TOKEN, "", None):
            self.assertEqual(made.submit(token=token).status, 401)

    def test_scopes_are_kept_apart(self) -> None:
        """
        403: a reader does not admit, an admitter does not read.
        """
        made = self.make()
        self.assert_problem(made.submit(token=door.READER), 403, "Authorization")
        self.assertEqual(made.submit(token=door.ADMITTER).status, 202)
        for path in self.PATHS:
            self.assert_problem(made.ask("GET", path, token=door.ADMITTER), 403, "Authorization")
            self.assertEqual(made.ask("GET", path, token=door.READER).status, 200)

    def test_limited_token_admits_for_its_account_alone(self) -> None:
        """
        403 for another account, in any spelling; nothing is stored.
        """
        made = self.make()
        self.assertEqual(made.submit(token=door.ACME).status, 202)
        self.assertEqual(made.submit(token=door.ACME, subdomain="ACME").status, 202)
        answer = made.submit(token=door.ACME, subdomain="other")
        self.assert_problem(answer, 403, "subdomain")
        self.assertEqual(self.count(made), 2)

    def test_limited_token_reads_its_account_alone(self) -> None:
        """
        Another account's rows are not on the page, not there by number, not in the status.
        """
        made = self.make()
        made.submit()
        made.submit(subdomain="other", apikey="of other")
        made.stored_gates.close(SEALER.key("of other"), NOON + 60, NOON)
        self.successResultOf(
            Deferred.fromCoroutine(made.gates.read([SEALER.key("of other")], NOON))
        )

        def ask(path: str) -> Answer:
            return made.ask("GET", path, token=door.ACME)

        log = ask("/codeRunner/logs/data").json["executions"]
        self.assertEqual([row["executionId"] for row in log], [1])
        self.assertEqual(ask("/codeRunner/logs/data?subdomain=acme").status, 200)
        self.assert_problem(ask("/codeRunner/logs/data?subdomain=other"), 403, "account")
        self.assert_problem(ask("/codeRunner/executions/2"), 404, "execution")
        self.assertEqual(ask("/codeRunner/executions/1").status, 200)
        status = ask("/status")
        self.assertEqual((status.json["depth"], status.json["daemon"]), (1, None))
        for secret in ("other", SEALER.account("other"), SEALER.key("of other")):
            self.assertNotIn(secret.encode(), status.body)
        self.assertIn(SEALER.key("of other"), str(made.ask("GET", "/status").json))


class DoorTests(Case):
    """
    What every answer has.
    """

    def test_security_headers_are_on_every_answer(self) -> None:
        """
        Good and bad ones, and those of paths that are not there.
        """
        made = self.make()
        for answer in (
            made.submit(),
            made.submit(subdomain=""),
            made.ask("GET", "/nowhere"),
            made.ask("DELETE", "/status"),
            made.ask("GET", "/%ff"),
            made.ask("POST", "/codeRunner", b"x" * 5000, headers=JSON),
        ):
            self.assertIn("default-src 'none'", answer.headers["content-security-policy"])
            self.assertEqual(answer.headers["x-content-type-options"], "nosniff")
            self.assertEqual(answer.headers["cache-control"], "no-store")

    def test_unknown_paths_and_methods(self) -> None:
        """
        404 and 405, the latter with what is allowed; nothing redirects.
        """
        made = self.make()
        for path in ("/nothing", "/codeRunner/x", "/status/x", "/codeRunner//logs/data", "/é"):
            self.assert_problem(made.ask("GET", path.replace("é", "%C3%A9")), 404, "path")
        answer = made.ask("GET", "/codeRunner")
        self.assert_problem(answer, 405, "method")
        self.assertEqual(answer.headers["allow"], "POST")

    def test_paths_and_hosts_that_are_no_text(self) -> None:
        """
        400, one line, no traceback in the log.
        """
        made = self.make()
        self.assert_problem(made.ask("GET", "/%ff"), 400, "request")
        for host in (b"\xff", b"a..b", b"x" * 300, b"." * 5):
            wire = Wire(made)
            wire.send(b"GET /status HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            self.assert_problem(wire.answer(), 400, "request")
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_host_may_be_missing_or_an_address(self) -> None:
        """
        HTTP/1.0 without a Host, and IPv6 literals, are answered.
        """
        made = self.make()
        for head in (
            b"HTTP/1.0\r\n",
            b"HTTP/1.1\r\nHost: [::1]:8080\r\n",
            b"HTTP/1.1\r\nHost:\r\n",
        ):
            wire = Wire(made)
            wire.send(b"GET /health/live " + head + b"\r\n")
            self.assertEqual(wire.answer().status, 200, head)

    def test_unix_sockets_have_no_host(self) -> None:
        """
        A request over one, without a Host, is answered too.
        """
        wire = Wire(self.make(), UNIXAddress("/run/crqueue.sock"))
        wire.send(b"GET /health/live HTTP/1.0\r\n\r\n")
        self.assertEqual(wire.answer().status, 200)

    def test_client_that_hangs_up_loses_nothing(self) -> None:
        """
        The admission goes on without its caller; nothing is logged as an error.
        """
        pool = memory_pool()
        held: Deferred[None] = Deferred()
        made = self.make(pool=Slow(pool, held))
        wire = Wire(made)
        wire.send(request("POST", "/codeRunner", json.dumps(GOOD).encode(), headers=JSON))
        wire.hang_up()
        held.callback(None)
        self.assertEqual(self.count(made), 1)
        self.assertEqual(self.flushLoggedErrors(), [])


class Slow(SynchronousPool):
    """
    Gives the answer to a transaction later.
    """

    def __init__(self, pool: SynchronousPool, held: Deferred[None]) -> None:
        self.__dict__.update(vars(pool))
        self._held = held

    def transact(self, function: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """
        Run the transaction now, as its thread would, and answer when it is time.
        """
        done = super().transact(function, *args, **kwargs)
        answer: Deferred[Any] = Deferred()
        self._held.addCallback(lambda _: done.chainDeferred(answer))
        return answer


class RecordsTests(Case):
    """
    The pages of `crq.records`, seen from the door.
    """

    def test_limit_of_a_page(self) -> None:
        """
        A page is not longer than its limit, nor is the default.
        """
        made = self.make()
        for _ in range(records.PAGE + 1):
            made.submit()
        self.assertEqual(
            len(made.ask("GET", "/codeRunner/logs/data").json["executions"]), records.PAGE
        )
