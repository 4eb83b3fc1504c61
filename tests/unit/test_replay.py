"""
Traces, the API and the scripts of a replay, its report; without a queue and without waiting.
"""

from __future__ import annotations

import http.client
import importlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from crq import script
from crq.instants import instant_of
from crq.replay import scripts, trace
from crq.replay.api import Quotas, ReplayApi
from crq.replay.play import Clock, Health, arrive, wait_for_end
from crq.replay.report import Played, Probe, Spread, report
from crq.replay.trace import Arrival, Quota, Trace, TraceError

TRACES = Path(__file__).resolve().parent.parent.parent / "traces"
GOOD = """\
# a remark
# quota key-1 40 60
offset,account,key,service,outcome
2.5,acme,key-1,1.6,success

0.000,bravo,key-2,0.4,error
"""
NOON = instant_of("2026-03-02 12:00:00.000")


def parse(text: str) -> Trace:
    return trace.parse(text.splitlines(keepends=True))


class TraceTests(SynchronousTestCase):
    """
    `crq.replay.trace`.
    """

    def test_a_file_and_back(self) -> None:
        """
        Arrivals come in their order, with quotas and remarks; what is written is read again.
        """
        found = parse(GOOD)
        self.assertEqual(
            found,
            Trace(
                (
                    Arrival(0.0, "bravo", "key-2", 0.4, "error"),
                    Arrival(2.5, "acme", "key-1", 1.6, "success"),
                ),
                (Quota("key-1", 40, 60.0),),
                ("a remark",),
            ),
        )
        self.assertEqual(parse("\n".join(trace.lines_of(found))), found)
        self.assertEqual(found.length, 2.5)

    def test_bad_lines_are_named(self) -> None:
        """
        Each fault is told with its line, its column and what to write instead.
        """
        head = "offset,account,key,service,outcome\n"
        for text, told in (
            ("", "there is no arrival"),
            (head, "there is no arrival"),
            ("offset,account\n", "line 1: the first line must be offset,account,key"),
            (head + "1,a,k\n", "line 2: it has 3 columns"),
            (head + "soon,a,k,1,success\n", "line 2: offset: 'soon' is no number of seconds"),
            (head + "-1,a,k,1,success\n", "line 2: offset"),
            (head + "nan,a,k,1,success\n", "line 2: offset"),
            (head + "inf,a,k,1,success\n", "line 2: offset"),
            (head + "1,a,k,x,success\n", "line 2: service"),
            (head + "1,,k,1,success\n", "line 2: account is empty"),
            (head + "1,a,,1,success\n", "line 2: key is empty"),
            (head + "1,a,k,1,good\n", "line 2: outcome: 'good'; write success, error, wall"),
            ("# quota k\n" + head, "line 1: write # quota KEY CALLS SECONDS"),
            ("# quota k many 60\n" + head, "line 1: write # quota"),
            ("# quota k 5 0\n" + head, "line 1: quota: a window has more than 0 seconds"),
        ):
            error = self.assertRaises(TraceError, parse, text)
            self.assertIn(told, str(error), text)

    def test_a_part_of_it(self) -> None:
        """
        A part begins at 0 and keeps the quotas.
        """
        found = parse(GOOD).between(2.0, 3.0)
        self.assertEqual([one.offset for one in found.arrivals], [0.5])
        self.assertEqual(found.quotas, parse(GOOD).quotas)

    def test_long_pauses_are_cut(self) -> None:
        """
        What comes together stays together; no pause is longer than asked for.
        """
        arrivals = tuple(
            Arrival(at, "a", "k", 1.0, "success") for at in (5, 5.5, 900, 900, 1801.25)
        )
        found = Trace(arrivals).squeezed(1.0)
        self.assertEqual([one.offset for one in found.arrivals], [1.0, 1.5, 2.5, 2.5, 3.5])

    def test_the_shipped_traces_say_what_the_brief_says(self) -> None:
        """
        The published figures hold in both files, which are what traces/make.py makes now.
        """
        make: Any = importlib.import_module("traces.make")
        for name, maker in (
            ("2026-08-24-1208.csv", make.window),
            ("two-weeks.csv", make.fortnight),
        ):
            text = "\n".join(trace.lines_of(maker(random.Random(make.SEED)))) + "\n"
            self.assertEqual((TRACES / name).read_text("utf-8"), text)
        window = trace.read(TRACES / "2026-08-24-1208.csv")
        self.assertEqual(len(window.arrivals), 309)
        self.assertEqual(sum(one.outcome == "wall" for one in window.arrivals), 143)
        self.assertTrue(1700 < window.length < 1788)
        weeks = trace.read(TRACES / "two-weeks.csv")
        self.assertEqual(len(weeks.arrivals), 5856)
        outcomes = Counter(one.outcome for one in weeks.arrivals)
        self.assertEqual(outcomes, {"success": 5200, "error": 364 + 105, "wall": 187})
        good = [one.service for one in weeks.arrivals if one.outcome == "success"]
        self.assertAlmostEqual(sum(good) / 5200, 1.6, places=2)
        self.assertEqual(sum(service < 5 for service in good), 5054)
        self.assertEqual((sum(service > 240 for service in good), max(good)), (9, 317))
        hours = Counter(int(one.offset // 3600) for one in weeks.arrivals)
        (peak, count), (_, second) = hours.most_common(2)
        self.assertEqual((peak, count), (12 * 24, 414))
        self.assertLessEqual(second, 164)
        minutes = Counter(int(one.offset // 60) for one in weeks.arrivals)
        self.assertEqual(minutes.most_common(1)[0], ((12 * 24 + 14) * 60 + 23, 137))
        self.assertEqual(sum(one.offset >= 7 * 86_400 for one in weeks.arrivals), 4284)
        accounts = Counter(one.account for one in weeks.arrivals)
        self.assertEqual(
            accounts.most_common(3), [("c79be0", 2630), ("8bbbed", 1858), ("3ec13b", 720)]
        )


class ScriptTests(SynchronousTestCase):
    """
    `crq.replay.scripts`.
    """

    ARRIVAL = Arrival(0.0, "acme", "k", 1.6, "success")

    def test_each_language_makes_the_same_calls(self) -> None:
        """
        1.6 s of service are four calls of 400 ms; a script that failed then fails again.
        """
        made: list[str] = []

        def call(method: str, path: str, body: Any) -> dict[str, Any]:
            made.append(f"{method} {path}")
            return {"status": 200, "json": None, "text": ""}

        source = scripts.starlark(self.ARRIVAL)
        script.run(source, None, call, lambda _: None, lambda: None)
        self.assertEqual(made, ["GET /work/400"] * 4)
        self.assertEqual(scripts.lines(self.ARRIVAL), "GET /work/400\n" * 4)
        failing = evolve(self.ARRIVAL, outcome="error")
        fault = self.assertRaises(
            script.Fault,
            script.run,
            scripts.starlark(failing),
            None,
            call,
            lambda _: None,
            lambda: None,
        )
        self.assertIn(scripts.MESSAGE, str(fault))
        self.assertTrue(scripts.lines(failing).endswith(f"FAIL {scripts.MESSAGE}\n"))

    def test_a_template_for_other_languages(self) -> None:
        """
        Both numbers are put in; a template without one of them is refused.
        """
        write = scripts.template("repeat {calls} times: work {milliseconds}; {other}")
        self.assertEqual(write(self.ARRIVAL), "repeat 4 times: work 400; {other}")
        self.assertRaises(ValueError, scripts.template, "work {milliseconds}")

    def test_the_least_and_the_most(self) -> None:
        """
        A script makes at least one call, and none takes much longer than 0.4 s.
        """
        self.assertEqual(scripts.calls_of(evolve(self.ARRIVAL, service=0.0)), (1, 0))
        self.assertEqual(scripts.calls_of(evolve(self.ARRIVAL, service=0.05)), (1, 50))
        self.assertEqual(scripts.calls_of(evolve(self.ARRIVAL, service=317.0)), (792, 400))


class ApiTests(SynchronousTestCase):
    """
    `crq.replay.api`.
    """

    def test_a_quota_is_granted_in_windows(self) -> None:
        """
        So many calls, then whole seconds until the next window, in real time; other keys are free.
        """
        quotas = Quotas({"k": Quota("k", 2, 60.0)}, speed=20.0, began=100.0)
        self.assertEqual([quotas.ask("k", 100.5) for _ in range(3)], [None, None, 3])
        self.assertEqual(quotas.ask("k", 102.9), 1)
        self.assertEqual(quotas.ask("free", 102.9), None)
        self.assertEqual([quotas.ask("k", 103.0) for _ in range(3)], [None, None, 3])
        self.assertEqual(quotas.refused, {"k": 3})
        self.assertEqual(quotas.calls, {"k": 7, "free": 1})

    def test_over_http(self) -> None:
        """
        Work is done, a quota is refused with Retry-After, and nothing else is there.
        """
        now = 0.0
        api = ReplayApi(("127.0.0.1", 0), "apikey", [Quota("k", 1, 60.0)], 10.0, lambda: now)
        self.addCleanup(api.close)

        def ask(path: str, key: str = "k") -> tuple[int, str | None]:
            connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=10)
            try:
                connection.request("GET", path, headers={"apikey": key})
                answer = connection.getresponse()
                answer.read()
                return answer.status, answer.getheader("Retry-After")
            finally:
                connection.close()

        self.assertEqual(ask("/api/work/10"), (200, None))
        self.assertEqual(ask("/api/work/10"), (429, "6"))
        self.assertEqual(ask("/api/work/10", "free"), (200, None))
        self.assertEqual(ask("/api/cards"), (404, None))


class PlayTests(SynchronousTestCase):
    """
    `crq.replay.play`, on a clock that only sleeping moves.
    """

    def setUp(self) -> None:
        self.seconds = 0.0
        self.clock = Clock(lambda: NOON, lambda: self.seconds, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def test_arrivals_are_submitted_when_they_are_due(self) -> None:
        """
        At twice the speed half the time passes; who is late is not waited for.
        """
        offsets = (0.0, 4.0, 4.0, 10.0)
        played = Trace(tuple(Arrival(at, "a", "k", 1.0, "success") for at in offsets))
        at: list[float] = []

        def submit(_: Arrival) -> None:
            at.append(self.seconds)
            self.seconds += 3.5 if len(at) == 3 else 0.0

        done: list[int] = []
        arrive(played, submit, 2.0, self.clock, done.append)
        self.assertEqual(at, [0.0, 2.0, 2.0, 5.5])
        self.assertEqual(done, [1, 2, 3, 4])

    def test_the_end_is_waited_for_but_not_for_ever(self) -> None:
        """
        Until nothing is open, or so many seconds.
        """
        left = [3, 1, 0]
        self.assertTrue(wait_for_end(lambda: left.pop(0), 60, self.clock))
        self.assertFalse(wait_for_end(lambda: 1, 60, self.clock))
        self.assertTrue(60 <= self.seconds < 62)

    def test_a_health_check_that_nobody_answers(self) -> None:
        """
        A refused connection is a bad look, not an error.
        """
        probe = Health("http://127.0.0.1:1/health?x=1", 1.0, self.clock).look()
        self.assertFalse(probe.good)


class ReportTests(SynchronousTestCase):
    """
    `crq.replay.report`.
    """

    def test_the_figures(self) -> None:
        """
        Waits by account, most in flight, what ended how; one that never started waits for nobody.
        """

        def played(account: str, *at: float | None, shown: str = "success") -> Played:
            queued, claimed, started, finished = at
            code = 303 if shown == "outcome unknown" else None
            return Played(account, shown, code, queued or 0.0, claimed, started, finished)

        found = report(
            [
                played("acme", 0.0, 1.0, 1.0, 5.0),
                played("acme", 0.0, 2.0, 2.0, 4.0),
                played("acme", 0.0, 5.0, 5.0, 6.0),
                played("bravo", 0.0, 3.0, 3.5, None, shown="running"),
                played("bravo", 0.0, 6.0, 6.0, 9.0, shown="outcome unknown"),
                played("bravo", 0.0, None, None, None, shown="queued"),
            ],
            speed=20.0,
            seconds=9.0,
            limits={"k": 7},
            refused={"account": 2},
            idle=[Probe(0.0, 0.1, True)],
            health=[Probe(0.0, 0.1, True), Probe(1.0, 5.0, False)],
        )
        self.assertEqual(found.waits["acme"], Spread(3, 2.0, 5.0, 5.0))
        self.assertEqual(found.waits["bravo"], Spread(2, 3.5, 6.0, 6.0))
        self.assertEqual(found.most, {"": 3, "acme": 2, "bravo": 2})
        self.assertEqual(found.submitted, 8)
        self.assertEqual((found.at_the_wall, found.sick), (1, 1))
        shown = found.as_json()
        self.assertEqual(shown["limits"], 7)
        self.assertEqual(shown["health"], {"count": 2, "p50": 0.1, "p95": 5.0, "max": 5.0})
        self.assertEqual(shown["mostInFlight"], 3)

    def test_nothing_at_all(self) -> None:
        """
        An empty replay has an empty report.
        """
        found = report([], speed=1.0, seconds=0.0, limits={}, refused={})
        self.assertEqual((found.submitted, found.most, found.health), (0, {"": 0}, None))
