"""
The type ``housekeeping``: an account's old executions go, and what is secret in younger ones.

The smallest type that acts, for authors to read first: it pages by an absolute cursor, decides from
what it reads and from nothing else, and applies by statements that may be repeated. The queue's own
SQL is handed to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import define, frozen
from zope.interface import implementer

from crq.automations.interfaces import Context, IAutomation
from crq.automations.model import Chunk, Decision, Json, Verdict
from crq.automations.settings import setting
from crq.config import between
from crq.database import Cursor
from crq.instants import Instant, instant_of, instant_text

DAY = 86_400.0  # s
HOUR = 3600.0  # s


class IKept(Protocol):
    """
    An execution as housekeeping sees it.
    """

    @property
    def execution_id(self) -> int:
        """
        Its number.
        """

    @property
    def queued_at(self) -> Instant:
        """
        When it was queued.
        """

    @property
    def status(self) -> str:
        """
        How it ended.
        """

    @property
    def finished_at(self) -> Instant | None:
        """
        When it ended.
        """

    @property
    def has_key(self) -> bool:
        """
        Whether its sealed API key is still there.
        """


class IShelf(Protocol):
    """
    Where a tenant's executions are kept.
    """

    def kept(
        self,
        txn: Cursor,
        tenant: str,
        before: Instant,
        after: tuple[Instant, int] | None,
        limit: int,
    ) -> Sequence[IKept]:
        """
        Executions queued before an instant, in the order of instant and number.
        """

    def delete(self, txn: Cursor, tenant: str, execution_id: int) -> bool:
        """
        Delete one that has ended.
        """

    def scrub(self, txn: Cursor, tenant: str, execution_id: int) -> bool:
        """
        Wipe the API key of one that has ended.
        """


@frozen
class Housekeeping:
    """
    The settings of ``housekeeping``.
    """

    keep_days: float = setting(30.0, "days an ended execution is kept", between(1, 3660))
    keep_failed: bool = setting(True, "whether failed ones are kept as long as crqueue keeps any")
    scrub_hours: float = setting(
        2.0, "hours after its end until an execution's API key is wiped", between(1, 8760)
    )


@implementer(IAutomation)
@define(eq=False)
class Housekeeper:
    """
    The type.
    """

    shelf: IShelf

    name = "housekeeping"
    summary = "deletes an account's old executions and wipes API keys that are done with"
    settings = Housekeeping
    subject_types = ("execution",)
    acts = True
    repeatable = True  # what is gone stays gone

    def evaluate(self, context: Context, config: Housekeeping, cursor: Json, limit: int) -> Chunk:
        """
        Decide about the next executions, oldest first.
        """
        now = context.scheduled_for
        after = None if cursor is None else (instant_of(cursor["at"]), cursor["id"])
        found = context.read(
            self.shelf.kept, context.tenant, now - config.scrub_hours * HOUR, after, limit
        )
        decisions = [made for one in found if (made := _decision(one, config, now)) is not None]
        if found:
            last = found[-1]
            cursor = {"at": instant_text(last.queued_at), "id": last.execution_id}
        # A full page may be the last one; the next one is empty then, and nothing is missed.
        return Chunk(tuple(decisions), cursor, has_more=len(found) >= limit)

    def apply(self, context: Context, decision: Decision) -> str:
        """
        Delete or scrub one execution.
        """
        number = int(decision.subject_id)
        if decision.intent["do"] == "delete":
            done = context.transact(self.shelf.delete, context.tenant, number)
            return "deleted" if done else "was gone already"
        done = context.transact(self.shelf.scrub, context.tenant, number)
        return "scrubbed" if done else "was scrubbed already"


def _decision(one: IKept, config: Housekeeping, now: Instant) -> Decision | None:
    """
    What is to become of an execution; None: nothing.
    """
    if one.finished_at is None:
        return None
    subject = str(one.execution_id)

    def approve(do: str, reason: str) -> Decision:
        return Decision("execution", subject, Verdict.APPROVED, reason, {"do": do})

    if one.queued_at < now - config.keep_days * DAY:
        if one.status != "failed" or not config.keep_failed:
            return approve("delete", f"older than {config.keep_days:g} days")
        if not one.has_key:
            return Decision("execution", subject, Verdict.DECLINED, "failed ones are kept")
    if one.has_key and one.finished_at < now - config.scrub_hours * HOUR:
        return approve("scrub", f"ended more than {config.scrub_hours:g} hours ago")
    return None
