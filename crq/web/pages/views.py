"""
What each page shows, as the values its template takes; pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from crq.accounts import AccountFigures
from crq.controls import Control, Kind
from crq.explanation import Explanation, Rule, Why
from crq.gatehistory import Closing
from crq.instants import Instant
from crq.records import Page as Rows
from crq.recordvalues import FullRecord, Record, stored_instant
from crq.search import SHOWN
from crq.series import MINUTE, Sample
from crq.statusreport import Proof, StatusReport
from crq.web.pages.desk import link
from crq.web.pages.plot import plot
from crq.web.pages.words import STATES, VERDICTS, Look, state_of

LOG = "/ui/executions"
FILTERS = ("subdomain", "account", "key", "shown", "errorCode", "since", "until")
RECENT = 5  # minutes that the rate of starts is averaged over


@frozen
class Line:
    """
    One row of the log.
    """

    record: Record
    look: Look
    waited: float | None


@frozen
class Step:
    """
    One instant in the life of an execution.

    :ivar after: seconds since the step before.
    """

    what: str
    at: str | None
    after: float | None


def overview(
    report: StatusReport,
    samples: Sequence[Sample] | None,
    since: Instant,
    settings: Sequence[Control],
) -> dict[str, Any]:
    """
    How the queue is.

    :param samples: the minutes since ``since``; None: they are not for this visitor.
    """
    return {
        "report": report,
        "look": VERDICTS[report.verdict],
        "proofs": [(proof, _proof_link(proof)) for proof in report.proof],
        "rate": None if samples is None else rate(samples, report.at),
        "busiest": max((account.queued for account in report.accounts), default=0),
        "names": {each.subdomain_hash: each.subdomain for each in report.accounts},
        "plot": None if samples is None else plot(samples, since, report.at),
        "hours": round((report.at - since) / 3600),
        "settings": [(each, *_setting(each)) for each in settings],
        "paused": report.controls.everything,
        "draining": report.controls.draining,
        "cap_set": report.controls.in_flight is not None,
    }


def rate(samples: Sequence[Sample], now: Instant) -> float | None:
    """
    Starts a minute, on average over the last minutes; None: there is no sample of them.
    """
    last = [each for each in samples if each.minute >= now - (RECENT + 1) * MINUTE]
    if not last:
        return None
    return round(sum(each.ended.starts for each in last) / len(last), 1)


def _proof_link(proof: Proof) -> str | None:
    if proof.kind == "execution":
        return f"{LOG}/{proof.name}"
    if proof.kind == "key":
        return link("/ui/gates", key=proof.name)
    return "/ui/accounts" if proof.kind == "pause" and proof.account else None


_SETTINGS = {
    Kind.PAUSE_ALL: "everything is paused",
    Kind.PAUSE_ACCOUNT: "account paused",
    Kind.PAUSE_KEY: "key paused",
    Kind.CAP_TOTAL: "in flight at most",
    Kind.CAP_ACCOUNT: "account in flight at most",
    Kind.DRAIN: "draining for maintenance",
    Kind.RUN_ONE: "to be started although paused",
}


def _setting(control: Control) -> tuple[str, str | None, Mapping[str, str] | None]:
    """
    What was set, a link to what it is about, and the form that takes it back.
    """
    name = control.name
    about = {
        Kind.PAUSE_ACCOUNT: link(LOG, account=name),
        Kind.PAUSE_KEY: link("/ui/gates", key=name),
        Kind.CAP_ACCOUNT: link(LOG, account=name),
        Kind.RUN_ONE: f"{LOG}/{name}",
    }
    undo: dict[Kind, Mapping[str, str]] = {
        Kind.PAUSE_ALL: {"path": "pause", "scope": "all", "name": "", "label": "Resume"},
        Kind.PAUSE_ACCOUNT: {"path": "pause", "scope": "account", "name": name, "label": "Resume"},
        Kind.PAUSE_KEY: {"path": "pause", "scope": "key", "name": name, "label": "Resume"},
        Kind.CAP_TOTAL: {"path": "cap", "scope": "", "name": "", "label": "Configured cap"},
        Kind.CAP_ACCOUNT: {"path": "cap", "scope": "", "name": name, "label": "Configured cap"},
        Kind.DRAIN: {"path": "drain", "scope": "", "name": "", "label": "End the drain"},
    }
    return _SETTINGS[control.kind], about.get(control.kind), undo.get(control.kind)


def log(rows: Rows, given: Mapping[str, str], operates: bool) -> dict[str, Any]:
    """
    One page of the log.

    :param given: the filters as they came.
    """
    kept = {name: given[name] for name in (*FILTERS, "limit") if name in given}
    # What can be cancelled is what waits, so a filter for another state leaves nothing of it.
    waiting = given.get("shown") in (None, "queued") and "errorCode" not in given
    cancel = {name: kept[name] for name in kept if name not in ("shown", "errorCode", "limit")}
    return {
        "lines": [_line(record) for record in rows.records],
        "filters": {name: given.get(name, "") for name in FILTERS},
        "filtered": any(name in given for name in FILTERS),
        "shown_words": SHOWN,
        "states": [STATES[word] for word in SHOWN],
        "searched_to": rows.searched_to,
        "older": None if rows.cursor is None else link(LOG, **kept, cursor=rows.cursor),
        "newest": link(LOG, **kept) if "cursor" in given else None,
        "cancel": link(f"{LOG}/cancel", **cancel) if operates and waiting else None,
    }


def _line(record: Record) -> Line:
    queued, started = stored_instant(record.queued_at), stored_instant(record.started_at)
    waited = None if queued is None or started is None else max(0.0, started - queued)
    return Line(record, state_of(record), waited)


def execution(found: FullRecord, why: Explanation, operates: bool) -> dict[str, Any]:
    """
    One execution in full.
    """
    record = found.record
    waits = record.status == "queued"
    rules = {each.rule for each in why.why}
    return {
        "found": found,
        "record": record,
        "line": _line(record),
        "why": why,
        "steps": timeline(record),
        "pieces": pieces,
        "can_cancel": operates and waits,
        "can_start": operates and waits and Rule.PAUSED in rules and Rule.DRAINING not in rules,
        "can_settle": operates and record.shown == "outcome unknown",
    }


def pieces(why: Why) -> list[tuple[str, str | None]]:
    """
    Cut a reason into texts and links: the executions that it names are links.
    """
    if not why.by:
        return [(why.text, None)]
    numbers = "|".join(map(str, why.by))
    return [
        (text, f"{LOG}/{text}" if number % 2 else None)
        for number, text in enumerate(re.split(rf"\b({numbers})\b", why.text))
        if text
    ]


def timeline(record: Record) -> tuple[Step, ...]:
    """
    What happened when, in the order of a life.
    """
    found: list[Step] = []
    before: Instant | None = None
    for what, text in (
        ("admitted" if record.status != "rejected" else "refused", record.queued_at),
        ("claimed", record.claimed_at),
        ("started", record.started_at),
        (state_of(record).word, record.finished_at),
    ):
        if text is None:
            continue
        at = stored_instant(text)
        after = None if at is None or before is None else max(0.0, at - before)
        found.append(Step(what, text, after))
        before = at if at is not None else before
    return tuple(found)


def accounts(found: Sequence[AccountFigures]) -> dict[str, Any]:
    """
    How the accounts fare.
    """
    return {
        "accounts": found,
        "busiest": max((account.queued for account in found), default=0),
        "log": LOG,
    }


def gates(
    report: StatusReport, history: Sequence[Closing], limit: int, given: Mapping[str, str]
) -> dict[str, Any]:
    """
    Gates that are closed, and what became of gates before.
    """
    key = given.get("key")
    more = len(history) == limit
    last = stored_instant(history[-1].closed_at) if history else None
    older = None
    if more and last is not None:
        older = link("/ui/gates", key=key, before=history[-1].closed_at.replace(" ", "T") + "Z")
    return {
        "report": report,
        "closed": [gate for gate in report.gates if key in (None, gate.apikey_hash)],
        "names": {each.subdomain_hash: each.subdomain for each in report.accounts},
        "history": history,
        "key": key,
        "paused_keys": report.controls.keys,
        "older": older,
    }
