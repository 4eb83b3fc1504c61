"""
An automation in a real browser: declared, previewed, observed, run, promoted, demoted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from crq.database import Cursor
from crq.instants import instant_text
from tests.browser.driving import Browser
from tests.browser.world import ALL_OF_IT
from tests.installation import Installation
from tests.worlds import World as Clock

TENANT = "mu"
OLD = 5  # executions that are to be deleted
DAY = 86_400.0  # s
NAME = "<img src=x onerror=document.title='owned'>"


class Office:
    """
    A daemon of its own, whose clock a test can put forward, and old executions of one account.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.clock = Clock(installation)
        self.minutes = 0
        self.database = installation.config.open_database()
        self.connection = self.database.connect()
        self.database.transact(self.connection, self._store, time.time() - 40 * DAY)

    def _store(self, txn: Cursor, ended: float) -> None:
        account = self.installation.config.sealer().account(TENANT)
        for number in range(OLD):
            txn.execute(
                "INSERT INTO codeRunner_executions (subdomain, subdomain_hash, status, queued_at,"
                " started_at, finished_at) VALUES (?, ?, 'success', ?, ?, ?)",
                (TENANT, account, *[instant_text(ended + number + each) for each in range(3)]),
            )

    def value(self, sql: str) -> Any:
        """
        What one SELECT says.
        """
        return self.database.read(self.connection, lambda txn: txn.execute(sql).scalar())

    def left(self) -> int:
        """
        How many executions there are.
        """
        return int(self.value("SELECT COUNT(*) FROM codeRunner_executions"))

    def minute(self) -> None:
        """
        Let the daemon's next minute begin.
        """
        self.minutes += 1
        self.clock.step(60 * self.minutes)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """
    The daemon.
    """
    with Installation(tmp_path_factory.mktemp("office")) as installation:
        made = Office(installation)
        installation.start_daemon()
        yield made
        made.connection.close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory, office: Office) -> Iterator[Browser]:
    """
    A browser of its own, signed in.
    """
    url = f"http://127.0.0.1:{office.installation.web_port}"
    with Browser(tmp_path_factory.mktemp("office-profile"), url) as made:
        made.sign_in(office.installation.token)
        yield made


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """
    The same with nothing to complain of.
    """
    chromium.size(1280, 900)
    chromium.complaints()
    yield chromium
    assert chromium.complaints() == []


def declare(browser: Browser, name: str) -> None:
    """
    Fill in the form of housekeeping, and send it.
    """
    browser.open("/ui/automations")
    browser.click("#new")
    browser.go(lambda: browser.link("housekeeping").click())
    browser.fill("[name=tenant]", TENANT)
    browser.fill("[name=name]", name)
    browser.fill("[name=cron]", "15 3 * * *")
    browser.fill("[name=zone]", "Europe/Berlin")
    browser.click("#save")


def run_now(browser: Browser, office: Office, number: int) -> None:
    """
    Let it run now, and wait until so many runs have ended.
    """
    browser.click("#do-run-now")
    assert "is made; the next minute begins it" in browser.text(".notice")
    office.minute()
    sql = "SELECT COUNT(*) FROM automation_runs WHERE finished_at IS NOT NULL"
    browser.until(lambda: int(office.value(sql)) == number)


def test_from_declared_to_live_and_back(browser: Browser, office: Office) -> None:
    """
    What it would delete is seen first, then promoted on, then done, and demoting ends it.
    """
    declare(browser, NAME)
    assert "is declared" in browser.text(".notice")
    assert NAME in browser.text("h1")
    assert browser.text("h1 .state").endswith("off")
    assert len(browser.all(".occurrences tbody tr")) == 10
    assert browser.text(".occurrences tbody tr").split()[1].startswith("03:15+0")
    browser.shoot("automation-declared")
    browser.click("#do-preview")
    assert browser.text("table.narrow").count("approved") == OLD
    assert "older than 30 days" in browser.text()
    assert office.left() == 5
    browser.shoot("automation-preview")
    browser.click("#back")
    browser.click("#promotion")
    assert "no observe run of revision 1 has completed" in browser.text(".obstacles")
    assert not browser.all("#do-promote")
    browser.shoot("promotion-refused")
    browser.driver.back()
    browser.click("#do-observe")
    assert browser.text("h1 .state").endswith("observe")
    run_now(browser, office, 1)
    assert office.left() == 5
    browser.until(lambda: browser.all(".bar.would"))  # the page keeps itself up to date
    assert "5 would be changed" in browser.text(".figures")
    browser.click("#promotion")
    assert browser.text("#would") == "5"
    assert "older than 30 days" in browser.text()
    browser.shoot("promotion")
    browser.click("#do-promote")
    assert browser.text("h1 .state").endswith("live")
    run_now(browser, office, 2)
    assert office.left() == 0
    browser.until(lambda: browser.all(".bar.changed"))
    browser.shoot("automation-live")
    browser.dark(True)
    browser.shoot("automation-live-dark")
    browser.dark(False)
    browser.click(".narrow tbody th a")
    assert browser.texts("main .state")[0].endswith("completed")
    assert "deleted" in browser.text()
    browser.shoot("automation-run")
    browser.find("select[name=effect] option[value='']")
    browser.find("select[name=verdict] option:nth-child(3)").click()
    browser.press("//select[@name='effect']/following::button[1]")
    assert "Nothing fits these filters" in browser.text("[data-live=items]")
    browser.click("h1 a")
    browser.click("#do-demote")
    assert browser.text("h1 .state").endswith("observe")
    browser.go(lambda: browser.link("Who did what").click())
    words = browser.texts("main td strong")
    assert [words.count(word) for word in ("added", "promoted", "demoted")] == [1, 1, 1]
    assert browser.driver.title != "owned"


def test_what_is_wrong_stands_beside_its_field(browser: Browser, office: Office) -> None:
    """
    Markup in every field comes back as text, with the fault beside the field; a schedule can be
    looked at; nothing is declared.
    """
    before = office.value("SELECT COUNT(*) FROM automations")
    browser.open("/ui/automations/new?type=housekeeping")
    names = [each.get_attribute("name") for each in browser.all(".editor .field input")]
    assert names[:3] == ["tenant", "name", "cron"]
    for name in names:
        browser.fill(f"[name='{name}']", ALL_OF_IT)
    browser.click("#save")
    assert browser.find("[name=cron]").get_attribute("value") == ALL_OF_IT
    assert browser.find("[aria-invalid]").get_attribute("name") in names
    assert browser.driver.title != "owned"
    assert any("422" in each for each in browser.complaints())
    browser.shoot("automation-wrong")
    browser.open("/ui/automations/new?type=housekeeping")
    browser.fill("[name=cron]", "0 25 * * *")
    browser.click("#check")
    assert "hour" in browser.text(".wrong [role=alert]")
    assert browser.driver.switch_to.active_element.get_attribute("name") == "cron"
    assert any("422" in each for each in browser.complaints())
    browser.fill("[name=cron]", "30 9 * * 1")
    browser.fill("[name=zone]", "Asia/Tokyo")
    browser.click("#check")
    rows = browser.texts(".occurrences tbody tr")
    assert len(rows) == 10
    assert all("09:30+09:00" in row and "00:30" in row for row in rows)
    browser.shoot("automation-editor")
    browser.fill("[name=tenant]", TENANT)
    browser.fill("[name=name]", "a draft")
    browser.fill("[name='s.keep_days']", "3650")
    browser.click("#preview")
    assert "What it would decide now" in browser.text("#seen h2")
    assert browser.find("[name=name]").get_attribute("value") == "a draft"
    assert office.value("SELECT COUNT(*) FROM automations") == before


def test_keyboard_alone_declares_one_without_a_script(browser: Browser, office: Office) -> None:
    """
    With Tab and Enter, and scripts off; the focus is always seen.
    """
    browser.scripts(False)
    try:
        browser.open("/ui/automations/new?type=housekeeping")
        browser.tab_to(lambda each: each.get_attribute("name") == "tenant")
        browser.keys("nu", Keys.TAB)
        browser.keys("by keys", Keys.TAB)
        for _ in range(5):
            browser.keys(Keys.TAB)
        browser.keys(Keys.ENTER)  # in a field: sends the form
        browser.until(lambda: "edit" not in browser.path() and "new" not in browser.path())
        assert "nu/by keys" in browser.find("h1").text
        browser.tab_to(lambda each: each.get_attribute("id") == "do-observe")
        browser.keys(Keys.ENTER)
        browser.until(lambda: "observes by its schedule" in browser.find(".notice").text)
    finally:
        browser.scripts(True)
    sql = "SELECT enabled FROM automations WHERE tenant = 'nu'"
    assert office.value(sql) == 1


def test_pages_fit_a_phone(browser: Browser, office: Office) -> None:
    """
    No page is wider than a narrow screen, and what is pressed is large enough for a finger.
    """
    declare(browser, "for a phone")
    path = browser.path()
    browser.size(360, 740, touch=True)
    for name, page in (
        ("list", "/ui/automations"),
        ("one", path),
        ("editor", f"{path}/edit"),
        ("runs", f"{path}/runs"),
        ("promotion", f"{path}/promotion"),
        ("audit", f"{path}/audit"),
    ):
        browser.open(page)
        width = browser.run("return document.documentElement.scrollWidth")
        assert width <= 360, (page, width)
        heights = browser.run(
            "return [...document.querySelectorAll('main button, main input, main .button')]"
            ".filter(each => each.offsetParent && each.type != 'hidden')"
            ".map(each => [each.outerHTML.slice(0, 60), each.getBoundingClientRect().height])"
        )
        assert [each for each in heights if each[1] < 40] == [], page
        browser.shoot(f"phone-automation-{name}")
