"""
The command line: what it prints, what it changes, what it answers with.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from crq import configfile, heartbeat, migrations, records, schema
from crq.cli import main
from crq.database import Database
from crq.model import Status
from crq.pulse import Beat
from crq.sealing import same_secret
from tests.servers import free_port

SOURCE = "x = 1\n"
EVIL = "x\x1b[31m\u202e\nred"


class Home:
    """
    A directory that `crq init` has filled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder / "key"
        self.key.write_text("sesame\n")
        self.source = folder / "rule.star"
        self.source.write_text(SOURCE)

    def run(self, *words: str, env: dict[str, str | None] | None = None, stdin: str = "") -> Result:
        """
        Run a command with this directory's configuration.
        """
        return run("--config", str(self.folder / "crqueue.toml"), *words, env=env, stdin=stdin)

    def ok(self, *words: str, **more: Any) -> str:
        """
        Run a command that succeeds, and return what it printed.
        """
        result = self.run(*words, **more)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    def read(self, *words: str, **more: Any) -> dict[str, Any]:
        """
        Run a command with --json, and return what it printed.
        """
        found: dict[str, Any] = json.loads(self.ok(*words, "--json", **more))
        return found

    def submit(self, *words: str, subdomain: str = "acme") -> str:
        """
        Submit the script.
        """
        return self.ok(
            *("submit", str(self.source), "--subdomain", subdomain),
            *("--apikey-file", str(self.key), *words),
        )

    def alive(self) -> None:
        """
        Say what a drainer that ticks would say.
        """
        connection = self.database.connect()
        now = time.time()
        beat = Beat("d1", now - 60, now, 0.1)
        self.database.transact(connection, heartbeat.write, beat)
        connection.close()

    @property
    def database(self) -> Database:
        """
        Its database.
        """
        return Database(f"sqlite:///{self.folder / 'crqueue.db'}")


def run(*words: str, env: dict[str, str | None] | None = None, stdin: str = "") -> Result:
    """
    Run a command.
    """
    return CliRunner().invoke(main, words, input=stdin, env=env)


def failed(result: Result, code: int) -> str:
    """
    Check that a command failed with a code, in one line and without a traceback; returns it.
    """
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert result.stderr.splitlines()[-1] == lines[0]
    return lines[0]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A fresh directory after `crq init`.
    """
    folder = tmp_path_factory.mktemp("home")
    assert run("init", str(folder)).exit_code == 0
    return folder


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Home:
    """
    A copy of it, for one test.
    """
    for file in template.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return Home(tmp_path)


def test_init_makes_all_that_a_first_run_needs(tmp_path: Path) -> None:
    """
    Configuration, secrets only the owner may read, the schema, and a token that is not stored.
    """
    folder = tmp_path / "new"
    result = run("init", str(folder), "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("crqueue.toml", "salt", "seal.keys", "crqueue.db"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    config = configfile.load(str(folder / "crqueue.toml"), {})
    config.sealer()
    (token,) = config.tokens
    assert same_secret(made["token"].encode(), token.sha256)
    assert made["token"] not in (folder / "crqueue.toml").read_text()
    assert config.database.url == f"sqlite:///{folder / 'crqueue.db'}"
    assert config.drainer.lock_file == str(folder / "crqueue.lock")
    assert config.executor.lock_dir == str(folder / "locks")
    connection = config.open_database().connect()
    assert config.open_database().read(connection, schema.current) == migrations.HEAD
    connection.close()


@pytest.mark.parametrize("name", ["crqueue.toml", "salt", "seal.keys"])
def test_init_overwrites_nothing(tmp_path: Path, name: str) -> None:
    """
    One file that is there already, and nothing is changed or added.
    """
    (tmp_path / name).write_text("mine")
    assert name in failed(run("init", str(tmp_path)), 1)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_submitted_script_is_queued(home: Home) -> None:
    """
    It waits with what was given, and its API key is stored sealed.
    """
    said = home.submit("--payload", '{"b":1, "a":2}', "--identifier", "rule 7", "--debug")
    assert said == "execution 1: queued\n"
    shown = home.read("show", "1")
    assert (shown["status"], shown["identifier"], shown["debug"]) == ("queued", "rule 7", True)
    assert shown["sourceCode"] == SOURCE
    connection = home.database.connect()
    (job,) = connection.execute("SELECT apikey, payload FROM codeRunner_jobs").fetchall()
    connection.close()
    assert job[1] == '{"a":2,"b":1}'
    config = configfile.load(str(home.folder / "crqueue.toml"), {})
    assert "sesame" not in job[0]
    assert config.sealer().unseal(job[0]) == "sesame"


def test_submit_takes_stdin_and_the_environment(home: Home) -> None:
    """
    The script from standard input, the key from CRQ_APIKEY, which no option is confused with.
    """
    said = home.ok(
        "submit", "-", "--subdomain", "acme", stdin="y = 2\n", env={"CRQ_APIKEY": "sesame"}
    )
    assert said == "execution 1: queued\n"
    assert home.read("show", "1", env={"CRQ_APIKEY": "x"})["sourceCode"] == "y = 2\n"


def test_repeated_key_finds_the_first(home: Home) -> None:
    """
    The same key is the same execution, shown as it is now; another script under it is refused.
    """
    home.submit("--idempotency-key", "once")
    home.ok("cancel", "1")
    assert home.submit("--idempotency-key", "once") == "execution 1: cancelled, admitted before\n"
    home.source.write_text("x = 2\n")
    result = home.run(
        *("submit", str(home.source), "--subdomain", "acme"),
        *("--apikey-file", str(home.key), "--idempotency-key", "once"),
    )
    assert "execution 1" in failed(result, 1)


def test_refused_submissions_answer_no(home: Home) -> None:
    """
    A full queue (107) and a script that does not parse (201): exit code 1, and a row in the log.
    """
    home.submit()
    words = ("submit", str(home.source), "--subdomain", "acme", "--apikey-file", str(home.key))
    full = ("--set", "limits.queued_per_account=1", *words)
    assert "execution 2 refused (107)" in failed(home.run(*full), 1)
    shown = home.run(*full, "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["errorCode"]) == (1, 107)
    home.source.write_text("x = (\n")
    assert "refused (201)" in failed(home.run(*words), 1)
    codes = [row["errorCode"] for row in home.read("logs")["executions"]]
    assert codes == [201, 107, 107, None]


@pytest.mark.parametrize(
    "words",
    [
        ("--subdomain", "-acme"),
        ("--subdomain", "acme", "--payload", "{"),
        ("--subdomain", "acme", "--identifier", "x" * 256),
        ("--subdomain", "acme", "--idempotency-key", "a b"),
    ],
)
def test_bad_input_is_usage(home: Home, words: tuple[str, ...]) -> None:
    """
    Exit code 2, one line that names the field and the remedy, nothing stored, no key shown.
    """
    given = ("submit", str(home.source), "--apikey-file", str(home.key), *words)
    assert "sesame" not in failed(home.run(*given), 2)
    assert home.read("logs")["executions"] == []


def test_submit_without_a_key_or_text(home: Home) -> None:
    """
    No key, a key that is none, a script that is no text: exit code 2.
    """
    given = ("submit", str(home.source), "--subdomain", "acme")
    assert "CRQ_APIKEY" in failed(home.run(*given), 2)
    home.key.write_bytes(b"\xff")
    failed(home.run(*given, "--apikey-file", str(home.key)), 2)
    home.source.write_bytes(b"\xff")
    failed(home.run(*given, env={"CRQ_APIKEY": "k"}), 2)


def test_no_option_takes_the_key_itself() -> None:
    """
    Nothing on a command line, which all users of a machine can read, carries an API key.
    """
    assert "--apikey-file" in run("submit", "--help").output
    failed(run("submit", "x", "--apikey", "sesame"), 2)


def test_log_by_page_and_filter(home: Home) -> None:
    """
    Newest first, cursor by cursor; each filter shows what it names.
    """
    for subdomain in ("acme", "other", "acme"):
        home.submit(subdomain=subdomain)
    home.ok("cancel", "1")

    def found(*words: str) -> list[int]:
        return [row["executionId"] for row in home.read("logs", *words)["executions"]]

    assert found() == [3, 2, 1]
    assert found("--subdomain", "ACME") == [3, 1]
    assert found("--status", "cancelled") == [1]
    assert found("--subdomain", "other", "--status", "cancelled") == []
    assert found("--error-code", "107") == []
    assert found("--until", "2020-01-01") == []
    first = home.read("logs", "--limit", "2")
    assert [row["executionId"] for row in first["executions"]] == [3, 2]
    assert found("--cursor", first["cursor"]) == [1]
    assert f"--cursor {first['cursor']}" in home.ok("logs", "--limit", "2")


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "yesterday"),
        ("--cursor", "x"),
        ("--limit", "0"),
        ("--status", "wedged"),
        ("--subdomain", "a", "--account", "b"),
    ],
)
def test_bad_filters_are_usage(home: Home, words: tuple[str, ...]) -> None:
    """
    Exit code 2 with what is wrong.
    """
    failed(home.run("logs", *words), 2)


def test_stored_text_cannot_paint_the_terminal(home: Home) -> None:
    """
    Escapes, newlines and direction marks of a customer are shown, not obeyed; one row, one line.
    """
    home.source.write_text(f"# {EVIL[:-4]}\n")
    home.submit("--identifier", EVIL)
    home.alive()
    for text in (home.ok("logs"), home.ok("show", "1"), home.ok("status")):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "x\\x1b[31m\\u202e\\nred" in home.ok("logs")
    assert home.read("show", "1")["identifier"] == EVIL


def test_piped_tables_are_whole(home: Home) -> None:
    """
    In a pipe nothing is cut or coloured, however long it is.
    """
    home.submit("--identifier", "i" * 255)
    lines = home.ok("logs").splitlines()
    assert sum("i" * 255 in line for line in lines) == 1
    assert all(line == line.rstrip() for line in lines)


def test_show_says_what_there_is(home: Home) -> None:
    """
    All of one execution; exit code 1 for a number that is none.
    """
    home.submit()
    assert "queued" in home.ok("show", "1")
    assert SOURCE in home.ok("show", "1")
    assert "2" in failed(home.run("show", "2"), 1)
    failed(home.run("show", "9" * 30), 1)
    failed(home.run("show", "x"), 2)


def test_cancel_only_what_waits(home: Home) -> None:
    """
    A waiting execution is cancelled; one that has been claimed is not, with exit code 1.
    """
    home.submit()
    home.submit()
    assert home.ok("cancel", "1") == "execution 1 cancelled\n"
    connection = home.database.connect()
    connection.execute("UPDATE codeRunner_executions SET status = 'claimed' WHERE execution_id = 2")
    connection.close()
    assert "claimed" in failed(home.run("cancel", "2"), 1)
    shown = home.run("cancel", "2", "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["cancelled"]) == (1, False)
    failed(home.run("cancel", "3"), 1)
    statuses = [row["status"] for row in home.read("logs")["executions"]]
    assert statuses == ["claimed", "cancelled"]


def test_status_without_a_daemon(home: Home) -> None:
    """
    Degraded while no drainer has reported (exit code 5); else idle, then flowing, then gated by
    what the gates' store says; never a need for the daemon itself.
    """
    result = home.run("status", "--json")
    assert (result.exit_code, json.loads(result.stdout)["verdict"]) == (5, "degraded")
    home.alive()
    assert home.read("status")["verdict"] == "idle"
    home.submit()
    shown = home.read("status")
    assert (shown["verdict"], shown["depth"], shown["daemon"]) == ("flowing", 1, None)
    assert "acme" in home.ok("status")
    key = home.read("show", "1")["key"]
    connection = home.database.connect()
    connection.execute(
        "INSERT INTO codeRunner_gates VALUES (?, '2999-01-01 00:00:00.000', '2026-01-01 00:00:00')",
        (key,),
    )
    connection.close()
    shown = home.read("status")
    assert (shown["verdict"], shown["gates"][0]["key"]) == ("gated", key)
    assert "2999-01-01" in home.ok("status")


def test_status_of_a_stalled_queue_answers_no(home: Home) -> None:
    """
    Work that nobody starts: exit code 1, for those who watch.
    """
    home.submit()
    connection = home.database.connect()
    connection.execute("UPDATE codeRunner_executions SET queued_at = '2026-01-01 00:00:00.000'")
    connection.close()
    result = home.run("status", "--json")
    assert (result.exit_code, json.loads(result.stdout)["verdict"]) == (1, "stalled")


def test_status_without_its_gates(home: Home) -> None:
    """
    A store of gates that does not answer is said, and hides nothing else: degraded.
    """
    home.submit()
    home.alive()
    gates = ("--set", "gates.backend=memcached", "--set", f"gates.servers=127.0.0.1:{free_port()}")
    result = home.run(*gates, "status", "--json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, shown["verdict"]) == (5, "degraded")
    assert (shown["gatesReachable"], shown["depth"]) == (False, 1)
    assert "does not answer" in home.run(*gates, "status").stdout


def test_database_that_is_not_there(home: Home) -> None:
    """
    Exit code 3; no empty file is made, no password shown.
    """
    missing = home.folder / "missing.db"
    there = ("--set", f"database.url=sqlite:///{missing}")
    for words in (("status",), ("logs",), ("show", "1"), ("cancel", "1"), ("db", "current")):
        assert "crq db upgrade" in failed(home.run(*there, *words), 3)
    assert not missing.exists()
    url = f"mysql://u:sesame@127.0.0.1:{free_port()}/x"
    assert "sesame" not in failed(home.run("--set", f"database.url={url}", "status"), 3)


def test_schema_that_is_not_ours(home: Home) -> None:
    """
    A database of another version is not touched: exit code 3 with what to run.
    """
    empty = home.folder / "empty.db"
    empty.touch()
    there = ("--set", f"database.url=sqlite:///{empty}")
    assert "crq db upgrade" in failed(home.run(*there, "status"), 3)
    result = home.run(*there, "db", "current", "--json")
    assert (result.exit_code, json.loads(result.stdout)["revision"]) == (1, None)
    assert migrations.HEAD in home.ok(*there, "db", "upgrade")
    assert json.loads(home.ok(*there, "db", "current", "--json"))["revision"] == migrations.HEAD
    connection = Database(f"sqlite:///{empty}").connect()
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for words in (("status",), ("db", "upgrade")):
        assert "9999" in failed(home.run(*there, *words), 3)


def test_sql_for_a_dba(home: Home) -> None:
    """
    The whole schema in either dialect, on standard output alone.
    """
    assert "ENGINE=InnoDB" in home.ok("db", "sql", "--dialect", "mysql")
    assert "WITHOUT ROWID" in home.ok("db", "sql", "--dialect", "sqlite")


def test_configuration_is_checked(home: Home) -> None:
    """
    A good one is good; a fault is exit code 2 and names the option.
    """
    assert home.read("config", "check") == {"ok": True}
    for words, name in (
        (("--set", "limits.in_flight=many"), "limits.in_flight"),
        (("--set", "nonsense"), "nonsense"),
        (("--set", "secrets.salt_file=/nowhere"), "secrets.salt_file"),
        (("--set", "secrets.seal_keys=sesame"), "secrets"),
    ):
        line = failed(home.run(*words, "config", "check"), 2)
        assert name in line
        assert "sesame" not in line
    assert "nowhere.toml" in failed(run("--config", "/nowhere.toml", "status"), 2)
    failed(home.run("status", env={"CRQ_NONSENSE": "1"}), 2)


def test_secrets_of_the_configuration_are_hidden(home: Home) -> None:
    """
    Every option is shown with its meaning, and no salt, sealing key, password or token's hash.
    """
    hidden = (
        *("--set", "secrets.salt=sesame", "--set", "secrets.seal_keys=sesame"),
        *("--set", "database.url=mysql://u:sesame@db.example:3306/x"),
    )
    for text in (home.ok(*hidden, "config", "show"), home.ok(*hidden, "config", "show", "--json")):
        assert "sesame" not in text
        assert "db.example:3306" in text
        assert "(hidden)" in text
    (token,) = configfile.load(str(home.folder / "crqueue.toml"), {}).tokens
    assert token.sha256 not in home.ok("config", "show", "--json")
    assert "limits.queued_total" in home.ok("config", "show")


def test_new_token_is_known_by_its_lines(home: Home) -> None:
    """
    The lines that are printed make the token known when they are added to the file.
    """
    result = home.run("token", "new", "--name", 'po"rtal', "--scope", "read", "--account", "acme")
    assert result.exit_code == 0
    bearer = result.stdout.strip()
    lines = result.stderr[result.stderr.index("[[tokens]]") :]
    assert bearer not in result.stderr
    path = home.folder / "crqueue.toml"
    path.write_text(path.read_text() + "\n" + lines)
    (_, token) = configfile.load(str(path), {}).tokens
    assert same_secret(bearer.encode(), token.sha256)
    assert (token.name, token.scopes, token.accounts) == ('po"rtal', ("read",), ("acme",))
    failed(home.run("token", "new", "--scope", "nonsense"), 2)
    assert home.read("token", "new")["token"] != bearer


def test_fault_of_ours_is_one_line(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Even a plain programming error is one line, with where it was: exit code 4.
    """

    def broken(*_args: object) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(records, "execution", broken)
    line = failed(home.run("show", "1"), 4)
    assert "KeyError" in line
    assert "test_cli.py" in line


def test_lost_commit_of_a_cancel_is_settled_by_reading(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    When the answer to COMMIT is lost, the row itself says whether it was cancelled.
    """
    from crq.database import CommitUnknown

    home.submit()
    real = Database.transact

    def lose(self: Database, *args: Any, **kwargs: Any) -> Any:
        real(self, *args, **kwargs)
        raise CommitUnknown

    monkeypatch.setattr(Database, "transact", lose)
    assert home.ok("cancel", "1") == "execution 1 cancelled\n"


def test_every_command_explains_itself() -> None:
    """
    Each has a help text with the exit codes, and those that take arguments an example.
    """
    pages = [
        run(*words, "--help").output
        for words in (
            *((), ("init",), ("submit",), ("status",), ("logs",), ("show",), ("cancel",)),
            *(("db",), ("db", "upgrade"), ("db", "current"), ("db", "sql"), ("config",)),
            *(("config", "check"), ("config", "show"), ("token",), ("token", "new")),
        )
    ]
    for page in pages:
        assert "Exit codes:" in page
    assert sum("Example" in page for page in pages) >= len(pages) - 3


def test_states_of_the_filter_are_those_of_the_model() -> None:
    """
    The list is written out for the sake of a quick start, so it is compared here.
    """
    from crq.cli.reading import STATES

    assert tuple(status.value for status in Status) == STATES


def test_process_of_its_own(home: Home) -> None:
    """
    As a program: help loads nothing heavy, output goes to a pipe, a reader that leaves is no fault.
    """
    environment = {**os.environ, "CRQ_CONFIG": str(home.folder / "crqueue.toml")}
    program = (sys.executable, "-W", "error", "-m", "crq.cli")
    loaded = subprocess.run(
        (
            *(sys.executable, "-W", "error", "-c"),
            "import sys, crq.cli; print(*sorted(sys.modules), sep='\\n')",
        ),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout.split()
    for heavy in ("alembic", "sqlalchemy", "twisted", "cryptography", "pymysql", "rich.table"):
        assert heavy not in loaded
    home.submit()
    found = subprocess.run(
        (*program, "logs", "--json"), capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(found.stdout)["executions"][0]["executionId"] == 1
    cut = subprocess.run(
        ("sh", "-c", '"$@" | true', "sh", *program, "config", "show"),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "Traceback" not in cut.stderr
