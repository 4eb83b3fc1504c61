"""
What people give for an automation: checked, sealed, and made into a value; nothing is stored here.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve, frozen

from crq.automations import limits, schedule, settings
from crq.automations.model import Automation, Json, Mode, Unfit
from crq.automations.types import Types
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
DECIDING = ("type", "config", "max_items_per_run", "max_changes_per_run")


@frozen
class Drafting:
    """
    Makes automations of what is given.

    :ivar seal: seals a secret; ``unseal`` opens it.
    """

    types: Types
    seal: Callable[[str], str]
    unseal: Callable[[str], str]

    def drafted(self, tenant: str, given: Mapping[str, Json], now: Instant) -> Automation:
        """
        Make an automation of what somebody gave: in observe, switched off, not stored.

        :param given: `FIELDS` by name; type, name, config, cron and zone must be there.
        :raise Unfit: something is missing, unknown or not as it must be.
        """
        if _TENANT.fullmatch(tenant) is None:
            remedy = "give one DNS label: lower-case letters, digits, inner dashes"
            raise Unfit("tenant", f"{tenant[:64]!r} cannot be one", remedy)
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
        return self.changed(empty, given, now)

    def changed(
        self, automation: Automation, given: Mapping[str, Json], now: Instant
    ) -> Automation:
        """
        An automation with some of its `FIELDS` changed; None: not given.

        :raise Unfit: one of them is not as it must be.
        """
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


def demoted(automation: Automation) -> Automation:
    """
    An automation in observe, and of whoever promoted it nothing.
    """
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
