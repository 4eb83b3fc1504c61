"""
Makes the two traces beside it out of the published figures of the incident (brief §1, §6).

    python -m traces.make            # the same files each time: everything random is seeded

No execution of the incident is in them: what is published are counts and means, and these traces
are drawn so that they fit. Each header says which figures went in, and which the brief leaves open.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from pathlib import Path

from crq.replay.trace import Arrival, Quota, Trace, lines_of

HERE = Path(__file__).resolve().parent
SEED = 20260824
HOUR, DAY = 3600.0, 86_400.0
SLEEPER, BIG, SECOND = "3ec13b", "c79be0", "8bbbed"  # the three accounts that the brief names
OTHERS = tuple(f"other{number:02d}" for number in range(1, 13))

# -- the window of 12:08

WINDOW_REQUESTS = 309
WINDOW_DIED = 143  # of them, at the wall of 300 s
WINDOW_WORKERS = 24  # held by these, all the time
WINDOW = WINDOW_DIED * 300 / WINDOW_WORKERS  # s: as long as 143 walls take on 24 workers
PEAK = 120  # concurrent at 12:12:59
PEAK_AT = 299.0  # s after 12:08:00

# What the brief does not tell of the sleeping account. Chosen, among numbers that a minute's limit
# may have, so that 40 workers which sleep and send again without an end come to about 143 deaths
# and 120 concurrent executions at 12:12:59.
SLEEPER_REQUESTS = 190
SLEEPER_BURST = 100  # of them until the peak
OTHER_BURST = 40
SLEEPER_SERVICE = 4.8  # s, 12 calls: of the 97.2 % under 5 s, if nobody makes it wait
SLEEPER_QUOTA = Quota(f"key-{SLEEPER}", 40, 60.0)


def window(draw: random.Random) -> Trace:
    """
    2026-08-24, 12:08:00 and the half hour after it.
    """
    arrivals = []
    others = WINDOW_REQUESTS - SLEEPER_REQUESTS
    names = draw.choices((BIG, SECOND, *OTHERS), (2630, 1858, *[648 / len(OTHERS)] * 12), k=others)
    for number in range(SLEEPER_REQUESTS):
        begin, end = (0.0, PEAK_AT) if number < SLEEPER_BURST else (PEAK_AT, WINDOW)
        outcome = "wall" if number < WINDOW_DIED else "success"
        arrivals.append(_arrival(draw.uniform(begin, end), SLEEPER, SLEEPER_SERVICE, outcome))
    for number, name in enumerate(names):
        begin, end = (0.0, PEAK_AT) if number < OTHER_BURST else (PEAK_AT, WINDOW)
        arrivals.append(_arrival(draw.uniform(begin, end), name, _below_five(draw), "success"))
    return Trace(
        tuple(sorted(arrivals, key=lambda one: one.offset)),
        (SLEEPER_QUOTA,),
        _remarks(
            "The window of 2026-08-24, 12:08:00 UTC. Made by traces/make.py; no real execution is"
            " in it.",
            f"From the brief: {WINDOW_REQUESTS} requests, {WINDOW_DIED} of them died at the wall of"
            f" 300 s, holding about {WINDOW_WORKERS} of 40 workers all the time, so the window is"
            f" {WINDOW:.0f} s long; {PEAK} concurrent at 12:12:59; the accounts' shares of the"
            " volume; a healthy service time of 1.6 s, 97.2 % under 5 s.",
            "Chosen, since the brief does not tell: which requests are of the sleeping account, how"
            " many calls its scripts make, and the quota of its key. The numbers are such that"
            " inline dispatch into 40 workers, sleeping without an end, shows about the published"
            " deaths and the published peak.",
            "'wall' marks as many of its requests as died; which ones they were nobody knows.",
        ),
    )


# -- the 14 days

FORTNIGHT = 14 * DAY
EXECUTIONS = 5856
BY_ACCOUNT = {BIG: 2630, SECOND: 1858, SLEEPER: 720}  # and 648 of others
SUCCESSES, ERRORS, REAPED = 5200, 364, 187  # and 105 of other outcomes, taken for errors here
SUCCESS_SECONDS = 8320.0  # 1.6 s each
UNDER_5, OVER_240, LONGEST = 5054, 9, 317.0
LAST_WEEK = 4284
PEAK_HOUR, NEXT_HOUR, PEAK_MINUTE = 414, 164, 137
DAY_OF = 12 * DAY  # 2026-08-24 in 14 days from 2026-08-12 to 2026-08-26


def fortnight(draw: random.Random) -> Trace:
    """
    2026-08-12 to 2026-08-26.
    """
    offsets = _fortnight_offsets(draw)
    services = _services(draw)
    outcomes = ["success"] * SUCCESSES + ["wall"] * REAPED
    outcomes += ["error"] * (EXECUTIONS - len(outcomes))
    draw.shuffle(outcomes)
    names = [name for name, count in BY_ACCOUNT.items() for _ in range(count)]
    names += [OTHERS[number % len(OTHERS)] for number in range(EXECUTIONS - len(names))]
    draw.shuffle(names)
    arrivals = []
    for offset, name, outcome in zip(offsets, names, outcomes, strict=True):
        service = services.pop() if outcome == "success" else _below_five(draw)
        arrivals.append(_arrival(offset, name, service, outcome))
    return Trace(
        tuple(arrivals),
        (SLEEPER_QUOTA,),
        _remarks(
            "14 days, 2026-08-12 to 2026-08-26, UTC. Made by traces/make.py; no real execution is"
            " in it.",
            f"From the brief: {EXECUTIONS} executions, {LAST_WEEK} in the last 7 days; {SUCCESSES}"
            f" successes of {SUCCESS_SECONDS:.0f} s together, {UNDER_5} under 5 s, {OVER_240} over"
            f" 240 s, the longest {LONGEST:.0f} s; {ERRORS} errors and {REAPED} reaped; the"
            f" accounts' counts; the hour of {PEAK_HOUR} at 2026-08-24 00:00, no other above"
            f" {NEXT_HOUR}; the minute of {PEAK_MINUTE} at 2026-08-24 14:23.",
            "Two figures of the brief exclude each other: no second hour above 164, and the 309"
            " requests of the window of 12:08 within half an hour. Here the hours count, and that"
            " window is spread over 12:08 to 13:59; it is whole in the other trace.",
            "Service times of what did not succeed are drawn like those of successes under 5 s:"
            " what was measured of them was sleeping. 105 of outcomes that the brief does not name"
            " are errors here.",
        ),
    )


def _fortnight_offsets(draw: random.Random) -> list[float]:
    fixed = [
        *_spread(draw, PEAK_HOUR, DAY_OF, DAY_OF + HOUR),
        *_spread(draw, PEAK_MINUTE, DAY_OF + 14 * HOUR + 23 * 60, DAY_OF + 14 * HOUR + 24 * 60),
        *_spread(draw, 150, DAY_OF + 12 * HOUR + 8 * 60, DAY_OF + 13 * HOUR),
        *_spread(draw, 159, DAY_OF + 13 * HOUR, DAY_OF + 14 * HOUR),
    ]
    full = {int((DAY_OF + hour * HOUR) // HOUR) for hour in (0, 12, 13, 14)}
    counts: dict[int, int] = {}
    rest = []
    for week, count in ((0, EXECUTIONS - LAST_WEEK), (1, LAST_WEEK - len(fixed))):
        while count:
            offset = draw.uniform(week * FORTNIGHT / 2, (week + 1) * FORTNIGHT / 2)
            # By day there are four times as many as by night.
            day = 8 <= offset % DAY / HOUR < 18
            hour = int(offset // HOUR)
            if (
                hour in full
                or not (day or draw.random() < 0.25)
                or counts.get(hour, 0) >= NEXT_HOUR
            ):
                continue
            counts[hour] = counts.get(hour, 0) + 1
            rest.append(offset)
            count -= 1
    return sorted(fixed + rest)


def _services(draw: random.Random) -> list[float]:
    """
    Service times of the successes: so many under 5 s, so many over 240 s, and the published sum.
    """
    over = [LONGEST, *(draw.uniform(240.5, 300) for _ in range(OVER_240 - 1))]
    between = [draw.uniform(5.2, 20) for _ in range(SUCCESSES - UNDER_5 - OVER_240)]
    under = [_below_five(draw) for _ in range(UNDER_5)]
    factor = (SUCCESS_SECONDS - sum(over) - sum(between)) / sum(under)
    found = [*over, *between, *(min(4.99, value * factor) for value in under)]
    draw.shuffle(found)
    return found


def _below_five(draw: random.Random) -> float:
    while True:
        value = draw.lognormvariate(-0.4, 0.75)
        if 0.05 <= value < 5:
            return value


def _remarks(*paragraphs: str) -> tuple[str, ...]:
    return tuple(line for text in paragraphs for line in textwrap.wrap(text, 96))


def _spread(draw: random.Random, count: int, begin: float, end: float) -> list[float]:
    return [draw.uniform(begin, end) for _ in range(count)]


def _arrival(offset: float, account: str, service: float, outcome: str) -> Arrival:
    return Arrival(round(offset, 3), account, f"key-{account}", round(service, 3), outcome)


def main() -> None:
    """
    Write both files.
    """
    makers: dict[str, Callable[[random.Random], Trace]] = {
        "2026-08-24-1208.csv": window,
        "two-weeks.csv": fortnight,
    }
    for name, make in makers.items():
        text = "\n".join(lines_of(make(random.Random(SEED))))
        (HERE / name).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
