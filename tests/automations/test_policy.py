"""
The pure rules: one occurrence one key, what governs a run, when it ends, what is counted of it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import hypothesis.strategies as st
import pytest
from attrs import evolve
from hypothesis import given

from crq.automations import contract, limits, policy, promotion
from crq.automations.contract import BadChunk
from crq.automations.model import (
    Chunk,
    Close,
    Counts,
    Current,
    Decision,
    Mode,
    Pause,
    Run,
    RunStatus,
    Take,
    Trigger,
    Verdict,
)
from crq.automations.promotion import Evidence, Standing
from tests.automations.house import utc

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
RUN = Run(
    run_id=1,
    automation_id=1,
    tenant="acme",
    idempotency_key="k",
    trigger_kind=Trigger.SCHEDULE,
    scheduled_for_utc=0.0,
    skipped=0,
    type="played",
    config={},
    config_revision=1,
    max_items_per_run=1000,
    max_changes_per_run=25,
    mode=Mode.OBSERVE,
    status=RunStatus.RUNNING,
    why=None,
    waits_for=None,
    cursor=None,
    guard=contract.first_guard(),
    ended=False,
    chunk_count=0,
    counts=Counts(),
    reason_counts={},
    notices=(),
    created_at=0.0,
    started_at=0.0,
    finished_at=None,
    duration_ms=None,
)


def decision(number: int, approved: bool = True, **more: Any) -> Decision:
    verdict = Verdict.APPROVED if approved else Verdict.DECLINED
    given: dict[str, Any] = {
        "subject_type": "number",
        "subject_id": str(number),
        "verdict": verdict,
        "reason": verdict.value,
        **more,
    }
    return Decision(**given)


def test_the_idempotency_key_is_the_brief_s() -> None:
    """
    The key is SHA-256 of uuid|scheduled_for_utc|trigger_kind, with the instant as a DATETIME.
    """
    plain = f"{UUID}|2026-08-24 08:50:00|schedule"
    assert (
        policy.idempotency_key(UUID, utc(2026, 8, 24, 8, 50), Trigger.SCHEDULE)
        == hashlib.sha256(plain.encode()).hexdigest()
    )


def test_every_part_of_the_key_counts() -> None:
    """
    Another automation, another moment or another trigger is another key.
    """
    at = utc(2026, 8, 24, 8, 50)
    keys = {
        policy.idempotency_key(UUID, at, Trigger.SCHEDULE),
        policy.idempotency_key(UUID, at, Trigger.MANUAL),
        policy.idempotency_key(UUID, at + 60, Trigger.SCHEDULE),
        policy.idempotency_key(UUID[::-1], at, Trigger.SCHEDULE),
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("run", "now", "items", "expected"),
    [
        (Mode.OBSERVE, Mode.OBSERVE, 0, Mode.OBSERVE),
        (Mode.LIVE, Mode.LIVE, 5, Mode.LIVE),
        (Mode.LIVE, Mode.OBSERVE, 0, Mode.OBSERVE),  # towards safety, at once
        (Mode.OBSERVE, Mode.LIVE, 0, Mode.LIVE),  # promotion is honoured equally
        (Mode.OBSERVE, Mode.LIVE, 5, Mode.OBSERVE),  # it has begun to observe: I10
        (Mode.LIVE, Mode.OBSERVE, 5, RunStatus.STOPPED),
    ],
)
def test_the_current_mode_governs(
    run: Mode, now: Mode, items: int, expected: Mode | RunStatus
) -> None:
    """
    A run takes the current mode until its first item; from there it is never in two modes.
    """
    stored = evolve(RUN, mode=run, counts=Counts(items=items))
    found = policy.govern(stored, Current(now, True))
    assert (found.status if isinstance(found, Close) else found) is expected


def test_switched_off_stops_whatever_the_mode() -> None:
    """
    A run of an automation that was switched off ends before its next chunk.
    """
    for mode in Mode:
        found = policy.govern(evolve(RUN, mode=mode), Current(mode, False))
        assert isinstance(found, Close)
        assert found.status is RunStatus.STOPPED


def step(chunks: int = 0, now: float = 0.0, **more: Any) -> Any:
    return policy.next_step(evolve(RUN, **more), chunks, now, deadline=10.0)


def test_a_run_takes_a_batch() -> None:
    """
    With everything open a run takes a chunk, no larger than its batch and its cap.
    """
    assert step() == Take(limits.BATCH)
    assert step(counts=Counts(items=970)) == Take(30)


def test_out_of_budget_is_no_end() -> None:
    """
    Unfinished is not failed: past the deadline or the chunks of a tick a run pauses.
    """
    assert isinstance(step(now=10.0), Pause)
    assert isinstance(step(chunks=limits.CHUNKS_PER_TICK), Pause)
    assert isinstance(step(chunks=limits.CHUNKS_PER_TICK - 1, now=9.99), Take)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"ended": True}, RunStatus.COMPLETED),
        ({"counts": Counts(items=1000)}, RunStatus.CAPPED),
        ({"counts": Counts(items=1000), "ended": True}, RunStatus.COMPLETED),
        ({"mode": Mode.LIVE, "counts": Counts(items=30, intended=25)}, RunStatus.CAPPED),
        ({"counts": Counts(items=30, failed=10)}, RunStatus.FAILED),
        ({"chunk_count": limits.CHUNKS_PER_RUN}, RunStatus.FAILED),
    ],
)
def test_how_a_run_ends(more: dict[str, Any], status: RunStatus) -> None:
    """
    Nothing left completes a run, a cap closes it and says so, too many failures fail it; a budget
    that is used up at the same time changes nothing about that.
    """
    for now in (0.0, 99.0):
        found = step(now=now, **more)
        assert isinstance(found, Close)
        assert found.status is status
        assert found.why


def test_observing_has_no_cap_of_changes() -> None:
    """
    Observing goes on past the cap of changes: what a live run would want is to be known.
    """
    assert isinstance(step(counts=Counts(items=30, would=26)), Take)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 40), st.integers(1, 10))
def test_what_is_kept_of_a_chunk_fits_the_caps(
    verdicts: list[bool], items: int, changes: int
) -> None:
    """
    Of a chunk exactly the decisions up to the one that reaches a cap are kept.
    """
    chunk = [decision(number, approved) for number, approved in enumerate(verdicts)]
    run = evolve(RUN, mode=Mode.LIVE, max_items_per_run=items, max_changes_per_run=changes)
    kept = policy.fitting(run, chunk)
    assert list(kept) == chunk[: len(kept)]
    counts = policy.tally(Mode.LIVE, Counts(), kept)
    assert counts.items <= items
    assert counts.intended <= changes
    if len(kept) < len(chunk):
        assert counts.items == items or counts.intended == changes


@given(st.lists(st.booleans(), max_size=40))
def test_would_and_approved_are_never_mixed(verdicts: list[bool]) -> None:
    """
    What is approved is a prediction while observing and an intention while live; approved itself
    is counted by neither, as nothing has been changed yet.
    """
    chunk = [decision(number, approved) for number, approved in enumerate(verdicts)]
    approved = sum(verdicts)
    observed = policy.tally(Mode.OBSERVE, Counts(), chunk)
    assert observed == Counts(items=len(chunk), declined=len(chunk) - approved, would=approved)
    live = policy.tally(Mode.LIVE, Counts(approved=3), chunk)
    assert live == Counts(
        items=len(chunk), declined=len(chunk) - approved, intended=approved, approved=3
    )


def test_reasons_do_not_fill_the_row() -> None:
    """
    A type that gives each record a reason of its own is counted under one name in the end.
    """
    chunk = [decision(number, reason=f"because of {number}") for number in range(200)]
    found = policy.reasons({}, chunk)
    assert len(found) == limits.REASONS_KEPT + 1
    assert sum(found.values()) == 200
    assert found[policy.OTHER_REASONS] == 200 - limits.REASONS_KEPT


def test_notices_are_kept_once_and_not_without_end() -> None:
    """
    A notice that each chunk repeats is kept once; there is room for twenty.
    """
    found = policy.notices((), ["same", "same", *map(str, range(100)), "x" * 5000])
    assert len(found) == limits.NOTICES_KEPT
    assert found[:2] == ("same", "0")
    assert len(policy.notices((), ["x" * 5000])[0]) == limits.NOTICE_CHARACTERS
    assert policy.short("a\x1b[31m\ud800\nb") == "a [31m? b"


def chunk_of(*decisions: Any, **more: Any) -> Chunk:
    given: dict[str, Any] = {"next_cursor": 1, "has_more": False, **more}
    return Chunk(decisions, **given)


@pytest.mark.parametrize(
    ("chunk", "told"),
    [
        (None, "NoneType instead of a Chunk"),
        (chunk_of(*map(decision, range(6))), "returned 6 decisions, asked for 5"),
        (chunk_of(decision(1, subject_type="stranger")), "no subject of this type"),
        (chunk_of(decision(1), decision(1)), "twice in one chunk"),
        (chunk_of("x"), "a decision is a str"),
        (chunk_of(decision(1, subject_id="")), "1 to 190 characters"),
        (chunk_of(decision(1, subject_id="x" * 191)), "1 to 190 characters"),
        (chunk_of(decision(1, subject_id="a ")), "blanks around it"),
        (chunk_of(decision(1, subject_id="a\x00")), "control characters"),
        (chunk_of(decision(1, reason="")), "a reason is a text"),
        (chunk_of(decision(1, verdict="yes")), "neither approved nor declined"),
        (chunk_of(decision(1, intent=[])), "no mapping"),
        (chunk_of(decision(1, intent={"at": object()})), "an intent is not JSON"),
        (chunk_of(decision(1, intent={"text": "x" * 70_000})), "65536 are allowed"),
        (chunk_of(has_more="yes"), "has_more"),
        (chunk_of(notices=(1,)), "a notice is no text"),
    ],
)
def test_a_chunk_that_breaks_the_contract(chunk: Any, told: str) -> None:
    """
    Foreign subjects, more than asked for, and what cannot be stored are told for what they are.
    """
    with pytest.raises(BadChunk, match=told):
        contract.check_chunk(chunk, 5, ("number",))


@pytest.mark.parametrize(
    ("cursor", "told"),
    [
        (object(), "is not JSON"),
        (float("nan"), "is not JSON"),
        ("x" * 1_000_000, "8192 are allowed"),
        ((1, 2), "does not come back"),
        ({1: 2}, "does not come back"),
        ("\ud800", None),
    ],
)
def test_a_cursor_must_come_back_as_it_is(cursor: Any, told: str | None) -> None:
    """
    A cursor that is not JSON, has 1 MB, or would come back as something else ends the run.
    """
    if told is None:
        assert contract.json_text(cursor, "the cursor") == r'"\ud800"'
        return
    with pytest.raises(BadChunk, match=told):
        contract.json_text(cursor, "the cursor")


def chunks_until_caught(cursors: list[str]) -> int | None:
    guard, before = contract.first_guard(), contract.BEGINNING
    for number, cursor in enumerate(cursors, 1):
        try:
            guard = contract.moved(guard, before, cursor)
        except BadChunk:
            return number
        before = cursor
    return None


def test_a_cursor_that_does_not_move_is_caught() -> None:
    """
    The same cursor again, with more to come, is caught at once; so is A B A (F102).
    """
    assert chunks_until_caught(["A", "A"]) == 2
    assert chunks_until_caught([contract.BEGINNING]) == 1
    assert chunks_until_caught(["A", "B", "A"]) == 3


@given(st.integers(0, 20), st.integers(1, 30))
def test_every_cycle_of_cursors_is_caught(way: int, length: int) -> None:
    """
    A cycle of any length is caught within three times its length and the way to it (F102).
    """
    cycle = [f"way {n}" for n in range(way)] + [f"cycle {n}" for n in range(length)] * 10
    caught = chunks_until_caught(cycle)
    assert caught is not None
    assert caught <= 3 * (way + length) + 3


@given(st.integers(1, 300))
def test_cursors_that_move_are_left_alone(count: int) -> None:
    """
    A cursor that is always another one is never stopped.
    """
    assert chunks_until_caught([str(n) for n in range(count)]) is None


STANDING = Standing(
    type="played",
    acts=True,
    revision=3,
    max_changes_per_run=25,
    evidence=Evidence(7, 3, 25),
    authority=None,
)


@pytest.mark.parametrize(
    ("change", "preconditions"),
    [
        ({}, []),
        ({"acts": None}, ["type"]),
        ({"acts": False}, ["type"]),
        ({"evidence": None}, ["evidence"]),
        ({"evidence": Evidence(7, 2, 0)}, ["evidence"]),
        ({"evidence": Evidence(7, 3, 26)}, ["cap"]),
        ({"authority": "the token may not"}, ["authority"]),
        (
            {"acts": None, "evidence": None, "authority": "no"},
            ["type", "evidence", "authority"],
        ),
    ],
)
def test_the_four_preconditions_of_going_live(
    change: dict[str, Any], preconditions: list[str]
) -> None:
    """
    The type can act, this revision has observed, what it would change fits, the promoter may; each
    that does not hold is named with a remedy.
    """
    found = promotion.obstacles(evolve(STANDING, **change))
    assert [one.precondition for one in found] == preconditions
    assert all(one.problem and one.remedy for one in found)
