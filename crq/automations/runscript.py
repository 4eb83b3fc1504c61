"""
The type ``run_script``: a rule in Starlark decides about subjects, a script is run for each
approved.

What it reaches outside is handed to it: `fetch` asks the tenant's API, `admit` puts an execution
into the queue. So it knows neither HTTP nor the queue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from attrs import NOTHING, define, field, frozen
from zope.interface import implementer

from crq import script
from crq.automations import limits
from crq.automations.interfaces import Context, IAutomation
from crq.automations.model import Chunk, Decision, Json, Unfit, Verdict
from crq.automations.settings import setting
from crq.automations.sources import JsonSource, Page, Table, checked_columns, found_table

RULE: Final = "decide"  # what the function of a rule is called
FAILED: Final = "the rule failed"
RULE_SHOWN: Final = 3  # failures of the rule that a chunk's notices name


@frozen
class Wanted:
    """
    An execution that is to be admitted.

    :ivar idempotency_key: names this effect: the same key is the same execution.
    """

    tenant: str
    apikey: str = field(repr=False)
    source_code: str = field(repr=False)
    payload: Json
    identifier: str
    idempotency_key: str


Fetch = Callable[[Context, str, str], Json]
Admit = Callable[[Context, Wanted], str]


def _parses(source: str) -> str | None:
    try:
        script.parse(source)
    except script.SyntaxFault as fault:
        return f"does not parse: {fault}"
    return None


def _rule(source: str) -> str | None:
    problem = _parses(source)
    if problem is None and not any(
        line.replace(" ", "").startswith(f"def{RULE}(") for line in source.splitlines()
    ):
        return f"defines no function {RULE}(subject); write def {RULE}(subject):"
    return problem


def _path(path: str) -> str | None:
    if path and (not path.startswith("/") or path.startswith("//") or "#" in path):
        return "a path begins with one slash and has no #; the host is the tenant's"
    return None


@frozen
class RunScript:
    """
    The settings of ``run_script``.
    """

    source: Literal["json", "table"] = setting(NOTHING, "where the subjects come from")
    rule: str = setting(
        NOTHING,
        "Starlark with def decide(subject): True, False, or"
        ' {"approve": …, "reason": …, "payload": …}; `now` is the occurrence in epoch seconds',
        _rule,
    )
    script: str = setting(NOTHING, "what is run for each approved subject", _parses)
    apikey: str = setting(NOTHING, "the API key it is run with", secret=True)
    path: str = setting("", "json: the path on the tenant's API, such as /cards", _path)
    items: str = setting("", "json: where in the answer the list is; empty: it is the answer")
    id: str = setting("id", "json: the field that tells records apart, and in whose order they are")
    after: str = setting("after", "json: the parameter that says where to go on")
    limit: str = setting("limit", "json: the parameter that says how many")
    next: str = setting("", "json: where in the answer its own cursor is; empty: the last id")
    table: str = setting("", "table: one of the operator's automations.tables")
    columns: tuple[str, ...] = setting((), "table: what the rule sees of a row", checked_columns)

    def __attrs_post_init__(self) -> None:
        if self.source == "json" and not self.path:
            raise Unfit("path", "is missing", "give the path of the JSON source")
        if self.source == "table" and not self.table:
            raise Unfit("table", "is missing", "name one of automations.tables")


@implementer(IAutomation)
@define(eq=False)
class RunScripts:
    """
    The type.

    :ivar fetch: GETs a path of the tenant's API: context, API key, path; raises `Later`.
    :ivar admit: admits an execution and says which; raises `Later` when the queue is full.
    :ivar tables: what the operator allows, by name.
    """

    fetch: Fetch
    admit: Admit
    tables: Mapping[str, Table] = field(factory=dict)

    name = "run_script"
    summary = "decides by a Starlark rule, and runs a script for each approved subject"
    settings = RunScript
    subject_types = ("subject",)
    acts = True
    repeatable = True  # an execution has an idempotency key

    def evaluate(self, context: Context, config: RunScript, cursor: Json, limit: int) -> Chunk:
        """
        Decide about the next page of subjects.
        """
        page = self._page(context, config, cursor, limit)
        decide = script.function(
            config.rule, RULE, {"now": context.scheduled_for}, lambda: context.left() <= 0
        )
        decisions = []
        notices: list[str] = []
        for subject_id, record in page.subjects:
            try:
                answer = decide(record)
            except script.Fault as fault:
                if context.left() <= 0:
                    raise
                # One odd record must not stop the others; the counts of reasons show it.
                answer = {"approve": False, "reason": FAILED}
                if len(notices) < RULE_SHOWN:
                    notices.append(f"{FAILED} for {subject_id}: {fault}")
            decisions.append(_decision(subject_id, record, answer))
        return Chunk(tuple(decisions), page.cursor, page.more, tuple(notices))

    def _page(self, context: Context, config: RunScript, cursor: Json, limit: int) -> Page:
        if config.source == "table":
            table = found_table(self.tables, config.table)
            return context.read(table.page, context.tenant, config.columns, cursor, limit)
        source = JsonSource(
            path=config.path,
            items=config.items,
            id_field=config.id,
            after_parameter=config.after,
            limit_parameter=config.limit,
            next_field=config.next,
        )
        answer = self.fetch(context, config.apikey, source.address(cursor, limit))
        return source.page(answer, cursor, limit)

    def apply(self, context: Context, decision: Decision) -> str:
        """
        Admit an execution for an approved subject.
        """
        subject = hashlib.sha256(decision.subject_id.encode("utf-8")).hexdigest()
        return self.admit(
            context,
            Wanted(
                tenant=context.tenant,
                apikey=context.config.apikey,
                source_code=context.config.script,
                payload=decision.intent.get("payload"),
                identifier=f"automation {context.automation_uuid}: {decision.subject_id}"[:255],
                idempotency_key=f"{context.run_key}:{subject}",
            ),
        )


def _decision(subject_id: str, record: Mapping[str, Json], answer: Any) -> Decision:
    """
    What a rule's answer means.

    :raise ValueError: it means nothing.
    """
    if answer is None or isinstance(answer, bool):
        answer = {"approve": bool(answer)}
    if not isinstance(answer, dict) or not isinstance(answer.get("approve"), bool):
        raise ValueError(
            f"{RULE}() of {subject_id} returned {json.dumps(answer, default=str)[:100]}; return"
            ' True, False or {"approve": True, "reason": "…", "payload": …}'
        )
    approve: bool = answer["approve"]
    reason = str(answer.get("reason") or ("approved" if approve else "declined"))
    return Decision(
        subject_type="subject",
        subject_id=subject_id,
        verdict=Verdict.APPROVED if approve else Verdict.DECLINED,
        reason=reason[: limits.REASON_CHARACTERS],
        intent={"payload": answer.get("payload", record)} if approve else {},
    )
