"""
What operators do over HTTP, who may do it, and what is answered.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq import executions
from crq.config import Token
from crq.gatevalues import GatesUnreachable
from crq.sealing import sha256_hex
from tests import rows
from tests.door import Answer, Door
from tests.rows import NOON, SEALER

OPS, READER, ACME_OPS, ACME_READER = "crq_ops", "crq_reader", "crq_acme_ops", "crq_acme_reader"
TOKENS = (
    Token(name="ops", sha256=sha256_hex(OPS), scopes=("admit", "read", "operate")),
    Token(name="reader", sha256=sha256_hex(READER), scopes=("read",)),
    Token(
        name="acme ops",
        sha256=sha256_hex(ACME_OPS),
        scopes=("admit", "read", "operate"),
        accounts=("acme",),
    ),
    Token(name="acme reader", sha256=sha256_hex(ACME_READER), scopes=("read",), accounts=("acme",)),
)
ACME, OTHER, KEY = SEALER.account("acme"), SEALER.account("other"), SEALER.key("k")


class Case(SynchronousTestCase):
    """
    With a door.
    """

    def setUp(self) -> None:
        """
        A door with tokens of several kinds.
        """
        self.door = Door(tokens=TOKENS)
        self.addCleanup(self.door.close)

    def do(self, method: str, path: str, token: str = OPS, **body: Any) -> Answer:
        """
        Ask with a JSON body.
        """
        data = json.dumps(body).encode() if body else b""
        headers = [("Content-Type", "application/json")] if body else []
        return self.door.ask(method, path, data, token, headers)

    def ok(self, method: str, path: str, token: str = OPS, **body: Any) -> dict[str, Any]:
        """
        Ask for what is done.
        """
        answer = self.do(method, path, token, **body)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def refused(self, status: int, kind: str, method: str, path: str, *a: str, **body: Any) -> str:
        """
        Ask for what is refused, as problem details; nothing is audited.
        """
        before = len(self.audit())
        answer = self.do(method, path, *a, **body)
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(answer.headers["content-type"], "application/problem+json")
        problem = answer.json
        self.assertEqual(problem["type"], f"urn:crqueue:problem:{kind}", problem)
        self.assertEqual(problem["status"], status)
        self.assertEqual(
            problem["detail"], f"{problem['field']}: {problem['problem']}; {problem['remedy']}"
        )
        self.assertEqual(len(self.audit()), before)
        return str(problem["problem"])

    def audit(self) -> list[dict[str, Any]]:
        """
        The lines of the audit.
        """
        found: list[dict[str, Any]] = self.ok("GET", "/audit")["entries"]
        return found

    def submit(self, subdomain: str = "acme") -> int:
        """
        Admit one execution.
        """
        number: int = self.door.submit(OPS, subdomain=subdomain).json["executionId"]
        return number

    def unknown(self) -> int:
        """
        An execution whose outcome nobody knows.
        """
        number = self.submit()
        pool = self.door.pool
        (claimed,) = rows.claim(pool.database, pool.connection)
        rows.start(pool.database, pool.connection, claimed)
        self.successResultOf(pool.transact(executions.died, number, NOON))
        return number


class ControlTests(Case):
    """
    Pauses, caps, the drain.
    """

    def test_pauses_are_put_and_deleted(self) -> None:
        """
        Everything, an account by name or hash, a key by hash: done once, the same the second time,
        audited under the token's name, and the drainer is woken.
        """
        for path, kind, name in (
            ("/controls/pause/all", "pause_all", ""),
            ("/controls/pause/account/acme", "pause_account", ACME),
            (f"/controls/pause/account/{ACME}", "pause_account", ACME),
            (f"/controls/pause/key/{KEY}", "pause_key", KEY),
        ):
            woken = self.door.woken
            done = self.ok("PUT", path, note="moving")
            self.assertEqual((done["changed"], done["before"]), (True, None))
            self.assertEqual((done["after"]["kind"], done["after"]["name"]), (kind, name))
            self.assertFalse(self.ok("PUT", path)["changed"])
            line = self.audit()[0]
            self.assertEqual(
                (line["who"], line["action"], line["note"]), ("token:ops", "pause", "moving")
            )
            shown = self.ok("GET", "/controls")["controls"]
            self.assertEqual([(each["kind"], each["name"]) for each in shown], [(kind, name)])
            self.assertTrue(self.ok("DELETE", path)["changed"])
            self.assertFalse(self.ok("DELETE", path)["changed"])
            self.assertEqual(self.door.woken, woken + 2)

    def test_caps_and_drain(self) -> None:
        """
        The cap over all, of one account, and the drain.
        """
        self.assertEqual(self.ok("PUT", "/controls/cap/all", value=3)["after"]["value"], 3)
        self.ok("PUT", "/controls/cap/account/acme", value=1)
        self.ok("PUT", "/controls/drain")
        status = self.ok("GET", "/status")
        self.assertEqual(
            (status["limits"]["inFlight"], status["limits"]["accounts"]), (3, {ACME: 1})
        )
        self.assertTrue(status["controls"]["draining"])
        for path in ("/controls/cap/all", "/controls/cap/account/acme", "/controls/drain"):
            self.assertTrue(self.ok("DELETE", path)["changed"])
        self.assertEqual(self.ok("GET", "/controls")["controls"], [])

    def test_what_is_wrong_is_said(self) -> None:
        """
        Each mistake names its field.
        """
        for status, kind, method, path, body in (
            (422, "invalid", "PUT", "/controls/cap/all", {}),
            (422, "invalid", "PUT", "/controls/cap/all", {"value": "3"}),
            (422, "invalid", "PUT", "/controls/cap/all", {"value": True}),
            (422, "invalid", "PUT", "/controls/cap/all", {"value": 0}),
            (422, "invalid", "PUT", "/controls/cap/all", {"value": 99}),
            (422, "invalid", "PUT", "/controls/cap/all", {"value": 3, "wedge": 1}),
            (422, "invalid", "PUT", "/controls/pause/all", {"note": 1}),
            (422, "invalid", "PUT", "/controls/pause/all", {"note": "x" * 501}),
            (422, "invalid", "PUT", "/controls/pause/all", {"note": "\ud800"}),
            (422, "invalid", "PUT", "/controls/pause/account/a_b", {}),
            (422, "invalid", "PUT", "/controls/pause/key/abc", {}),
            (404, "not-found", "PUT", "/controls/pause/account", {}),
            (404, "not-found", "PUT", "/controls/pause/all/x", {}),
            (404, "not-found", "PUT", "/controls/pause/wedge/x", {}),
            (422, "invalid", "PUT", "/controls/cap/all", {"value": 1.5}),
            (405, "method-not-allowed", "POST", "/controls/pause/all", {}),
        ):
            self.refused(status, kind, method, path, **body)
        answer = self.door.ask("PUT", "/controls/drain", b"[1]", OPS, [("Content-Type", "text/x")])
        self.assertEqual(answer.json["type"], "urn:crqueue:problem:unsupported-media-type")
        answer = self.door.ask(
            "PUT", "/controls/drain", b"[1]", OPS, [("Content-Type", "application/json")]
        )
        self.assertEqual(answer.json["type"], "urn:crqueue:problem:bad-request")


class ScopeTests(Case):
    """
    Who may do what.
    """

    ACTIONS = (
        ("PUT", "/controls/pause/all"),
        ("DELETE", "/controls/pause/account/acme"),
        ("PUT", "/controls/cap/all"),
        ("PUT", "/controls/drain"),
        ("PUT", f"/gates/{KEY}"),
        ("DELETE", f"/gates/{KEY}"),
        ("POST", "/codeRunner/executions/1/cancel"),
        ("POST", "/codeRunner/executions/1/run-one"),
        ("POST", "/codeRunner/executions/1/settle"),
        ("POST", "/codeRunner/executions/cancel"),
    )

    def test_reading_is_not_operating(self) -> None:
        """
        A token that may read may do nothing, and none at all is 401.
        """
        self.submit()
        for method, path in self.ACTIONS:
            self.refused(403, "forbidden", method, path, READER)
            self.refused(401, "unauthorized", method, path, "crq_unknown")

    def test_a_limited_token_acts_for_its_accounts(self) -> None:
        """
        It pauses, cancels, starts and settles its own; others' are not even there, and what is
        everybody's is not its to change (ruling 17).
        """
        mine, other = self.submit(), self.submit("other")
        self.ok("PUT", "/controls/pause/account/acme", ACME_OPS)
        self.ok("POST", f"/codeRunner/executions/{mine}/run-one", ACME_OPS)
        self.ok("POST", f"/codeRunner/executions/{mine}/cancel", ACME_OPS)
        for act in ("cancel", "run-one"):
            path = f"/codeRunner/executions/{other}/{act}"
            self.refused(404, "not-found", "POST", path, ACME_OPS)
        path = f"/codeRunner/executions/{other}/settle"
        self.refused(404, "not-found", "POST", path, ACME_OPS, outcome="success")
        for method, path, body in (
            ("PUT", "/controls/pause/all", {}),
            ("PUT", "/controls/pause/account/other", {}),
            ("PUT", f"/controls/pause/key/{KEY}", {}),
            ("PUT", "/controls/cap/account/acme", {"value": 4}),
            ("PUT", "/controls/drain", {}),
            ("PUT", f"/gates/{KEY}", {"seconds": 9}),
            ("POST", "/codeRunner/executions/cancel", {"filters": {"subdomain": "other"}}),
        ):
            self.refused(403, "forbidden", method, path, ACME_OPS, **body)
        counted = self.ok("POST", "/codeRunner/executions/cancel", ACME_OPS)
        self.assertEqual(counted["count"], 0)

    def test_a_limited_token_reads_its_accounts(self) -> None:
        """
        Its own figures and reasons; the series, the audit and the controls speak of all.
        """
        number, other = self.submit(), self.submit("other")
        found = self.ok("GET", "/accounts", ACME_READER)["accounts"]
        self.assertEqual([each["account"] for each in found], [ACME])
        self.ok("GET", f"/codeRunner/executions/{number}/explain", ACME_READER)
        path = f"/codeRunner/executions/{other}/explain"
        self.refused(404, "not-found", "GET", path, ACME_READER)
        for path in ("/series", "/audit", "/controls", "/metrics"):
            self.refused(403, "forbidden", "GET", path, ACME_READER)
        self.refused(403, "forbidden", "GET", f"/gates?key={'a' * 64}", ACME_READER)
        self.assertEqual(self.ok("GET", "/gates", ACME_READER)["history"], [])


class GateTests(Case):
    """
    Gates by hand.
    """

    def test_closed_and_opened(self) -> None:
        """
        The store has it, the drainer knows it, the history says who; opened, one goes first.
        """
        closed = self.ok("PUT", f"/gates/{KEY}", seconds=60, note="API down")
        self.assertEqual(closed["until"], "2026-03-02T12:01:00.000Z")
        self.assertEqual(self.door.stored_gates.stored, {KEY: NOON + 60})
        shown = self.ok("GET", f"/gates?key={KEY}")
        self.assertEqual(shown["history"][0]["cause"], "closed by hand by token:ops: API down")
        longer = self.ok("PUT", f"/gates/{KEY}", until="2026-03-02T12:30:00Z")
        self.assertEqual(longer["until"], "2026-03-02T12:30:00.000Z")
        self.ok("DELETE", f"/gates/{KEY}")
        self.assertEqual(self.door.stored_gates.stored, {})
        self.assertEqual(self.door.gates.closed(NOON), {})
        self.assertEqual(self.door.gates.half_open, {KEY})
        actions = [line["action"] for line in self.audit()]
        self.assertEqual(actions, ["open gate", "close gate", "close gate"])

    def test_a_store_that_does_not_answer(self) -> None:
        """
        Closing is remembered here and holds; opening is 503, and the audit says that it failed.
        """

        def broken(*_args: Any) -> Any:
            raise GatesUnreachable("refused")

        self.door.stored_gates.close = self.door.stored_gates.open = broken  # type: ignore[method-assign,assignment]
        self.ok("PUT", f"/gates/{KEY}", seconds=60)
        self.assertEqual(self.door.gates.closed(NOON), {KEY: NOON + 60})
        answer = self.do("DELETE", f"/gates/{KEY}")
        self.assertEqual((answer.status, answer.json["field"]), (503, "gates"))
        self.assertEqual(self.audit()[0]["action"], "gate failed")

    def test_instants_have_bounds(self) -> None:
        """
        Neither the past nor next week, neither both nor none.
        """
        bodies: tuple[dict[str, Any], ...] = (
            {},
            {"seconds": 0},
            {"seconds": 86_401},
            {"seconds": 1.5},
            {"until": "2026-03-02T11:00:00Z"},
            {"until": "soon"},
            {"until": 17},
            {"until": "2026-03-02T12:30:00Z", "seconds": 9},
        )
        for body in bodies:
            self.refused(422, "invalid", "PUT", f"/gates/{KEY}", **body)
        self.refused(422, "invalid", "PUT", "/gates/abc", seconds=9)


class ExecutionTests(Case):
    """
    Single executions, and all that fit.
    """

    def test_cancel(self) -> None:
        """
        Once, and the same the second time; what has begun is a conflict.
        """
        number = self.submit()
        path = f"/codeRunner/executions/{number}/cancel"
        self.assertTrue(self.ok("POST", path)["changed"])
        self.assertFalse(self.ok("POST", path)["changed"])
        gone = self.unknown()
        self.refused(409, "conflict", "POST", f"/codeRunner/executions/{gone}/cancel")
        self.refused(404, "not-found", "POST", "/codeRunner/executions/99/cancel")

    def test_run_one_and_explain(self) -> None:
        """
        Only what is paused can be started by hand, and an explanation says that it is paused.
        """
        number = self.submit()
        self.refused(409, "conflict", "POST", f"/codeRunner/executions/{number}/run-one")
        self.ok("PUT", "/controls/pause/all")
        why = self.ok("GET", f"/codeRunner/executions/{number}/explain")
        self.assertEqual((why["why"][0]["rule"], why["earliestStart"]), ("paused", None))
        self.ok("POST", f"/codeRunner/executions/{number}/run-one", note="the boss waits")
        why = self.ok("GET", f"/codeRunner/executions/{number}/explain")
        self.assertEqual((why["why"][0]["rule"], why["placeInLane"]), ("startable", 1))

    def test_settle(self) -> None:
        """
        An unknown outcome is settled; the log shows it, and the opposite is a conflict.
        """
        number = self.unknown()
        path = f"/codeRunner/executions/{number}/settle"
        self.refused(422, "invalid", "POST", path)
        self.refused(422, "invalid", "POST", path, outcome="wedged")
        self.refused(422, "invalid", "POST", path, outcome="failed", errorCode="301")
        self.assertTrue(self.ok("POST", path, outcome="failed", errorCode=301)["changed"])
        self.assertFalse(self.ok("POST", path, outcome="failed", errorCode=301)["changed"])
        self.refused(409, "conflict", "POST", path, outcome="success")
        shown = self.ok("GET", f"/codeRunner/executions/{number}")
        self.assertEqual((shown["shown"], shown["errorCode"]), ("failed", 301))

    def test_count_comes_first(self) -> None:
        """
        Without the count that was seen nothing is cancelled; with too small a one neither; what
        came since is not meant.
        """
        for _ in range(3):
            self.submit()
        self.submit("other")
        path, filters = "/codeRunner/executions/cancel", {"subdomain": "acme"}
        counted = self.ok("POST", path, filters=filters)
        self.assertEqual((counted["count"], counted["cancelled"]), (3, 0))
        self.door.clock.advance(1)
        self.submit()
        more = self.refused(409, "conflict", "POST", path, filters=filters, expected=3)
        self.assertIn("4 executions", more)
        frozen = {"subdomain": "acme", "until": counted["filters"]["until"]}
        done = self.ok("POST", path, filters=frozen, expected=3, note="wrong rule")
        self.assertEqual((done["count"], done["cancelled"]), (3, 3))
        again = self.ok("POST", path, filters=frozen, expected=3)
        self.assertEqual((again["count"], again["cancelled"]), (0, 0))
        left = self.ok("GET", "/codeRunner/logs/data?status=queued")["executions"]
        self.assertEqual(len(left), 2)
        bodies: tuple[dict[str, Any], ...] = (
            {"filters": []},
            {"filters": {"wedge": "x"}},
            {"filters": {"key": 7}},
            {"expected": -1},
            {"expected": "3"},
        )
        for body in bodies:
            self.refused(422, "invalid", "POST", path, **body)


class ReadingTests(Case):
    """
    What else can be read.
    """

    def test_queries_are_checked(self) -> None:
        """
        Unknown names, odd values and twice the same are refused, each by its name.
        """
        for path in (
            "/accounts?x=1",
            "/gates?key=abc",
            "/gates?limit=0",
            "/gates?before=soon",
            "/series?since=soon",
            "/series?wedge=1",
            "/audit?below=x",
            "/audit?limit=501",
            "/audit?target=a&target=b",
            "/codeRunner/logs/data?shown=wedged",
            "/codeRunner/logs/data?key=abc",
        ):
            self.refused(422, "invalid", "GET", path)

    def test_health_has_the_verdict(self) -> None:
        """
        200 with the word, 503 while it is stalled; no token, no detail.
        """
        answer = self.door.ask("GET", "/health/verdict", token=None)
        self.assertEqual((answer.status, answer.json), (200, {"verdict": "idle", "stalled": False}))
        self.submit()
        self.door.pulse.unstarted_since = -60.0
        answer = self.door.ask("GET", "/health/verdict", token=None)
        self.assertEqual((answer.status, answer.json["verdict"]), (503, "stalled"))
        self.assertEqual(answer.headers["retry-after"], "5")

    def test_a_stalled_report_names_its_rows(self) -> None:
        """
        The status proves it by what could start.
        """
        number = self.submit()
        self.door.pulse.unstarted_since = -60.0
        proof = self.ok("GET", "/status")["proof"]
        self.assertEqual((proof[0]["kind"], proof[0]["name"]), ("execution", str(number)))
