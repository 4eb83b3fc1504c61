"""
Alert rules and dashboard speak of metrics that exist.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from crq.config import Config, MetricsOptions
from tests.door import Door
from tests.unit.test_web_parts import door_of

MONITORING = Path(__file__).resolve().parent.parent.parent / "deploy" / "monitoring"
NAME = re.compile(r"\bcrqueue_[a-z_]+\b")


class MonitoringTests(SynchronousTestCase):
    """
    What we ship for Prometheus and Grafana.
    """

    def setUp(self) -> None:
        """
        Every series that a daemon has.
        """
        made = Door()
        self.addCleanup(made.close)
        made.submit()
        behind = door_of(made)
        options = MetricsOptions(accounts=True)
        behind.config = Config(metrics=options, tokens=behind.config.tokens)
        text = made.ask("GET", "/metrics").body.decode()
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
        self.names = {sample.name for sample in self.samples}

    def rules(self) -> list[dict[str, Any]]:
        """
        The alerts.
        """
        (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
        found: list[dict[str, Any]] = group["rules"]
        return found

    def test_alerts_ask_for_what_exists(self) -> None:
        """
        Every series by its name, and every value of a label that is asked for.
        """
        labels = {(key, value) for s in self.samples for key, value in s.labels.items()}
        for rule in self.rules():
            for name in NAME.findall(rule["expr"]):
                self.assertIn(name, self.names, rule["alert"])
            for key, value in re.findall(r'(\w+)="([^"]*)"', rule["expr"]):
                if key != "job":
                    self.assertIn((key, value), labels, rule["alert"])

    def test_each_alert_has_a_severity_a_text_and_a_runbook(self) -> None:
        """
        The runbook is a heading of docs/operating.md.
        """
        page = (MONITORING.parent.parent / "docs" / "operating.md").read_text()
        anchors = {
            re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
            for heading in re.findall(r"(?m)^#+ (.*)$", page)
        }
        for rule in self.rules():
            self.assertIn(rule["labels"]["severity"], ("critical", "warning"))
            self.assertTrue(rule["annotations"]["summary"])
            where, _, anchor = rule["annotations"]["runbook_url"].partition("#")
            self.assertEqual((where, anchor), ("docs/operating.md", rule["alert"].lower()))
            self.assertIn(anchor, anchors)

    def test_each_alert_is_tested(self) -> None:
        """
        The unit tests that promtool runs name each.
        """
        tested = (MONITORING / "alerts_test.yml").read_text()
        for rule in self.rules():
            self.assertIn(f"alertname: {rule['alert']}\n        exp_alerts:", tested)

    def test_the_dashboard_shows_what_exists(self) -> None:
        """
        Every query asks for series that a daemon has; and every metric but histograms' sums and
        those of Python's client is on it.
        """
        dashboard = json.loads((MONITORING / "dashboard.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        queries += [note["expr"] for note in dashboard["annotations"]["list"]]
        queries += [each["query"] for each in dashboard["templating"]["list"]]
        shown = {name for query in queries for name in NAME.findall(query)}
        self.assertLessEqual(shown, self.names)
        ids = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
