"""
Chromium without a screen, driven as a person would: open, read, click, fill in, press keys.
"""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.processes import SEARCH_PATH

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)
WITHIN = 8.0  # s


class Browser:
    """
    One browser with an empty profile.
    """

    def __init__(self, profile: Path, url: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = _program("chromium")
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=_program("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.driver.quit()

    def sign_in(self, token: str) -> None:
        self.driver.delete_all_cookies()
        self.open("/ui/login")
        self.fill("#token", token)
        self.click("main button")
        self.until(lambda: self.path() == "/ui")

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def path(self) -> str:
        return self.driver.current_url.removeprefix(self.url)

    def find(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str = "main") -> str:
        (text,) = self.texts(css)[:1]
        return text

    def texts(self, css: str) -> list[str]:
        """
        What is seen of each such element, read at once: the page exchanges parts of itself.
        """
        script = "return [...document.querySelectorAll(arguments[0])].map(each => each.innerText)"
        return [str(each) for each in self.run(script, css)]

    def link(self, text: str) -> WebElement:
        return self.driver.find_element(By.LINK_TEXT, text)

    def fill(self, css: str, text: str) -> None:
        field = self.find(css)
        field.clear()
        field.send_keys(text)

    def click(self, css: str) -> None:
        """
        Click, and wait for the page that comes.
        """
        self.go(lambda: self.find(css).click())

    def press(self, xpath: str) -> None:
        """
        The same with what an XPath finds.
        """
        self.go(lambda: self.driver.find_element(By.XPATH, xpath).click())

    def go(self, step: Callable[[], object]) -> None:
        """
        Do something that leads to another page, and wait for it.
        """
        self.run("window.stale = true")
        try:
            step()
        except StaleElementReferenceException:  # exchanged between finding and clicking
            step()
        self.until(lambda: self.run("return !window.stale && document.readyState == 'complete'"))

    def keys(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def tab_to(self, wanted: Callable[[WebElement], bool], most: int = 80) -> WebElement:
        """
        Press Tab until the focus is on what is wanted.
        """
        for _ in range(most):
            self.keys(Keys.TAB)
            element = self.driver.switch_to.active_element
            if wanted(element):
                return element
        raise AssertionError(f"not reached by {most} presses of Tab")

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def until(self, holds: Callable[[], Any]) -> None:
        """
        Wait until something holds.
        """
        ends = time.monotonic() + WITHIN
        while not holds():
            assert time.monotonic() < ends, f"not within {WITHIN:g} s, on {self.path()}"
            time.sleep(0.02)

    def size(self, width: int, height: int, touch: bool = False) -> None:
        """
        Make the window that large, inside.
        """
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def dark(self, on: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def scripts(self, on: bool) -> None:
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not on})

    def shoot(self, name: str) -> None:
        """
        Take a picture of the whole page.
        """
        picture = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True}
        )
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(picture["data"]))

    def complaints(self) -> list[str]:
        """
        What the browser has complained of since it was last asked: blocked scripts, missing files.
        """
        return [entry["message"] for entry in self.driver.get_log("browser")]


def _program(name: str) -> str:
    path = shutil.which(name, path=SEARCH_PATH)
    assert path is not None, f"{name} is missing; `make servers` installs it"
    return path
