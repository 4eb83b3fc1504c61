"""
One world and one browser for all tests of the pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.driving import Browser
from tests.browser.world import World, world


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """
    A queue with something of everything in it, and its daemon.
    """
    with world(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory, shown: World) -> Iterator[Browser]:
    """
    The browser; `browser` is what a test asks for.
    """
    with Browser(tmp_path_factory.mktemp("profile"), shown.url) as made:
        yield made


@pytest.fixture
def browser(chromium: Browser, shown: World) -> Iterator[Browser]:
    """
    The browser, signed in with a token that may do everything; it must have nothing to complain of.
    """
    chromium.size(1280, 900)
    if not chromium.driver.get_cookies():
        chromium.sign_in(shown.token)
    chromium.complaints()
    yield chromium
    assert chromium.complaints() == []


@pytest.fixture(scope="session", autouse=True)
def _screenshots() -> None:
    Path("build/screenshots").mkdir(parents=True, exist_ok=True)
