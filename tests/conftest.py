"""
What every test may ask for: private servers, started when first used and shared by the whole run.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import greenlet
import pytest

from tests.house import LIVING
from tests.servers import MariaDB, Memcached


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=("sqlite", "mariadb", "both"),
        default="both",
        help="the databases that the store is tested on (default: both)",
    )


def pytest_configure() -> None:
    # Ctrl-C while a test waits on the reactor would be raised inside the reactor, which logs it and
    # goes on. It is meant for pytest, which runs in the greenlet that we are in now.
    runner = greenlet.getcurrent()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if greenlet.getcurrent() is not runner:
            runner.throw(KeyboardInterrupt)
            # Here pytest is done and only waits for the reactor to end; a test may still be asleep.
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


@pytest.fixture(autouse=True)
def _no_house_outlives_its_test() -> Iterator[None]:
    yield
    while LIVING:
        LIVING.pop().kill()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """
    A running MariaDB; a test that stops it starts it again, or better starts one of its own.
    """
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def memcached() -> Iterator[Memcached]:
    """
    A running memcached; the same holds.
    """
    with Memcached() as server:
        yield server
