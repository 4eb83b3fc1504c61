"""
Pure: when a cron expression in a zone is due.

The rules are Debian cron's, as cronsim has them: five fields; where both day fields are restricted
either may match; a job at a fixed time that falls into the hour a zone leaps over runs right after
it, one in the hour that comes twice runs the first time only; jobs that begin with a star keep to
the elapsed time.

# Note [Occurrences]

The occurrences of an expression in a zone are one set of instants, all whole minutes. Every
function here speaks of that set, whatever instant it starts from: cronsim, started in the second
pass of an hour that comes twice, names an instant of the first pass, which `next_after` leaves out.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from attrs import frozen
from cronsim import CronSim, CronSimError

from crq.automations.model import Unfit
from crq.instants import Instant

CRON_CHARACTERS: Final = 255  # the column
ZONE_CHARACTERS: Final = 64
MINUTE: Final = 60.0  # s
DAY: Final = timedelta(days=1)
# How far back the latest occurrence is looked for, in seconds; the last is over fifty years, which
# is as far as cronsim looks.
WINDOWS: Final = (2 * 3600.0, 86_400.0, 8 * 86_400.0, 70 * 86_400.0, 3 * 366 * 86_400.0, 2e9)
_FORM = "write five fields: minute, hour, day of month, month, day of week; such as 30 2 * * 1-5"
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
_NO_ZONES = ("localtime", "Factory", "posixrules")  # whatever the host has; not places


@frozen
class Due:
    """
    What is to be made of a pointer that has been passed.

    :ivar scheduled_for: the latest occurrence that is due: the one that runs.
    :ivar skipped: earlier ones that do not.
    :ivar next_at: the next one; None if there is none in the next fifty years.
    """

    scheduled_for: Instant
    skipped: int
    next_at: Instant | None


def checked(cron: str, zone: str, now: Instant) -> tuple[str, str]:
    """
    Make sure that a schedule can be used; returns it as it is to be stored.

    :raise Unfit: it cannot be read, or never comes.
    """
    _zone(zone)
    if not cron.isascii():
        odd = next(character for character in cron if not character.isascii())
        raise Unfit("cron", f"{odd!r} is no ASCII character", _FORM)
    cron = " ".join(cron.split())
    if len(cron) > CRON_CHARACTERS:
        raise Unfit("cron", f"longer than {CRON_CHARACTERS} characters", _FORM)
    if next_after(cron, zone, now) is None:
        raise Unfit("cron", f"{cron!r} never comes", "give a day that its months have")
    return cron, zone


@lru_cache(maxsize=8192)
def next_after(cron: str, zone: str, after: Instant) -> Instant | None:
    """
    The first occurrence after an instant; None: there is none in fifty years.

    :raise Unfit: the expression or the zone cannot be read.
    """
    return next(_occurrences(cron, zone, after), None)


def upcoming(cron: str, zone: str, after: Instant, count: int = 10) -> tuple[Instant, ...]:
    """
    The next occurrences, for people.
    """
    found: list[Instant] = []
    for occurrence in _occurrences(cron, zone, after):
        found.append(occurrence)
        if len(found) == count:
            break
    return tuple(found)


def local_text(at: Instant, zone: str) -> str:
    """
    An instant on the clocks of a zone, with its offset: the same wall time may come twice.
    """
    return datetime.fromtimestamp(at, _zone(zone)).isoformat(" ", "minutes")


def due(cron: str, zone: str, pointer: Instant, now: Instant) -> Due:
    """
    What is to be made of a pointer that ``now`` has reached: one run, at most (ruling 13).

    After an outage the latest occurrence runs, and the ones before it are counted as skipped.

    :raise Unfit: the expression or the zone cannot be read.
    """
    # By whole minutes, as occurrences are: what many automations missed together is asked for once.
    return _due(cron, zone, pointer, now - now % MINUTE)


@lru_cache(maxsize=8192)
def _due(cron: str, zone: str, pointer: Instant, now: Instant) -> Due:
    next_at = next_after(cron, zone, pointer)
    if next_at is None or next_at > now:
        return Due(pointer, 0, next_at)
    latest = _latest(cron, zone, pointer, now)
    between = count(cron, zone, pointer, latest)
    return Due(latest, 1 + between, next_after(cron, zone, now))


def _latest(cron: str, zone: str, pointer: Instant, now: Instant) -> Instant:
    for window in WINDOWS:
        start = max(pointer, now - window)
        latest = None
        for occurrence in _occurrences(cron, zone, start):
            if occurrence > now:
                break
            latest = occurrence
        if latest is not None:
            return latest
    return pointer


def count(cron: str, zone: str, low: Instant, high: Instant) -> int:
    """
    How many occurrences lie strictly between two instants.

    Days without a change of the clocks are counted by their matching hours and minutes; only the
    others are walked through. Three years of minutes take some milliseconds.
    """
    if high <= low:
        return 0
    low = max(low, high - WINDOWS[-1])  # a clock that is in another century is not counted out
    place = _zone(zone)
    parsed = _parsed(cron, datetime.fromtimestamp(low, place))
    hours, minutes = sorted(parsed.hours), sorted(parsed.minutes)
    first = datetime.fromtimestamp(low, place)
    last = datetime.fromtimestamp(high, place)
    total = 0
    day = first.date()
    while day <= last.date():
        begins, ends = _midnight(day, place), _midnight(day + DAY, place)
        if not _quiet(day, place):
            total += sum(
                max(low, begins - 1) < occurrence < min(high, ends)
                for occurrence in _until(cron, zone, max(low, begins - 1), min(high, ends))
            )
        elif day.month in parsed.months and parsed.match_day(day):
            whole = len(hours) * len(minutes)
            before = _up_to(hours, minutes, first) if day == first.date() else 0
            after = whole - _before(hours, minutes, last) if day == last.date() else 0
            total += whole - before - after
        day += DAY
    return total


def _quiet(day: date, place: ZoneInfo) -> bool:
    """
    Whether the clocks of a zone are left alone between the midnights of a day.
    """
    begins = datetime(day.year, day.month, day.day, tzinfo=place)
    return begins.utcoffset() == (begins + DAY).utcoffset()


def _midnight(day: date, place: ZoneInfo) -> Instant:
    return datetime(day.year, day.month, day.day, tzinfo=place).timestamp()


def _up_to(hours: list[int], minutes: list[int], at: datetime) -> int:
    """
    How many times of a day come at or before a time of day.
    """
    earlier = len([hour for hour in hours if hour < at.hour]) * len(minutes)
    return earlier + (bisect_right(minutes, at.minute) if at.hour in hours else 0)


def _before(hours: list[int], minutes: list[int], at: datetime) -> int:
    """
    How many times of a day come before a time of day.
    """
    exact = at.second == 0 and at.microsecond == 0 and at.hour in hours and at.minute in minutes
    return _up_to(hours, minutes, at) - exact


def _until(cron: str, zone: str, after: Instant, end: Instant) -> Iterator[Instant]:
    for occurrence in _occurrences(cron, zone, after):
        if occurrence >= end:
            return
        yield occurrence


def _occurrences(cron: str, zone: str, after: Instant) -> Iterator[Instant]:
    """
    All occurrences after an instant, each once, in order (see note [Occurrences]).
    """
    found = after
    moments = _parsed(cron, datetime.fromtimestamp(after, _zone(zone)))
    while True:
        try:
            at = next(moments).timestamp()
        except (StopIteration, OverflowError):  # not in fifty years; beyond the last calendar
            return
        if at > found:
            found = at
            yield at


def _parsed(cron: str, start: datetime) -> CronSim:
    if len(cron.split()) != 5:
        raise Unfit("cron", f"has {len(cron.split())} fields", _FORM)
    try:
        return CronSim(cron, start)
    except CronSimError as error:
        where = str(error).removeprefix("Bad ")
        raise Unfit("cron", f"the {where} of {cron!r} cannot be used", _FORM) from None


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    if len(name) <= ZONE_CHARACTERS and _ZONE.fullmatch(name) and name not in _NO_ZONES:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass  # no such zone; a directory of zones; a file beside them
    near = difflib.get_close_matches(name, available_timezones(), 1)
    hint = f"did you mean {near[0]}?" if near else "give an IANA name such as Europe/Berlin or UTC"
    raise Unfit("zone", f"there is no zone {name[:ZONE_CHARACTERS]!r}", hint)
