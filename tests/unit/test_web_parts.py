"""
The parts of the HTTP door: its description, its rates, its tokens, its metrics, traces.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from twisted.internet import defer
from twisted.internet.address import IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from crq.config import Config, MetricsOptions, Token, WebOptions
from crq.database import CommitUnknown
from crq.meters import OUTCOMES, Meters
from crq.sealing import sha256_hex
from crq.submissions import Refusal
from crq.traceparent import traceparent
from crq.web import bodies, openapi, problems
from crq.web.door import routes
from crq.web.rates import NOBODY, Rates
from crq.web.tokens import FRESH, STALE, Caller, TokenBook, callers
from tests import door
from tests.door import Door
from tests.rows import SEALER

CALL = "crq_call"
READER = "crq_reader"


class OpenApiTests(SynchronousTestCase):
    """
    The description against the routes.
    """

    def test_it_describes_every_route_and_no_other(self) -> None:
        """
        Each path and method of the API is there; pages for people are not part of it.
        """
        described = {
            (path, method)
            for path, item in openapi.document()["paths"].items()
            for method in item
            if method != "parameters"
        }
        routed = set()
        for rule in routes.url_map.iter_rules():
            path = re.sub(r"<(?:[a-z]+:)?([a-z_]+)>", r"{\1}", rule.rule)
            if rule.endpoint.startswith("pages."):
                continue
            routed |= {(path, method.lower()) for method in rule.methods or () if method != "HEAD"}
        # One handler takes both; the description says which scope has a name.
        self.assertEqual(routed - described, set())
        self.assertEqual(described - routed, set())

    def test_its_references_lead_somewhere(self) -> None:
        """
        Every schema and response that is named exists, every operation has a name of its own.
        """
        document = openapi.document()
        text = json.dumps(document)
        for kind, name in re.findall(r'"#/components/(\w+)/([^"]+)"', text):
            self.assertIn(name, document["components"][kind])
        names = re.findall(r'"operationId": "([^"]+)"', text)
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(document["openapi"], "3.1.0")

    def test_it_is_served_without_a_token(self) -> None:
        """
        It tells nothing about anybody.
        """
        made = Door()
        self.addCleanup(made.close)
        answer = made.ask("GET", "/openapi.json", token=None)
        self.assertEqual((answer.status, answer.json), (200, openapi.document()))

    def test_each_kind_of_problem_has_one_title(self) -> None:
        """
        Types are URNs and differ; titles stay the same for a type (RFC 9457 §3.1.2).
        """
        names = [kind.uri for kind in problems.ALL]
        self.assertEqual(len(set(names)), len(names))
        for uri in names:
            self.assertRegex(uri, r"\Aurn:crqueue:problem:[a-z-]+\Z")


class RateTests(SynchronousTestCase):
    """
    How often a token may ask.
    """

    def setUp(self) -> None:
        self.now = 0.0
        self.rates = Rates(2.0, lambda: self.now)

    def test_a_bucket_fills_evenly(self) -> None:
        """
        Twenty at once for a rate of two a second, then one each half second.
        """
        self.assertEqual([self.rates.ask("a") for _ in range(20)], [None] * 20)
        self.assertEqual(self.rates.ask("a"), 1)
        self.now = 0.5
        self.assertIsNone(self.rates.ask("a"))
        self.assertEqual(self.rates.ask("a"), 1)
        self.now = 1e6
        self.assertEqual([self.rates.ask("a") for _ in range(20)], [None] * 20)
        self.assertEqual(self.rates.ask("a"), 1)

    def test_one_token_does_not_slow_another(self) -> None:
        """
        Each has its own, and whoever has none shares one.
        """
        for _ in range(30):
            self.rates.ask("a")
            self.rates.ask(NOBODY)
        self.assertIsNone(self.rates.ask("b"))
        self.assertIsNotNone(self.rates.ask("a"))
        self.assertIsNotNone(self.rates.ask(NOBODY))

    def test_any_number(self) -> None:
        """
        A rate of zero is no limit; nothing is kept.
        """
        free = Rates(0.0, lambda: 0.0)
        self.assertEqual({free.ask(str(n % 7)) for n in range(999)}, {None})

    def test_memory_is_bounded_by_the_tokens(self) -> None:
        """
        Revoked tokens are forgotten, and a thousand made-up ones share one bucket.
        """
        for name in ("a", "b", NOBODY):
            self.rates.ask(name)
        self.rates.keep(frozenset("b"))
        self.assertEqual(set(self.rates._buckets), {"b", NOBODY})
        made = Door(tokens=[Token(name="t", sha256=sha256_hex(CALL))])
        self.addCleanup(made.close)
        for n in range(300):
            made.ask("GET", "/status", token=f"crq_{n}")
        made.ask("GET", "/status", token=CALL)
        rates = door_of(made).rates
        self.assertEqual(set(rates._buckets), {NOBODY, "t"})

    def test_too_often_is_429(self) -> None:
        """
        As problem details, with the seconds to wait; other tokens go on; a metric counts it.
        """
        made = Door(tokens=[Token(name="t", sha256=sha256_hex(CALL)), *door.TOKENS])
        self.addCleanup(made.close)
        door_of(made).rates.rate = 0.5
        codes = [made.ask("GET", "/status", token=CALL).status for _ in range(6)]
        self.assertEqual(codes, [200] * 5 + [429])
        answer = made.ask("GET", "/status", token=CALL)
        self.assertEqual(answer.json["type"], "urn:crqueue:problem:rate-limited")
        self.assertEqual(answer.headers["retry-after"], "2")
        self.assertEqual(made.ask("GET", "/status", token=door.READER).status, 200)
        text = made.ask("GET", "/metrics").body.decode()
        self.assertIn("crqueue_http_rate_limited_total 2.0", text)
        made.clock.advance(2)
        self.assertEqual(made.ask("GET", "/status", token=CALL).status, 200)


def door_of(made: Door) -> Any:
    """
    The door behind a site.
    """
    return made.site.resource._app._instance


class TokenBookTests(SynchronousTestCase):
    """
    Tokens of the configuration and of the database.
    """

    def setUp(self) -> None:
        self.now = 0.0
        self.stored: Any = ()
        self.asked = 0
        configured = callers([Token(name="file", sha256=sha256_hex("in the file"))], SEALER)
        self.book = TokenBook(configured, SEALER, self.read, lambda: self.now)

    def read(self) -> Deferred[Any]:
        self.asked += 1
        if isinstance(self.stored, Exception):
            return defer.fail(self.stored)
        return defer.succeed(self.stored)

    def who(self, secret: str) -> str | None:
        headers = Headers({"Authorization": [f"Bearer {secret}"]})
        found: Caller | None = self.successResultOf(Deferred.fromCoroutine(self.book.who(headers)))
        return None if found is None else found.token.name

    def test_both_are_known(self) -> None:
        """
        Those of the file without asking anybody, those of the database after a look.
        """
        self.stored = (Token(name="db", sha256=sha256_hex("in the database")),)
        self.assertEqual((self.who("in the file"), self.asked), ("file", 0))
        self.assertEqual((self.who("in the database"), self.asked), ("db", 1))
        self.assertEqual(self.who("in nobody's"), None)
        self.assertEqual(self.asked, 1)
        self.assertEqual(self.book.names, {"file", "db"})

    def test_a_revoked_token_is_worth_nothing_soon(self) -> None:
        """
        At the latest when its reading is as old as `FRESH`; a new one works by then.
        """
        self.stored = (Token(name="db", sha256=sha256_hex("one")),)
        self.who("one")
        self.stored = (Token(name="new", sha256=sha256_hex("two")),)
        self.assertEqual(self.who("one"), "db")
        self.now = FRESH
        self.assertEqual((self.who("one"), self.who("two")), (None, "new"))

    def test_nobody_is_let_in_on_a_guess(self) -> None:
        """
        While the database is away what was read counts for a minute; then the answer is "away", and
        never "unknown" nor "known" (F118).
        """
        self.stored = (Token(name="db", sha256=sha256_hex("one")),)
        self.who("one")
        self.stored = CommitUnknown()
        self.now = STALE - 1
        self.assertEqual(self.who("one"), "db")
        self.now = STALE
        headers = Headers({"Authorization": ["Bearer one"]})
        self.failureResultOf(Deferred.fromCoroutine(self.book.who(headers)), CommitUnknown)
        self.assertEqual(self.who("in the file"), "file")


class TraceTests(SynchronousTestCase):
    """
    `traceparent`.
    """

    GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def test_valid_ones(self) -> None:
        """
        Version 00 as it is; of a later one what 00 knows.
        """
        self.assertEqual(traceparent(self.GOOD), self.GOOD)
        later = "cc" + self.GOOD[2:]
        self.assertEqual(traceparent(later), self.GOOD)
        self.assertEqual(traceparent(later + "-more"), self.GOOD)

    def test_invalid_ones_are_none(self) -> None:
        """
        What the recommendation forbids is as good as nothing, and never an error.
        """
        for text in (
            *(
                None,
                "",
                "x",
                self.GOOD.upper(),
                self.GOOD[:-1],
                self.GOOD + "-more",
                "ff" + self.GOOD[2:],
            ),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            self.GOOD + "\r\nX: y",
        ):
            self.assertIsNone(traceparent(text))

    @given(st.text())
    def test_any_text_is_answered(self, text: str) -> None:
        """
        Whatever comes.
        """
        found = traceparent(text)
        self.assertTrue(found is None or len(found) == 55)

    def test_it_is_stored_with_the_admission(self) -> None:
        """
        A header that is valid is kept on the row; one that is not costs nothing.
        """
        made = Door()
        self.addCleanup(made.close)
        body = json.dumps({"subdomain": "acme", "apikey": "k", "source_code": "x = 1"}).encode()
        for header, stored in ((self.GOOD, self.GOOD), ("nonsense", None)):
            headers = [("Content-Type", "application/json"), ("traceparent", header)]
            number = made.ask("POST", "/codeRunner", body, headers=headers).json["executionId"]
            shown = made.ask("GET", f"/codeRunner/executions/{number}").json
            self.assertEqual(shown["traceparent"], stored)


class MetricsTests(SynchronousTestCase):
    """
    What Prometheus scrapes.
    """

    def scrape(self, made: Door, **more: Any) -> dict[str, Any]:
        answer = made.ask("GET", "/metrics", **more)
        self.assertEqual(answer.status, 200, answer.body)
        families = text_string_to_metric_families(answer.body.decode())
        return {family.name: family for family in families}

    def make(self, **options: Any) -> Door:
        made = Door(**options)
        self.addCleanup(made.close)
        return made

    def test_names_follow_the_conventions(self) -> None:
        """
        One prefix, units at the end, counters that say total, a help text, and no label that grows
        with what is stored or sent.
        """
        made = self.make()
        made.submit()
        for path in ("/status", "/nowhere", "/codeRunner/executions/7", "/x/y/z"):
            made.ask("GET", path)
        families = self.scrape(made)
        labels = {
            "verdict",
            "reason",
            "scope",
            "outcome",
            "depth",
            "version",
            "route",
            "code",
            "le",
        }
        for name, family in families.items():
            self.assertTrue(name.startswith("crqueue_"), name)
            self.assertTrue(family.documentation, name)
            self.assertNotRegex(name, "_(ms|millis|minutes|hours)$")
            for sample in family.samples:
                self.assertLessEqual(set(sample.labels), labels)
                if family.type == "counter":
                    self.assertTrue(sample.name.endswith("_total"), sample.name)
        for name in ("tick_duration", "wait", "service"):
            self.assertEqual(families[f"crqueue_{name}_seconds"].type, "histogram")
        codes = {
            (sample.labels["route"], sample.labels["code"])
            for sample in families["crqueue_http_requests"].samples
        }
        self.assertIn(("none", "404"), codes)
        self.assertIn(("reading.status_report", "200"), codes)

    def test_the_state_of_the_queue(self) -> None:
        """
        What waits, the verdict as one of a set, and what passed through this door.
        """
        made = self.make()
        made.submit()
        made.clock.advance(7)
        families = self.scrape(made)

        def value(name: str, **labels: str) -> float:
            (found,) = (s.value for s in families[name].samples if s.labels == labels)
            return float(found)

        self.assertEqual(value("crqueue_queued_executions"), 1)
        self.assertEqual(value("crqueue_oldest_queued_age_seconds"), 7)
        words = {s.labels["verdict"]: s.value for s in families["crqueue_verdict"].samples}
        self.assertEqual(sum(words.values()), 1)
        self.assertEqual(value("crqueue_executions_admitted"), 1)
        self.assertNotIn("crqueue_account_queued_executions", families)

    def test_accounts_only_by_choice(self) -> None:
        """
        By eight hex digits of their hash, never by name.
        """
        made = self.make()
        made.submit()
        self.configure(made, MetricsOptions(accounts=True))
        families = self.scrape(made)
        (sample,) = families["crqueue_account_queued_executions"].samples
        self.assertEqual(sample.labels, {"account": SEALER.account("acme")[:8]})

    def configure(self, made: Door, options: MetricsOptions) -> None:
        behind = door_of(made)
        behind.config = Config(metrics=options, web=WebOptions(), tokens=behind.config.tokens)

    def test_who_may_scrape(self) -> None:
        """
        A token that may read; without one this machine alone, where the configuration says so, and
        not whoever a proxy asks for.
        """
        made = self.make()
        self.assertEqual(made.ask("GET", "/metrics", token=None).status, 401)
        self.assertEqual(made.ask("GET", "/metrics", token=door.ADMITTER).status, 403)
        self.configure(made, MetricsOptions(loopback=True))
        self.scrape(made, token=None)
        for header in ("X-Forwarded-For", "Forwarded"):
            answer = made.ask("GET", "/metrics", token=None, headers=[(header, "192.0.2.7")])
            self.assertEqual(answer.status, 401)

    def test_who_is_local(self) -> None:
        """
        Loopback of both families, also mapped, and a unix socket; nothing else.
        """
        from crq.web.metrics import local

        class Asked:
            def __init__(self, peer: Any) -> None:
                self.requestHeaders = Headers()
                self.getClientAddress = lambda: peer

        for peer, expected in (
            (IPv6Address("TCP", "::1", 1), True),
            (IPv6Address("TCP", "::ffff:127.0.0.1", 1), True),
            (IPv6Address("TCP", "fe80::1%eth0", 1), False),
            (IPv6Address("TCP", "2001:db8::1", 1), False),
            (UNIXAddress("/x"), True),
            (None, False),
        ):
            self.assertEqual(local(Asked(peer)), expected, peer)  # type: ignore[arg-type]

    def test_what_ended_is_measured(self) -> None:
        """
        Each outcome counts under its word; waits and runs are measured where they are known; the
        end of an unknown outcome is no duration.
        """
        meters = Meters()
        for status, code, queued, started, finished in (
            ("success", None, 0.0, 3.0, 5.0),
            ("failed", 301, 0.0, 3.0, 5.0),
            ("failed", 303, 0.0, 3.0, 900.0),
            ("failed", 106, 0.0, None, 5.0),
            ("cancelled", None, 0.0, None, 5.0),
            ("running", None, 0.0, 3.0, None),
            ("wedged", None, None, None, None),
        ):
            meters.ended(status, code, queued, started, finished)
        counts = {word: meters.finished.labels(word)._value.get() for word in OUTCOMES.values()}
        self.assertEqual(set(counts.values()), {1.0})
        self.assertEqual((meters.wait._sum.get(), meters.service._sum.get()), (9.0, 4.0))


class NumberTests(SynchronousTestCase):
    """
    Whole numbers in a query.
    """

    def test_every_number_of_the_range_is_read(self) -> None:
        """
        Both ends belong to it, also where they have nineteen digits; what is beyond is refused.
        """
        highest = 2**62
        for value in (0, 1, highest):
            self.assertEqual(bodies.number("below", str(value), 0, highest), value)
        self.assertIsNone(bodies.number("below", None, 0, highest))
        for text in (str(highest + 1), "9" * 5000, "-1", "1.0", "", "\u0661"):
            with self.assertRaisesRegex(Refusal, "below"):
                bodies.number("below", text, 0, highest)
