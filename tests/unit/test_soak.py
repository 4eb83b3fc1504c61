"""
The soak's schedule replays, and its judgement finds what is wrong.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from benchmarks import pages
from benchmarks.report import Figure, Measured, report
from benchmarks.soak import gatewatch, schedule
from benchmarks.soak.judge import outcomes
from benchmarks.soak.works import Works
from crq import script
from crq.instants import instant_of
from crq.invariants import Change

NOON = "2026-03-02 12:00:00.000"
AT_NOON = instant_of(NOON)


class ScheduleTests(SynchronousTestCase):
    """
    `benchmarks.soak.schedule`.
    """

    def test_a_seed_replays(self) -> None:
        """
        The same seed gives the same actions and submissions, another one others; a longer soak
        begins as a shorter one does.
        """
        short, long = ([*schedule.actions(7, seconds, True)] for seconds in (60, 600))
        self.assertEqual(long[: len(short)], short)
        self.assertNotEqual([*schedule.actions(8, 60, True)], short)
        self.assertEqual(schedule.work(7, 3), schedule.work(7, 3))
        self.assertNotEqual(schedule.work(8, 3).source_code, schedule.work(7, 3).source_code)

    def test_everything_happens(self) -> None:
        """
        An hour has every kind of action, in order, and each is something that can be done.
        """
        hour = [*schedule.actions(1, 3600, True)]
        self.assertEqual({each.kind for each in hour}, set(schedule.kinds(True)))
        self.assertEqual([each.at for each in hour], sorted(each.at for each in hour))
        for kind in schedule.kinds(True):
            self.assertTrue(hasattr(Works, "_" + kind.replace(" ", "_")), kind)
        many = {each.kind for each in schedule.actions(1, 3600, True, True)}
        self.assertEqual(many, set(schedule.kinds(True, True)))
        for kind in schedule.SEVERAL:
            self.assertTrue(hasattr(Works, "_" + kind.replace(" ", "_")), kind)
        without = {each.kind for each in schedule.actions(1, 3600, False)}
        self.assertEqual(without, set(schedule.KILLS | schedule.FAULTS))

    def test_submissions_are_what_they_say(self) -> None:
        """
        Every script parses, has the effects it says, and all accounts, keys and ends occur.
        """
        works = [schedule.work(1, number) for number in range(400)]
        for each in works:
            script.parse(each.source_code)
            self.assertEqual(each.source_code.count("/effects/"), each.steps)
        self.assertEqual({each.code for each in works}, {None, 301})
        lanes = Counter((each.account, each.key) for each in works)
        self.assertEqual(len(lanes), len(schedule.ACCOUNTS) * schedule.KEYS)


class JudgementTests(SynchronousTestCase):
    """
    What counts as a violation.
    """

    def row(self, number: int, **more: Any) -> dict[str, Any]:
        one = schedule.work(1, number)
        return {
            "identifier": one.identifier,
            "status": "failed" if one.code else "success",
            "error_code": one.code,
            **more,
        }

    def test_outcomes(self) -> None:
        """
        A script ends as it does by itself or as unknown; any other end is wrong.
        """
        rows = [self.row(number) for number in range(50)]
        self.assertEqual(outcomes(rows, 1), [])
        self.assertEqual(outcomes([self.row(1, status="failed", error_code=303)], 1), [])
        for code in (106, 113, 302):
            self.assertEqual(len(outcomes([self.row(1, error_code=code)], 1)), 1)
        failing = next(n for n in range(100) if schedule.work(1, n).code)
        self.assertEqual(len(outcomes([self.row(failing, error_code=None)], 1)), 1)

    def test_gates(self) -> None:
        """
        A claim is wrong while its key's gate has been seen closed; not before that, not after it
        has opened, not for another key, and not once the store has lost it.
        """
        watch = object.__new__(gatewatch.GateWatch)
        gate = gatewatch.Closed(AT_NOON, AT_NOON + 10)
        watch._seen = {"key": [gate]}

        def wrong(second: int, key: str = "key") -> int:
            claimed = f"2026-03-02 12:00:{second:02}.000"
            one = Change(1, 1, "acme", key, "queued", "claimed", 1, NOON, claimed, AT_NOON)
            return len(watch.problems([one]))

        self.assertEqual([wrong(0), wrong(5), wrong(9), wrong(10)], [0, 1, 1, 0])
        self.assertEqual(wrong(5, "another"), 0)
        gate.until = AT_NOON + 4
        self.assertEqual(wrong(5), 0)


class PagesTests(SynchronousTestCase):
    """
    `benchmarks.pages`.
    """

    def test_only_what_is_between_the_markers_changes(self) -> None:
        """
        A section is replaced, as often as one likes; what stands around it stays.
        """
        with TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            page.write_text("a\n<!-- one: begin -->\nold\n<!-- one: end -->\nb\n")
            for text in ("new\n\nlines", "newer"):
                pages.put("one", text, page)
                self.assertEqual(
                    page.read_text(), f"a\n<!-- one: begin -->\n{text}\n<!-- one: end -->\nb\n"
                )
            with self.assertRaisesRegex(ValueError, "no markers of the section 'two'"):
                pages.put("two", "text", page)

    def test_figures(self) -> None:
        """
        Figures are a table for people, with the machine and the versions.
        """
        made = report("soak", Measured({"most_at_once": Figure(4, "scripts")}, {}), 0.0, 0.0)
        self.assertIn("| most at once | 4 | scripts |", pages.figures(made))
        self.assertIn("1970-01-01", pages.figures(made))

    def test_the_page_has_its_sections(self) -> None:
        """
        docs/reliability.md has the markers of every section that a command writes.
        """
        text = pages.RELIABILITY.read_text("utf-8")
        for section in ("crash matrix", "soak on mariadb", "soak on sqlite"):
            for end in ("begin", "end"):
                self.assertEqual(text.count(f"<!-- {section}: {end} -->"), 1, section)
