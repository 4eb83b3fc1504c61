"""
Pure: what becomes of a run, and what is counted of it.

# Note [Modes]

The automation's current mode governs a run, not the one it was stamped with. A run is in one mode
from its first item to its last, so that would and approved never mix and a run listed as observe
has changed nothing (invariant I10): before its first item it takes the current mode, whichever that
is; after it, a demotion stops a live run, and a promotion leaves an observing one as it is.

"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from crq.automations import limits
from crq.automations.model import (
    Close,
    Counts,
    Current,
    Decision,
    Mode,
    Pause,
    Run,
    RunStatus,
    Step,
    Take,
    Trigger,
    Verdict,
)
from crq.instants import Instant, instant_text
from crq.sealing import sha256_hex

OTHER_REASONS = "(other reasons)"
NOTHING_LEFT = Close(RunStatus.COMPLETED, "nothing was left")


def idempotency_key(automation_uuid: str, scheduled_for: Instant, trigger: Trigger) -> str:
    """
    What makes one occurrence one run, however often it is found due.

    SHA-256 of ``uuid|YYYY-MM-DD HH:MM:SS|kind``. The configuration's revision is left out on
    purpose: an edit in the middle of a tick must not make a second run of the same moment.
    """
    scheduled_for_utc = instant_text(scheduled_for)[: len("YYYY-MM-DD HH:MM:SS")]
    return sha256_hex(f"{automation_uuid}|{scheduled_for_utc}|{trigger.value}")


def govern(run: Run, current: Current) -> Mode | Close:
    """
    The mode in which a run goes on, or its end (see note [Modes]).
    """
    if not current.enabled:
        return Close(RunStatus.STOPPED, "the automation was switched off")
    if not run.counts.items:
        return current.mode
    if run.mode is Mode.LIVE and current.mode is Mode.OBSERVE:
        return Close(RunStatus.STOPPED, "the automation was demoted to observe")
    return run.mode


def too_old(run: Run, now: Instant) -> Close | None:
    """
    The end of a run that has been open for too long, or None.
    """
    if run.started_at is None or now - run.started_at <= limits.RUN_HOURS * 3600:
        return None
    waited = f", waiting for: {run.waits_for}" if run.waits_for else ""
    why = f"was open for more than {limits.RUN_HOURS:g} hours{waited}"
    return Close(RunStatus.FAILED, why)


def next_step(run: Run, chunks_now: int, now: float, deadline: float) -> Step:
    """
    What a run does next, with nothing left to apply.

    :param chunks_now: its chunks in this tick.
    :param now: on the monotonic clock, as is the deadline.
    """
    if run.ended:
        return NOTHING_LEFT
    if run.counts.failed >= limits.FAILED_EFFECTS:
        return Close(RunStatus.FAILED, f"{run.counts.failed} effects failed")
    if run.counts.items >= run.max_items_per_run:
        return Close(RunStatus.CAPPED, f"reached its cap of {run.max_items_per_run} records")
    if run.mode is Mode.LIVE and run.counts.intended >= run.max_changes_per_run:
        return Close(RunStatus.CAPPED, f"reached its cap of {run.max_changes_per_run} changes")
    if run.chunk_count >= limits.CHUNKS_PER_RUN:
        return Close(RunStatus.FAILED, f"had no end after {run.chunk_count} chunks")
    if now >= deadline:
        return Pause("its time in this tick is up")
    if chunks_now >= limits.CHUNKS_PER_TICK:
        return Pause("its chunks of this tick are done")
    return Take(min(limits.BATCH, run.max_items_per_run - run.counts.items))


def fitting(run: Run, decisions: Sequence[Decision]) -> Sequence[Decision]:
    """
    The decisions up to the one that reaches a cap: what the caps leave of a chunk.
    """
    items = run.max_items_per_run - run.counts.items
    changes = run.max_changes_per_run - run.counts.intended
    kept: list[Decision] = []
    for decision in decisions[:items]:
        kept.append(decision)
        changes -= decision.verdict is Verdict.APPROVED
        if run.mode is Mode.LIVE and changes <= 0:
            break
    return kept


def tally(mode: Mode, counts: Counts, decisions: Iterable[Decision]) -> Counts:
    """
    Add decisions to the counts of a run: the only place that knows would from intended.
    """
    verdicts = Counter(decision.verdict for decision in decisions)
    approved, declined = verdicts[Verdict.APPROVED], verdicts[Verdict.DECLINED]
    live = mode is Mode.LIVE
    return Counts(
        items=counts.items + approved + declined,
        declined=counts.declined + declined,
        would=counts.would + (0 if live else approved),
        intended=counts.intended + (approved if live else 0),
        approved=counts.approved,
        failed=counts.failed,
        unknown=counts.unknown,
        withdrawn=counts.withdrawn,
    )


def outstanding(counts: Counts) -> int:
    """
    How many intended effects have not come to an end.
    """
    return counts.intended - counts.approved - counts.failed - counts.unknown - counts.withdrawn


def reasons(before: Mapping[str, int], decisions: Iterable[Decision]) -> dict[str, int]:
    """
    Add the reasons of decisions to those counted; a type that never gives the same one twice does
    not fill the row.
    """
    found = dict(before)
    for decision in decisions:
        reason = decision.reason
        if reason not in found and len(found) >= limits.REASONS_KEPT:
            reason = OTHER_REASONS
        found[reason] = found.get(reason, 0) + 1
    return found


def notices(before: Sequence[str], new: Iterable[str]) -> tuple[str, ...]:
    """
    Add notices to those kept, each once, as long as there is room.
    """
    found = list(before)
    for notice in new:
        text = short(notice)
        if text not in found and len(found) < limits.NOTICES_KEPT:
            found.append(text)
    return tuple(found)


def short(text: str, characters: int = limits.NOTICE_CHARACTERS) -> str:
    """
    A text fit to be stored and shown: one line, valid Unicode, not too long.
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return text if len(text) <= characters else text[: characters - 1] + "…"
