"""
Every page in a real browser, over the real daemon.
"""

from __future__ import annotations

from selenium.webdriver.common.keys import Keys

from crq.search import SHOWN
from tests.browser.driving import Browser
from tests.browser.world import ALL_OF_IT, HOSTILE, World

PAGES = {
    "overview": "/ui",
    "log": "/ui/executions",
    "accounts": "/ui/accounts",
    "gates": "/ui/gates",
    "audit": "/ui/audit",
}


def test_overview_says_the_verdict_and_what_proves_it(browser: Browser, shown: World) -> None:
    """
    All slots are taken and work waits: a backlog, said in a word, a symbol and a sentence.
    """
    browser.open("/ui")
    browser.until(lambda: "saturated" in browser.run("return document.title"))  # by itself
    assert browser.text("#word .symbol")
    assert "all 4 slots are taken" in browser.text(".verdict .because")
    assert browser.all(".proof a[href^='/ui/executions/']")
    assert browser.all("svg.plot .line.depth")
    assert browser.all("svg.plot .band")
    assert browser.all("svg.plot .gap")
    assert "saturated" in browser.driver.title
    browser.shoot("overview")


def test_overview_keeps_itself_up_to_date(browser: Browser, shown: World) -> None:
    """
    What changes in the queue is seen without a reload.
    """
    browser.open("/ui")
    browser.run("window.same = true")
    shown.queue("delta", 3)
    browser.until(lambda: "delta" in browser.text("[data-live=accounts]"))
    assert browser.run("return window.same")
    assert browser.text("#live") == "live"


def test_log_shows_each_state_by_word_and_symbol(browser: Browser, shown: World) -> None:
    """
    The filter for a state shows rows of that state; no two states look alike without colour.
    """
    looks = set()
    for word, number in shown.states.items():
        browser.open(f"/ui/executions?shown={word}")
        words = {each.split("\n")[-1] for each in browser.texts("td .state")}
        assert words == {word}
        assert str(number) in browser.text(".log")
        badge = browser.find("td .state")
        looks.add(
            (
                browser.text("td .state .symbol"),
                badge.value_of_css_property("border-top-style"),
                badge.value_of_css_property("color"),
            )
        )
    assert len({symbol for symbol, _, _ in looks}) == len(shown.states)
    browser.open("/ui/executions")
    browser.find("details summary").click()
    assert all(word in browser.text(".states") for word in SHOWN)
    browser.shoot("log")


def test_log_filters_stand_in_the_address_and_pages_are_stable(
    browser: Browser, shown: World
) -> None:
    """
    A filtered page can be passed on; what comes in meanwhile moves no row to another page.
    """
    browser.open("/ui/executions")
    browser.fill("input[name=subdomain]", "beta")
    browser.click(".filters button")
    assert "subdomain=beta" in browser.path()
    assert set(browser.texts(".log td[data-label=Account]")) == {"beta"}
    first = browser.texts(".log th[scope=row]")
    browser.go(lambda: browser.link("Older »").click())
    second = browser.texts(".log th[scope=row]")
    assert "subdomain=beta" in browser.path()
    assert not set(first) & set(second)
    shown.queue("beta", 5)
    browser.driver.refresh()
    assert browser.texts(".log th[scope=row]") == second


def test_execution_page_tells_its_life_and_why_it_waits(browser: Browser, shown: World) -> None:
    """
    A waiting one says what holds it and its place; one that has ended says when.
    """
    (waiting,) = shown.queue("beta")
    browser.open(f"/ui/executions/{waiting}")
    assert "older executions of its account and key go first" in browser.text(".why")
    assert "Place in its lane" in browser.text(".why")
    assert "api.get('/orders')" in browser.text("pre")
    browser.shoot("execution-waiting")
    browser.open(f"/ui/executions/{shown.states['failed']}")
    assert "line 3: boom" in browser.text()
    assert browser.texts(".timeline .what") == [*("admitted", "started", "failed")]
    browser.shoot("execution-failed")


def test_accounts_and_gates_are_listed(browser: Browser, shown: World) -> None:
    """
    Accounts with their depth, cap and waits; closings with their cause.
    """
    browser.open("/ui/accounts")
    assert {"acme", "beta", "gamma"} <= set(browser.texts(".accounts th[scope=row]"))
    assert " s" in browser.text(".accounts td[data-label='Wait p95']")
    browser.shoot("accounts")
    browser.open(f"/ui/gates?key={shown.key}")
    assert "429 with Retry-After 300" in browser.text()
    browser.shoot("gates")


def test_markup_in_stored_texts_is_shown_as_text(browser: Browser, shown: World) -> None:
    """
    Whatever a script, an API or another program has stored does nothing but stand there.
    """
    browser.open(f"/ui/executions/{shown.hostile}")
    text = browser.text()
    assert ALL_OF_IT in browser.find("section:last-of-type pre").text
    for each in HOSTILE:
        assert each in text
    assert not browser.all("main img, main script, main style")
    for path in ("/ui", "/ui/executions", "/ui/executions?shown=failed", "/ui/accounts"):
        browser.open(path)
        assert not browser.all("main img, main script, main style")
        assert "owned" not in browser.driver.title
    browser.open("/ui/executions?limit=500")
    assert HOSTILE[0] in browser.text()
    browser.open(f"/ui/gates?key={shown.key}")
    assert HOSTILE[2] in browser.text()
    assert browser.run("return document.title") != "owned"
    browser.open(
        "/ui/executions?subdomain=%3Cscript%3Edocument.title%3D'owned'%3C%2Fscript%3E%22%3E"
    )
    assert browser.find("input[name=subdomain]").get_attribute("value") == (
        "<script>document.title='owned'</script>\">"
    )
    assert "owned" not in browser.driver.title


def test_pages_work_without_a_mouse(browser: Browser, shown: World) -> None:
    """
    From the top of the overview to a cancelled execution with the keyboard alone, and what has the
    focus is always seen.
    """
    (waiting,) = shown.queue("zeta")
    browser.open("/ui")
    browser.keys(Keys.TAB)
    skip = browser.driver.switch_to.active_element
    assert skip.text == "Skip to the content"
    assert skip.is_displayed()
    skip.send_keys(Keys.ENTER)
    assert browser.run("return document.activeElement.id") == "main"
    browser.open("/ui")
    entry = browser.tab_to(lambda each: each.text == "Executions")
    assert entry.value_of_css_property("outline-style") == "solid"
    browser.go(lambda: entry.send_keys(Keys.ENTER))
    row = browser.tab_to(lambda each: each.text == str(waiting))
    browser.go(lambda: row.send_keys(Keys.ENTER))
    note = browser.tab_to(lambda each: each.get_attribute("id") == "note-cancel")
    note.send_keys("by keyboard")
    button = browser.tab_to(lambda each: each.text == "Cancel it")
    assert button.value_of_css_property("outline-style") == "solid"
    browser.go(lambda: button.send_keys(Keys.SPACE))
    assert browser.path() == f"/ui/executions/{waiting}"
    assert shown.status(waiting) == "cancelled"
    assert "by keyboard" in browser.text()


def test_pages_are_read_on_a_phone(browser: Browser, shown: World) -> None:
    """
    On a narrow screen nothing runs out of it sideways, and rows become blocks with named values.
    """
    browser.size(360, 740, touch=True)
    for name, path in {**PAGES, "execution": f"/ui/executions/{shown.hostile}"}.items():
        browser.open(path)
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= 360, (path, wide)
        browser.shoot(f"{name}-narrow")
    browser.open("/ui/executions")
    assert browser.find(".log tr:last-child").value_of_css_property("display") == "block"
    label = browser.run(
        "return getComputedStyle(document.querySelector('.log td'), '::before').content"
    )
    assert label == '"State"'


def test_pages_follow_the_wish_for_the_dark(browser: Browser, shown: World) -> None:
    """
    Dark for whom prefers it, with text light enough to read.
    """
    browser.dark(True)
    try:
        for name in ("overview", "log"):
            browser.open(PAGES[name])
            assert browser.find("body").value_of_css_property("background-color") == (
                "rgba(20, 23, 26, 1)"
            )
            browser.shoot(f"{name}-dark")
    finally:
        browser.dark(False)


def test_pages_work_without_scripts(browser: Browser, shown: World) -> None:
    """
    With scripts switched off every page is there, and so are the forms.
    """
    browser.scripts(False)
    try:
        for path in PAGES.values():
            browser.open(path)
            assert browser.all("main h1")
        browser.open("/ui/executions?subdomain=beta")
        browser.find(".filters button").click()
        browser.until(lambda: "shown=" in browser.path())
    finally:
        browser.scripts(True)
