"""
Automations over HTTP: the same desk as everywhere, who may come to it, and how it refuses.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq.automations import limits, runs
from crq.automations.model import Chunk, Json
from crq.automations.workers import Overdue
from crq.config import Token
from crq.sealing import sha256_hex
from tests.automations.house import House
from tests.door import Answer, Door
from tests.house import Clocks

OPS, READER, BOSS, ACME = "crq_ops", "crq_reader", "crq_boss", "crq_acme_ops"
ALL = ("admit", "read", "operate", "promote")
TOKENS = (
    Token(name="ops", sha256=sha256_hex(OPS), scopes=("read", "operate")),
    Token(name="reader", sha256=sha256_hex(READER), scopes=("read",)),
    Token(name="boss", sha256=sha256_hex(BOSS), scopes=ALL),
    Token(name="acme ops", sha256=sha256_hex(ACME), scopes=ALL, accounts=("acme",)),
)
RULE: dict[str, Any] = {
    "tenant": "acme",
    "name": "rule",
    "type": "played",
    "config": {"threshold": 3, "secret": "hush"},
    "cron": "15 3 * * *",
    "zone": "Europe/Berlin",
}


class Desk(SynchronousTestCase):
    """
    A door, and automations of the played type.
    """

    def setUp(self) -> None:
        self.door = Door(tokens=TOKENS)
        self.addCleanup(self.door.close)
        self.house = House(self.door.pool.database, Clocks(), self.door.kind, pool=self.door.pool)
        self.house.may.add("boss")

    def do(self, method: str, path: str, token: str = BOSS, **body: Any) -> Answer:
        """
        Ask with a JSON body.
        """
        data = json.dumps(body).encode() if body else b""
        headers = [("Content-Type", "application/json")] if body else []
        return self.door.ask(method, f"/automations{path}", data, token, headers)

    def ok(self, method: str, path: str, token: str = BOSS, **body: Any) -> dict[str, Any]:
        """
        Ask for what is done.
        """
        answer = self.do(method, path, token, **body)
        self.assertEqual(answer.status, 201 if (method, path) == ("POST", "") else 200, answer.body)
        return answer.json

    def refused(self, status: int, told: str, method: str, path: str, *a: str, **body: Any) -> Any:
        """
        Ask for what is refused, as problem details that name field, problem and remedy.
        """
        answer = self.do(method, path, *a, **body)
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(answer.headers["content-type"], "application/problem+json")
        found = answer.json
        told_in_full = f"{found['field']}: {found['problem']}; {found['remedy']}"
        self.assertEqual(found["detail"], told_in_full)
        self.assertIn(told, found["detail"])
        self.assertTrue(found["field"] and found["problem"] and found["remedy"], found)
        return found

    def add(self, **more: Any) -> int:
        """
        Declare one.
        """
        number: int = self.ok("POST", "", **{**RULE, **more})["automationId"]
        return number

    def tick(self) -> None:
        """
        One tick of the scheduler.
        """
        self.house.tick()

    def wait(self, seconds: float) -> None:
        """
        Let time pass at the door and for the scheduler.
        """
        self.door.clock.advance(seconds)
        self.house.clocks.advance(seconds)

    def observed(self, **more: Any) -> int:
        """
        One that has observed once to the end.
        """
        number = self.add(**more)
        self.ok("POST", f"/{number}/observe")
        self.ok("POST", f"/{number}/run-now")
        self.tick()
        return number

    def actions(self, number: int) -> list[tuple[str, str]]:
        """
        Who did what, oldest first.
        """
        lines = self.ok("GET", f"/{number}/audit")["audit"]
        return [(line["actor"], line["action"]) for line in reversed(lines)]


class Declaring(Desk):
    """
    Adding and editing.
    """

    def test_what_is_declared_does_nothing_and_hides_its_secret(self) -> None:
        """
        It is in observe, switched off, with its next ten occurrences in the zone and in UTC.
        """
        answer = self.do("POST", "", **RULE)
        self.assertEqual(answer.status, 201, answer.body)
        made = answer.json
        number = made["automationId"]
        self.assertEqual(answer.headers["location"], f"/automations/{number}")
        self.assertEqual((made["mode"], made["enabled"]), ("observe", False))
        self.assertEqual(made["config"], {"threshold": 3, "secret": "(sealed)"})
        self.assertNotIn(b"hush", answer.body)
        self.assertEqual(len(made["occurrences"]), 10)
        first = made["occurrences"][0]
        self.assertTrue(first["local"].endswith("03:15+01:00") or "03:15+02:00" in first["local"])
        self.assertEqual(self.ok("GET", f"/{number}"), made)
        self.assertEqual(self.actions(number), [("token:boss", "added")])

    def test_what_does_not_fit_is_told_by_field(self) -> None:
        """
        Each refusal names the field as the door calls it, the problem and the remedy; nothing is
        stored.
        """
        for more, told in (
            ({"tenant": "No!"}, "tenant: 'No!' cannot be one"),
            ({"tenant": 7}, "tenant: is no text"),
            ({"name": ""}, "name: is no text"),
            ({"name": "a\nb"}, "name: has control characters"),
            ({"type": "nothing"}, "type: 'nothing' is not installed; installed: played"),
            ({"config": []}, "config: is no JSON object"),
            ({"config": {"treshold": 1}}, "treshold: there is no such setting; did you mean"),
            ({"config": {"threshold": "1"}}, 'threshold: "1" is not a whole number'),
            ({"config": {"secret": "\ud800"}}, "secret: is not valid Unicode"),
            ({"cron": "61 * * * *"}, "cron:"),
            ({"cron": "0 0 31 2 *"}, "cron: the day-of-month"),
            ({"zone": "Mars/Olympus"}, "zone:"),
            ({"maxItemsPerRun": 0}, "maxItemsPerRun: 0 is out of range"),
            ({"maxChangesPerRun": limits.MAX_CHANGES_CEILING + 1}, "maxChangesPerRun:"),
            ({"maxChangesPerRun": True}, "maxChangesPerRun:"),
            ({"owner": "x" * 101}, "owner: is no text"),
            ({"mode": "live"}, "mode: there is no such field; known are tenant, name"),
        ):
            self.refused(422, told, "POST", "", **{**RULE, **more})
        self.refused(422, "type: is missing", "POST", "", tenant="acme", name="x")
        self.assertEqual(self.ok("GET", "")["automations"], [])
        number = self.add(maxItemsPerRun=7.0)
        self.assertEqual(self.ok("GET", f"/{number}")["maxItemsPerRun"], 7)
        self.refused(409, "name: acme has an automation 'rule'", "POST", "", **RULE)

    def test_bodies_are_json_objects(self) -> None:
        """
        Anything else is 400, another media type 415.
        """
        for path in ("", "/1/promote", "/1/observe"):
            method = "POST"
            json_type = [("Content-Type", "application/json")]
            answer = self.door.ask(method, f"/automations{path}", b"[1]", BOSS, json_type)
            self.assertEqual(answer.status, 400, answer.body)
            text = [("Content-Type", "text/plain")]
            answer = self.door.ask(method, f"/automations{path}", b"x", BOSS, text)
            self.assertEqual(answer.status, 415, answer.body)

    def test_an_edit_needs_the_revision_that_was_seen(self) -> None:
        """
        What is not given stays, the secret too; settings make a revision, and an old one is 409.
        """
        number = self.observed()
        after = self.ok("PATCH", f"/{number}", cron="0 4 * * *", revision=1)
        self.assertEqual((after["configRevision"], after["zone"]), (1, "Europe/Berlin"))
        after = self.ok("PATCH", f"/{number}", config={"threshold": 5}, revision=1)
        self.assertEqual(after["configRevision"], 2)
        self.assertEqual(after["config"], {"threshold": 5, "secret": "(sealed)"})
        told = "automation: was edited meanwhile"
        self.refused(409, told, "PATCH", f"/{number}", owner="Jo", revision=1)
        self.refused(422, "revision: is no whole", "PATCH", f"/{number}", revision="one")
        self.refused(422, "threshold:", "PATCH", f"/{number}", config={"threshold": None})
        self.assertEqual(self.ok("GET", f"/{number}")["owner"], "")

    def test_a_schedule_can_be_tried_before_it_is_saved(self) -> None:
        """
        The next ten occurrences of any schedule; one that cannot be is told so.
        """
        found = self.ok("GET", "/occurrences?cron=0+12+*+*+1&zone=Asia%2FTokyo")["occurrences"]
        self.assertEqual(len(found), 10)
        self.assertTrue(all("12:00+09:00" in one["local"] for one in found))
        self.assertTrue(all("T03:00:00" in one["utc"] for one in found))
        self.refused(422, "cannot be used", "GET", "/occurrences?cron=0+0+31+2+*")
        self.refused(422, "cron:", "GET", "/occurrences")

    def test_types_say_what_they_need(self) -> None:
        """
        Each with its settings, meanings and defaults.
        """
        (kind,) = self.ok("GET", "/types", READER)["types"]
        self.assertEqual((kind["name"], kind["acts"]), ("played", True))
        self.assertEqual([one["name"] for one in kind["settings"]], ["threshold", "secret"])
        self.assertEqual([one["secret"] for one in kind["settings"]], [False, True])


class Running(Desk):
    """
    From preview to live and back.
    """

    def test_the_whole_way(self) -> None:
        """
        Previewed, observed, promoted with the evidence that was seen, run, demoted; each step is in
        the audit under the token's name.
        """
        number = self.add()
        seen = self.ok("POST", f"/{number}/preview")
        self.assertEqual(len(seen["decisions"]), 10)
        self.assertEqual(seen["reasons"], {"too small": 2, "big enough": 8})
        self.assertEqual(self.ok("GET", f"/{number}/runs")["runs"], [])
        on = self.ok("POST", f"/{number}/observe", OPS)
        self.assertTrue(on["enabled"])
        self.assertIsNotNone(on["nextRunAt"])
        run = self.ok("POST", f"/{number}/run-now", OPS)["runId"]
        self.tick()
        told = self.ok("GET", f"/runs/{run}")
        self.assertEqual((told["mode"], told["status"]), ("observe", "completed"))
        self.assertEqual((told["wouldCount"], told["approvedCount"]), (8, 0))
        rests = self.ok("GET", f"/{number}/promotion")
        self.assertEqual(rests["obstacles"], [])
        self.assertEqual(rests["evidence"], {"runId": run, "configRevision": 1, "wouldCount": 8})
        live = self.ok("POST", f"/{number}/promote", evidenceRunId=run)
        self.assertEqual((live["mode"], live["promotedBy"]), ("live", "boss"))
        again = self.refused(409, "automation: is live already", "POST", f"/{number}/promote")
        self.assertEqual(again["type"], "urn:crqueue:problem:conflict")
        self.wait(1)
        self.ok("POST", f"/{number}/run-now")
        self.tick()
        last = self.ok("GET", f"/{number}/runs?limit=1")
        self.assertEqual(last["runs"][0]["approvedCount"], 8)
        self.assertEqual(last["before"], last["runs"][0]["runId"])
        older = self.ok("GET", f"/{number}/runs?before={last['before']}")
        self.assertEqual([one["runId"] for one in older["runs"]], [run])
        back = self.ok("POST", f"/{number}/demote", OPS)
        self.assertEqual((back["mode"], back["promotedBy"]), ("observe", None))
        self.assertFalse(self.ok("POST", f"/{number}/disable", OPS)["enabled"])
        self.assertTrue(self.ok("POST", f"/{number}/enable", OPS)["enabled"])
        done = [action for who, action in self.actions(number) if who.startswith("token:")]
        self.assertEqual(
            done,
            ["added", "observed", "run-now", "run-now", "demoted", "disabled", "enabled"],
        )
        self.assertIn(("boss", "promoted"), self.actions(number))

    def test_each_obstacle_is_named(self) -> None:
        """
        A promotion that is refused says all that stands in its way, and is in the audit.
        """
        number = self.add(maxChangesPerRun=2)
        told = self.refused(409, "no observe run", "POST", f"/{number}/promote")
        self.assertEqual(told["type"], "urn:crqueue:problem:not-promoted")
        self.assertEqual([one["precondition"] for one in told["obstacles"]], ["evidence"])
        self.ok("POST", f"/{number}/observe")
        self.ok("POST", f"/{number}/run-now")
        self.tick()
        told = self.refused(409, "the cap is 2", "POST", f"/{number}/promote")
        self.assertEqual([one["precondition"] for one in told["obstacles"]], ["cap"])
        self.door.kind.acts = False
        rests = self.ok("GET", f"/{number}/promotion", OPS)
        found = [one["precondition"] for one in rests["obstacles"]]
        self.assertEqual(found, ["type", "cap", "authority"])
        self.assertEqual(self.ok("GET", f"/{number}")["mode"], "observe")
        refused = [line for line in self.actions(number) if line[1] == "not promoted"]
        self.assertEqual(refused, [("boss", "not promoted")] * 2)

    def test_nobody_promotes_on_a_run_that_was_not_seen(self) -> None:
        """
        If it has observed again since the dialog was shown, the dialog is to be looked at again.
        """
        number = self.observed()
        first = self.ok("GET", f"/{number}/promotion")["evidence"]["runId"]
        self.wait(1)
        self.ok("POST", f"/{number}/run-now")
        self.tick()
        told = "has observed meanwhile"
        self.refused(409, told, "POST", f"/{number}/promote", evidenceRunId=first)
        self.assertEqual(self.ok("GET", f"/{number}")["mode"], "observe")
        self.ok("POST", f"/{number}/promote", evidenceRunId=first + 1)

    def test_items_are_filtered(self) -> None:
        """
        By verdict, effect and reason, in pages.
        """
        number = self.observed()
        run = self.ok("GET", f"/{number}/runs")["runs"][0]["runId"]
        all_of_them = self.ok("GET", f"/runs/{run}/items")["items"]
        self.assertEqual(len(all_of_them), 10)
        declined = self.ok("GET", f"/runs/{run}/items?verdict=declined")["items"]
        self.assertEqual([one["subjectId"] for one in declined], ["1", "2"])
        self.assertEqual(self.ok("GET", f"/runs/{run}/items?reason=too+small")["items"], declined)
        self.assertEqual(self.ok("GET", f"/runs/{run}/items?effect=applied")["items"], [])
        page = self.ok("GET", f"/runs/{run}/items?limit=4")
        rest = self.ok("GET", f"/runs/{run}/items?after={page['after']}")
        self.assertEqual(page["items"] + rest["items"], all_of_them)
        for query, told in (
            ("verdict=maybe", "give one of approved, declined"),
            ("effect=x", "give one of none, intended"),
            ("limit=501", "give 1 to 500"),
            ("after=x", "after:"),
            ("colour=red", "there is no such filter"),
        ):
            self.refused(422, told, "GET", f"/runs/{run}/items?{query}")
        self.refused(422, "give one of queued", "GET", f"/{number}/runs?status=x")
        self.assertEqual(self.ok("GET", f"/{number}/runs?status=failed")["runs"], [])

    def test_what_cannot_be_done_now_is_a_conflict(self) -> None:
        """
        A run of what is switched off, a second open run, a number that nobody has.
        """
        number = self.add()
        self.refused(409, "is switched off; enable it", "POST", f"/{number}/run-now")
        self.ok("POST", f"/{number}/observe")
        self.ok("POST", f"/{number}/run-now")
        self.refused(409, "has an open run", "POST", f"/{number}/run-now")
        for method, path in (
            ("GET", "/99"),
            ("PATCH", "/99"),
            ("GET", "/99/runs"),
            ("GET", "/99/audit"),
            ("GET", "/99/promotion"),
            ("GET", "/runs/99"),
            ("GET", "/runs/99/items"),
            *(("POST", f"/99/{verb}") for verb in ("observe", "promote", "demote", "enable")),
            *(("POST", f"/99/{verb}") for verb in ("disable", "run-now", "preview")),
        ):
            self.refused(404, "there is none of this number", method, path)

    def test_a_draft_is_previewed_before_it_is_declared(self) -> None:
        """
        It decides as it would, nothing is stored, and what does not fit is told by field.
        """
        seen = self.ok("POST", "/preview", **{**RULE, "config": {"threshold": 10}})
        self.assertEqual(seen["reasons"], {"too small": 9, "big enough": 1})
        told = "treshold: there is no such setting"
        self.refused(422, told, "POST", "/preview", **{**RULE, "config": {"treshold": 1}})
        self.refused(422, "tenant: is no text", "POST", "/preview")
        self.refused(403, "tenant:", "POST", "/preview", ACME, **{**RULE, "tenant": "other"})
        self.refused(403, "may not operate", "POST", "/preview", READER, **RULE)
        self.assertEqual(self.ok("GET", "")["automations"], [])

    def test_a_preview_that_goes_wrong_says_so(self) -> None:
        """
        What evaluate raises is told without the secret; what does not come back is 503; settings
        that no longer fit name their field. Nothing is kept of any.
        """
        number = self.add()

        def broken(context: Any, cursor: Json) -> Chunk:
            raise RuntimeError("the secret is hush")

        self.door.kind.before = broken
        seen = self.ok("POST", f"/{number}/preview")
        self.assertEqual(seen["problem"], "evaluate raised RuntimeError: the secret is (hidden)")
        self.door.previews.refuse = Overdue("did not come back within 30 s")
        told = self.refused(503, "preview: did not come back", "POST", f"/{number}/preview")
        self.assertEqual(told["type"], "urn:crqueue:problem:unavailable")
        self.door.previews.refuse = None
        self.house.sql("UPDATE automations SET config_json = '{\"gone\": 1}'")
        self.refused(422, "gone: there is no such setting", "POST", f"/{number}/preview")
        self.house.sql("UPDATE automations SET type = 'lost'")
        self.refused(422, "type: 'lost' is not installed", "POST", f"/{number}/preview")
        self.assertEqual(self.ok("GET", f"/{number}/runs")["runs"], [])
        self.assertEqual(self.ok("GET", f"/{number}/audit")["audit"][0]["action"], "added")


class Entering(Desk):
    """
    Who may do what.
    """

    def test_scopes(self) -> None:
        """
        Reading needs ``read``, doing ``operate``, letting act ``promote``.
        """
        number = self.add()
        self.refused(401, "no known token", "GET", "", "nobody")
        self.refused(403, "may not operate", "POST", "", READER, **RULE)
        self.refused(403, "may not operate", "PATCH", f"/{number}", READER)
        for verb in ("observe", "demote", "enable", "disable", "run-now", "preview"):
            self.refused(403, "may not operate", "POST", f"/{number}/{verb}", READER)
        self.refused(403, "may not promote", "POST", f"/{number}/promote", OPS)
        self.assertEqual(self.actions(number), [("token:boss", "added")])

    def test_limited_tokens_see_their_own_alone(self) -> None:
        """
        What belongs to another account is not even there for a token of one account.
        """
        mine, theirs = self.add(), self.add(tenant="other")
        run = self.house.do(runs.find, theirs)
        self.assertEqual(run.tenant, "other")
        self.ok("POST", f"/{theirs}/observe")
        run_id = self.ok("POST", f"/{theirs}/run-now")["runId"]
        shown = self.ok("GET", "", ACME)["automations"]
        self.assertEqual([one["automationId"] for one in shown], [mine])
        self.assertEqual(len(self.ok("GET", "?tenant=acme", ACME)["automations"]), 1)
        self.refused(403, "tenant: this token may not read it", "GET", "?tenant=other", ACME)
        self.refused(403, "tenant: this token", "POST", "", ACME, **{**RULE, "tenant": "other"})
        for method, path in (
            ("GET", f"/{theirs}"),
            ("PATCH", f"/{theirs}"),
            ("GET", f"/{theirs}/runs"),
            ("GET", f"/{theirs}/audit"),
            ("GET", f"/{theirs}/promotion"),
            ("GET", f"/runs/{run_id}"),
            ("GET", f"/runs/{run_id}/items"),
            *(("POST", f"/{theirs}/{verb}") for verb in ("observe", "promote", "demote")),
            *(("POST", f"/{theirs}/{verb}") for verb in ("enable", "disable", "run-now")),
            ("POST", f"/{theirs}/preview"),
        ):
            self.refused(404, "there is none of this number", method, path, ACME)
        self.assertEqual(len(self.ok("GET", "")["automations"]), 2)
        self.ok("POST", f"/{mine}/observe", ACME)

    def test_the_list_goes_on_after_a_page(self) -> None:
        """
        Nothing falls between two pages.
        """
        made = [self.add(name=f"rule {n}") for n in range(5)]
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            page = self.ok("GET", f"?after={after}&limit=2")
            seen += [one["automationId"] for one in page["automations"]]
            after = page["after"]
        self.assertEqual(seen, made)
