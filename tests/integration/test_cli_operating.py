"""
The command line of operators: what it changes, what it shows, what it answers with.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from crq import audit, controls, executions, heartbeat, series
from crq.cli import main
from crq.cli.base import State
from crq.cli.topping import screen
from crq.controls import Kind
from crq.model import GateReading
from crq.pulse import Beat
from crq.records import Depth
from crq.sealing import sha256_hex
from crq.series import Ended, Sample
from crq.status import Reading, report
from tests import rows
from tests.integration.test_cli import Home, failed, home, template
from tests.processes import SEARCH_PATH

__all__ = ["home", "template"]

BY = "cli:"
WITHIN = 20.0  # s


def read(home: Home, function: Any, *args: Any) -> Any:
    connection = home.database.connect()
    try:
        return home.database.read(connection, function, *args)
    finally:
        connection.close()


def write(home: Home, function: Any, *args: Any) -> Any:
    connection = home.database.connect()
    try:
        return home.database.transact(connection, function, *args)
    finally:
        connection.close()


def set_(home: Home) -> set[tuple[str, str]]:
    return {(each.kind.value, each.name) for each in read(home, controls.listed)}


def last(home: Home) -> Any:
    return read(home, audit.page)[0]


def account(home: Home, name: str = "acme") -> str:
    for row in home.read("logs")["executions"]:
        if row["subdomain"] == name:
            return str(row["account"])
    raise AssertionError(name)


def unknown(home: Home) -> int:
    """
    An execution whose outcome nobody knows.
    """
    home.submit()
    connection = home.database.connect()
    now = time.time()
    (claimed,) = rows.claim(home.database, connection, now)
    assert rows.start(home.database, connection, claimed, now)
    home.database.transact(connection, executions.died, claimed.execution_id, now)
    connection.close()
    return claimed.execution_id


def test_pause_and_resume(home: Home) -> None:
    """
    Everything, an account by name, a key by hash; with who did it; the second time nothing changes.
    """
    home.submit()
    key = home.read("show", "1")["key"]
    assert home.ok("pause", "all", "--note", "moving") == "everything is paused\n"
    assert home.ok("pause", "all") == "everything was paused already\n"
    entry = last(home)
    assert entry.who.startswith(BY)
    assert (entry.action, entry.note) == ("pause", "moving")
    home.ok("pause", "account", "acme")
    home.ok("pause", "key", key)
    assert set_(home) == {
        *(("pause_all", ""), ("pause_account", account(home)), ("pause_key", key)),
    }
    home.alive()
    assert "everything" in home.ok("status")
    home.ok("resume", "all")
    home.ok("resume", "account", account(home))
    home.ok("resume", "key", key)
    assert home.ok("resume", "all") == "everything was not paused\n"
    assert set_(home) == set()


def test_caps_and_drain(home: Home) -> None:
    """
    Caps are set and cleared, out of range is refused; a drain begins, waits and ends.
    """
    home.ok("cap", "2")
    home.ok("cap", "1", "--subdomain", "acme")
    found = {each.kind: each.value for each in read(home, controls.listed)}
    assert found == {Kind.CAP_TOTAL: 2, Kind.CAP_ACCOUNT: 1}
    assert "out of range" in failed(home.run("cap", "9"), 2)
    home.ok("cap", "--clear")
    home.ok("cap", "--clear", "--subdomain", "acme")
    assert "nothing is in flight" in home.ok("drain", "--wait")
    assert set_(home) == {("drain", "")}
    assert home.ok("drain") == "it was draining already\n"
    home.ok("drain", "--end")
    assert set_(home) == set()


@pytest.mark.parametrize(
    "words",
    [
        ("pause", "account"),
        ("pause", "all", "x"),
        ("pause", "key", "abc"),
        ("pause", "all", "--note", "x" * 501),
        ("cap",),
        ("cap", "1", "--clear"),
        ("cap", "1", "--subdomain", "acme", "--account", "a" * 64),
        ("cap", "1", "--account", "abc"),
        ("drain", "--end", "--wait"),
        ("cancel",),
        ("cancel", "1", "--all"),
        ("cancel", "--subdomain", "acme"),
        ("cancel", "--all", "--since", "soon"),
        ("settle", "1", "wedged"),
        ("gates", "close", "abc"),
        ("gates", "close", "a" * 64, "--for", "0"),
        ("history", "--since", "soon"),
        ("logs", "--follow", "--until", "2026-01-01"),
        ("submit", "-", "--subdomain", "acme", "--traceparent", "x"),
        ("token", "add", "--name", "x", "--scope", "wedge"),
    ],
)
def test_wrong_usage_is_said(home: Home, words: tuple[str, ...]) -> None:
    """
    Exit code 2 and one line; nothing is changed.
    """
    failed(home.run(*words, env={"CRQ_APIKEY": "k"}), 2)
    assert set_(home) == set()
    assert read(home, audit.page) == ()


def test_cancel_counts_first(home: Home) -> None:
    """
    It says how many before it asks; no is no; --json counts unless it is told --yes.
    """
    for name in ("acme", "acme", "other"):
        home.submit(subdomain=name)
    refused = home.run("cancel", "--all", "--subdomain", "acme", stdin="n\n")
    assert (refused.exit_code, "2 executions wait; 0 cancelled" in refused.stdout) == (0, True)
    counted = home.read("cancel", "--all", "--subdomain", "acme")
    assert (counted["count"], counted["cancelled"]) == (2, 0)
    asked = home.run("cancel", "--all", "--subdomain", "acme", "--note", "oops", stdin="y\n")
    assert "2 executions wait; 2 cancelled" in asked.stdout
    assert (last(home).action, last(home).note) == ("cancel all", "oops")
    done = home.read("cancel", "--all", "--yes")
    assert (done["count"], done["cancelled"]) == (1, 1)
    assert home.ok("cancel", "--all") == "0 executions wait; 0 cancelled\n"


def test_run_one_and_explain(home: Home) -> None:
    """
    An explanation says that it is paused; only what is paused is started by hand.
    """
    home.submit()
    home.alive()
    assert "not paused" in failed(home.run("run-one", "1"), 1)
    home.ok("pause", "account", "acme")
    shown = home.read("explain", "1")
    assert (shown["why"][0]["rule"], shown["earliestStart"]) == ("paused", None)
    assert "not before somebody does something" in home.ok("explain", "1")
    assert home.ok("run-one", "1") == "execution 1 is to be started\n"
    assert home.ok("run-one", "1") == "execution 1 is to be started already\n"
    assert home.read("explain", "1")["why"][0]["rule"] == "startable"
    failed(home.run("explain", "99"), 1)
    failed(home.run("run-one", "99"), 1)


def test_settle(home: Home) -> None:
    """
    An unknown outcome is settled by whoever has looked, and the log shows who.
    """
    number = str(unknown(home))
    assert home.read("logs", "--shown", "outcome unknown")["executions"]
    assert home.ok("settle", number, "success", "--note", "it is there").endswith("success\n")
    assert home.ok("settle", number, "success").endswith("settled so already\n")
    assert "unknown outcome" in failed(home.run("settle", number, "failed"), 1)
    shown = home.read("show", number)
    assert shown["shown"] == "success"
    assert [act["action"] for act in shown["acts"]] == ["settle"]
    assert "by cli:" in home.ok("show", number)


def test_gates_by_hand(home: Home) -> None:
    """
    Closed, shown with its history, opened; the store has it, and an explanation names who did it.
    """
    home.submit()
    home.alive()
    key = home.read("show", "1")["key"]
    closed = home.read("gates", "close", key, "--for", "600", "--note", "API down")
    shown = home.read("gates")
    assert [gate["key"] for gate in shown["closed"]] == [key]
    assert shown["closed"][0]["until"] == closed["until"]
    assert "API down" in shown["history"][0]["cause"]
    why = home.read("explain", "1")["why"][0]
    assert why["rule"] == "gated"
    assert "API down" in why["text"]
    assert "closed until" in home.ok("explain", "1")
    assert home.ok("gates", "open", key).endswith("is open\n")
    assert home.read("gates", "--key", key)["closed"] == []
    assert home.read("gates")["history"][0]["openedAt"] is not None
    assert [entry.action for entry in read(home, audit.page)] == ["open gate", "close gate"]
    assert key in home.ok("gates")


def test_accounts_and_history(home: Home) -> None:
    """
    Accounts with their figures; minutes with their counts, and where there was no drainer.
    """
    home.submit()
    (found,) = home.read("accounts")["accounts"]
    assert (found["subdomain"], found["queued"], found["cap"]) == ("acme", 1, 2)
    assert "acme" in home.ok("accounts")
    now = series.minute_of(time.time())
    for minutes in (9, 5, 4):
        seen = Sample(now - 60 * minutes, "flowing", 7, 1.0, 2, 0, Ended())
        write(home, series.sample, seen)
    assert len(home.read("history")["minutes"]) == 3
    text = home.ok("history")
    assert "no drainer for 3 min" in text
    assert text.count("flowing") == 3
    assert home.read("history", "--until", "2026-01-01")["minutes"] == []


def test_audit(home: Home) -> None:
    """
    Newest first, by target, page by page.
    """
    home.ok("pause", "all")
    home.ok("drain")
    home.ok("resume", "all")
    found = home.read("audit", "--target", "all")["entries"]
    assert [entry["action"] for entry in found] == ["resume", "drain", "pause"]
    below = home.read("audit", "--below", str(found[0]["auditId"]), "--limit", "1")["entries"]
    assert [entry["action"] for entry in below] == ["drain"]
    assert "resume" in home.ok("audit")


def test_tokens(home: Home) -> None:
    """
    Made, listed and revoked; printed once, kept as a hash; those of the file are listed beside.
    """
    bearer = home.ok("token", "add", "--name", "night", "--scope", "operate", "--account", "ACME")
    assert bearer.startswith("crq_")
    connection = home.database.connect()
    (stored,) = connection.execute("SELECT sha256 FROM codeRunner_tokens").fetchone()
    connection.close()
    assert stored == sha256_hex(bearer.strip())
    listed = home.read("token", "list")["tokens"]
    assert [(each["name"], each["from"]) for each in listed] == [
        *(("night", "database"), ("first", "configuration")),
    ]
    assert listed[0]["accounts"] == ["acme"]
    assert bearer.strip() not in home.ok("token", "list")
    failed(home.run("token", "add", "--name", "night"), 2)
    failed(home.run("token", "add", "--name", "first"), 2)
    assert home.ok("token", "revoke", "night") == "token night is revoked\n"
    assert home.ok("token", "revoke", "night") == "token night was revoked\n"
    failed(home.run("token", "revoke", "first"), 1)


def test_the_trace_is_kept(home: Home) -> None:
    """
    What the command line was given is on the row.
    """
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    home.submit("--traceparent", trace)
    assert home.read("show", "1")["traceparent"] == trace


def test_follow_shows_what_comes_and_what_changes(home: Home) -> None:
    """
    The newest rows, then each new one and each new state, once; Ctrl-C ends it well.
    """
    home.submit()
    steps: list[Callable[[], Any]] = [
        lambda: home.submit(subdomain="other"),
        lambda: home.ok("cancel", "1"),
        lambda: None,
    ]

    def run(*words: str) -> str:
        state = State(str(home.folder / "crqueue.toml"), ())
        left = list(steps)

        def sleep(_seconds: float) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        state.sleep = sleep
        from click.testing import CliRunner

        command = main.commands["logs"]
        result: Result = CliRunner().invoke(command, ["--follow", *words], obj=state)
        assert result.exit_code == 0, result.output
        return result.stdout

    lines = run().splitlines()
    words = [(line.split()[2], line.split()[3]) for line in lines]
    assert words == [("1", "queued"), ("2", "queued"), ("1", "cancelled")]
    steps[:] = [lambda: home.ok("cancel", "2")]
    found = [json.loads(line) for line in run("--json").splitlines()]
    assert [(row["executionId"], row["shown"]) for row in found] == [
        *((1, "cancelled"), (2, "queued"), (2, "cancelled")),
    ]


def test_top_shows_the_queue_live(home: Home) -> None:
    """
    Full-screen on a terminal, with the verdict, the account and the last hour; Ctrl-C leaves the
    terminal as it was.
    """
    home.submit()
    home.alive()
    write(
        *(home, series.sample),
        Sample(series.minute_of(time.time()) - 60, "flowing", 7, 1.0, 2, 0, Ended()),
    )
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "crq.cli", "--config", str(home.folder / "crqueue.toml")]
    process = subprocess.Popen(
        [*command, "top", "--every", "0.2"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40", "PATH": SEARCH_PATH},
        cwd=Path(__file__).parent.parent.parent,
        start_new_session=True,
    )
    os.close(follower)
    seen = b""
    deadline = time.monotonic() + WITHIN
    try:
        while b"starts a minute" not in seen and time.monotonic() < deadline:
            seen += os.read(leader, 65_536)
        process.send_signal(signal.SIGINT)
        while b"\x1b[?1049l" not in seen and time.monotonic() < deadline:
            seen += os.read(leader, 65_536)
        assert process.wait(WITHIN) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(leader)
    text = seen.decode("utf-8", "replace")
    for word in ("\x1b[?1049h", "flowing", "acme", "last hour", "\x1b[?1049l"):
        assert word in text
    assert "Traceback" not in text


def test_the_screen_tells_a_missing_minute_from_an_empty_one() -> None:
    """
    A dot where no drainer ran, a blank where nothing waited, bars in proportion.
    """
    from rich.console import Console

    now = 1_772_452_800.0
    made = report(
        Reading(Depth(0, False, None, {}), beats=(Beat("d1", now, now, 0.1),)),
        *(GateReading(), rows.LIMITS, now),
    )
    minutes = [
        Sample(now - 60 * n, "flowing", depth, None, 0, 0, Ended())
        for n, depth in ((1, 8), (2, 4), (3, 0))
    ]
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(screen(made, minutes))
    console.file.close()
    (line,) = (line for line in console.export_text().splitlines() if line.startswith("depth"))
    assert line.split("depth")[1].strip() == "·" * 57 + " ▄█ max 8"
    assert line.count("·") == 57


def test_completion_is_made_by_the_shell() -> None:
    """
    What the help text says to put into ~/.bashrc prints a completion.
    """
    done = subprocess.run(
        [sys.executable, "-m", "crq.cli"],
        env={**os.environ, "_CRQ_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert "_CRQ_COMPLETE=bash_complete" in done.stdout


def test_a_dead_daemon_is_seen(home: Home) -> None:
    """
    With a beat that is a minute old and work that waits: stalled, exit code 1, and the proof names
    what could start.
    """
    home.submit()
    now = time.time()
    connection = home.database.connect()
    connection.execute("UPDATE codeRunner_executions SET queued_at = '2026-01-01 00:00:00.000'")
    connection.close()
    write(home, heartbeat.write, Beat("d1", now - 900, now - 60, 0.1))
    result = home.run("status", "--json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, shown["verdict"]) == (1, "stalled")
    assert [proof["name"] for proof in shown["proof"] if proof["kind"] == "execution"] == ["1"]
    assert "is the daemon running" in home.ok("explain", "1")
