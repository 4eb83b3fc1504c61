"""
PHP from the command line: what it writes into memcached, and what it makes of what we write.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.acceptance.parts import PHP
from tests.servers import _program

HERE = Path(__file__).resolve().parent


def run_php(name: str, *arguments: object, **settings: object) -> Any:
    """
    Run a script of this directory, or of deploy/php, and read the JSON that it prints.

    :param settings: of php.ini; ``memcached__serializer`` is memcached.serializer.
    """
    options = [
        part
        for key, value in settings.items()
        for part in ("-d", f"{key.replace('__', '.')}={value}")
    ]
    found = subprocess.run(
        [_program("php"), *options, str(HERE / name), str(PHP), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, (found.returncode, found.stdout + found.stderr)
    assert found.stderr == "", found.stderr
    return json.loads(found.stdout)
