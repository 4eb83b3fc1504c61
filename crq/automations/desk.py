"""
What people do to automations: declare, edit, switch, promote, demote, run; used by every door.

Each method that takes a cursor is one transaction: it locks the tenant, reads the automation anew,
changes it, and writes what was before and what is after into the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import define, evolve, frozen

from crq.automations import runs, schedule, settings
from crq.automations.calls import Calls, Preview
from crq.automations.context import About
from crq.automations.drafting import DECIDING, Drafting, demoted, told
from crq.automations.model import Automation, Json, Mode, Unfit
from crq.automations.promotion import Evidence, Obstacle, Standing, obstacles
from crq.database import Cursor
from crq.instants import Instant


class NotFound(Unfit):
    """
    There is no such automation.
    """


@frozen
class Promotion:
    """
    What came of asking for live.

    :ivar obstacles: why it was refused; none: it is live.
    :ivar evidence: the observe run that it rests on.
    """

    automation: Automation
    obstacles: tuple[Obstacle, ...]
    evidence: Evidence | None


@define(eq=False)
class Desk:
    """
    Where people come to.

    :ivar authority: asked with a cursor, a promoter and a tenant: what speaks against it, or None.
    """

    drafting: Drafting
    authority: Callable[[Cursor, str, str], str | None]

    def add(self, txn: Cursor, draft: Automation, actor: str, now: Instant) -> Automation:
        """
        Store a draft.

        :raise Unfit: its name is taken, or its tenant has too many.
        """
        runs.lock_tenant(txn, draft.tenant)
        automation = runs.add(txn, draft)
        runs.note(txn, automation, "added", actor, now, None, told(automation))
        return automation

    def edit(
        self,
        txn: Cursor,
        which: int | str,
        given: Mapping[str, Json],
        actor: str,
        now: Instant,
        revision: int | None = None,
    ) -> Automation:
        """
        Change an automation.

        What decides (type, config, caps) makes a new revision, and a new revision has to observe
        again before it may act. An occurrence that is due already gets its run, as it was; the
        pointer is aimed anew from now, so that editing never fires (ruling 13).

        :param given: what is to change of `FIELDS`; a secret that is not given stays as it is.
        :param revision: the one that was shown to whoever edits; None: whichever it is.
        :raise Unfit: something is not as it must be, or somebody was quicker.
        """
        before = self._locked(txn, which)
        if revision is not None and revision != before.config_revision:
            raise Unfit("automation", "was edited meanwhile", "look at it again, then edit")
        if before.next_run_at_utc is not None and before.next_run_at_utc <= now:
            runs.claim(txn, [before], now)
            before = self._locked(txn, before.automation_id)
        after = self.drafting.changed(before, given, now)
        if any(getattr(after, name) != getattr(before, name) for name in DECIDING):
            after = demoted(evolve(after, config_revision=before.config_revision + 1))
        after = evolve(after, problem=None, next_run_at_utc=self._next(after, now), changed_at=now)
        return self._changed(txn, before, after, "edited", actor, now)

    def enable(self, txn: Cursor, which: int | str, actor: str, now: Instant) -> Automation:
        """
        Switch an automation on; what it missed while it was off is not made up for.
        """
        return self._switch(txn, which, True, "enabled", actor, now)

    def disable(self, txn: Cursor, which: int | str, actor: str, now: Instant) -> Automation:
        """
        Switch an automation off; its open runs end before their next chunk or effect.
        """
        return self._switch(txn, which, False, "disabled", actor, now)

    def observe(self, txn: Cursor, which: int | str, actor: str, now: Instant) -> Automation:
        """
        Let an automation observe from now on: in observe, switched on.
        """
        before = self._locked(txn, which)
        after = demoted(evolve(before, enabled=True, problem=None, changed_at=now))
        after = evolve(after, next_run_at_utc=self._next(after, now))
        return self._changed(txn, before, after, "observed", actor, now)

    def demote(self, txn: Cursor, which: int | str, actor: str, now: Instant) -> Automation:
        """
        Take an automation back to observe; nothing of it acts from here on, in open runs neither.
        """
        before = self._locked(txn, which)
        after = demoted(evolve(before, changed_at=now))
        return self._changed(txn, before, after, "demoted", actor, now)

    def promotion(self, txn: Cursor, which: int | str, promoter: str) -> Promotion:
        """
        What a promotion would come to, for whoever thinks about it.
        """
        automation = self.found(txn, which)
        evidence, found = self._obstacles(txn, automation, promoter)
        return Promotion(automation, found, evidence)

    def promote(
        self,
        txn: Cursor,
        which: int | str,
        promoter: str,
        now: Instant,
        seen: int | None = None,
    ) -> Promotion:
        """
        Let an automation act, if nothing stands in the way; both are written into the audit.

        :param promoter: the name of the token that asks; it is asked about again at every run.
        :param seen: the run that was shown to whoever promotes; None: whichever it rests on.
        :raise Unfit: it is live already, or it rests on another run than the one that was shown.
        """
        before = self._locked(txn, which)
        if before.mode is Mode.LIVE:
            raise Unfit("automation", "is live already", "demote it first, or leave it")
        evidence, found = self._obstacles(txn, before, promoter)
        if found or evidence is None:
            why = {"obstacles": [str(obstacle) for obstacle in found]}
            runs.note(txn, before, "not promoted", promoter, now, None, why)
            return Promotion(before, found, evidence)
        if seen is not None and seen != evidence.run_id:
            problem = f"has observed meanwhile: run {evidence.run_id} is the last"
            raise Unfit("automation", problem, "look at that run, then promote")
        after = evolve(
            before,
            mode=Mode.LIVE,
            promoted_by=promoter,
            promoted_at=now,
            promoted_revision=before.config_revision,
            promoted_run_id=evidence.run_id,
            promoted_would_count=evidence.would_count,
            changed_at=now,
        )
        changed = self._changed(txn, before, after, "promoted", promoter, now)
        return Promotion(changed, (), evidence)

    def run_now(
        self, txn: Cursor, which: int | str, actor: str, now: Instant
    ) -> tuple[Automation, runs.Claimed]:
        """
        Make a run outside the schedule; the next tick begins it.

        :raise Unfit: it is switched off, or has an open run.
        """
        automation = self._locked(txn, which)
        return automation, runs.run_now(txn, automation, actor, now)

    def found(self, txn: Cursor, which: int | str) -> Automation:
        """
        Look an automation up by number, uuid or ``tenant/name``.

        :raise NotFound: there is none.
        """
        found = runs.find(txn, which)
        if found is None:
            raise NotFound("automation", f"there is none called {which!r}", "see the list of them")
        return found

    def preview(self, calls: Calls, automation: Automation, now: Instant) -> Preview:
        """
        What a run of an automation, or of a draft, would decide now; blocks, and keeps nothing.

        :raise Unfit: its type is not installed, or its configuration is not as it must be.
        """
        kind = self.drafting.types.known(automation.type)
        config = settings.structured(kind.settings, automation.config, self.drafting.unseal)
        about = About(
            tenant=automation.tenant,
            automation_uuid=automation.automation_uuid,
            scheduled_for=now,
            run_key="preview",
            config=config,
        )
        return calls.preview(kind, about)

    # -- what they share

    def _locked(self, txn: Cursor, which: int | str) -> Automation:
        tenant = self.found(txn, which).tenant
        runs.lock_tenant(txn, tenant)
        return self.found(txn, which)

    def _next(self, automation: Automation, now: Instant) -> Instant | None:
        if not automation.enabled:
            return None
        return schedule.next_after(automation.cron, automation.zone, now)

    def _switch(
        self, txn: Cursor, which: int | str, on: bool, action: str, actor: str, now: Instant
    ) -> Automation:
        before = self._locked(txn, which)
        if before.enabled is on:
            return before
        after = evolve(before, enabled=on, problem=None, changed_at=now)
        after = evolve(after, next_run_at_utc=self._next(after, now))
        return self._changed(txn, before, after, action, actor, now)

    def _changed(
        self,
        txn: Cursor,
        before: Automation,
        after: Automation,
        action: str,
        actor: str,
        now: Instant,
    ) -> Automation:
        runs.change(txn, before, after)
        old, new = told(before), told(after)
        differ = [name for name in new if new[name] != old[name]]
        runs.note(
            txn,
            before,
            action,
            actor,
            now,
            {name: old[name] for name in differ},
            {name: new[name] for name in differ},
        )
        return after

    def _obstacles(
        self, txn: Cursor, automation: Automation, promoter: str
    ) -> tuple[Evidence | None, tuple[Obstacle, ...]]:
        kind = self.drafting.types.get(automation.type)
        evidence = runs.evidence(txn, automation.automation_id, automation.config_revision)
        standing = Standing(
            type=automation.type,
            acts=None if kind is None else kind.acts,
            revision=automation.config_revision,
            max_changes_per_run=automation.max_changes_per_run,
            evidence=evidence,
            authority=self.authority(txn, promoter, automation.tenant),
        )
        return evidence, obstacles(standing)
