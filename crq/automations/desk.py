"""
What people do to automations: declare, edit, switch, promote, demote, run; used by every door.

Each method that takes a cursor is one transaction: it locks the tenant, reads the automation anew,
changes it, and writes what was before and what is after into the audit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import define, evolve, frozen

from crq.automations import limits, runs, schedule, settings
from crq.automations.calls import Calls, Preview
from crq.automations.context import About
from crq.automations.model import Automation, Json, Mode, Unfit
from crq.automations.promotion import Evidence, Obstacle, Standing, obstacles
from crq.automations.types import Types
from crq.database import Cursor
from crq.instants import Instant, iso

FIELDS: Final = (
    "name",
    "type",
    "config",
    "cron",
    "zone",
    "max_items_per_run",
    "max_changes_per_run",
    "owner",
)
_TENANT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DECIDING = ("type", "config", "max_items_per_run", "max_changes_per_run")


class NotFound(Unfit):
    """
    There is no such automation.
    """


@frozen
class Promotion:
    """
    What came of asking for live.

    :ivar obstacles: why it was refused; none: it is live.
    """

    automation: Automation
    obstacles: tuple[Obstacle, ...]


@define(eq=False)
class Desk:
    """
    Where people come to.

    :ivar seal: seals a secret; ``unseal`` opens it.
    :ivar authority: asked with a cursor, a promoter and a tenant: what speaks against it, or None.
    """

    types: Types
    seal: Callable[[str], str]
    unseal: Callable[[str], str]
    authority: Callable[[Cursor, str, str], str | None]

    def drafted(self, tenant: str, given: Mapping[str, Json], now: Instant) -> Automation:
        """
        Make an automation of what somebody gave: in observe, switched off, not stored.

        :param given: `FIELDS` by name; type, name, config, cron and zone must be there.
        :raise Unfit: something is missing, unknown or not as it must be.
        """
        if _TENANT.fullmatch(tenant) is None:
            remedy = "give one DNS label: lower-case letters, digits, inner dashes"
            raise Unfit("tenant", f"{tenant!r} cannot be one", remedy)
        for name in ("name", "type", "config", "cron", "zone"):
            if given.get(name) is None:
                raise Unfit(name, "is missing", "give it a value")
        empty = Automation(
            automation_id=0,
            automation_uuid=str(uuid.uuid4()),
            tenant=tenant,
            name="",
            type="",
            config={},
            config_revision=1,
            mode=Mode.OBSERVE,
            enabled=False,
            cron="",
            zone="",
            next_run_at_utc=None,
            max_items_per_run=limits.MAX_ITEMS,
            max_changes_per_run=limits.MAX_CHANGES,
            owner="",
            problem=None,
            skipped_count=0,
            promoted_by=None,
            promoted_at=None,
            promoted_revision=None,
            promoted_run_id=None,
            promoted_would_count=None,
            last_run_id=None,
            last_run_status=None,
            last_run_at=None,
            last_run_summary=None,
            created_at=now,
            changed_at=now,
        )
        return self._with(empty, given, now)

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
        after = self._with(before, given, now)
        if any(getattr(after, name) != getattr(before, name) for name in _DECIDING):
            after = _demoted(evolve(after, config_revision=before.config_revision + 1))
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
        after = _demoted(evolve(before, enabled=True, problem=None, changed_at=now))
        after = evolve(after, next_run_at_utc=self._next(after, now))
        return self._changed(txn, before, after, "observed", actor, now)

    def demote(self, txn: Cursor, which: int | str, actor: str, now: Instant) -> Automation:
        """
        Take an automation back to observe; nothing of it acts from here on, in open runs neither.
        """
        before = self._locked(txn, which)
        after = _demoted(evolve(before, changed_at=now))
        return self._changed(txn, before, after, "demoted", actor, now)

    def promotion(self, txn: Cursor, which: int | str, promoter: str) -> Promotion:
        """
        What a promotion would come to, for whoever thinks about it.
        """
        automation = self.found(txn, which)
        return Promotion(automation, self._obstacles(txn, automation, promoter)[1])

    def promote(self, txn: Cursor, which: int | str, promoter: str, now: Instant) -> Promotion:
        """
        Let an automation act, if nothing stands in the way; both are written into the audit.

        :param promoter: the name of the token that asks; it is asked about again at every run.
        """
        before = self._locked(txn, which)
        if before.mode is Mode.LIVE:
            raise Unfit("automation", "is live already", "demote it first, or leave it")
        evidence, found = self._obstacles(txn, before, promoter)
        if found or evidence is None:
            why = {"obstacles": [str(obstacle) for obstacle in found]}
            runs.note(txn, before, "not promoted", promoter, now, None, why)
            return Promotion(before, found)
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
        return Promotion(self._changed(txn, before, after, "promoted", promoter, now), ())

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
        kind = self.types.known(automation.type)
        config = settings.structured(kind.settings, automation.config, self.unseal)
        about = About(
            tenant=automation.tenant,
            automation_uuid=automation.automation_uuid,
            scheduled_for=now,
            run_key="preview",
            config=config,
        )
        return calls.preview(kind, about)

    # -- what they share

    def _with(self, automation: Automation, given: Mapping[str, Json], now: Instant) -> Automation:
        for name in given:
            if name not in FIELDS:
                raise Unfit(name, "there is no such field", f"known: {', '.join(FIELDS)}")
        changed = {name: value for name, value in given.items() if value is not None}
        after = evolve(automation, **changed)
        kind = self.types.known(_text("type", after.type, 64))
        if isinstance(after.config, Mapping) and after.type == automation.type:
            # A door cannot show a secret, so it cannot give it back either.
            after = evolve(
                after, config={**settings.only_sealed(automation.config), **after.config}
            )
        config = settings.sealed(kind.settings, after.config, self.seal, self.unseal)
        cron, zone = schedule.checked(
            _text("cron", after.cron, 255), _text("zone", after.zone, 64), now
        )
        return evolve(
            after,
            name=_text("name", after.name, limits.NAME_CHARACTERS),
            config=config,
            cron=cron,
            zone=zone,
            owner=_text("owner", after.owner, 100) if after.owner else "",
            max_items_per_run=_number(
                "max_items_per_run", after.max_items_per_run, limits.MAX_ITEMS_CEILING
            ),
            max_changes_per_run=_number(
                "max_changes_per_run", after.max_changes_per_run, limits.MAX_CHANGES_CEILING
            ),
        )

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
        kind = self.types.get(automation.type)
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


def told(automation: Automation) -> dict[str, Any]:
    """
    An automation as JSON for people and the audit, without its secrets.
    """
    return {
        "name": automation.name,
        "type": automation.type,
        "config": settings.shown(automation.config),
        "config_revision": automation.config_revision,
        "mode": automation.mode.value,
        "enabled": automation.enabled,
        "cron": automation.cron,
        "zone": automation.zone,
        "next_run_at_utc": iso(automation.next_run_at_utc),
        "max_items_per_run": automation.max_items_per_run,
        "max_changes_per_run": automation.max_changes_per_run,
        "owner": automation.owner,
        "problem": automation.problem,
        "promoted_by": automation.promoted_by,
        "promoted_revision": automation.promoted_revision,
    }


def _demoted(automation: Automation) -> Automation:
    return evolve(
        automation,
        mode=Mode.OBSERVE,
        promoted_by=None,
        promoted_at=None,
        promoted_revision=None,
        promoted_run_id=None,
        promoted_would_count=None,
    )


def _text(field: str, value: object, most: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise Unfit(field, f"is no text of 1 to {most} characters", "give one")
    if not value.isprintable() or value != value.strip():
        raise Unfit(field, "has control characters, or blanks around it", "remove them")
    return value


def _number(field: str, value: object, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise Unfit(field, f"{value!r} is out of range", f"give a whole number from 1 to {most}")
    return value
