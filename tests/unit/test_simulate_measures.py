"""
Figures and curves of a simulation.
"""

from __future__ import annotations

from xml.etree import ElementTree

from twisted.trial.unittest import SynchronousTestCase

from crq.simulate.measures import Curve, Level, Measures, percentile
from crq.simulate.plot import line, svg


class MeasuresTests(SynchronousTestCase):
    """
    `crq.simulate.measures`.
    """

    def test_percentiles(self) -> None:
        """
        A percentile is one of the values: the smallest that so many do not exceed.
        """
        values = [float(n) for n in range(1, 101)]
        self.assertEqual([percentile(values, share) for share in (0.5, 0.95, 1.0)], [50, 95, 100])
        self.assertEqual(percentile([7.0], 0.95), 7.0)
        self.assertEqual(percentile([], 0.5), 0.0)

    def test_waits(self) -> None:
        """
        Waits are told by account, of the greatest first, and of the worst hour apart; an hour with
        few arrivals says nothing.
        """
        measures = Measures()
        for number in range(40):
            # Twenty in the first hour wait 1 s, ten in the second 100 s; small hours are quiet.
            at = 10.0 * number if number < 20 else 3600.0 + number if number < 30 else 7200.0
            measures.arrived(number, "big" if number < 30 else "small", at)
            measures.started(number, at + (1 if number < 20 else 100 if number < 30 else 5))
        measures.arrived(99, "big", 20_000.0)
        measures.started(99, 20_500.0)
        waits = measures.waits()
        self.assertEqual(list(waits), ["big", "small"])
        big = waits["big"]
        self.assertEqual((big.count, big.p50, big.p95, big.max), (31, 1.0, 100.0, 500.0))
        self.assertEqual(big.p95_worst_hour, 100.0)
        self.assertEqual(measures.everybody().count, 41)

    def test_outcomes(self) -> None:
        """
        Ends are counted by their code, and the last one is known.
        """
        measures = Measures()
        for code, at in ((None, 3.0), (301, 9.0), (301, 5.0)):
            measures.ended(code, at)
        self.assertEqual((measures.outcomes, measures.last), ({"success": 1, "301": 2}, 9.0))

    def test_a_level(self) -> None:
        """
        A level has a mean over time and knows how long it was at each height.
        """
        level = Level()
        level.set(2, 10.0)
        level.set(4, 15.0)
        level.set(0, 20.0)
        level.end(40.0)
        self.assertEqual(level.spent, {0: 30.0, 2: 5.0, 4: 5.0})
        self.assertEqual((level.most, level.mean()), (4, 0.75))

    def test_a_curve(self) -> None:
        """
        A curve shows the highest of each part, also what lasted for an instant only.
        """
        level = Level()
        level.set(2, 10.0)
        level.set(9, 55.0)
        level.set(1, 55.1)
        level.set(0, 70.0)
        self.assertEqual(level.curve(100.0, 10).most, (0, 2, 2, 2, 2, 9, 1, 1, 0, 0))
        self.assertEqual(Level().curve(0.0, 3).most, (0, 0, 0))


class PlotTests(SynchronousTestCase):
    """
    `crq.simulate.plot`.
    """

    def test_a_line(self) -> None:
        """
        A line has a character for each part, the highest block for the highest, a blank for none.
        """
        self.assertEqual(line(Curve(60.0, (0, 1, 4, 8)), 4), " ▂▅█")
        self.assertEqual(line(Curve(60.0, (0, 1, 0, 8)), 2), "▂█")
        self.assertEqual(line(Curve(60.0, (0, 0)), 2), "  ")

    def test_a_picture(self) -> None:
        """
        A picture is well-formed, has a line for each curve and says which is which, whatever names
        they have.
        """
        curves = [("a <b> & c", Curve(900.0, (0, 5, 3))), ("other", Curve(450.0, (1, 1, 10)))]
        picture = ElementTree.fromstring(svg([("waiting", curves), ("running", curves)]))
        found = picture.findall("{http://www.w3.org/2000/svg}polyline")
        self.assertEqual(len(found), 4)
        texts = [each.text for each in picture.findall("{http://www.w3.org/2000/svg}text")]
        for text in ("waiting", "running", "a <b> & c", "other", "10", "15 min"):
            self.assertIn(text, texts)
        # The shorter one ends half-way; the highest value of all reaches the top.
        points = [point.split(",") for point in (found[1].get("points") or "").split()]
        self.assertEqual(float(points[-1][1]), 40.0)
        self.assertLess(float(points[-1][0]), 500.0)
