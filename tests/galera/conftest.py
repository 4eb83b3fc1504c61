"""
One cluster for the whole group; without Galera the group is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.galera.cluster import Cluster, library
from tests.servers import ServerMissing


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """
    Three nodes that are one; a test that takes one away brings it back.
    """
    if request.config.getoption("--engine") == "sqlite":
        pytest.skip("--engine leaves MariaDB out")
    try:
        library()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with Cluster() as made:
        yield made
