"""
One site for the tests that leave it as they found it; others start one of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.site import Site, WorkingApi
from tests.servers import MariaDB, Memcached


@pytest.fixture(scope="package")
def api() -> Iterator[WorkingApi]:
    """
    The API that the scripts of the site call.
    """
    with WorkingApi() as started:
        yield started


@pytest.fixture(scope="package")
def site(mariadb: MariaDB, memcached: Memcached, api: WorkingApi) -> Iterator[Site]:
    """
    A running site with nothing to do; each test takes accounts and keys of its own.
    """
    with Site(mariadb, memcached, "acceptance", api=api) as started:
        yield started
        # At the very end, over all tests on this site: neither ceiling was ever reached.
        for pool in ("codeRunner", "www"):
            assert started.apache.status(pool)["max children reached"] == 0
