"""
The API as scripts reach it: the two ladders, the gate, the limits, the secrets.

Real requests over the loopback interface; only the clocks are turned.
"""

from __future__ import annotations

import gzip
from typing import Any

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from crq.config import ApiOptions, GateOptions
from crq.executor import api as module
from crq.executor.api import API_LIMIT, Access, ApiClient, Refusal
from crq.gates import GatesUnreachable
from crq.interfaces import IGateStore
from crq.script import CallFailed
from tests.fake_api import Answer, FakeApi
from tests.rows import NOON
from tests.workers import MemoryGates, TurnedClock

KEY = "secret-key-of-acme"
HASH = "ab" * 32


def limited(value: str | None, body: Any = None) -> Answer:
    headers = {} if value is None else {"Retry-After": value}
    return Answer(429, body or {}, headers)


UNAUTHORIZED = Answer(401, {"error": f"{API_LIMIT}."})


class ApiCase(SynchronousTestCase):
    """
    A client in front of a fake API, with 290 s left of its wall.
    """

    def setUp(self) -> None:
        self.server = FakeApi()
        self.addCleanup(self.server.close)
        self.time = TurnedClock()
        self.gates = MemoryGates()
        self.wall = self.time.monotonic() + 290

    def client(self, key_hash: str | None = HASH, **options: Any) -> ApiClient:
        chosen = ApiOptions(base_url=self.server.url, **options)
        client = ApiClient(
            chosen,
            Access.of(chosen, "acme", KEY, key_hash),
            self.gates,
            self.time.clock,
            lambda: self.wall - self.time.monotonic(),
        )
        self.addCleanup(client.close)
        return client

    def failure(self, client: ApiClient, path: Any = "/cards", body: Any = None) -> str:
        error = self.assertRaises(CallFailed, client.send, "GET", path, body)
        self.assertNotIn(KEY, str(error))
        self.assertIsNone(error.__cause__)
        return str(error)


class CallTests(ApiCase):
    """
    One call without limits.
    """

    def test_request_and_answer(self) -> None:
        """
        A call goes to the account's address with its key and JSON; the answer comes back whole.
        """
        self.server.answer(Answer(201, {"id": 7, "title": "שלום 👨‍👩‍👧"}))
        answer = self.client().send("POST", "/cards?a=1", {"title": "→ 👨‍👩‍👧"})
        self.assertEqual(answer["status"], 201)
        self.assertEqual(answer["json"], {"id": 7, "title": "שלום 👨‍👩‍👧"})
        call = self.server.calls[0]
        self.assertEqual((call.method, call.path), ("POST", "/api/v2/cards?a=1"))
        self.assertEqual(call.key, KEY)
        self.assertEqual(call.headers["content-type"], "application/json")
        self.assertIn(b"title", call.body)

    def test_no_body_unless_given(self) -> None:
        """
        None is no body; an empty list is one.
        """
        client = self.client()
        client.send("GET", "/a")
        client.send("POST", "/b", [])
        self.assertEqual([call.body for call in self.server.calls], [b"", b"[]"])

    def test_other_answers_go_to_the_script(self) -> None:
        """
        What is no limit is the script's to judge: errors, redirects, another 401.
        """
        self.server.answer(Answer(500, b"oops"), Answer(401, {"error": "wrong key"}))
        client = self.client()
        self.assertEqual(client.send("GET", "/a")["text"], "oops")
        self.assertEqual(client.send("GET", "/a")["status"], 401)
        self.assertEqual((len(self.server.calls), self.time.sleeps), (2, []))

    def test_redirects_are_not_followed(self) -> None:
        """
        An answer that points elsewhere is handed over; nobody goes there.
        """
        for status in (301, 302, 303, 307, 308):
            self.server.answer(Answer(status, {}, {"Location": f"{self.server.url}/other"}))
            self.assertEqual(self.client().send("POST", "/a", {})["status"], status)
        self.assertEqual({call.path for call in self.server.calls}, {"/api/v2/a"})

    def test_bytes_that_are_not_text(self) -> None:
        """
        Whatever bytes come, the script gets valid text.
        """
        self.server.answer(
            Answer(500, b"a\x92p\xff\x00\xf0\x9f"),
            Answer(200, b"\x92", {"Content-Type": "text/plain; charset=windows-1252"}),
            Answer(200, b"\\ud800", {"Content-Type": "text/plain; charset=unicode_escape"}),
            Answer(200, b"a", {"Content-Type": "text/plain; charset=no-such"}),
            Answer(200, b"<p>", {"Content-Type": "application/json"}),
        )
        client = self.client()
        answers = [client.send("GET", "/a") for _ in range(5)]
        self.assertEqual(
            [each["text"] for each in answers], ["a\ufffdp\ufffd\0\ufffd", "’", "?", "a", "<p>"]
        )
        self.assertEqual([each["json"] for each in answers], [None] * 5)

    def test_the_host_is_not_the_scripts(self) -> None:
        """
        No path leads to another host, or above the API's address.
        """
        client = self.client()
        for path in (
            "cards",
            "//elsewhere.example/x",
            "http://elsewhere.example/",
            "@elsewhere.example/",
            "/../../admin",
            "/a/%2e%2e/%2E./admin",
            "/a/..%2f..%2fadmin",
            "/a\\..\\b",
            "/a%5c..",
            "/a#b",
            "/a\r\nHost: x",
            "/a\x00",
            "",
            None,
            7,
        ):
            self.failure(client, path)
        self.assertEqual(self.server.calls, [])
        self.assertEqual(client.send("GET", "/a..b/...?up=../..")["status"], 200)

    def test_the_account_is_in_the_host(self) -> None:
        """
        The account's name becomes the host, and cannot become more than that.
        """
        options = ApiOptions(base_url="https://{subdomain}.example.com/api/")
        self.assertEqual(
            Access.of(options, "acme-1", KEY, HASH).address, "https://acme-1.example.com/api"
        )
        for name in ("", None, "a.b", "evil.com/", "x@y", "a:1", "-a", "a" * 64, "ſ", "a\n"):
            with self.assertRaises(ValueError):
                Access.of(options, name, KEY, HASH)

    def test_a_key_that_would_break_the_header(self) -> None:
        """
        A key with a line break or other than ASCII is refused, and its text is not repeated.
        """
        for key in ("a\r\nX: y", "ключ", "", " a", "a\x00"):
            with self.assertRaises(ValueError) as caught:
                Access.of(ApiOptions(), "acme", key, HASH)
            self.assertEqual(str(caught.exception), "the API key cannot be sent in a header")
        self.assertNotIn(KEY, repr(self.client()))

    def test_what_json_cannot_say(self) -> None:
        """
        A body with NaN ends the script; nothing is sent.
        """
        self.assertIn("cannot be sent", self.failure(self.client(), body=[float("nan")]))
        self.assertEqual(self.server.calls, [])

    def test_cookies_and_netrc_stay_out(self) -> None:
        """
        A cookie lasts for one execution; the key is the only credential.
        """
        self.server.answer(Answer(200, {}, {"Set-Cookie": "a=1; Path=/"}))
        self.client().send("GET", "/a")
        self.client(key_header="Authorization").send("GET", "/a")
        self.assertNotIn("cookie", self.server.calls[1].headers)
        self.assertEqual(self.server.calls[1].headers["authorization"], KEY)


class FailureTests(ApiCase):
    """
    An API that does not answer.
    """

    def test_nobody_listens(self) -> None:
        """
        A refused connection ends the script, named by the call alone.
        """
        client = self.client()
        self.server.close()
        self.assertEqual(self.failure(client), "GET /cards: the connection to the API failed")

    def test_no_answer_in_time(self) -> None:
        """
        An API that is silent for the time-out ends the script.
        """
        self.server.answer(Answer(delay=5))
        self.assertEqual(
            self.failure(self.client(timeout=0.1)), "GET /cards: no whole answer within 0.1 s"
        )

    def test_an_answer_that_drips(self) -> None:
        """
        The time-out is for the whole answer: one that comes byte by byte does not renew it.
        """
        self.server.answer(Answer(body=b"x" * 20, drip=0.02))
        self.time.tick = 20.0
        self.assertIn("no whole answer within 150 s", self.failure(self.client(timeout=150.0)))

    def test_an_answer_cut_off(self) -> None:
        """
        An answer that ends before its length is no answer.
        """
        self.server.answer(Answer(body=b"short", headers={"Content-Length": "10"}))
        self.failure(self.client(timeout=0.3))

    def test_an_answer_too_long(self) -> None:
        """
        No more is read than the limit, packed or not.
        """
        self.patch(module, "BODY_LIMIT", 100_000)
        packed = gzip.compress(b"x" * 10_000_000)
        self.server.answer(
            Answer(body=b"x" * 100_001), Answer(body=packed, headers={"Content-Encoding": "gzip"})
        )
        self.assertIn("longer than 100,000 bytes", self.failure(self.client()))
        self.assertIn("longer than 100,000 bytes", self.failure(self.client()))

    def test_broken_packing(self) -> None:
        """
        An answer that cannot be unpacked is a failed connection, not an error of ours.
        """
        self.server.answer(Answer(body=b"no gzip", headers={"Content-Encoding": "gzip"}))
        self.assertIn("connection", self.failure(self.client()))

    def test_the_wall_bounds_a_call(self) -> None:
        """
        A call waits no longer than there is time, and does not begin when there is none.
        """
        self.wall = self.time.monotonic() + 0.1
        self.server.answer(Answer(delay=5))
        self.assertIn("within 0.1 s", self.failure(self.client()))
        self.wall = self.time.monotonic()
        self.assertIn("no time is left", self.failure(self.client()))


class LadderTests(ApiCase):
    """
    429 and 401 (brief §10).
    """

    def test_gates_are_gates(self) -> None:
        """
        The gates of these tests are what the client is given in earnest.
        """
        verifyObject(IGateStore, self.gates)

    def test_a_short_limit_is_waited_for(self) -> None:
        """
        A short 429 is waited for, five seconds longer than it says, and sent again.
        """
        self.server.answer(limited("10"))
        answer = self.client().send("POST", "/cards", {"a": 1})
        self.assertEqual((answer["status"], self.time.sleeps), (200, [15]))
        self.assertEqual([call.body for call in self.server.calls], [b'{"a": 1}'] * 2)

    def test_three_attempts_take_half_a_minute(self) -> None:
        """
        An API that stays limited at 10 s ends the script after three attempts and about 35 s,
        where it once took the whole wall.
        """
        self.server.answer(*[limited("10")] * 20)
        begun = self.time.monotonic()
        problem = self.failure(self.client())
        self.assertEqual(len(self.server.calls), 3)
        self.assertLessEqual(self.time.monotonic() - begun, 35)
        self.assertIn("3 attempts", problem)
        self.assertIn("its key is closed until 2026-03-02T12:00:45", problem)

    def test_attempts_are_counted_per_call(self) -> None:
        """
        The third limit anywhere in a long script still has its own three attempts.
        """
        client = self.client()
        for _ in range(5):
            self.server.answer(limited("1"), limited("1"))
            self.assertEqual(client.send("GET", "/cards")["status"], 200)
        self.assertEqual(len(self.server.calls), 15)

    def test_a_long_limit_ends_the_script(self) -> None:
        """
        From 100 s on a 429 is not waited for; what ends the script names the gate.
        """
        self.server.answer(limited("99"), Answer(), limited("100"))
        client = self.client()
        self.assertEqual(client.send("GET", "/cards")["status"], 200)
        self.assertEqual(self.time.sleeps, [104])
        problem = self.failure(client)
        self.assertEqual(self.time.sleeps, [104])
        self.assertIn("the gate of its key is closed until 2026-03-02T12:03:29", problem)

    def test_every_limit_closes_the_gate(self) -> None:
        """
        Short or long, each 429 closes the key's gate until Retry-After and five seconds (brief §8).
        """
        self.server.answer(limited("10"), limited("3600"))
        self.failure(self.client())
        self.assertEqual(
            self.gates.closings, [(HASH, NOON + 15, NOON), (HASH, NOON + 15 + 3605, NOON + 15)]
        )

    def test_a_gate_that_is_closed_for_longer(self) -> None:
        """
        What ends the script names the gate as it stands, not as this answer would have it.
        """
        self.gates.closed[HASH] = NOON + 7200
        self.server.answer(limited("3600"))
        self.assertIn("closed until 2026-03-02T14:00:00", self.failure(self.client()))

    def test_gates_that_are_away_do_not_end_a_script(self) -> None:
        """
        A gate store that fails is logged; the script waits and goes on.
        """
        self.gates.fail = lambda: GatesUnreachable("refused")
        self.server.answer(limited("10"))
        with self.assertLogs("crq.executor", "ERROR") as logged:
            self.assertEqual(self.client().send("GET", "/cards")["status"], 200)
        self.assertEqual(
            logged.output,
            ["ERROR:crq.executor:gate of key abababab not closed: GatesUnreachable"],
        )

    def test_each_refusal_is_told(self) -> None:
        """
        The history learns of every 429 with what the API said, whether or not the store took it;
        a 401 and a row without a key are no news.
        """
        told: list[Refusal] = []
        client = self.client()
        client.refused = told.append
        self.gates.fail = lambda: GatesUnreachable("refused")
        self.server.answer(limited("10"), limited(None), Answer())
        with self.assertLogs("crq.executor", "ERROR"):
            client.send("GET", "/cards")
        self.assertEqual(
            told,
            [
                Refusal(HASH, NOON + 15, NOON, "10"),
                Refusal(HASH, NOON + 15 + 65, NOON + 15, None),
            ],
        )
        self.server.answer(UNAUTHORIZED)
        client.send("GET", "/cards")
        self.assertEqual(len(told), 2)
        keyless = self.client(key_hash=None)
        keyless.refused = told.append
        self.server.answer(limited("10"))
        keyless.send("GET", "/cards")
        self.assertEqual(len(told), 2)

    def test_the_waits_are_the_configurations(self) -> None:
        """
        Shortest wait and margin hold for the gate and for the wait in the script alike.
        """
        client = self.client()
        client.rules = GateOptions(shortest_wait=2, margin=0.5)
        self.server.answer(limited("0"))
        client.send("GET", "/cards")
        self.assertEqual(self.time.sleeps, [2.5])
        self.assertEqual(self.gates.closings, [(HASH, NOON + 3, NOON)])

    def test_a_row_without_a_key_has_no_gate(self) -> None:
        """
        Without the key's hash there is no gate to close, and the wait is the same.
        """
        self.server.answer(limited("10"))
        self.client(key_hash=None).send("GET", "/cards")
        self.assertEqual((self.gates.closings, self.time.sleeps), ([], [15]))

    def test_where_the_wait_is_said(self) -> None:
        """
        Retry-After comes in the header, else in the body; unreadable or absent waits a minute.
        """
        for answer, wait in (
            (limited("7", {"retry_after": 50}), 12),
            (limited(None, {"retry_after": 50}), 55),
            (limited(None, {"retry_after": 0.493}), 10),
            (limited(None, {"retry_after": None}), 65),
            (limited(None, ["retry_after"]), 65),
            (limited(None, b"<html>"), 65),
            (limited("Mon, 02 Mar 2026 12:00:20 GMT"), 25),
            (limited("soon"), 65),
            (limited("0"), 10),
        ):
            self.time.offset, self.time.seconds, self.time.sleeps = NOON, 5000.0, []
            self.server.answer(answer)
            self.client().send("GET", "/cards")
            self.assertEqual(self.time.sleeps, [wait], answer)

    def test_a_wait_that_does_not_fit(self) -> None:
        """
        A worker never sleeps past what is left of its wall: the script ends at once instead.
        """
        self.wall = self.time.monotonic() + 60
        self.server.answer(limited("30"), limited("30"))
        problem = self.failure(self.client())
        self.assertEqual(self.time.sleeps, [35])
        self.assertIn("35 s does not fit into the 25 s left", problem)
        self.assertIn("closed until", problem)

    def test_a_limit_that_is_called_401(self) -> None:
        """
        A 401 for a reached limit waits a minute and is sent again, three times at most; it says
        nothing of how long, so it closes no gate.
        """
        self.server.answer(UNAUTHORIZED)
        client = self.client()
        self.assertEqual(client.send("GET", "/cards")["status"], 200)
        self.server.answer(*[UNAUTHORIZED] * 9)
        self.assertIn("3 attempts", self.failure(client))
        self.assertEqual(len(self.server.calls), 5)
        self.assertEqual((self.time.sleeps, self.gates.closings), ([60, 60, 60], []))

    def test_both_ladders_share_the_attempts(self) -> None:
        """
        A call that meets one limit after the other has three attempts in all.
        """
        self.server.answer(UNAUTHORIZED, limited("1"), UNAUTHORIZED, Answer())
        self.failure(self.client())
        self.assertEqual(len(self.server.calls), 3)

    def test_the_wall_clock_is_stepped_while_it_waits(self) -> None:
        """
        A wait is a duration: a wall clock that jumps neither shortens nor lengthens it.
        """
        self.time.step = -3600
        self.server.answer(limited("10"), limited("10"))
        self.client().send("GET", "/cards")
        self.assertEqual(self.time.sleeps, [15, 15])
