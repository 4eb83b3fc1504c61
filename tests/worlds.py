"""
The world around the processes of an installation: their wall clock, and what names lead to.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.installation import CHECKOUT, Installation
from tests.servers import HOST

HERE = CHECKOUT / "tests" / "world"


class World:
    """
    Whatever of the installation is started after this lives in it.
    """

    def __init__(self, installation: Installation) -> None:
        self._directory = installation.directory / "world"
        self._directory.mkdir()
        self.step(0)
        self.resolve()
        variables = {
            "PYTHONPATH": f"{HERE}:{CHECKOUT}",
            "CRQUEUE_TEST_WORLD": str(self._directory),
        }
        for name in ("daemon", "executor"):
            installation.environment.setdefault(name, {}).update(variables)

    def step(self, seconds: float) -> None:
        """
        Let the wall clock go so far ahead of the real one; at once, in every process.
        """
        self._write("step", str(seconds))

    def resolve(self, *names: str) -> None:
        """
        Let these names lead to this host, and no other that ends in ``.test`` to any.
        """
        self._write("hosts", json.dumps(dict.fromkeys(names, HOST)))

    def _write(self, name: str, text: str) -> None:
        # Whoever reads meanwhile reads the old or the new text, never half of one.
        path: Path = self._directory / name
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)
