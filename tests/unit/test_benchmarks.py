"""
What benchmarks print, around a benchmark that measures nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from benchmarks import __main__ as command_line
from benchmarks.processes import cpu_seconds, resident_mb
from benchmarks.report import Figure, Measured, Stage, machine, report


def _measure(stage: Stage, **options: Any) -> Measured:
    """
    Nothing, quickly. But it says what it was given.
    """
    stage("half", 1, 2)
    numbers = {name: value for name, value in options.items() if isinstance(value, int)}
    figures = {name: Figure(value, "rows") for name, value in numbers.items()}
    return Measured({**figures, "seconds": Figure(1 / 3, "s")}, {"mariadb": "10.11"})


class CommandLine(SynchronousTestCase):
    """
    ``python -m benchmarks``.
    """

    def run_with(self, *arguments: str) -> str:
        fakes = dict.fromkeys(command_line.BENCHMARKS, _measure)
        with patch.object(command_line, "BENCHMARKS", fakes):
            result = CliRunner().invoke(command_line.main, arguments)
        self.assertEqual(result.exit_code, 0, result.output)
        return result.stdout

    def test_json_is_one_object(self) -> None:
        """
        With --json a benchmark prints exactly one object of the agreed form, and nothing else.
        """
        found: dict[str, Any] = json.loads(self.run_with("claim", "--json", "--rows", "5000"))
        self.assertEqual(list(found), ["benchmark", "at", "machine", "versions", "figures"])
        self.assertEqual(found["benchmark"], "claim")
        self.assertRegex(found["at"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")
        self.assertEqual(found["figures"]["rows"], {"value": 5000, "unit": "rows"})
        self.assertEqual(found["figures"]["seconds"], {"value": 0.3333, "unit": "s"})
        self.assertEqual(found["versions"]["mariadb"], "10.11")
        self.assertIn("python", found["versions"])
        self.assertGreaterEqual(found["machine"]["load_before"], 0)

    def test_a_table_for_people(self) -> None:
        """
        Without --json there is a table with the figure, its value and its unit.
        """
        self.assertRegex(self.run_with("drain", "--count", "20"), r"count\W+20\W+rows")

    def test_all_into_a_file(self) -> None:
        """
        `all --json FILE` writes the objects of all benchmarks into the file, in order.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "out.json"
            self.assertEqual(self.run_with("all", "--json", str(path)), "")
            found = json.loads(path.read_text())
        self.assertEqual([each["benchmark"] for each in found], list(command_line.BENCHMARKS))

    def test_without_a_name_they_are_listed(self) -> None:
        """
        Without a name each benchmark is listed with what it measures.
        """
        listed = CliRunner().invoke(command_line.main, []).output.splitlines()
        names = [*command_line.BENCHMARKS, "all", "compare", *command_line.PROOFS]
        self.assertEqual([line.split()[0] for line in listed], names)
        self.assertTrue(all(len(line.split()) > 3 for line in listed))


class Comparison(SynchronousTestCase):
    """
    ``python -m benchmarks compare``.
    """

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()

    def file(self, name: str, *reports: dict[str, Any]) -> str:
        path = self.folder / name
        path.write_text(json.dumps(reports if len(reports) > 1 else reports[0]))
        return str(path)

    def report(self, name: str, **figures: float) -> dict[str, Any]:
        found = {each: Figure(value, "ms") for each, value in figures.items()}
        return report(name, Measured(found, {"mariadb": "10.11"}), 0.0, 0.5)

    def compare(self, *files: str) -> tuple[int, str]:
        result = CliRunner(env={"COLUMNS": "120"}).invoke(command_line.main, ["compare", *files])
        return result.exit_code, result.output

    def test_figures_stand_side_by_side(self) -> None:
        """
        Each figure has both values and their ratio; one that only one file has is shown as such.
        """
        before = self.file("a", self.report("x", p50=8.0, gone=1.0), self.report("y", n=1.0))
        after = self.file("b", self.report("x", p50=4.0, new=2.0))
        code, output = self.compare(before, after)
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"x\W+p50\W+8\W+4\W+0\.50\W+ms")
        self.assertRegex(output, r"gone\W+1 [^\n]* - ")
        self.assertRegex(output, r"new[^\n]* - \W+2 ")
        self.assertRegex(output, r"y\W+n\W+1 ")

    def test_other_versions_are_named(self) -> None:
        """
        Figures of different machines or versions are not compared without a word.
        """
        later = self.report("x", p50=4.0)
        later["versions"]["mariadb"] = "11.8"
        files = self.file("a", self.report("x", p50=8.0)), self.file("b", later)
        self.assertIn("x: mariadb 10.11 before, 11.8 after", self.compare(*files)[1])

    def test_a_file_that_is_no_report_is_refused(self) -> None:
        """
        The error names the file, says what is wrong and what to do.
        """
        good = self.file("a", self.report("x", p50=8.0))
        for text in (
            "{",
            "[]x",
            '{"benchmark": "x"}',
            "[1]",
            '{"benchmark":"x","figures":{"a":1}}',
        ):
            bad = self.folder / "bad"
            bad.write_text(text)
            code, output = self.compare(good, str(bad))
            self.assertEqual(code, 1, output)
            self.assertIn("bad: no report of a benchmark", output.replace("\n", ""))
        code, output = self.compare(good, str(self.folder / "missing"))
        self.assertEqual(code, 1)


class Report(SynchronousTestCase):
    """
    `benchmarks.report` and `benchmarks.processes`.
    """

    def test_the_machine_is_described_and_not_named(self) -> None:
        """
        A report says what the machine is like; it carries no host name and no address.
        """
        self.assertEqual(list(machine()), ["cpu", "cores", "memory_gb", "system"])
        self.assertGreaterEqual(machine()["cores"], 1)

    def test_counts_stay_whole(self) -> None:
        """
        A count is printed as a whole number, a measured value with four decimals.
        """
        figures = report("x", Measured({"n": Figure(115.0, "rows")}, {}), 0.0, 0.0)["figures"]
        self.assertEqual(json.dumps(figures["n"]["value"]), "115")

    def test_a_process_is_measured(self) -> None:
        """
        CPU time grows with work, and memory is read in MB.
        """
        before = cpu_seconds(os.getpid())
        while cpu_seconds(os.getpid()) < before + 0.02:
            sum(range(10_000))
        self.assertTrue(5 < resident_mb(os.getpid()) < 10_000)
