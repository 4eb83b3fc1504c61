"""
Occurrences: Debian cron's rules in zones whose clocks change, and what an outage leaves of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from crq.automations import schedule
from crq.automations.model import Unfit
from tests.automations.house import utc

BERLIN = "Europe/Berlin"
NOON = utc(2026, 3, 2, 12, 0)
# Lord Howe's clocks change by half an hour, of which cronsim makes another set of occurrences.
ZONES = ("UTC", BERLIN, "America/New_York", "Asia/Kathmandu", "Africa/Cairo", "America/Havana")


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        st.integers(1, high).map(lambda step: f"*/{step}"),
        number.map(str),
        st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        st.lists(number, min_size=1, max_size=3).map(lambda some: ",".join(map(str, some))),
    )


CRONS = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)).map(" ".join)
DENSE = st.tuples(field(0, 59), field(0, 23)).map(lambda two: " ".join((*two, "* * *")))


def walk(cron: str, zone: str, after: float) -> Iterator[float]:
    """
    One occurrence after the other, each asked for anew.
    """
    at = schedule.next_after(cron, zone, after)
    while at is not None:
        yield at
        at = schedule.next_after(cron, zone, at)


def first(cron: str, zone: str, after: float, count: int) -> list[float]:
    return [at for at, _ in zip(walk(cron, zone, after), range(count), strict=False)]


def test_a_daily_job_survives_the_spring() -> None:
    """
    02:30 does not exist on 29 March in Berlin: the job runs right after the gap, at 01:00Z (F85).
    """
    assert first("30 2 * * *", BERLIN, utc(2026, 3, 28, 12), 3) == [
        utc(2026, 3, 29, 1, 0),
        utc(2026, 3, 30, 0, 30),
        utc(2026, 3, 31, 0, 30),
    ]


def test_a_daily_job_runs_once_in_autumn() -> None:
    """
    02:30 comes twice on 25 October in Berlin: the job runs the first time, at 00:30Z (F86).
    """
    assert first("30 2 * * *", BERLIN, utc(2026, 10, 24, 12), 3) == [
        utc(2026, 10, 25, 0, 30),
        utc(2026, 10, 26, 1, 30),
        utc(2026, 10, 27, 1, 30),
    ]


def test_asked_in_the_second_pass_it_does_not_run_again() -> None:
    """
    After a restart between the two 02:30 of that night the job is not due a second time (F86).
    """
    for minute in (0, 29, 31):
        after = utc(2026, 10, 25, 1, minute)
        assert schedule.next_after("30 2 * * *", BERLIN, after) == utc(2026, 10, 26, 1, 30)


def test_half_hours_go_on_through_both_hours() -> None:
    """
    A job that begins with a star keeps to the elapsed time through the hour that comes twice (F86).
    """
    found = first("*/30 * * * *", BERLIN, utc(2026, 10, 24, 23, 30), 6)
    assert found == [utc(2026, 10, 25, 0, 0) + 1800 * n for n in range(6)]


def test_a_step_in_the_day_field_begins_anew_each_month() -> None:
    """
    Every tenth day is the 1st, 11th, 21st and 31st, and the first of March is not left out (F89).
    """
    found = first("0 0 */10 * *", "UTC", utc(2020, 12, 31, 12), 8)
    days = [(1, 1), (1, 11), (1, 21), (1, 31), (2, 1), (2, 11), (2, 21), (3, 1)]
    assert found == [utc(2021, month, day) for month, day in days]


@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("0 16 */2 * FRI", [13, 27]),  # a star in a day field: both must match
        ("0 16 13 * FRI", [6, 13, 20]),  # both restricted: either may match
        ("0 16 13 * *", [13]),
    ],
)
def test_the_two_day_fields(cron: str, days: list[int]) -> None:
    """
    Day of month and day of week are joined as Debian cron joins them (F90).
    """
    found = first(cron, "UTC", utc(2026, 3, 1), len(days))
    assert found == [utc(2026, 3, day, 16) for day in days]


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("0 0 31 2 *", "day-of-month"),
        ("0 0 30 2 *", "day-of-month"),
        ("0 0 */10 2 MON#5", "never comes"),
        ("*/0 * * * *", "minute"),
        ("60 * * * *", "minute"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "has 6 fields"),
        ("0 0 \N{SUPERSCRIPT TWO} * *", "no ASCII character"),
        ("1_0 * * * *", "minute"),
        ("", "has 0 fields"),
        ("5-1 * * * *", "minute"),
        ("@daily", "has 1 fields"),
        ("1," * 127 + "1 * * * *", "longer than 255"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused_at_once(cron: str, told: str) -> None:
    """
    What never comes or cannot be read is refused with its reason, in under 50 ms (F91).
    """
    begun = time.perf_counter()
    with pytest.raises(Unfit, match=told):
        schedule.checked(cron, "UTC", NOON)
    assert time.perf_counter() - begun < 0.05


def test_rare_is_not_never() -> None:
    """
    A 29 February that is a Monday comes, if only in 2044.
    """
    cron, zone = schedule.checked("  0 0   * 2 MON#5 ", "UTC", NOON)
    assert (cron, zone) == ("0 0 * 2 MON#5", "UTC")
    assert schedule.next_after(cron, zone, NOON) == utc(2044, 2, 29)


@pytest.mark.parametrize(
    "zone",
    [
        *("Europe/Berlinn", "", "localtime", "../../etc/passwd", "Europe", "zone1970.tab"),
        *("posix/../UTC", "Mars/Olympus", "x" * 300, "Factory", "leapseconds"),
    ],
)
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    """
    A zone is a place that the zone database knows; a slip is told with what was meant.
    """
    with pytest.raises(Unfit, match="there is no zone") as caught:
        schedule.checked("0 0 * * *", zone, NOON)
    if zone == "Europe/Berlinn":
        assert caught.value.remedy == "did you mean Europe/Berlin?"


@settings(max_examples=150, deadline=None)
@given(
    cron=st.one_of(CRONS, DENSE),
    zone=st.sampled_from(ZONES),
    start=st.integers(0, 3 * 525_600),
    minutes=st.integers(0, 5 * 1440),
    second=st.floats(0, 59.9),
)
def test_what_is_due_is_what_a_walk_finds(
    cron: str, zone: str, start: int, minutes: int, second: float
) -> None:
    """
    The latest occurrence, the number of skipped ones and the next one are those that a walk over
    all of them finds, whatever the clocks of the zone do.
    """
    begin = utc(2024, 1, 1) + 60.0 * start
    pointer = schedule.next_after(cron, zone, begin)
    if pointer is None:
        return
    now = pointer + 60.0 * minutes + second
    found = []
    following = None
    for at in chain([pointer], walk(cron, zone, pointer)):
        if at > now:
            following = at
            break
        found.append(at)
    due = schedule.due(cron, zone, pointer, now)
    assert (due.scheduled_for, due.skipped, due.next_at) == (
        found[-1],
        len(found) - 1,
        following,
    )


@pytest.mark.parametrize(
    ("cron", "day", "skipped"),
    [
        ("* * * * *", 29, 3 * 1440 - 60),
        ("* 2 * * *", 29, 2 * 60),  # the hour that is leapt over
        ("30 2 * * *", 29, 3),  # a fixed time runs after the gap
        ("0 1-4 * * *", 29, 3 * 4 - 1),  # 02:00 is 03:00 that night
    ],
)
def test_a_day_whose_clocks_change_is_counted_as_it_was(cron: str, day: int, skipped: int) -> None:
    """
    Of the three days around the change in spring as many occurrences are counted as there were.
    """
    begins, ends = utc(2026, 3, day - 2, 22, 59), utc(2026, 3, day + 1, 22)
    assert schedule.count(cron, BERLIN, begins + 59, ends) == skipped


def test_years_of_minutes_are_counted_quickly() -> None:
    """
    A minutely automation that rested for three years has one run; 1.5 million minutes are counted.
    """
    pointer, now = utc(2024, 1, 1), utc(2027, 1, 1)
    begun = time.perf_counter()
    due = schedule.due("* * * * *", "Europe/Berlin", pointer, now)
    assert time.perf_counter() - begun < 0.5
    assert (due.scheduled_for, due.next_at) == (now, now + 60)
    assert due.skipped == (now - pointer) / 60


def test_people_see_the_clocks_of_the_zone() -> None:
    """
    The ten next occurrences are shown on the zone's clocks, with the offset that tells 02:00 apart.
    """
    found = schedule.upcoming("0 * * * *", BERLIN, utc(2026, 10, 24, 23, 30))
    assert len(found) == 10
    assert [schedule.local_text(at, BERLIN) for at in found[:3]] == [
        "2026-10-25 02:00+02:00",
        "2026-10-25 02:00+01:00",
        "2026-10-25 03:00+01:00",
    ]
