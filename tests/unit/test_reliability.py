"""
docs/reliability.md: what it says is tested is tested.
"""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

TESTS = Path(__file__).resolve().parent.parent
PAGE = TESTS.parent / "docs" / "reliability.md"


class PageTests(SynchronousTestCase):
    """
    Names on the page, against the code of the tests.
    """

    def test_every_test_that_is_named_exists(self) -> None:
        """
        Each name of a test, and each file of tests, on the page is there.
        """
        known = {
            name
            for path in TESTS.rglob("test_*.py")
            for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))
        }
        text = PAGE.read_text("utf-8")
        self.assertEqual(sorted(set(re.findall(r"`(test_\w+)`", text)) - known), [])
        for name in re.findall(r"`(tests/[\w/]+\.py)`", text):
            self.assertTrue((TESTS.parent / name).exists(), name)

    def test_every_rule_has_a_test(self) -> None:
        """
        No row of the tables of dependencies and of hostile callers is without one.
        """
        _, _, rest = PAGE.read_text("utf-8").partition("## Dependencies")
        rows = [line for line in rest.splitlines() if line.startswith("| ")]
        rules = [row for row in rows if not row.startswith(("| what", "| figure"))]
        self.assertGreater(len(rules), 30)
        untested = [row for row in rules if row.count("|") > 4 and "`test_" not in row]
        self.assertEqual(untested, [])
