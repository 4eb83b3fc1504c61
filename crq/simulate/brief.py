"""
The load that the brief measured: 14 days to 2026-08-26, made anew from its figures (brief §6).

# Note [What is given and what is made up]

Given, and met exactly: 5,856 executions, of them 2,630, 1,858 and 720 of the three great accounts;
4,284 in the last seven days; the peak hour (414, on the 24th at 00:00), the next one (164) and the
peak minute (137, on the 24th at 14:23); the 309 requests of the window that began at 12:08. Given,
and met closely: of the service times the mean of 1.6 s, 97.2 % under 5 s, 9 of 5,200 over 240 s.

Made up: at which other moments what arrived (in clusters, by day more than by night), which account
made which peak, how the rest divides among twenty small accounts, how many calls a script makes,
and the quota: the brief does not tell it, and with this one the same load without a queue comes to
about the outcomes it measured. No hour but the peak may hold more than 164, so that the window's
309 reach from 12:08 to 14:00.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from statistics import NormalDist

from attrs import frozen

from crq.instants import Instant, instant_of
from crq.replay.trace import Arrival
from crq.simulate.api import Quota, Window

BEGINS: Instant = instant_of("2026-08-12 00:00:00.000")
HOUR, DAY, WEEK = 3600.0, 86_400.0, 7 * 86_400.0  # s
DAYS = 14
TOP, SECOND, SLEEPER = "c79be0", "8bbbed", "3ec13b"  # as the brief names them (brief §6)
SMALL = tuple(f"small-{number:02d}" for number in range(1, 21))
TOTALS = {TOP: 2630, SECOND: 1858, SLEEPER: 720, "small": 648}
LAST_WEEK = 4284
NEXT_HOUR = 164  # no hour but the peak hour holds more
CALLS = {TOP: 6, SECOND: 3, SLEEPER: 12}  # of one execution; see the note
OTHER_CALLS = 4
QUOTA = Quota((Window(40, 60.0), Window(450, HOUR)))  # see the note

_PACE = {TOP: 0.9, SECOND: 1.2, SLEEPER: 1.0, "small": 0.84}  # of the mean service time
_CLUSTER = {TOP: 5.0, SECOND: 2.0, SLEEPER: 8.0, "small": 2.0}  # executions that a rule fires
_FIRE = 3.0  # s between two of them, in the mean


@frozen
class Peak:
    """
    Moments that the brief tells of.

    :ivar begins: seconds after the beginning.
    :ivar counts: executions by account.
    """

    begins: float
    seconds: float
    counts: dict[str, int]


_DAY = 12 * DAY  # 2026-08-24
PEAKS = (
    Peak(_DAY, HOUR, {TOP: 350, SECOND: 34, "small": 30}),
    Peak(_DAY + 12 * HOUR + 480, 300, {SLEEPER: 104, TOP: 10, SECOND: 6}),
    Peak(_DAY + 12 * HOUR + 780, 2820, {SLEEPER: 20, TOP: 10, SECOND: 10, "small": 4}),
    Peak(_DAY + 13 * HOUR, 600, {SLEEPER: 110, TOP: 12, SECOND: 15, "small": 8}),
    Peak(_DAY + 14 * HOUR + 1380, 60, {SLEEPER: 122, TOP: 8, SECOND: 5, "small": 2}),
)


def load(seed: int) -> list[Arrival]:
    """
    Make the 14 days, oldest first; the same seed makes the same.
    """
    dice = random.Random(seed)
    moments = sorted(_moments(dice))
    services = _services(dice, len(moments))
    return [
        Arrival(round(at, 3), account, f"key-{account}", round(service, 3), "success")
        for (at, account), service in zip(moments, _paced(moments, services), strict=True)
    ]


def _moments(dice: random.Random) -> Iterator[tuple[float, str]]:
    hours: Counter[int] = Counter()
    left = dict(TOTALS)
    for peak in PEAKS:
        for account, count in peak.counts.items():
            left[account] -= count
            for _ in range(count):
                at = peak.begins + dice.uniform(0, peak.seconds - 0.001)
                hours[int(at // HOUR)] += 1
                yield at, _named(dice, account)
    weights = [_weight(hour) for hour in range(int(DAYS * DAY // HOUR))]
    peaks = sum(sum(peak.counts.values()) for peak in PEAKS)
    share = (LAST_WEEK - peaks) / sum(left.values())
    late = {account: round(count * share) for account, count in left.items()}
    late[TOP] += LAST_WEEK - peaks - sum(late.values())
    full = {int(peak.begins // HOUR) for peak in PEAKS}
    for week, counts in ((0, {name: left[name] - late[name] for name in left}), (1, late)):
        first = int(week * WEEK // HOUR)
        chances = weights[first : first + int(WEEK // HOUR)]
        for account, count in counts.items():
            while count:
                hour = first + dice.choices(range(len(chances)), chances)[0]
                size = min(count, 1 + int(dice.expovariate(1 / _CLUSTER[account])))
                if hour in full or hours[hour] + size > NEXT_HOUR - 1:
                    continue
                name, at = _named(dice, account), hour * HOUR + dice.uniform(0, HOUR)
                for _ in range(size):
                    hours[hour] += 1
                    count -= 1
                    yield min(at, (hour + 1) * HOUR - 0.001), name
                    at += dice.expovariate(1 / _FIRE)


def _weight(hour: int) -> float:
    """
    How much of the load an hour draws: the day is busier than the night, the week than its end.
    """
    of_day, of_week = hour % 24, (hour // 24 + 2) % 7  # the 12th is a Wednesday
    end_of_week = 0.35 if of_week >= 5 else 1.0
    return end_of_week * (1.0 + 0.9 * math.cos((of_day - 13) / 24 * 2 * math.pi))


def _named(dice: random.Random, account: str) -> str:
    return dice.choice(SMALL) if account == "small" else account


def _paced(moments: list[tuple[float, str]], services: list[float]) -> Iterator[float]:
    for (_, account), service in zip(moments, services, strict=True):
        pace = _PACE.get(account, _PACE["small"])
        # What hangs takes as long in every account.
        yield service if service >= _HANGS else min(service * pace, _HANGS)


# The distribution by its quantiles: a lognormal body under 5 s, a tail to 20 s, and what hangs.
_BODY, _TAIL = 0.972, 1 - 9 / 5200
_SHORT, _LONG = 5.0, 20.0  # s
_HANGS, _HANGS_TO = 240.0, 299.0  # s
_MU, _SIGMA = -0.43, 0.8


def _services(dice: random.Random, count: int) -> list[float]:
    """
    Service times whose distribution is exact whatever the seed; the seed shuffles them.
    """
    normal = NormalDist(_MU, _SIGMA)
    under = normal.cdf(math.log(_SHORT))

    def service(quantile: float) -> float:
        if quantile < _BODY:
            return math.exp(normal.inv_cdf(quantile / _BODY * under))
        if quantile < _TAIL:
            share = (quantile - _BODY) / (_TAIL - _BODY)
            return _SHORT * math.pow(_LONG / _SHORT, share)
        return _HANGS + (_HANGS_TO - _HANGS) * (quantile - _TAIL) / (1 - _TAIL)

    made = [service((number + 0.5) / count) for number in range(count)]
    dice.shuffle(made)
    return made
