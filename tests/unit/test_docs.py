"""
The documentation says what is true.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from crq import configfile

ROOT = Path(__file__).resolve().parent.parent.parent


class DocsTests(SynchronousTestCase):
    """
    Pages against the code.
    """

    def test_the_configuration_page_is_the_code(self) -> None:
        """
        docs/configuration.md is what scripts/configuration.py makes of the code now.
        """
        self.patch(sys, "path", [str(ROOT / "scripts"), *sys.path])
        configuration = importlib.import_module("configuration")

        self.assertEqual(configuration.PAGE.read_text("utf-8"), configuration.text())

    def test_the_shipped_configuration_loads(self) -> None:
        """
        deploy/crqueue.toml has no unknown option and no impossible combination.
        """
        config = configfile.load(str(ROOT / "deploy" / "crqueue.toml"), {})
        self.assertEqual(config.gates.backend, "memcached")
        self.assertEqual(config.executor.workers, 2 * config.limits.in_flight)

    def test_links_lead_somewhere(self) -> None:
        """
        Every relative link of a page leads to a file of the project.
        """
        for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
                self.assertTrue((page.parent / target).exists(), f"{page.name}: {target}")

    def test_every_module_is_on_the_map(self) -> None:
        """
        The README's map of modules names each module and package of crq.
        """
        text = (ROOT / "README.md").read_text("utf-8")
        for path in sorted((ROOT / "crq").iterdir()):
            if (path.suffix == ".py" and path.stem != "__init__") or (
                path / "__init__.py"
            ).exists():
                self.assertIn(f"`{path.stem}`", text)
