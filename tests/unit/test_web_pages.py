"""
The operator's pages, spoken to in bytes: who gets in, what a form may do, what is escaped.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from crq import gatehistory, tokens
from crq.config import Token
from crq.explanation import Rule, Why
from crq.instants import instant_text
from crq.sealing import sha256_hex
from crq.series import Ended, Sample
from crq.web.pages import views
from crq.web.pages.plot import plot
from crq.web.pages.render import span
from crq.web.pages.words import STATES, VERDICTS
from crq.web.sessions import IDLE, LIMIT, LONGEST, Sessions
from tests.door import TOKENS, Answer, Door
from tests.rows import NOON

OPERATOR, ACME_OPERATOR = "crq_operator", "crq_acme_operator"
SCOPES = ("admit", "read", "operate")
MORE = (
    Token(name="operator", sha256=sha256_hex(OPERATOR), scopes=SCOPES),
    Token(
        name="acme-op",
        sha256=sha256_hex(ACME_OPERATOR),
        scopes=("read", "operate"),
        accounts=("acme",),
    ),
)
FORM = ("Content-Type", "application/x-www-form-urlencoded")
PAGES = ("/ui", "/ui/executions", "/ui/accounts", "/ui/gates", "/ui/audit")
KEY = "a" * 64
MARKUP = "<img src=x onerror=alert(1)></script>{{7*7}}\"'&amp;"


class Pages(SynchronousTestCase):
    """
    A door, and a browser's part of the talk.
    """

    def setUp(self) -> None:
        self.said: list[str] = []
        self.door = Door(tokens=(*TOKENS, *MORE), observe=self.said.append)
        self.addCleanup(self.door.close)
        self.cookie = ""

    def get(self, path: str, *headers: tuple[str, str]) -> Answer:
        return self.door.ask("GET", path, token=None, headers=[("Cookie", self.cookie), *headers])

    def post(self, path: str, *headers: tuple[str, str], **fields: object) -> Answer:
        body = urlencode(fields).encode()
        more = [FORM, ("Cookie", self.cookie), *headers]
        return self.door.ask("POST", path, body, None, more)

    def sign_in(self, token: str = OPERATOR) -> Answer:
        answer = self.post("/ui/login", token=token, next="/ui")
        self.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        return answer

    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', self.get("/ui").body.decode())
        assert found is not None
        return found[1]

    def act(self, path: str, **fields: object) -> Answer:
        return self.post(path, csrf=self.csrf(), **fields)

    def value(self, sql: str, *values: object) -> Any:
        found = self.door.pool.read(lambda txn: txn.execute(sql, values).scalar())
        return self.successResultOf(found)

    def change(self, sql: str, *values: object) -> None:
        self.successResultOf(self.door.pool.transact(lambda txn: txn.execute(sql, values)))


class Entering(Pages):
    """
    Signing in, sessions and their ends.
    """

    def test_strangers_see_nothing(self) -> None:
        """
        Every page sends somebody without a session to the sign-in, and back afterwards.
        """
        for path in (*PAGES, "/ui/executions/1", "/ui/executions/cancel"):
            answer = self.get(path)
            self.assertEqual((answer.status, answer.body), (303, b""), path)
            self.assertTrue(answer.headers["location"].startswith("/ui/login?next=%2Fui"))
        self.assertEqual(self.post("/ui/do/pause", scope="all").headers["location"], "/ui/login")
        self.assertEqual(self.value("SELECT COUNT(*) FROM codeRunner_controls"), 0)

    def test_cookie_is_for_this_site_and_no_script(self) -> None:
        """
        It is HttpOnly, SameSite=Strict, only for the pages, and Secure where TLS ends before us.
        """
        cookie = self.sign_in().headers["set-cookie"]
        for part in ("; Path=/ui", "; HttpOnly", "; SameSite=Strict"):
            self.assertIn(part, cookie)
        self.assertNotIn("Secure", cookie)
        self.assertNotIn(OPERATOR, cookie)
        told = ("X-Forwarded-Proto", "https")
        answer = self.post("/ui/login", told, token=OPERATOR, next="/ui")
        self.assertIn("; Secure", answer.headers["set-cookie"])

    def test_bad_tokens_do_not_enter(self) -> None:
        """
        An unknown token is 401, one that may not read 403; neither gets a cookie.
        """
        for token, status in (("no such", 401), ("crq_admitter", 403), ("", 401), ("\u20ac", 401)):
            answer = self.sign_in(token)
            self.assertEqual(answer.status, status, token)
            self.assertNotIn("set-cookie", answer.headers)
        self.assertEqual(self.get("/ui").status, 303)

    def test_sign_in_leads_only_to_our_pages(self) -> None:
        """
        Where to go afterwards is a page of ours, whatever the address says.
        """
        for way in ("//evil.test", "https://evil.test/ui", "/ui/../x\\", "/uix", "/ui/logout"):
            answer = self.post("/ui/login", token=OPERATOR, next=way)
            self.assertEqual(answer.headers["location"], "/ui", way)
        answer = self.post("/ui/login", token=OPERATOR, next="/ui/gates?key=1")
        self.assertEqual(answer.headers["location"], "/ui/gates?key=1")

    def test_sign_in_from_another_site_is_refused(self) -> None:
        """
        Another site's form cannot sign a browser in under its own token.
        """
        for header in (("Origin", "https://evil.test"), ("Sec-Fetch-Site", "cross-site")):
            answer = self.post("/ui/login", header, token=OPERATOR, next="/ui")
            self.assertEqual(answer.status, 403, header)
            self.assertNotIn("set-cookie", answer.headers)
        ours = self.post("/ui/login", ("Origin", "http://door"), token=OPERATOR, next="/ui")
        self.assertEqual(ours.status, 303)

    def test_session_ends(self) -> None:
        """
        By signing out, by idling, and when its token is revoked.
        """
        self.sign_in()
        kept = self.cookie
        self.assertEqual(self.act("/ui/logout").status, 303)
        self.cookie = kept
        self.assertEqual(self.get("/ui").status, 303)
        self.sign_in()
        self.door.clock.advance(IDLE + 1)
        self.assertEqual(self.get("/ui").status, 303)

    def test_revoked_token_ends_its_session(self) -> None:
        """
        A token of the database that is revoked is worth nothing on the pages either.
        """
        token = Token(name="stored", sha256=sha256_hex("crq_stored"), scopes=("read",))
        self.successResultOf(self.door.pool.transact(tokens.add, token, "cli:x", NOON))
        self.sign_in("crq_stored")
        self.assertEqual(self.get("/ui").status, 200)
        self.successResultOf(self.door.pool.transact(tokens.revoke, "stored", "cli:x", NOON))
        self.door.clock.advance(3)
        self.assertEqual(self.get("/ui").headers["location"], "/ui/login?next=%2Fui")

    def test_answers_carry_the_headers_of_a_page(self) -> None:
        """
        No inline script or style, no frame, no other site's resources; nothing is kept.
        """
        self.sign_in()
        for path in (*PAGES, "/ui/executions/999", "/ui/login"):
            answer = self.get(path)
            policy = answer.headers["content-security-policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(answer.headers["x-frame-options"], "DENY")
            self.assertEqual(answer.headers["x-content-type-options"], "nosniff")
            self.assertEqual(answer.headers["cache-control"], "no-store")
            text = answer.body.decode()
            self.assertNotIn("style=", text)
            self.assertNotRegex(text, r"<script(?! src=\"/ui/static/)")
            self.assertNotRegex(text, r"(?:src|href|action)=\"(?!/|#|\?)")

    def test_files_are_served_and_nothing_beside_them(self) -> None:
        """
        The style sheet and the script; no other name, no path out.
        """
        for name, media in (("page.css", "text/css"), ("live.js", "text/javascript")):
            answer = self.get(f"/ui/static/{name}?v=1")
            self.assertEqual(answer.status, 200)
            self.assertIn(media, answer.headers["content-type"])
        for name in ("render.py", "..%2fdesk.py", "page.css.map"):
            self.assertEqual(self.get(f"/ui/static/{name}").status, 404)


class Acting(Pages):
    """
    Forms.
    """

    def setUp(self) -> None:
        super().setUp()
        self.sign_in()

    def controls(self) -> int:
        return int(self.value("SELECT COUNT(*) FROM codeRunner_controls"))

    def test_form_without_the_sessions_secret_changes_nothing(self) -> None:
        """
        None, a wrong one, and one of another session are 403.
        """
        other = self.csrf()
        self.sign_in()
        for csrf in ("", "x", "\u20ac", other):
            answer = self.post("/ui/do/pause", csrf=csrf, scope="all")
            self.assertEqual(answer.status, 403, csrf)
        self.assertEqual(self.post("/ui/do/pause", scope="all").status, 403)
        self.assertEqual(self.controls(), 0)

    def test_action_needs_the_scope(self) -> None:
        """
        A token that only reads sees no form, and cannot send one.
        """
        self.sign_in("crq_reader")
        self.assertNotIn(b"/ui/do/", self.get("/ui").body)
        self.assertEqual(self.act("/ui/do/pause", scope="all").status, 403)
        self.assertEqual(self.get("/ui/executions/cancel").status, 403)
        self.assertEqual(self.controls(), 0)

    def test_limited_token_acts_on_its_own(self) -> None:
        """
        Pausing its account is its right; another's, a key, the queue, caps and gates are not.
        """
        self.door.submit()
        self.door.submit(subdomain="beta")
        self.sign_in(ACME_OPERATOR)
        refused: tuple[tuple[str, dict[str, object]], ...] = (
            ("/ui/do/pause", {"scope": "all"}),
            ("/ui/do/pause", {"scope": "account", "name": "beta"}),
            ("/ui/do/pause", {"scope": "key", "name": "a" * 64}),
            ("/ui/do/cap", {"value": 1}),
            ("/ui/do/drain", {}),
            ("/ui/do/gate", {"key": "a" * 64, "minutes": 5}),
        )
        for path, fields in refused:
            self.assertEqual(self.act(path, **fields).status, 403, (path, fields))
        self.assertEqual(self.act("/ui/executions/2/cancel").status, 404)
        self.assertEqual(self.controls(), 0)
        answer = self.act("/ui/do/pause", scope="account", name="acme", back="/ui/accounts")
        self.assertEqual(answer.headers["location"], "/ui/accounts")
        self.assertEqual(self.controls(), 1)
        self.assertEqual(self.get("/ui/executions/2").status, 404)
        self.assertNotIn(b"beta", self.get("/ui/executions").body)
        self.assertNotIn(b"beta", self.get("/ui/accounts").body)
        self.assertNotIn(b"beta", self.get("/ui").body)
        self.assertEqual(self.get("/ui/audit").status, 403)

    def test_actions_are_audited_under_the_tokens_name(self) -> None:
        """
        Each with its note; and asking twice says so and writes nothing more.
        """
        self.act("/ui/do/pause", scope="all", note="why not")
        self.act("/ui/do/pause", scope="all")
        self.assertIn(b"it was so already", self.get("/ui").body)
        self.assertEqual(self.value("SELECT COUNT(*) FROM codeRunner_audit"), 1)
        self.assertEqual(self.value("SELECT who FROM codeRunner_audit"), "token:operator")
        self.assertEqual(self.value("SELECT note FROM codeRunner_audit"), "why not")
        self.act("/ui/do/pause", scope="all", do="undo")
        self.act("/ui/do/drain")
        self.act("/ui/do/drain", do="undo")
        self.act("/ui/do/cap", value=3)
        self.act("/ui/do/cap", do="undo")
        self.act("/ui/do/gate", key="a" * 64, minutes=5)
        self.assertEqual(self.door.stored_gates.stored["a" * 64], NOON + 300)
        self.act("/ui/do/gate", key="a" * 64, do="undo")
        self.assertEqual(self.door.stored_gates.stored, {})
        self.assertEqual(self.value("SELECT COUNT(*) FROM codeRunner_audit"), 8)

    def test_bad_fields_are_told_apart(self) -> None:
        """
        A page that names the field, the problem and the remedy.
        """
        cases: tuple[tuple[str, dict[str, object], str], ...] = (
            ("/ui/do/cap", {"value": "x"}, "value"),
            ("/ui/do/cap", {}, "value"),
            ("/ui/do/pause", {"scope": "moon"}, "scope"),
            ("/ui/do/gate", {"key": "zz", "minutes": 5}, "key"),
            ("/ui/do/gate", {"key": "a" * 64, "minutes": 0}, "minutes"),
            ("/ui/do/pause", {"scope": "all", "note": "n" * 501}, "note"),
        )
        for path, fields, name in cases:
            answer = self.act(path, **fields)
            self.assertEqual(answer.status, 422, (path, fields))
            self.assertIn(f"<strong>{name}</strong>".encode(), answer.body)

    def test_cancel_of_a_filter_keeps_to_the_count_that_was_seen(self) -> None:
        """
        With more by then than was shown, nothing is cancelled (409); with the count, all of it.
        """
        for _ in range(3):
            self.door.submit()
        self.door.submit(subdomain="beta")
        shown = self.get("/ui/executions/cancel?subdomain=acme").body
        self.assertIn(b'<strong id="count">3</strong>', shown)
        self.assertIn(b'name="expected" value="3"', shown)
        queued = "SELECT COUNT(*) FROM codeRunner_executions WHERE status = 'queued'"
        path = "/ui/executions/cancel"
        self.assertEqual(self.act(path, subdomain="acme", expected=2).status, 409)
        self.assertEqual(self.value(queued), 4)
        self.assertEqual(self.act(path, subdomain="acme").status, 422)
        self.assertEqual(self.act(path, subdomain="acme", expected=3).status, 303)
        self.assertEqual(self.value(queued), 1)

    def test_settling_and_starting_one_are_offered_where_they_can_be(self) -> None:
        """
        The forms appear with the state they are for, and with no other.
        """
        self.door.submit()
        page = self.get("/ui/executions/1").body
        self.assertIn(b"/ui/executions/1/cancel", page)
        self.assertNotIn(b"/run-one", page)
        self.act("/ui/do/pause", scope="all")
        self.assertIn(b"/ui/executions/1/run-one", self.get("/ui/executions/1").body)
        self.assertEqual(self.act("/ui/executions/1/run-one").status, 303)
        self.change(
            "UPDATE codeRunner_executions SET status = 'failed', error_code = 303,"
            " started_at = ?, finished_at = ?",
            *[instant_text(NOON)] * 2,
        )
        page = self.get("/ui/executions/1").body
        self.assertIn(b"/ui/executions/1/settle", page)
        self.assertNotIn(b"/ui/executions/1/cancel", page)
        answer = self.act("/ui/executions/1/settle", outcome="failed 301", note="seen")
        self.assertEqual(answer.status, 303)
        self.assertEqual(self.value("SELECT error_code FROM codeRunner_executions"), 301)


class Showing(Pages):
    """
    What stands on the pages.
    """

    def setUp(self) -> None:
        super().setUp()
        self.sign_in()

    def test_whatever_is_stored_is_text(self) -> None:
        """
        Markup in any column of any table is escaped on every page.
        """
        self.door.submit()
        self.change(
            "UPDATE codeRunner_executions SET subdomain = ?, identifier = ?, error_message = ?,"
            " source_code = ?, drainer_id = ?, worker_id = ?, traceparent = ?, status = ?,"
            " queued_at = ?, started_at = ?, finished_at = ?, error_code = ?, job_id = ?,"
            " times = ?, subdomain_hash = ?, apikey_hash = ?",
            *[MARKUP] * 16,
        )
        closing = (MARKUP, NOON + 60, NOON, MARKUP)
        self.successResultOf(self.door.pool.transact(gatehistory.record, *closing))
        for columns in ("who, action, target, note, before_state, after_state",):
            self.change(
                f"INSERT INTO codeRunner_audit (done_at, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                *[MARKUP] * 7,
            )
        self.change(
            "INSERT INTO codeRunner_controls (kind, name, set_at, set_by, note)"
            " VALUES ('pause_account', ?, ?, ?, ?)",
            *[MARKUP] * 4,
        )
        for path in (*PAGES, "/ui/executions/1"):
            answer = self.get(path)
            self.assertEqual(answer.status, 200, path)
            text = answer.body.decode()
            self.assertNotIn("<img", text, path)
            self.assertIn("{{7*7}}", text, path)
            self.assertEqual(text.count("<script"), text.count("</script>"))
            self.assertEqual(text.count("<script"), 1, path)
            self.assertIn("&lt;img src=x", text, path)

    def test_query_comes_back_as_text(self) -> None:
        """
        What stands in the address is escaped where it is shown again.
        """
        for path in ("/ui/executions?subdomain=", "/ui/login?next=", "/ui/audit?target="):
            text = self.get(path + "%22%3E%3Cscript%3Ealert(1)%3C/script%3E").body.decode()
            self.assertNotIn("<script>", text, path)
            self.assertLessEqual(text.count("<script"), 1)

    def test_states_are_told_apart_without_colour(self) -> None:
        """
        Each state and each verdict has a word, a symbol and a class that no other one has.
        """
        for looks in (STATES.values(), VERDICTS.values()):
            for part in ("word", "symbol", "css"):
                self.assertEqual(len({getattr(each, part) for each in looks}), len(looks))
            self.assertTrue(all(each.meaning for each in looks))

    def test_claimed_is_told_apart_from_queued(self) -> None:
        """
        A customer sees queued for both; an operator does not.
        """
        self.door.submit()
        self.assertIn(b"state queued", self.get("/ui/executions/1").body)
        self.change("UPDATE codeRunner_executions SET status = 'claimed', claimed_at = queued_at")
        self.assertIn(b"state claimed", self.get("/ui/executions/1").body)

    def test_pages_go_on_where_the_last_one_ended(self) -> None:
        """
        The link to older rows keeps the filters; no row is shown twice or left out.
        """
        for _ in range(5):
            self.door.submit()
        seen: list[str] = []
        path: str | None = "/ui/executions?subdomain=acme&limit=2"
        while path is not None:
            text = self.get(path).body.decode()
            seen += re.findall(r'scope="row" class="n"><a href="/ui/executions/(\d+)', text)
            found = re.search(r'<a href="([^"]+)" rel="next"', text)
            path = found[1].replace("&amp;", "&") if found else None
            if path is not None:
                self.assertIn("subdomain=acme", path)
        self.assertEqual(seen, ["5", "4", "3", "2", "1"])

    def test_notice_is_told_once_and_not_to_the_script(self) -> None:
        """
        The script's own requests leave it for the page that somebody looks at.
        """
        self.act("/ui/do/drain")
        live = ("X-Live", "1")
        self.assertNotIn(b"Draining:", self.get("/ui", live).body)
        self.assertIn(b"Draining:", self.get("/ui").body)
        self.assertNotIn(b"Draining:", self.get("/ui").body)

    def test_fault_is_a_page(self) -> None:
        """
        With the status of the API: unknown filters, executions that are not there.
        """
        for path, status in (
            ("/ui/executions/77", 404),
            ("/ui/executions?moon=1", 422),
            ("/ui/executions?cursor=zz", 422),
            ("/ui/gates?key=zz", 422),
            ("/ui?x=1", 422),
        ):
            answer = self.get(path)
            self.assertEqual(answer.status, status, path)
            self.assertIn("text/html", answer.headers["content-type"])


class Keeping(SynchronousTestCase):
    """
    The sessions themselves.
    """

    def setUp(self) -> None:
        self.now = 0.0
        self.sessions = Sessions(lambda: self.now)

    def headers(self, identity: str) -> Headers:
        return Headers({b"Cookie": [f"other=1; crq_session={identity}".encode()]})

    def test_use_keeps_a_session_but_not_for_ever(self) -> None:
        """
        It lasts while it is used, and a day at most.
        """
        identity, session = self.sessions.start("a", b"Bearer x")
        while self.now + IDLE / 2 < LONGEST:
            self.now += IDLE / 2
            self.assertIs(self.sessions.find(self.headers(identity)), session)
        self.now = LONGEST
        self.assertIsNone(self.sessions.find(self.headers(identity)))

    def test_sessions_are_bounded(self) -> None:
        """
        The one that was unused for longest goes.
        """
        first, _ = self.sessions.start("a", b"Bearer x")
        second, _ = self.sessions.start("a", b"Bearer x")
        self.now = 1.0
        self.assertIsNotNone(self.sessions.find(self.headers(first)))
        for _ in range(LIMIT - 1):
            self.sessions.start("a", b"Bearer x")
        self.assertTrue(self.sessions.knows(self.headers(first)))
        self.assertFalse(self.sessions.knows(self.headers(second)))

    def test_secrets_are_not_shown(self) -> None:
        """
        Neither the token nor the form's secret is in a session's text.
        """
        _, session = self.sessions.start("a", b"Bearer secret")
        self.assertNotIn("secret", repr(session))
        self.assertNotIn(session.csrf, repr(session))


class Costs(Pages):
    """
    What a page asks of the database.
    """

    def test_no_page_reads_the_log_from_end_to_end(self) -> None:
        """
        Every statement of every page goes by an index, and there are as many with a long log.
        """
        self.sign_in()
        self.door.submit()
        paths = (*PAGES, "/ui/executions?shown=queued", "/ui/executions/1", "/ui/gates?key=" + KEY)
        few = {path: self.asked(path) for path in paths}
        for _ in range(40):
            self.door.submit()
        for path in paths:
            self.assertEqual(len(self.asked(path)), len(few[path]), path)
            for statement in few[path]:
                for step in self.plan(statement):
                    if "codeRunner_executions" in step and step.startswith("SCAN"):
                        self.assertIn("INDEX", step, (path, statement))

    def asked(self, path: str) -> list[str]:
        self.said.clear()
        self.assertEqual(self.get(path).status, 200, path)
        return [each for each in self.said if each.lstrip().startswith(("SELECT", "WITH"))]

    def plan(self, statement: str) -> list[str]:
        given = ["x"] * statement.count("?")
        explained = f"EXPLAIN QUERY PLAN {statement}"
        rows = self.door.pool.read(lambda txn: txn.execute(explained, given).all())
        return [str(row[3]) for row in self.successResultOf(rows)]


class Drawing(SynchronousTestCase):
    """
    The plot and the figures, without a database.
    """

    def samples(self, *minutes: int, **more: int) -> list[Sample]:
        begun = Ended(starts=more.get("starts", 0), rejected=more.get("rejected", 0))
        return [
            Sample(NOON + 60 * each, "flowing", 7, None, 2, more.get("gates", 0), begun)
            for each in minutes
        ]

    def test_minutes_without_a_sample_are_gaps(self) -> None:
        """
        A line is broken there and the gap is marked; the minute that goes on is none.
        """
        drawn = plot(self.samples(0, 1, 5, 6), NOON, NOON + 8 * 60)
        self.assertEqual(len(drawn.gaps), 1)
        path = dict(drawn.panels[0].lines)["depth"]
        self.assertEqual(path.count("M"), 2)
        scale = (drawn.right - drawn.left) / 8
        self.assertAlmostEqual(drawn.gaps[0].x, drawn.left + 2 * scale, 0)
        self.assertAlmostEqual(drawn.gaps[0].width, 3 * scale, 0)

    def test_gates_are_bands(self) -> None:
        """
        Minutes with a closed gate that follow each other are one band.
        """
        minutes = [*self.samples(0, 1), *self.samples(2, 3, gates=2), *self.samples(4)]
        drawn = plot(minutes, NOON, NOON + 5 * 60)
        self.assertEqual(len(drawn.gates), 1)

    def test_all_values_lie_inside_their_panel(self) -> None:
        """
        However large they are; and with nothing at all there is still a plot.
        """
        for starts in (0, 3, 4, 5, 99, 100, 101, 12345):
            drawn = plot(self.samples(0, 1, starts=starts), NOON, NOON + 120)
            panel = drawn.panels[2]
            self.assertGreaterEqual(panel.top, starts)
            for y in re.findall(r"[ML][\d.]+ ([\d.]+)", dict(panel.lines)["starts"]):
                self.assertTrue(panel.y <= float(y) <= panel.y + drawn.panel_height)
        empty = plot([], NOON, NOON + 14_400)
        self.assertIn("no drainer ran", empty.summary)
        self.assertEqual(len(empty.gaps), 1)

    def test_rate_is_of_the_last_minutes(self) -> None:
        """
        Old minutes do not count, and without any there is no rate.
        """
        now = NOON + 3600
        self.assertIsNone(views.rate(self.samples(0, 1, starts=9), now))
        recent = self.samples(55, 56, starts=10) + self.samples(57, starts=4)
        self.assertEqual(views.rate(recent, now), 8.0)

    def test_executions_in_a_reason_are_links(self) -> None:
        """
        Those it names, and no other number.
        """
        why = Why(Rule.ACCOUNT_FULL, "2 of 2 in flight: executions 12, 1", None, (12, 1))
        links = [(text, href) for text, href in views.pieces(why) if href]
        self.assertEqual(links, [("12", "/ui/executions/12"), ("1", "/ui/executions/1")])
        self.assertEqual("".join(text for text, _ in views.pieces(why)), why.text)

    def test_spans_are_said_in_two_units(self) -> None:
        """
        From tenths of a second to days.
        """
        for seconds, said in (
            (None, "–"),
            (-1.0, "0.0 s"),
            (3.21, "3.2 s"),
            (59.9, "59 s"),
            (61.0, "1 min 1 s"),
            (3600.0, "1 h"),
            (3661.0, "1 h 1 min"),
            (90_000.0, "1 d 1 h"),
        ):
            self.assertEqual(span(seconds), said)
