"""
What the demo claims about a run, checked: pure, from the log's rows and the API's own record.

The API knows nothing of crqueue; what it saw is the independent witness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from attrs import frozen

from crq import policy
from crq.instants import Instant
from crq.model import ErrorCode, Limits

TICK = 1.0  # s; a gate counts from the reading of the next tick on
MOST_NAMED = 5  # offenders that a detail names

Interval = tuple[Instant, Instant]


@frozen
class Row:
    """
    An execution as the log shows it. Each works on a card of its own.
    """

    execution_id: int
    account: str
    card: int
    status: str
    error_code: int | None
    queued_at: Instant
    claimed_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None


@frozen
class Call:
    """
    A call that reached the API.

    :ivar effect: it changes something: the one call of its script that does.
    :ivar retry_after: the seconds that a 429 named.
    """

    account: str
    card: int
    at: Instant
    ended: Instant
    status: int
    effect: bool = False
    retry_after: int | None = None


@frozen
class Automated:
    """
    What the automation did, as the API of automations tells it; records are cards.

    :ivar previewed: the cards that its preview approved; ``observed``: those of its observe run.
    :ivar decided: about how many cards its observe run decided.
    :ivar changed: how many its live run says it has changed.
    :ivar executions: the card of each execution that it has admitted.
    """

    account: str
    previewed: frozenset[int]
    observed: frozenset[int]
    decided: int
    promoted_at: Instant
    changed: int
    executions: Mapping[int, int]


@frozen
class Check:
    """
    One claim, and whether it held.
    """

    claim: str
    holds: bool
    detail: str


def examine(
    admitted: Mapping[int, str],
    rows: Sequence[Row],
    calls: Sequence[Call],
    limits: Limits,
    automated: Automated,
) -> tuple[Check, ...]:
    """
    Check a finished run.

    :param admitted: the account of each execution whose admission was answered.
    """
    return (
        caps_by_rows(rows, limits),
        caps_by_calls(calls, limits),
        gates_kept(rows, calls),
        none_lost(admitted, rows),
        nothing_twice(rows, calls),
        failures_explained(rows, calls),
        automation_kept(automated, rows, calls),
    )


def caps_by_rows(rows: Iterable[Row], limits: Limits) -> Check:
    """
    Never too many at once, by the instants at which executions started and finished.
    """
    ran: dict[str, list[Interval]] = {}
    for row in rows:
        if row.started_at is not None and row.finished_at is not None:
            ran.setdefault(row.account, []).append((row.started_at, row.finished_at))
    return _caps("caps held, by the log", ran, limits)


def caps_by_calls(calls: Iterable[Call], limits: Limits) -> Check:
    """
    Never too many at once, by what the API saw: an execution lives from its first to its last call.
    """
    seen: dict[tuple[str, int], Interval] = {}
    for call in calls:
        first, last = seen.get((call.account, call.card), (call.at, call.ended))
        seen[call.account, call.card] = (min(first, call.at), max(last, call.ended))
    ran: dict[str, list[Interval]] = {}
    for (account, _card), interval in seen.items():
        ran.setdefault(account, []).append(interval)
    return _caps("caps held, by the API", ran, limits)


def _caps(claim: str, ran: Mapping[str, Sequence[Interval]], limits: Limits) -> Check:
    total = most_at_once([interval for intervals in ran.values() for interval in intervals])
    accounts = {account: most_at_once(intervals) for account, intervals in sorted(ran.items())}
    holds = total <= limits.in_flight and all(
        most <= limits.per_account for most in accounts.values()
    )
    each = ", ".join(f"{account} {most}" for account, most in accounts.items())
    return Check(
        claim,
        holds,
        f"at most {total} at once (cap {limits.in_flight});"
        f" of one account (cap {limits.per_account}): {each}",
    )


def most_at_once(intervals: Iterable[Interval]) -> int:
    """
    The most intervals that share an instant; one that ends when another begins does not.
    """
    changes: list[tuple[Instant, int]] = []
    for begin, end in intervals:
        changes += ((begin, 1), (max(end, begin), -1))
    most = current = 0
    for _instant, change in sorted(changes):
        current += change
        most = max(most, current)
    return most


def gates_kept(rows: Iterable[Row], calls: Iterable[Call]) -> Check:
    """
    Nothing was claimed for a key behind a closed gate.
    """
    closed = gates(calls)
    early = [
        row
        for row in rows
        if row.claimed_at is not None
        and any(begin + TICK < row.claimed_at < end for begin, end in closed.get(row.account, ()))
    ]
    if early:
        return Check("no start behind a closed gate", False, f"started: {_named(early)}")
    seconds = sum(end - begin for intervals in closed.values() for begin, end in intervals)
    if not closed:
        return Check("no start behind a closed gate", False, "no gate was closed: nothing to see")
    return Check("no start behind a closed gate", True, f"gates were closed for {seconds:.0f} s")


def gates(calls: Iterable[Call]) -> dict[str, list[Interval]]:
    """
    When the gate of each account's key must have been closed, by the rule of `crq.policy`.
    """
    closed: dict[str, list[Interval]] = {}
    for call in sorted(calls, key=lambda call: call.ended):
        if call.retry_after is None:
            continue
        wait = policy.retry_after(str(call.retry_after), call.at)
        until = policy.gate_until(wait, call.at)
        intervals = closed.setdefault(call.account, [])
        if intervals and call.ended <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], until))
        else:
            intervals.append((call.ended, until))
    return closed


def none_lost(admitted: Mapping[int, str], rows: Sequence[Row]) -> Check:
    """
    Every admitted execution is in the log once, and has ended.
    """
    states = Counter(row.status for row in rows)
    missing = sorted(set(admitted) - {row.execution_id for row in rows})
    unended = [row for row in rows if row.status not in ("success", "failed")]
    holds = not missing and not unended and sum(states.values()) == len(admitted)
    counted = " + ".join(f"{count} {status}" for status, count in sorted(states.items()))
    detail = (
        f"{len(admitted)} admitted = {counted}" if holds else f"{len(admitted)} admitted, {counted}"
    )
    if missing:
        detail += f"; not in the log: {missing[:MOST_NAMED]}"
    if unended:
        detail += f"; not ended: {_named(unended)}"
    return Check("none lost", holds, detail)


def nothing_twice(rows: Sequence[Row], calls: Iterable[Call]) -> Check:
    """
    The API saw the effect of each successful execution once, and of no other more than once.
    """
    effects = Counter(
        (call.account, call.card) for call in calls if call.effect and call.status < 400
    )
    twice = [row for row in rows if effects[row.account, row.card] > 1]
    never = [row for row in rows if row.status == "success" and not effects[row.account, row.card]]
    unknown = set(effects) - {(row.account, row.card) for row in rows}
    if not (twice or never or unknown):
        return Check("nothing ran twice", True, f"the API saw {len(effects)} effects, each once")
    detail = "; ".join(
        f"{what}: {names}"
        for what, names in (
            ("twice", _named(twice)),
            ("success without effect", _named(never)),
            ("of nobody", str(sorted(unknown)[:MOST_NAMED] or "")),
        )
        if names
    )
    return Check("nothing ran twice", False, detail)


def failures_explained(rows: Iterable[Row], calls: Iterable[Call]) -> Check:
    """
    What failed is what the API refused for its rate limit, and nothing else.
    """
    refused = {(call.account, call.card) for call in calls if call.status == 429}
    failed = [row for row in rows if row.status == "failed"]
    odd = [
        row
        for row in failed
        if (row.account, row.card) not in refused or row.error_code != ErrorCode.SCRIPT_ERROR
    ]
    if odd:
        return Check("failures explained", False, f"failed for another reason: {_named(odd)}")
    return Check(
        "failures explained", True, f"{len(failed)} ended with 301 because the API answered 429"
    )


def automation_kept(automated: Automated, rows: Iterable[Row], calls: Iterable[Call]) -> Check:
    """
    The automation changed nothing before it was promoted, and afterwards what it had said, once.
    """
    claim = "the automation did what it had said"
    effects = [call for call in calls if call.account == automated.account and call.effect]
    each = Counter(call.card for call in effects)
    executed = {row.execution_id: row for row in rows if row.account == automated.account}
    failed = [row for row in executed.values() if row.status != "success"]
    early = sum(call.at < automated.promoted_at for call in effects)
    wrong = [
        text
        for text, is_so in (
            (f"{early} changes before it was promoted", early > 0),
            ("its preview and its observe run differ", automated.previewed != automated.observed),
            ("it found nothing to do: nothing to see", not automated.observed),
            (
                f"it says that it changed {automated.changed}",
                automated.changed != len(automated.observed),
            ),
            (
                "its executions are of other cards",
                sorted(automated.executions.values()) != sorted(automated.observed),
            ),
            ("its executions are not those of the log", set(automated.executions) != set(executed)),
            (
                f"the API saw changes of {sorted(each.elements())[:MOST_NAMED]}",
                each != Counter(automated.observed),
            ),
            (f"not well ended: {_named(failed)}", bool(failed)),
        )
        if is_so
    ]
    if wrong:
        return Check(claim, False, "; ".join(wrong))
    count = len(automated.observed)
    return Check(
        claim,
        True,
        f"{automated.decided} cards decided, {count} would change, none did; live, those {count}"
        " did, each once",
    )


def _named(rows: Collection[Row]) -> str:
    names = [
        f"{row.account}/{row.card} ({row.status}, {row.error_code or 'no error'})" for row in rows
    ]
    return ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
