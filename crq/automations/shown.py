"""
Automations, runs, items and the audit as JSON for machines and people; secrets are hidden.
"""

from __future__ import annotations

from typing import Any

from attrs import asdict

from crq.automations import policy, schedule, settings
from crq.automations.calls import Preview
from crq.automations.desk import Promotion
from crq.automations.model import Automation, Decision, Item, Run, Unfit
from crq.automations.promotion import Obstacle
from crq.automations.runs import AuditRow
from crq.instants import Instant, iso

UPCOMING = 10  # occurrences that an editor shows


def automation(one: Automation) -> dict[str, Any]:
    """
    An automation.
    """
    return {
        "automationId": one.automation_id,
        "uuid": one.automation_uuid,
        "tenant": one.tenant,
        "name": one.name,
        "type": one.type,
        "config": settings.shown(one.config),
        "configRevision": one.config_revision,
        "mode": one.mode.value,
        "enabled": one.enabled,
        "cron": one.cron,
        "zone": one.zone,
        "nextRunAt": iso(one.next_run_at_utc),
        "maxItemsPerRun": one.max_items_per_run,
        "maxChangesPerRun": one.max_changes_per_run,
        "owner": one.owner,
        "problem": one.problem,
        "skippedCount": one.skipped_count,
        "promotedBy": one.promoted_by,
        "promotedAt": iso(one.promoted_at),
        "promotedRunId": one.promoted_run_id,
        "promotedWouldCount": one.promoted_would_count,
        "lastRunId": one.last_run_id,
        "lastRunStatus": one.last_run_status,
        "lastRunAt": iso(one.last_run_at),
        "lastRunSummary": one.last_run_summary,
        "createdAt": iso(one.created_at),
        "changedAt": iso(one.changed_at),
    }


def occurrences(cron: str, zone: str, now: Instant) -> list[dict[str, str | None]]:
    """
    The next occurrences on the clocks of the zone and in UTC; none, if they cannot be told.
    """
    try:
        found = schedule.upcoming(cron, zone, now, UPCOMING)
        return [{"local": schedule.local_text(at, zone), "utc": iso(at)} for at in found]
    except Unfit:
        return []


def run(one: Run) -> dict[str, Any]:
    """
    A run.
    """
    counts = one.counts
    return {
        "runId": one.run_id,
        "automationId": one.automation_id,
        "tenant": one.tenant,
        "trigger": one.trigger_kind.value,
        "scheduledFor": iso(one.scheduled_for_utc),
        "skipped": one.skipped,
        "type": one.type,
        "config": settings.shown(one.config),
        "configRevision": one.config_revision,
        "mode": one.mode.value,
        "status": one.status.value,
        "why": one.why,
        "waitsFor": one.waits_for,
        "cursor": one.cursor,
        "chunks": one.chunk_count,
        "itemCount": counts.items,
        "declinedCount": counts.declined,
        "wouldCount": counts.would,
        "intendedCount": counts.intended,
        "approvedCount": counts.approved,
        "failedCount": counts.failed,
        "unknownCount": counts.unknown,
        "withdrawnCount": counts.withdrawn,
        "outstandingCount": policy.outstanding(counts),
        "reasons": dict(one.reason_counts),
        "notices": list(one.notices),
        "createdAt": iso(one.created_at),
        "startedAt": iso(one.started_at),
        "finishedAt": iso(one.finished_at),
        "durationMs": one.duration_ms,
    }


def decision(one: Decision) -> dict[str, Any]:
    """
    A decision.
    """
    return {
        "subjectType": one.subject_type,
        "subjectId": one.subject_id,
        "verdict": one.verdict.value,
        "reason": one.reason,
        "intent": dict(one.intent),
    }


def item(one: Item) -> dict[str, Any]:
    """
    An item of a run.
    """
    return {
        "itemId": one.item_id,
        "runId": one.run_id,
        **decision(one.decision),
        "effect": one.effect.value,
        "detail": one.detail,
        "decidedAt": iso(one.decided_at),
        "appliedAt": iso(one.applied_at),
    }


def audit(one: AuditRow) -> dict[str, Any]:
    """
    A line of the audit.
    """
    return {
        "auditId": one.audit_id,
        "automationId": one.automation_id,
        "runId": one.run_id,
        "at": iso(one.at),
        "actor": one.actor,
        "action": one.action,
        "before": one.before,
        "after": one.after,
    }


def preview(one: Preview) -> dict[str, Any]:
    """
    A preview.
    """
    return {
        "decisions": [decision(each) for each in one.decisions],
        "reasons": one.reasons,
        "notices": list(one.notices),
        "more": one.more,
        "problem": one.problem,
    }


def obstacle(one: Obstacle) -> dict[str, str]:
    """
    What stands in the way of going live.
    """
    return {"precondition": one.precondition, "problem": one.problem, "remedy": one.remedy}


def promotion(one: Promotion) -> dict[str, Any]:
    """
    What a promotion rests on, and what stands in its way.
    """
    return {
        "automationId": one.automation.automation_id,
        "mode": one.automation.mode.value,
        "configRevision": one.automation.config_revision,
        "maxChangesPerRun": one.automation.max_changes_per_run,
        "evidence": None
        if one.evidence is None
        else {
            "runId": one.evidence.run_id,
            "configRevision": one.evidence.config_revision,
            "wouldCount": one.evidence.would_count,
        },
        "obstacles": [obstacle(each) for each in one.obstacles],
    }


def kind(one: Any) -> dict[str, Any]:
    """
    An installed type, and what its settings are.
    """
    return {
        "name": one.name,
        "summary": one.summary,
        "acts": one.acts,
        "repeatable": one.repeatable,
        "settings": [asdict(each) for each in settings.described(one.settings)],
    }
