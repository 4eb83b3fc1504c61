"""
One automation of the demo, over the API: declared, previewed, observed, promoted, and let act.

It looks for overdue cards of an account that nobody else submits for, and has a script escalate
each. The scheduler ticks with the minute and when a daemon starts; so that nobody waits for the
minute, the daemon is started anew, which loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import requests
from attrs import frozen

from crq.instants import Instant, instant_of
from demo.api import HOST, RULED
from demo.checks import Automated
from demo.load import EXAMPLES
from demo.play import TODAY, DemoFailed, Show
from tests.installation import Installation

NAME = "escalate"
KEY = f"key-of-{RULED}"
WITHIN = 30.0  # s for a run to end
RULE = f"""
def decide(card):
    payload = {{"card_id": card["card_id"], "today": "{TODAY}"}}
    if card["deadline"] == None:
        return {{"approve": False, "reason": "no deadline"}}
    if card["deadline"] >= "{TODAY}":
        return {{"approve": False, "reason": "on time"}}
    return {{"approve": True, "reason": "overdue", "payload": payload}}
"""


@frozen
class Door:
    """
    The API of the daemon.
    """

    installation: Installation

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        Ask for something that is done.

        :raise DemoFailed: it is refused.
        """
        answer = requests.request(
            method,
            f"http://{HOST}:{self.installation.web_port}/automations{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.installation.token}"},
            timeout=60,
        )
        if not answer.ok:
            raise DemoFailed(f"{method} {path}: HTTP {answer.status_code}, {answer.text[:300]}")
        found: dict[str, Any] = answer.json()
        return found

    def ended(self, run: int) -> dict[str, Any]:
        """
        Start the daemon anew, for a tick, and wait for the end of a run.

        :raise DemoFailed: it does not come.
        """
        self.installation.stop("daemon")
        self.installation.start_daemon()
        ends = time.monotonic() + WITHIN
        while time.monotonic() < ends:
            found = self.ask("GET", f"/runs/{run}")
            if found["finishedAt"] is not None:
                return found
            time.sleep(0.1)
        raise DemoFailed(f"run {run} of the automation has not ended after {WITHIN:g} s")


def automate(installation: Installation, show: Show) -> Automated:
    """
    Take an automation from nothing to live.

    :raise DemoFailed: something is refused, or does not come to an end.
    """
    door = Door(installation)
    show.say(f"Declaring an automation of {RULED}: escalate what is overdue; previewing it")
    declared = door.ask(
        "POST",
        "",
        {
            "tenant": RULED,
            "name": NAME,
            "type": "run_script",
            "cron": "0 8 1 1 *",  # far away: here it is to run by hand alone
            "zone": "Europe/Berlin",
            "config": {
                "source": "json",
                "path": "/cards",
                "items": "data",
                "id": "card_id",
                "rule": RULE,
                "script": (EXAMPLES / "escalate_overdue.star").read_text("utf-8"),
                "apikey": KEY,
            },
        },
    )
    one = f"/{declared['automationId']}"
    seen = door.ask("POST", f"{one}/preview")
    if seen["problem"] is not None:
        raise DemoFailed(f"the preview says: {seen['problem']}")
    door.ask("POST", f"{one}/observe")
    show.say("It observes; the daemon is started anew, for its tick")
    observed = door.ended(door.ask("POST", f"{one}/run-now")["runId"])
    rests = door.ask("GET", f"{one}/promotion")
    if rests["obstacles"]:
        raise DemoFailed(f"it may not act: {rests['obstacles']}")
    run = rests["evidence"]["runId"]
    promoted = door.ask("POST", f"{one}/promote", {"evidenceRunId": run})
    show.say(
        f"Promoted on run {run}, which would change {rests['evidence']['wouldCount']}; it acts"
    )
    live = door.ended(door.ask("POST", f"{one}/run-now")["runId"])
    items = door.ask("GET", f"/runs/{live['runId']}/items?verdict=approved")["items"]
    return Automated(
        account=RULED,
        previewed=_approved(seen["decisions"]),
        observed=_approved(door.ask("GET", f"/runs/{observed['runId']}/items")["items"]),
        decided=observed["itemCount"],
        promoted_at=_instant(promoted["promotedAt"]),
        changed=live["approvedCount"],
        executions={
            int(item["detail"].removeprefix("execution ")): int(item["subjectId"])
            for item in items
            if item["effect"] == "applied"
        },
    )


def _approved(decisions: list[dict[str, Any]]) -> frozenset[int]:
    return frozenset(int(one["subjectId"]) for one in decisions if one["verdict"] == "approved")


def _instant(text: str) -> Instant:
    return instant_of(text.replace("T", " ").rstrip("Z"))
