"""
docs/operating.md explains every word that an operator may meet.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from crq.config import SCOPES, Config, MetricsOptions
from crq.explanation import Rule
from crq.model import ErrorCode
from crq.verdict import Verdict
from crq.web import problems
from tests.door import Door
from tests.unit.test_web_parts import door_of

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "operating.md").read_text("utf-8")


def actions() -> Iterator[tuple[str, str]]:
    """
    Each word that a log line of the queue may have as its action, and where.
    """
    for path in sorted((ROOT / "crq").rglob("*.py")):
        if "automations" in path.parts:  # these have a page of their own
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            values = [each.value for each in node.keywords if each.arg == "action"]
            if isinstance(node.func, ast.Name) and node.func.id == "Outage":
                values += node.args[3:5]  # the lines of the beginning and of the end
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value.replace(" ", "_"), path.name


class PageTests(SynchronousTestCase):
    """
    The page against the code.
    """

    def test_every_log_action(self) -> None:
        """
        As the log writes it.
        """
        found = dict(actions())
        self.assertGreater(len(found), 20)
        missing = {word: where for word, where in found.items() if f"`{word}`" not in PAGE}
        self.assertEqual(missing, {})

    def test_every_metric(self) -> None:
        """
        By the name that Prometheus asks for.
        """
        made = Door()
        self.addCleanup(made.close)
        made.submit()
        behind = door_of(made)
        behind.config = Config(metrics=MetricsOptions(accounts=True), tokens=behind.config.tokens)
        text = made.ask("GET", "/metrics").body.decode()
        for family in text_string_to_metric_families(text):
            name = family.name + ("_total" if family.type == "counter" else "")
            self.assertRegex(PAGE, rf"`{name}[`{{]")

    def test_every_alert(self) -> None:
        """
        Each has a section.
        """
        rules = (ROOT / "deploy" / "monitoring" / "alerts.yml").read_text("utf-8")
        for name in re.findall(r"- alert: (\w+)", rules):
            self.assertIn(f"\n### {name}\n", PAGE)

    def test_every_verdict_rule_code_problem_and_scope(self) -> None:
        """
        All closed sets that reach people.
        """
        words = [
            *(f"| `{word.value}` |" for word in (*Verdict, *Rule)),
            *(f"`{kind.uri}`" for kind in problems.ALL),
            *(f"| `{scope}` |" for scope in SCOPES),
        ]
        for word in words:
            self.assertIn(word, PAGE)
        for code in ErrorCode:
            self.assertRegex(PAGE, rf"\| ([0-9]+, )?{int(code)}[ ,]")
