"""
What is simulated: the 14 days of the brief, and public traces.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from crq.model import Limits
from crq.replay.trace import Arrival, Trace, TraceError
from crq.simulate import brief, compare, faas

DAY, HOUR = 86_400.0, 3600.0
INCIDENT = 12 * DAY  # 2026-08-24


@cache
def fortnight(seed: int) -> tuple[Arrival, ...]:
    return tuple(brief.load(seed))


class BriefTests(SynchronousTestCase):
    """
    `crq.simulate.brief` against the figures of brief §6.
    """

    def test_counts(self) -> None:
        """
        5,856 executions, 4,284 of them in the last week, and each great account's share, exactly;
        the three are 89 % of all.
        """
        load = fortnight(1)
        self.assertEqual(len(load), 5856)
        self.assertEqual(sum(each.offset >= 7 * DAY for each in load), 4284)
        accounts = Counter(each.account for each in load)
        self.assertEqual(
            accounts.most_common(3), [("c79be0", 2630), ("8bbbed", 1858), ("3ec13b", 720)]
        )
        self.assertEqual(round(sum(n for _, n in accounts.most_common(3)) / 5856, 2), 0.89)

    def test_peaks(self) -> None:
        """
        The peak hour holds 414, the next one 164; the peak minute holds 137, at 14:23; 309 came in
        the window from 12:08 on, 120 of them until 12:13.
        """
        load = fortnight(1)
        hours = Counter(int(each.offset // HOUR) for each in load)
        self.assertEqual(hours.most_common(2), [(12 * 24, 414), (12 * 24 + 12, 164)])
        minutes = Counter(int(each.offset // 60) for each in load)
        self.assertEqual(minutes.most_common(1), [((12 * 24 + 14) * 60 + 23, 137)])
        begins = INCIDENT + 12 * HOUR + 480
        window = [each for each in load if begins <= each.offset < INCIDENT + 14 * HOUR]
        self.assertEqual(len(window), 309)
        self.assertEqual(sum(each.offset < begins + 300 for each in window), 120)

    def test_service_times(self) -> None:
        """
        They have the mean of 1.6 s, 97.2 % are under 5 s, and one in 600 is over 240 s.
        """
        for seed in (1, 2):
            times = [each.service for each in fortnight(seed)]
            self.assertApproximates(sum(times) / len(times), 1.6, 0.04)
            self.assertApproximates(sum(t < 5 for t in times) / len(times), 0.972, 0.004)
            self.assertEqual(sum(t > 240 for t in times), 10)  # 9 of 5,200
            self.assertLess(max(times), 300)

    def test_a_seed(self) -> None:
        """
        The same seed makes the same load, in order; another one another.
        """
        self.assertEqual(list(fortnight(1)), brief.load(1))
        self.assertNotEqual(fortnight(1), fortnight(2))
        offsets = [each.offset for each in fortnight(1)]
        self.assertEqual(offsets, sorted(offsets))
        self.assertTrue(all(0 <= offset < 14 * DAY for offset in offsets))


class FaasTests(SynchronousTestCase):
    """
    `crq.simulate.faas`.
    """

    def test_invocations(self) -> None:
        """
        An invocation arrives when it began; a function's name counts within its application only.
        """
        trace = faas.parse(
            [
                "app,func,end_timestamp,duration\n",
                "a1,f1,12.5,2.5\n",
                "a2,f1,3.0,1.25\n",
                "\n",
                "a2,f2,0.5,4.0\n",
            ]
        )
        self.assertEqual(
            trace.arrivals,
            (
                Arrival(0.0, "a2", "a2/f2", 4.0, "success"),  # begun before the trace
                Arrival(1.75, "a2", "a2/f1", 1.25, "success"),
                Arrival(10.0, "a1", "a1/f1", 2.5, "success"),
            ),
        )

    def test_counts_of_minutes(self) -> None:
        """
        The invocations of a minute are spread over it; minutes without any have none.
        """
        trace = faas.parse(
            [
                "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n",
                "o,a,f,http,2,0,1\n",
                "o,a,g,timer,,1,0\n",
            ]
        )
        found = [(each.offset, each.key) for each in trace.arrivals]
        self.assertEqual(found, [(15.0, "a/f"), (45.0, "a/f"), (90.0, "a/g"), (150.0, "a/f")])
        self.assertEqual({each.service for each in trace.arrivals}, {1.6})

    def test_our_own(self) -> None:
        """
        Any other file is read as a replay reads it, with the quotas in its remarks.
        """
        trace = faas.parse(
            ["# quota k 40 60\n", "offset,account,key,service,outcome\n", "1,acme,k,2,error\n"]
        )
        self.assertEqual(trace.arrivals, (Arrival(1.0, "acme", "k", 2.0, "error"),))
        self.assertEqual([(q.key, q.calls, q.seconds) for q in trace.quotas], [("k", 40, 60.0)])

    def refused(self, *lines: str) -> str:
        return str(self.assertRaises(TraceError, faas.parse, [f"{line}\n" for line in lines]))

    def test_what_is_none(self) -> None:
        """
        What cannot be understood is refused with its line, its column and the remedy.
        """
        head = "app,func,end_timestamp,duration"
        counts = "HashOwner,HashApp,HashFunction,Trigger,1,2"
        for text, lines in {
            "line 2: it has 3 columns": (head, "a,f,1"),
            "line 3: duration: 'x' is no number; write 1.5": (head, "a,f,1,1", "a,f,1,x"),
            "line 2: end_timestamp: '-1'": (head, "a,f,-1,1"),
            "line 2: duration: 'nan'": (head, "a,f,1,nan"),
            "line 2: app is empty": (head, ",f,1,1"),
            "line 2: 2: '0.5' is no count; write a whole number": (counts, "o,a,f,http,1,0.5"),
            "there is no invocation in it": (head,),
            "line 1: the first line must be": ("time,who",),
        }.items():
            self.assertIn(text, self.refused(*lines))

    def test_a_file(self) -> None:
        """
        A file is read with or without a byte-order mark; one that is no text is refused.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.csv"
            path.write_bytes("\ufeffapp,func,end_timestamp,duration\r\na,f,2,1\r\n".encode())
            self.assertEqual(len(faas.read(path).arrivals), 1)
            path.write_bytes(b"app,func\xff")
            self.assertIn("UTF-8", str(self.assertRaises(TraceError, faas.read, path)))


class CompareTests(SynchronousTestCase):
    """
    `crq.simulate.compare`.
    """

    def test_more_and_less(self) -> None:
        """
        A load may be multiplied: what is added arrives within a minute of what was there, and what
        was there stays where it was.
        """
        trace = Trace(tuple(Arrival(n * 1000.0, "a", "k", 1.0, "success") for n in range(1, 201)))
        more = compare.scaled(trace, 2.5, seed=3)
        self.assertApproximates(len(more.arrivals), 500, 30)
        near = [min(each.offset % 1000, -each.offset % 1000) for each in more.arrivals]
        self.assertLessEqual(max(near), 60)
        self.assertEqual(sum(distance == 0 for distance in near), 200)
        self.assertApproximates(len(compare.scaled(trace, 0.5, seed=3).arrivals), 100, 30)
        self.assertEqual(more, compare.scaled(trace, 2.5, seed=3))

    def test_policies(self) -> None:
        """
        Every combination is asked, except caps that could never be reached.
        """
        found = [
            (each.limits.per_account, each.limits.in_flight, each.half_open, each.order)
            for each in compare.policies(
                Limits(queued_total=7), (1, 3), (2, 4), (True, False), ("fifo",), True
            )
        ]
        self.assertEqual(
            found,
            [
                (caps, total, half, "fifo")
                for total, allowed in ((2, (1,)), (4, (1, 3)))
                for caps in allowed
                for half in (True, False)
            ],
        )
