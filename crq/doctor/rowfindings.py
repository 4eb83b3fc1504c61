"""
Judges what `crq.doctor.rows` has read; pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from hashlib import sha256

from attrs import frozen

from crq.config import Config
from crq.doctor.findings import Finding, error, note, ok, warning
from crq.doctor.rows import LOCKS, Broken, Found, Jobs, Some
from crq.instants import Instant
from crq.model import InFlight, Lane, Limits, Status
from crq.sealing import NONCE_TTL

AHEAD = 60.0  # s; hosts' clocks may differ by some seconds
LATE = 3  # rounds of the reaper that may be missed
DAY = 86_400  # s
NOTHING = sha256(b"").hexdigest()  # the hash of an empty subdomain under an empty salt (ruling 12)


@frozen
class Patience:
    """
    Seconds after which a row is overdue, from the configuration.
    """

    claimed: float
    running: float
    kept: float

    @classmethod
    def of(cls, config: Config) -> Patience:
        """
        What a configuration allows, with some rounds of grace.
        """
        late = LATE * config.reaper.every
        return cls(
            NONCE_TTL + late,
            config.reaper.running_limit + late,
            config.reaper.keep_days * DAY + DAY,
        )


def judge(found: Found, patience: Patience, now: Instant) -> Iterator[Finding]:
    """
    Judge all of it.
    """
    yield locks(found.locks)
    yield statuses(found.statuses)
    yield states(found.broken)
    yield claimed(found.in_flight, patience.claimed, now)
    yield running(found.in_flight, patience.running, now)
    yield from lanes(found.lanes)
    yield from jobs(found.jobs)
    yield in_flight(found.in_flight, found.caps)
    yield depth(found.queued, found.caps)
    yield ahead(found.ahead)
    yield purged(found.oldest, patience.kept, now)
    yield scrubbed(found.unscrubbed)


def locks(there: Collection[str]) -> Finding:
    """
    The rows that a claim and an admission write first.
    """
    missing = [table for table in LOCKS if table not in there]
    if missing:
        text = f"{' and '.join(missing)} lost the only row: nothing is claimed or admitted"
        return error("lock rows", text, "run `crq db upgrade`: it puts them back")
    return ok("lock rows", "both are there")


def statuses(there: Collection[str]) -> Finding:
    """
    The words in the column.
    """
    known = {status.value for status in Status}
    unknown = sorted(set(there) - known)
    if unknown:
        return error(
            "statuses",
            f"rows have {', '.join(map(repr, unknown))}: nobody starts, ends or deletes them",
            f"UPDATE them to one of {', '.join(sorted(known))}, or delete them",
        )
    return ok("statuses", "all are known")


def states(found: Broken) -> Finding:
    """
    I1: the instants agree with the state.
    """
    if not found.problems:
        return ok("states", f"{found.looked_at} rows agree with their instants")
    count = sum(map(len, found.problems.values()))
    first = sorted(found.problems.items(), key=lambda item: -len(item[1]))[:3]
    texts = [f"execution {ids[0]} {text}" + _and_more(len(ids)) for text, ids in first]
    return error(
        "states",
        f"{count} of {found.looked_at} rows contradict themselves: {'; '.join(texts)}",
        "see `crq show ID`; something other than crqueue has written them",
    )


def claimed(rows: Collection[InFlight], patience: float, now: Instant) -> Finding:
    """
    Claimed for so long that their nonce is worth nothing.
    """
    old = _older(rows, Status.CLAIMED, patience, now)
    if old.count:
        return warning(
            "claimed",
            f"{_rows(old)} claimed for over {patience:.0f} s, and each holds a slot",
            "a running drainer puts them back into the queue: start it",
        )
    return ok("claimed", "none for too long")


def running(rows: Collection[InFlight], patience: float, now: Instant) -> Finding:
    """
    Running for so long that the reaper should have closed them.
    """
    old = _older(rows, Status.RUNNING, patience, now)
    if old.count:
        return error(
            "running",
            f"{_rows(old)} running for over {patience:.0f} s: nobody closes them, and each holds"
            " a slot",
            "a running daemon closes them as 303: start it, or see its log",
        )
    return ok("running", "none for too long")


def lanes(found: Collection[Lane]) -> Iterator[Finding]:
    """
    Lanes that are not as an admission makes them.
    """
    keyless = sum(lane.apikey_hash is None for lane in found)
    if keyless:
        yield note(
            "lanes",
            f"{keyless} of {len(found)} lanes have no API key's hash: no gate holds them back",
            "rows from before the queue are so; admit through crqueue",
        )
    else:
        yield ok("lanes", f"{len(found)} with work, each with a key")
    if any(lane.subdomain_hash == NOTHING for lane in found):
        yield error(
            "accounts",
            "rows wait under the hash of nothing: whoever wrote them had no salt and no subdomain,"
            " and all of them count as one account",
            "find who writes to the table past crqueue",
        )


def jobs(found: Jobs) -> Iterator[Finding]:
    """
    What a dispatch needs besides the row.
    """
    bad = False
    for rows, what, remedy in (
        (found.missing, "without a job", "cancel them (`crq cancel ID`) and submit them again"),
        (found.keyless, "whose API key is wiped", "cancel them and submit them again"),
        (
            found.unopened,
            "whose API key our sealing keys do not open",
            "put the sealing key they were made with into secrets.seal_keys_file, behind the new",
        ),
    ):
        if rows.count:
            bad = True
            text = f"{_rows(rows)} waiting {what}: they will fail with 106"
            yield error("jobs", text, remedy)
    if not bad:
        yield ok("jobs", f"each waiting row has one; {found.tried} sealed keys opened")


def in_flight(rows: Collection[InFlight], caps: Limits) -> Finding:
    """
    I4, as far as one look tells.
    """
    accounts = Counter(row.lane.subdomain_hash for row in rows)
    over = [name for name, count in accounts.items() if count > caps.of(name)]
    text = f"{len(rows)} in flight, the caps are {caps.in_flight} and {caps.per_account} an account"
    if len(rows) > caps.in_flight or over:
        which = f"; account {over[0][:8]}… has {accounts[over[0]]}" if over else ""
        return warning(
            "in flight",
            f"{text}{which}",
            "in order for some minutes after a cap was lowered; else find who else starts rows",
        )
    return ok("in flight", text)


def depth(queued: Counter[str], caps: Limits) -> Finding:
    """
    I7, as far as one look tells.
    """
    total = queued.total()
    text = f"{total} wait, {caps.queued_total} may"
    name, most = max(queued.items(), key=lambda item: item[1], default=("", 0))
    if total > caps.queued_total or most > caps.queued_per_account:
        which = f"; account {name[:8]}… has {most} of {caps.queued_per_account}"
        return warning(
            "depth", text + which, "in order after a cap was lowered; else find who inserts rows"
        )
    if total >= 0.8 * caps.queued_total:
        return warning("depth", f"{text}: soon everybody is refused", "see `crq status` for why")
    return ok("depth", text)


def ahead(rows: Some) -> Finding:
    """
    Rows of the future.
    """
    if rows.count:
        return warning(
            "instants",
            f"{_rows(rows)} queued more than {AHEAD:.0f} s in the future",
            "a host's clock is, or was, ahead: see the clocks above",
        )
    return ok("instants", "none lies in the future")


def purged(oldest: Instant | None, kept: float, now: Instant) -> Finding:
    """
    The purge keeps up.
    """
    if oldest is None:
        return ok("purge", "the log is empty")
    days = (now - oldest) / DAY
    if now - oldest > kept:
        return warning(
            "purge",
            f"the log goes back {days:.0f} days, reaper.keep_days ends {kept / DAY - 1:.0f} ago",
            "the daemon deletes each minute: see its log for `reaping failed`",
        )
    return ok("purge", f"the log goes back {max(0.0, days):.1f} days")


def scrubbed(rows: Some) -> Finding:
    """
    The API keys of what has finished are wiped.
    """
    if rows.count:
        return warning(
            "API keys",
            f"{_rows(rows)} finished long ago, and their sealed API keys are still stored",
            "the daemon wipes them each minute: see its log for `reaping failed`",
        )
    return ok("API keys", "wiped where they are no longer needed")


def _older(rows: Collection[InFlight], status: Status, patience: float, now: Instant) -> Some:
    ids = []
    for row in rows:
        since = row.claimed_at if status is Status.CLAIMED else row.started_at
        if row.status is status and (since is None or now - since > patience):
            ids.append(row.execution_id)
    return Some(len(ids), tuple(sorted(ids)[:5]))


def _rows(some: Some) -> str:
    names = ", ".join(map(str, some.examples))
    more = ", …" if some.count > len(some.examples) else ""
    return f"{some.count} row{'s' if some.count > 1 else ''} ({names}{more})"


def _and_more(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""
