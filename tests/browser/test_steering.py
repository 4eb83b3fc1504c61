"""
Every action in a real browser: what it does to the queue, and the line in the audit.
"""

from __future__ import annotations

from selenium.webdriver.common.by import By

from crq.sealing import sha256_hex
from tests.browser.driving import Browser
from tests.browser.world import World


def test_strangers_are_asked_for_a_token(browser: Browser, shown: World) -> None:
    """
    Nothing is shown before; a wrong token is told so; afterwards the page that was asked for comes.
    """
    browser.driver.delete_all_cookies()
    browser.open("/ui/accounts")
    assert browser.path() == "/ui/login?next=%2Fui%2Faccounts"
    assert "beta" not in browser.text()
    browser.shoot("login")
    browser.fill("#token", "no such token")
    browser.click("main button")
    assert "not known" in browser.text("[role=alert]")
    assert any("401" in each for each in browser.complaints())
    browser.fill("#token", shown.token)
    browser.click("main button")
    assert browser.path() == "/ui/accounts"
    cookie = browser.driver.get_cookie("crq_session")
    assert cookie is not None
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    browser.click(".who button")
    assert browser.path() == "/ui/login"
    browser.open("/ui")
    assert browser.path() == "/ui/login?next=%2Fui"


def test_queue_is_paused_and_resumed(browser: Browser, shown: World) -> None:
    """
    Pausing everything says so on the page and in the audit, with the reason; resuming ends it.
    """
    browser.open("/ui")
    browser.fill("#note-pause-all", "the API is on fire <b>")
    browser.click("#do-pause-all")
    assert "Paused: the whole queue" in browser.text(".notice")
    assert "the API is on fire <b>" in browser.text()
    assert shown.value("SELECT COUNT(*) FROM codeRunner_controls WHERE kind = 'pause_all'") == 1
    browser.shoot("overview-paused")
    browser.press("//button[text()='Resume']")
    assert shown.value("SELECT COUNT(*) FROM codeRunner_controls WHERE kind = 'pause_all'") == 0
    browser.open("/ui/audit")
    assert "the API is on fire <b>" in browser.text()
    assert "token:everything" in browser.text()
    browser.shoot("audit")


def test_queue_is_drained_and_capped(browser: Browser, shown: World) -> None:
    """
    The drain and the cap over all are set, shown and taken back.
    """
    browser.open("/ui")
    browser.click("#do-drain")
    assert "draining for maintenance" in browser.text()
    browser.press("//button[text()='End the drain']")
    assert "The drain is over" in browser.text(".notice")
    browser.fill("#note-cap-all", "slowly")
    browser.fill(".actions input[name=value]", "3")
    browser.click("#do-cap-all")
    assert "of 3 (set by hand)" in browser.text(".figures")
    browser.press("//button[text()='Configured cap']")
    assert "set by hand" not in browser.text(".figures")
    assert (shown.audited("drain"), shown.audited("end drain")) == (1, 1)


def test_account_is_paused_and_capped(browser: Browser, shown: World) -> None:
    """
    An account's own pause and cap, from the list of accounts.
    """
    shown.queue("eta")
    browser.open("/ui/accounts")
    row = "//tr[th//a[text()='eta']]"

    def act(label: str, cap: str | None = None) -> None:
        if not browser.driver.find_elements(By.XPATH, f"{row}//details[@open]"):
            browser.driver.find_element(By.XPATH, f"{row}//summary").click()
        if cap is not None:
            field = browser.driver.find_element(By.XPATH, f"{row}//input[@name='value']")
            field.clear()
            field.send_keys(cap)
        browser.press(f"{row}//button[.='{label}']")

    act("Pause")
    assert "paused" in browser.driver.find_element(By.XPATH, row).text
    act("Set the cap", "1")
    assert "of 1 (set)" in browser.driver.find_element(By.XPATH, row).text
    browser.shoot("accounts-steered")
    act("Configured cap")
    act("Resume")
    assert "(set)" not in browser.driver.find_element(By.XPATH, row).text
    sql = "SELECT COUNT(*) FROM codeRunner_controls WHERE name = ?"
    assert shown.value(sql, shown.sealer.account("eta")) == 0


def test_gate_is_closed_and_opened_by_hand(browser: Browser, shown: World) -> None:
    """
    A gate closed by hand is shown with its countdown and who closed it; opening ends it.
    """
    key = sha256_hex("a key of theta")
    shown.queue("theta", key=key)
    browser.open("/ui/gates")
    browser.fill("input[name=key]", key)
    browser.fill("input[name=minutes]", "20")
    browser.fill("#note-close-gate", "their maintenance")
    browser.click("#do-close-gate")
    assert "is closed until" in browser.text(".notice")
    browser.open(f"/ui/gates?key={key}")
    assert "closed by hand by token:everything: their maintenance" in browser.text()
    shot = browser.text(".countdown")
    assert shot.startswith(("19 min", "20 min"))
    browser.until(lambda: browser.text(".countdown") != shot)
    browser.shoot("gate-closed")
    browser.click("#do-pause-key")
    browser.click("#do-resume-key")
    browser.press("//button[.='Open it']")
    assert not browser.all(".countdown")
    assert (shown.audited("close gate"), shown.audited("open gate")) == (1, 1)


def test_one_execution_is_started_under_a_pause(browser: Browser, shown: World) -> None:
    """
    Where a pause holds it, it can be let through alone.
    """
    (waiting,) = shown.queue("iota")
    browser.open("/ui")
    browser.click("#do-pause-all")
    browser.open(f"/ui/executions/{waiting}")
    assert "paused by an operator" in browser.text(".why")
    browser.click("#do-run-one")
    assert "starts as soon as" in browser.text(".notice")
    assert shown.audited("run one") == 1
    browser.open("/ui")
    browser.press("//button[text()='Resume']")


def test_unknown_outcome_is_settled(browser: Browser, shown: World) -> None:
    """
    Who knows how it ended says so; the row carries it from then on.
    """
    number = shown.states["outcome unknown"]
    browser.open(f"/ui/executions/{number}")
    browser.shoot("execution-unknown")
    browser.find("select[name=outcome] option[value='success']").click()
    browser.fill("#note-settle", "the order is there")
    browser.click("#do-settle")
    assert shown.status(number) == "success"
    assert "settled by hand by token:everything: the order is there" in browser.text()


def test_what_a_filter_shows_is_counted_and_cancelled(browser: Browser, shown: World) -> None:
    """
    The count comes first; nothing is cancelled before it was seen; others keep waiting.
    """
    mine, others = shown.queue("kappa", 7), shown.queue("lambda", 2)
    browser.open("/ui/executions?subdomain=kappa&shown=queued")
    browser.go(lambda: browser.link("Cancel what waits here…").click())
    assert browser.text("#count") == "7"
    assert {shown.status(each) for each in mine} == {"queued"}
    browser.shoot("cancel")
    browser.click("#do-cancel-all")
    assert "Cancelled 7 executions" in browser.text(".notice")
    assert {shown.status(each) for each in mine} == {"cancelled"}
    assert {shown.status(each) for each in others} == {"queued"}
