"""
The pages of automations, spoken to in bytes: what they show, what their forms do, what is escaped.
"""

from __future__ import annotations

import html
import itertools
import re
from typing import Any
from urllib.parse import urlencode

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from crq.automations import runs
from crq.automations.model import Chunk, Counts, Decision, Effect, Json, Mode, RunStatus, Verdict
from crq.automations.runscript import RunScript
from crq.automations.workers import Overdue
from crq.submissions import Refusal
from crq.web.pages import forms
from crq.web.pages.bars import LABEL, MOST, chart
from crq.web.pages.render import ASSETS
from crq.web.pages.words import EFFECTS, MODES, RUNS, VERDICT
from tests.automations.house import House
from tests.door import Answer, Door
from tests.house import Clocks
from tests.rows import SEALER
from tests.unit.test_web_automations import BOSS, OPS, READER, TOKENS
from tests.unit.test_web_pages import FORM, MARKUP

ACME = "crq_acme_ops"
NEW = {
    "type": "played",
    "tenant": "acme",
    "name": "rule",
    "cron": "15 3 * * *",
    "zone": "Europe/Berlin",
    "s.threshold": "3",
    "s.secret": "hush",
}


class Pages(SynchronousTestCase):
    """
    A door with the played type, a scheduler, and a browser's part of the talk.
    """

    def setUp(self) -> None:
        self.said: list[str] = []
        self.door = Door(tokens=TOKENS, body_limit=50_000, observe=self.said.append)
        self.addCleanup(self.door.close)
        self.house = House(self.door.pool.database, Clocks(), self.door.kind, pool=self.door.pool)
        self.house.may.add("boss")
        self.sign_in(BOSS)

    def sign_in(self, token: str) -> None:
        body = urlencode({"token": token, "next": "/ui"}).encode()
        answer = self.door.ask("POST", "/ui/login", body, None, [FORM])
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def get(self, path: str = "") -> Answer:
        headers = [("Cookie", self.cookie)]
        return self.door.ask("GET", f"/ui/automations{path}", token=None, headers=headers)

    def text(self, path: str = "") -> str:
        """
        What is shown of a page that is there.
        """
        answer = self.get(path)
        self.assertEqual(answer.status, 200, (path, answer.body))
        return answer.body.decode()

    def post(self, path: str, **fields: object) -> Answer:
        """
        Send a form of this session.
        """
        if "csrf" not in fields:
            found = re.search(r'name="csrf" value="([^"]+)"', self.text())
            assert found is not None
            fields["csrf"] = found[1]
        body = urlencode(fields).encode()
        headers = [FORM, ("Cookie", self.cookie)]
        return self.door.ask("POST", f"/ui/automations{path}", body, None, headers)

    def did(self, path: str, **fields: object) -> str:
        """
        Send a form that does something; returns where it leads.
        """
        answer = self.post(path, **fields)
        self.assertEqual(answer.status, 303, answer.body)
        return answer.headers["location"].removeprefix("/ui/automations")

    def add(self, **more: str) -> str:
        """
        Declare one; returns its path.
        """
        return self.did("/new", **{**NEW, **more})

    def observed(self, **more: str) -> str:
        """
        One that has observed once to the end.
        """
        path = self.add(**more)
        self.did(f"{path}/observe")
        self.did(f"{path}/run-now")
        self.house.tick()
        return path

    def wait(self, seconds: float) -> None:
        self.door.clock.advance(seconds)
        self.house.clocks.advance(seconds)

    def count(self, table: str) -> int:
        return int(self.house.sql(f"SELECT COUNT(*) FROM {table}")[0][0])


class Declaring(Pages):
    """
    The editor.
    """

    def test_the_form_is_made_of_the_types_settings(self) -> None:
        """
        A type is chosen first; its settings have a field each with their meaning, secrets hidden.
        """
        self.assertIn("/ui/automations/new?type=played", self.text("/new"))
        text = self.text("/new?type=played")
        self.assertIn("records below it are declined; empty: 0 (a whole number)", text)
        self.assertRegex(text, r'<input type="password"[^>]+name="s.secret"')
        self.assertEqual(self.get("/new?type=nothing").status, 422)
        self.assertEqual(len(re.findall(r"<tr><td>20", text)), 10)

    def test_what_is_wrong_stands_beside_its_field(self) -> None:
        """
        Each fault is told at the field it is about, with what was typed still there but for the
        secret; nothing is stored.
        """
        for field, typed, told in (
            ("tenant", "No!", "cannot be one"),
            ("name", "", "is no text of 1 to 100"),
            ("cron", "99 * * * *", "cannot be used"),
            ("zone", "Mars/Olympus", "Mars/Olympus"),
            ("maxItemsPerRun", "many", "'many' is out of range"),
            ("maxChangesPerRun", "0", "0 is out of range; give a whole number from 1 to 1000"),
            ("owner", "x" * 101, "is no text of 1 to 100"),
            ("s.threshold", "<b>", '"<b>" is not a whole number'),
            ("s.threshold", "1.5", "1.5 is not a whole number"),
        ):
            answer = self.post("/new", **{**NEW, field: typed})
            self.assertEqual(answer.status, 422, (field, typed))
            text = answer.body.decode()
            wrong = re.findall(r'<div class="field wrong">.*?</div>', text, re.DOTALL)
            self.assertEqual(len(wrong), 1, (field, wrong))
            self.assertIn(f'name="{field}"', wrong[0])
            self.assertIn('aria-invalid="true"', wrong[0])
            self.assertIn(told, html.unescape(wrong[0]))
            self.assertIn(html.escape(typed), text)
            self.assertNotIn("hush", text)
        self.assertEqual(self.count("automations"), 0)
        self.add()
        taken = self.post("/new", **NEW)
        self.assertEqual(taken.status, 409)
        self.assertIn(b"acme has an automation", taken.body)

    def test_a_schedule_can_be_looked_at_before_it_is_saved(self) -> None:
        """
        The next ten occurrences of what is typed, in the zone and in UTC; nothing is stored.
        """
        tried = {**NEW, "cron": "30 9 * * 1", "zone": "Asia/Tokyo", "do": "check"}
        answer = self.post("/new", **tried)
        self.assertEqual(answer.status, 200)
        text = answer.body.decode()
        self.assertEqual(text.count("09:30+09:00"), 10)
        self.assertEqual(len(re.findall(r"<time datetime=[^>]+>20[0-9-]+ 00:30</time>", text)), 10)
        self.assertIn('value="30 9 * * 1"', text)
        self.assertEqual(self.count("automations"), 0)
        self.assertEqual(self.post("/new", **{**tried, "cron": "x"}).status, 422)

    def test_a_draft_can_be_previewed(self) -> None:
        """
        What the form would decide is shown below it, before it is saved and when it is edited, with
        the secret that is stored; what is wrong with it stands beside its field. Nothing is kept.
        """
        secrets: list[str] = []

        def look(context: Any, cursor: Json) -> None:
            secrets.append(context.config.secret)

        self.door.kind.before = look
        sent = {**NEW, "s.threshold": "9", "do": "preview"}
        answer = self.post("/new", **sent)
        self.assertEqual(answer.status, 200, answer.body)
        text = answer.body.decode()
        self.assertIn("10 decisions", text)
        self.assertEqual(text.count("state success"), 2)
        self.assertIn('value="9"', text)
        self.assertNotIn("hush", text)
        self.assertEqual(self.post("/new", **{**sent, "s.threshold": "x"}).status, 422)
        self.assertEqual(self.count("automations"), 0)
        path = self.add()
        form = {name: value for name, value in sent.items() if name not in ("type", "tenant")}
        answer = self.post(f"{path}/edit", **{**form, "s.secret": "", "revision": 1})
        self.assertEqual(answer.body.decode().count("state success"), 2)
        self.assertEqual(secrets, ["hush", "hush"])
        self.assertEqual(self.house.read(runs.find, 1).config["threshold"], 3)
        self.assertEqual(self.count("automation_runs"), 0)
        self.door.previews.refuse = Overdue("did not come back within 30 s")
        answer = self.post("/new", **sent)
        self.assertEqual(answer.status, 503)
        self.assertIn(b"did not come back", answer.body)

    def test_editing_keeps_secrets_and_does_not_overwrite(self) -> None:
        """
        An empty secret stays as it is; a form that was made of an older revision is 409, and stays
        so when it is sent again.
        """
        path = self.observed()
        text = self.text(f"{path}/edit")
        self.assertIn('value="15 3 * * *"', text)
        self.assertIn("empty: it stays as it is", text)
        self.assertNotIn("hush", text)
        form = {"revision": 1, **{k: v for k, v in NEW.items() if k not in ("type", "tenant")}}
        self.did(f"{path}/edit", **{**form, "s.secret": "", "s.threshold": "9"})
        shown = self.text(path)
        self.assertIn("saved as revision 2; it observes again", shown)
        stored = self.house.read(runs.find, 1).config
        self.assertEqual(stored["threshold"], 9)
        self.assertEqual(SEALER.unseal(stored["secret"]["sealed"]), "hush")
        for _ in range(2):
            late = self.post(f"{path}/edit", **{**form, "s.threshold": "1"})
            self.assertEqual(late.status, 409)
            self.assertIn(b"was edited meanwhile", late.body)
            self.assertIn(b'name="revision" value="1"', late.body)

    def test_forms_are_read_as_their_settings_are_meant(self) -> None:
        """
        Lines of a script stay lines, choices are words, lists and numbers are JSON, and what is
        left empty is not given.
        """
        kind = type("Kind", (), {"settings": RunScript})
        form = {
            "name": " n ",
            "cron": "* * * * *",
            "zone": "UTC",
            "owner": "",
            "maxItemsPerRun": "12",
            "maxChangesPerRun": " ",
            "s.source": "table",
            "s.rule": "def decide(s):\r\n    return True\r\n",
            "s.path": " /cards ",
            "s.columns": '["a", "b"]',
            "s.apikey": "k\r\n",
            "s.items": "",
        }
        self.assertEqual(
            forms.given(kind, form),
            {
                "name": "n",
                "cron": "* * * * *",
                "zone": "UTC",
                "owner": "",
                "max_items_per_run": 12,
                "max_changes_per_run": None,
                "config": {
                    "source": "table",
                    "rule": "def decide(s):\n    return True\n",
                    "path": "/cards",
                    "columns": ["a", "b"],
                    "apikey": "k",
                },
            },
        )
        _, theirs = forms.fields(kind, form, None, Refusal("path", "is wrong", "write it so"))
        looks = {each.label: (each.look, each.choices, each.problem) for each in theirs}
        self.assertEqual(looks["source"], ("choice", ("json", "table"), None))
        self.assertEqual(looks["apikey"], ("secret", (), None))
        self.assertEqual(looks["path"], ("text", (), "is wrong; write it so"))
        self.assertEqual(looks["columns"][0], "line")


class Going(Pages):
    """
    From declared to live and back.
    """

    def test_the_whole_way(self) -> None:
        """
        Declared, previewed, observed, run, promoted with its evidence, run live, demoted; each page
        says what is so.
        """
        path = self.add()
        text = self.text(path)
        self.assertIn("state off", text)
        self.assertIn("acme/rule is declared", text)
        self.assertIn("03:15+01:00", text)
        seen = self.post(f"{path}/preview").body.decode()
        self.assertIn("10 decisions", seen)
        self.assertIn("big enough", seen)
        self.assertEqual(self.count("automation_runs"), 0)
        refused = self.text(f"{path}/promotion")
        self.assertIn("no observe run of revision 1 has completed", refused)
        self.assertNotIn('id="do-promote"', refused)
        self.did(f"{path}/observe")
        self.assertIn("state observe", self.text(path))
        self.did(f"{path}/run-now")
        self.house.tick()
        shown = self.text(path)
        self.assertIn("10 decided, 8 would be changed", shown)
        self.assertIn('class="bar would"', shown)
        dialog = self.text(f"{path}/promotion")
        self.assertIn('<dd id="would">8</dd>', dialog)
        self.assertIn("big enough", dialog)
        self.assertIn('name="evidence" value="1"', dialog)
        self.assertEqual(self.did(f"{path}/promote", evidence=1), path)
        shown = self.text(path)
        self.assertIn("state acting", shown)
        self.assertIn("which would have changed 8", shown)
        self.wait(1)
        self.did(f"{path}/run-now")
        self.house.tick()
        self.assertIn('class="bar changed"', self.text(path))
        self.assertIn("did 3", self.text("/runs/2"))
        self.did(f"{path}/demote")
        self.assertIn("state observe", self.text(path))
        self.did(f"{path}/disable")
        self.assertIn("state off", self.text(path))
        audit = self.text(f"{path}/audit")
        for word in ("added", "observed", "run-now", "promoted", "demoted", "disabled"):
            self.assertIn(f"<strong>{word}</strong>", audit)
        self.assertIn("token:boss", audit)
        lines = self.text()
        self.assertIn("10 decided, 8 changed", lines)

    def test_each_obstacle_is_shown_with_its_remedy(self) -> None:
        """
        On the dialog, and when the form is sent all the same; nothing is promoted, and the refusal
        is in the audit.
        """
        path = self.observed(maxChangesPerRun="2")
        self.door.kind.acts = False
        dialog = self.text(f"{path}/promotion")
        sent = self.post(f"{path}/promote", evidence=1)
        self.assertEqual(sent.status, 409)
        for text in (dialog, sent.body.decode()):
            self.assertEqual(text.count('<li class="problem">'), 2)
            self.assertIn("only reports", text)
            self.assertIn("Leave it in observe.", text)
            self.assertIn("the cap is 2", text)
            self.assertNotIn('id="do-promote"', text)
        self.assertIn("<strong>not promoted</strong>", self.text(f"{path}/audit"))
        self.assertEqual(self.house.sql("SELECT mode FROM automations"), [("observe",)])
        self.sign_in(OPS)
        self.assertIn("may not promote", html.unescape(self.text(f"{path}/promotion")))
        self.assertEqual(self.post(f"{path}/promote", evidence=1).status, 403)

    def test_nobody_promotes_on_what_was_not_seen(self) -> None:
        """
        A form without the run that was shown, or with one that is not the last by now, is refused.
        """
        path = self.observed()
        self.assertEqual(self.post(f"{path}/promote").status, 422)
        self.wait(1)
        self.did(f"{path}/run-now")
        self.house.tick()
        self.assertEqual(self.post(f"{path}/promote", evidence=1).status, 409)
        self.assertEqual(self.house.sql("SELECT mode FROM automations"), [("observe",)])

    def test_forms_need_the_sessions_secret_and_the_scope(self) -> None:
        """
        Without either every form is 403 and changes nothing; a reader sees no form.
        """
        path = self.add()
        verbs = ("observe", "demote", "enable", "disable", "run-now", "preview", "promote", "edit")
        for verb in verbs:
            self.assertEqual(self.post(f"{path}/{verb}", csrf="x", evidence=1).status, 403, verb)
        self.assertEqual(self.post("/new", csrf="x", **NEW).status, 403)
        self.sign_in(READER)
        self.assertNotIn("/observe", self.text(path))
        self.assertNotIn('id="new"', self.text())
        for verb in verbs:
            self.assertEqual(self.post(f"{path}/{verb}", evidence=1).status, 403, verb)
        for page in ("/new", f"{path}/edit"):
            self.assertEqual(self.get(page).status, 403, page)
        self.assertEqual(self.count("automation_audit"), 1)

    def test_limited_tokens_see_their_own_alone(self) -> None:
        """
        What belongs to another account is not there, on any page, and cannot be made.
        """
        mine, theirs = self.observed(), self.observed(tenant="other", name="secret plan")
        self.sign_in(ACME)
        self.assertNotIn("secret plan", self.text())
        self.assertEqual(self.get("?tenant=other").status, 403)
        for page in ("", "/runs", "/audit", "/promotion", "/edit"):
            self.assertEqual(self.get(theirs + page).status, 404, page)
            self.assertEqual(self.get(mine + page).status, 200, page)
        self.assertEqual((self.get("/runs/1").status, self.get("/runs/2").status), (200, 404))
        self.assertEqual(self.post(f"{theirs}/disable").status, 404)
        for do in ("", "preview"):
            sent = {**NEW, "tenant": "other", "name": "x", "do": do}
            self.assertEqual(self.post("/new", **sent).status, 403)
        self.assertEqual(self.count("automations"), 2)


class Showing(Pages):
    """
    What stands on the pages.
    """

    def test_whatever_is_stored_is_text(self) -> None:
        """
        Markup in every text of every table is escaped on every page.
        """
        self.door.kind.before = lambda context, cursor: Chunk(
            (Decision("number", MARKUP, Verdict.APPROVED, MARKUP, {MARKUP: MARKUP}),),
            MARKUP,
            False,
            (MARKUP,),
        )
        path = self.observed()
        preview = self.post(f"{path}/preview").body.decode()
        for column in ("name", "owner", "problem", "last_run_summary", "promoted_by"):
            self.house.sql(f"UPDATE automations SET {column} = ?", MARKUP)
        for column in ("why", "waits_for"):
            self.house.sql(f"UPDATE automation_runs SET {column} = ?", MARKUP)
        self.house.sql("UPDATE automation_run_items SET detail = ?", MARKUP)
        self.house.sql("UPDATE automation_audit SET actor = ?, action = ?", MARKUP, MARKUP)
        pages = ["", path, f"{path}/runs", f"{path}/promotion", f"{path}/audit", f"{path}/edit"]
        shown = {page: self.text(page) for page in [*pages, "/runs/1"]}
        shown["preview"] = preview
        for page, text in shown.items():
            self.assertNotIn("<img", text, page)
            self.assertIn("{{7*7}}", text, page)
            self.assertEqual(text.count("<script"), 1, page)
            self.assertNotIn(" onerror=alert(1)>", text, page)
            self.assertIn("&lt;img src=x", text, page)
            self.assertNotIn("style=", text, page)

    def test_what_was_typed_comes_back_as_text(self) -> None:
        """
        Markup in every field of the form is escaped where it is shown again.
        """
        fields = {**dict.fromkeys(NEW, MARKUP), "type": "played", "owner": MARKUP}
        text = self.post("/new", **fields).body.decode()
        self.assertNotIn("<img", text)
        self.assertEqual(text.count("<script"), 1)
        self.assertGreaterEqual(text.count("&lt;img src=x"), 5)
        for page in ("?tenant=", "/new?type="):
            found = self.get(page + "%22%3E%3Cscript%3Ealert(1)%3C/script%3E").body.decode()
            self.assertLessEqual(found.count("<script"), 1)

    def test_items_and_runs_are_filtered_and_go_on(self) -> None:
        """
        Filters keep to what fits, their page goes on where it ended, and a wrong one is told.
        """
        self.door.kind.records = list(range(1, 121))
        path = self.observed()
        seen: list[str] = []
        page: str | None = "/runs/1?verdict=approved"
        while page is not None:
            text = self.text(page)
            seen += re.findall(r'<th scope="row" class="free">number (\d+)</th>', text)
            found = re.search(r'href="/ui/automations([^"]+)" rel="next"', text)
            page = html.unescape(found[1]) if found else None
        self.assertEqual(seen, [str(number) for number in range(3, 121)])
        self.assertEqual(self.text("/runs/1?reason=too+small").count(">number "), 2)
        self.assertIn("Nothing fits", self.text("/runs/1?effect=applied"))
        self.assertIn("No run is in this state", self.text(f"{path}/runs?status=failed"))
        self.assertIn(">completed</span>", self.text(f"{path}/runs?status=completed"))
        for wrong in ("/runs/1?verdict=x", "/runs/1?moon=1", f"{path}/runs?status=x", "?after=x"):
            self.assertEqual(self.get(wrong).status, 422, wrong)
        for gone in ("/99", "/runs/99", "/99/runs", "/99/edit", "/99/promotion", "/99/audit"):
            self.assertEqual(self.get(gone).status, 404, gone)

    def test_what_went_wrong_is_seen(self) -> None:
        """
        A run that failed says why; an automation that the scheduler has switched off says so; a
        type that is not installed any more leaves its pages readable.
        """

        def broken(context: Any, cursor: Json) -> Chunk:
            raise RuntimeError("no such table")

        self.door.kind.before = broken
        path = self.observed()
        self.assertIn("evaluate raised RuntimeError: no such table", self.text("/runs/1"))
        preview = self.post(f"{path}/preview").body.decode()
        self.assertIn("evaluate raised RuntimeError: no such table", preview)
        self.house.sql("UPDATE automations SET type = 'lost', problem = 'cron: broken', cron = 'x'")
        text = self.text(path)
        self.assertIn("The scheduler has switched it off: cron: broken", text)
        self.assertIn("None can be told.", text)
        self.assertIn("is not installed", html.unescape(self.text(f"{path}/promotion")))
        self.assertEqual(self.get(f"{path}/edit").status, 422)

    def test_words_are_told_apart_without_colour(self) -> None:
        """
        Each word has a symbol and a class that no other one of its kind has.
        """
        for looks in (MODES, RUNS, VERDICT, EFFECTS):
            for part in ("word", "symbol", "css"):
                found = {getattr(each, part) for each in looks.values()}
                self.assertEqual(len(found), len(looks), part)

    def test_no_look_is_dressed_as_something_else(self) -> None:
        """
        The style sheet has no rule for the class of a look by itself: it is of another part.
        """
        sheet = ASSETS["page.css"].body.decode()
        for look in (*MODES.values(), *RUNS.values(), *VERDICT.values(), *EFFECTS.values()):
            self.assertNotRegex(sheet, rf"(?m)^\s*\.{look.css}[\s.:{{,]", look.word)

    def test_every_word_that_is_stored_has_a_look(self) -> None:
        """
        No page fails for a state that nobody has thought of.
        """
        self.assertEqual(set(RUNS), {each.value for each in RunStatus})
        self.assertEqual(set(EFFECTS), {each.value for each in Effect})
        self.assertEqual(set(VERDICT), {each.value for each in Verdict})
        self.assertEqual(set(MODES), {each.value for each in Mode} | {"off"})


class Costs(Pages):
    """
    What a page asks of the database.
    """

    def test_pages_ask_as_much_whatever_there_is(self) -> None:
        """
        As many statements with many automations, runs and items as with one of each.
        """
        path = self.observed()
        pages = ("", path, f"{path}/runs", f"{path}/audit", f"{path}/promotion", "/runs/1")
        few = {page: self.asked(page) for page in pages}
        self.assertLessEqual(max(few.values()), 5)
        for number in range(30):
            self.add(name=f"rule {number}")
            self.wait(1)
            self.did(f"{path}/run-now")
            self.house.tick()
        self.assertEqual(self.count("automation_runs"), 31)
        self.assertEqual({page: self.asked(page) for page in pages}, few)

    def asked(self, page: str) -> int:
        self.said.clear()
        self.text(page)
        return len([each for each in self.said if each.lstrip().startswith("SELECT")])


class Drawing(Pages):
    """
    The chart of the runs.
    """

    def test_bars_lie_inside_and_say_what_they_are(self) -> None:
        """
        Oldest on the left, would outlined, changed filled, failed on top; none leaves the frame.
        """
        self.observed()
        run = self.house.read(runs.run, 1)
        live = evolve(
            run, run_id=2, mode=Mode.LIVE, counts=Counts(items=30, approved=20, failed=3, unknown=2)
        )
        none = evolve(run, run_id=3, counts=Counts())
        drawn = chart([none, live, run])
        self.assertEqual([bar.run_id for bar in drawn.bars], [1, 2, 3])
        css = [[part.css for part in bar.parts] for bar in drawn.bars]
        self.assertEqual(css, [["would"], ["changed", "failed"], ["nothing"]])
        self.assertEqual(drawn.top, 50)
        for bar in drawn.bars:
            self.assertTrue(drawn.left <= bar.x and bar.x + bar.width <= drawn.right)
            for part in bar.parts:
                self.assertTrue(drawn.upper <= part.y <= part.y + part.height <= drawn.lower + 0.2)
        self.assertIn("changed 20 of 30, 5 failed or unknown", drawn.bars[1].text)
        self.assertEqual(
            drawn.summary,
            "3 runs: 8 records would have been changed, 20 were, 5 failed or ended unknown.",
        )
        many = chart([evolve(run, run_id=number) for number in range(100, 0, -1)])
        self.assertEqual(len(many.bars), MOST)
        places = [x for x, _ in many.labels]
        self.assertTrue(all(b - a >= LABEL for a, b in itertools.pairwise(places)), places)
        self.assertEqual(many.bars[-1].run_id, 100)
        self.assertEqual(chart([]).bars, ())
