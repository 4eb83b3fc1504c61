"""
docs/incident.md shows what was measured, and its plot is a picture.
"""

from __future__ import annotations

import json
from xml.etree import ElementTree

from click import ClickException
from twisted.trial.unittest import SynchronousTestCase

from benchmarks import incident
from benchmarks.plot import Band, figure


class IncidentTests(SynchronousTestCase):
    """
    The page against the figures beside it.
    """

    def test_the_page_shows_the_figures(self) -> None:
        """
        Table, waits and plot are made from docs/incident.json as it is.
        """
        found = json.loads(incident.FIGURES.read_text("utf-8"))
        page = incident.PAGE.read_text("utf-8")
        self.assertIn(incident.table(found), page)
        self.assertIn(incident.waits(found["queue"]), page)
        self.assertEqual(incident.PLOT.read_text("utf-8"), incident.plot(found))

    def test_what_was_to_be_shown_is_in_the_figures(self) -> None:
        """
        Through crqueue: the shared pool untouched, the health check within twice its idle figure,
        and nothing dies at the wall; inline: the outage.
        """
        found = json.loads(incident.FIGURES.read_text("utf-8"))
        queue, inline = found["queue"], found["inline"]
        self.assertEqual((queue["speed"], inline["speed"]), (1.0, 1.0))
        self.assertEqual(queue["requests"], inline["requests"])
        self.assertEqual((queue["diedAtTheWall"], queue["refused"]), (0, {}))
        self.assertEqual(queue["done"], queue["requests"])
        self.assertEqual((queue["wwwCeilingReached"], queue["scriptsCeilingReached"]), (0, 0))
        self.assertLessEqual(queue["mostInFlight"], 4)
        self.assertEqual(queue["healthFailed"], 0)
        self.assertLessEqual(queue["health"]["p95"], 2 * queue["healthIdle"]["p95"])
        self.assertGreater(inline["diedAtTheWall"], 100)
        self.assertEqual(inline["wwwMostBusy"], 40)
        self.assertGreater(inline["health"]["p95"], 60)

    def test_marks_on_the_page_are_needed(self) -> None:
        """
        Only what stands between two marks is replaced.
        """
        page = "a\n<!-- x -->\nold\n<!-- end of the x -->\nb"
        put = incident.put(page, "x", "new")
        self.assertEqual(put, "a\n<!-- x -->\nnew\n<!-- end of the x -->\nb")
        self.assertRaises(ClickException, incident.put, page, "y", "new")


class PlotTests(SynchronousTestCase):
    """
    `benchmarks.plot`.
    """

    def test_a_figure_is_sound_and_in_its_frame(self) -> None:
        """
        It is XML, titles are escaped, and no point lies outside of its band.
        """
        linear = Band("a < b & c", 40, {"one": [(0, 0), (60, 99)], "two": [(30, 20)]})
        points = Band(
            "health", 300, {"one": [(0, 0.0), (60, 9999)]}, logarithmic_from=0.001, dots=True
        )
        root = ElementTree.fromstring(figure("<title>", 60, (linear, points)))
        name = "{http://www.w3.org/2000/svg}"
        self.assertEqual(len(root.findall(f"{name}polyline")), 2)
        self.assertEqual(len(root.findall(f"{name}circle")), 2)
        self.assertEqual(linear.height(99), 1.0)
        self.assertEqual((points.height(0.0), points.height(9999)), (0.0, 1.0))
        self.assertAlmostEqual(points.height(0.01), 0.1826, places=3)

    def test_an_axis_without_a_top_takes_a_round_number(self) -> None:
        """
        Above the highest value, and never nothing.
        """
        for highest, ceiling in ((7, 10), (10, 10), (11, 20), (93, 100), (0.3, 0.5), (200, 200)):
            self.assertEqual(Band("x", None, {"one": [(0, highest), (1, 0)]}).ceiling(), ceiling)
        self.assertEqual(Band("x", None, {"one": []}).ceiling(), 1)
        self.assertEqual(Band("x", None, {"one": [(0, 0)]}).marks(), [0, 0.5, 1])
