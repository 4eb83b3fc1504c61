"""
One frozen configuration: every option with its default and the reason for it.

Values are checked when they are made: a `ValueError` names the option, what is wrong and the
remedy. `crq.configfile` reads them from a file, the environment and the command line.

`option(default, meaning)` keeps the meaning beside the default; ``crq config show`` and
``docs/configuration.md`` print it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from attrs import NOTHING, Attribute, Factory, field, frozen

from crq import policy
from crq.database import Database
from crq.model import Limits
from crq.sealing import Sealer

SCOPES = ("admit", "read", "operate", "promote")


def option(default: Any, meaning: str, check: Callable[[Any], str | None] | None = None) -> Any:
    """
    Declare an option.

    :param check: says what is wrong with a value (and the remedy), or None.
    """

    def validate(instance: object, attribute: Attribute[Any], value: Any) -> None:
        problem = check(value) if check is not None else None
        if problem is not None:
            section = getattr(type(instance), "SECTION", "")
            raise ValueError(f"{section}{attribute.name}: {problem}")

    return field(default=default, metadata={"meaning": meaning}, validator=validate)


def between(low: float, high: float) -> Callable[[Any], str | None]:
    """
    Allow numbers from low to high.
    """

    def check(value: Any) -> str | None:
        if low <= value <= high:
            return None
        return f"{value!r} is out of range; give a value from {low:g} to {high:g}"

    return check


def http_url(value: str) -> str | None:
    """
    Allow an absolute http or https URL without credentials.
    """
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{value!r} is no http URL; give one like http://127.0.0.1:8081"
    if parts.username or parts.password:
        return "the URL must not carry a password; leave it out"
    return None


def database_url(value: str) -> str | None:
    """
    Allow what `crq.database.Database` understands; the value itself is never repeated.
    """
    try:
        Database(value)
    except ValueError as error:
        return str(error)
    return None


@frozen
class DatabaseOptions:
    """
    Where the rows are.
    """

    SECTION = "database."
    url: str = option("sqlite:///crqueue.db", "sqlite:///FILE or mysql://…/NAME", database_url)
    timeout: float = option(
        10.0, "seconds to wait for the server: ten ticks, then it counts as away", between(1, 300)
    )
    pool: int = option(4, "connections of the daemon; SQLite always has one", between(1, 64))
    cluster: Literal["none", "galera"] = option(
        "none",
        "galera: daemons and executors may use different nodes; each session waits until it sees"
        " what other nodes have committed, and conflicts are repeated more often",
    )


@frozen
class SecretOptions:
    """
    Salt and sealing keys, each in a file of its own, or given by the environment.
    """

    SECTION = "secrets."
    salt_file: str = option("", "file with the salt of all hashes")
    salt: str = option("", "the salt itself; better CRQ_SECRETS_SALT or a file than this")
    seal_keys_file: str = option("", "file with Fernet keys, one a line, the newest first")
    seal_keys: str = option("", "the keys themselves, separated by spaces; better a file")


@frozen
class LimitOptions:
    """
    The caps (brief §4, §7, §11.1).
    """

    SECTION = "limits."
    in_flight: int = option(4, "executions at once: half the executor's ceiling", between(1, 1000))
    per_account: int = option(2, "of them of one account", between(1, 1000))
    queued_per_account: int = option(
        500, "waiting executions at which an account is refused", between(1, 1_000_000)
    )
    queued_total: int = option(
        2000, "waiting executions at which everybody is refused", between(1, 10_000_000)
    )

    def __attrs_post_init__(self) -> None:
        if self.per_account > self.in_flight:
            raise ValueError(
                f"limits.per_account: {self.per_account} is above limits.in_flight"
                f" ({self.in_flight}) and could never be reached; lower it or raise that"
            )
        if self.queued_per_account > self.queued_total:
            raise ValueError(
                f"limits.queued_per_account: {self.queued_per_account} is above"
                f" limits.queued_total ({self.queued_total}); lower it or raise that"
            )

    def limits(self) -> Limits:
        """
        The caps as the rules take them.
        """
        return Limits(self.in_flight, self.per_account, self.queued_per_account, self.queued_total)


@frozen
class GateOptions:
    """
    Where the gates are kept.
    """

    SECTION = "gates."
    backend: Literal["database", "memcached"] = option("database", "database or memcached")
    servers: tuple[str, ...] = option((), "memcached servers, host:port or a socket's path")
    prefix: str = option(
        "cr_api_avail_",
        "key prefix in memcached, the one PHP writes (brief §8)",
        lambda value: (
            None
            if re.fullmatch(r"[\x21-\x7e]{1,150}", value)
            else f"{value!r} is no prefix; use 1 to 150 printable ASCII characters, no spaces"
        ),
    )
    timeout: float = option(
        0.5, "seconds to connect and to read: below one tick", between(0.05, 10)
    )
    key_hash: Literal["salted", "plain"] = option(
        "salted",
        "how an API key becomes its hash: SHA-256 of salt and key, or (plain) of the key alone,"
        " for PHP that writes gates and does not know the salt",
    )
    shortest_wait: int = option(
        policy.RETRY_AFTER_MINIMUM,
        "seconds that any 429 is waited for at least: 0 must not become a tight loop",
        between(1, 3600),
    )
    margin: float = option(
        policy.GATE_MARGIN,
        "seconds added to each wait: the API's clock and ours differ (brief §8)",
        between(0, 600),
    )

    def __attrs_post_init__(self) -> None:
        if self.backend == "memcached" and not self.servers:
            raise ValueError("gates.servers: empty; name a server, such as 127.0.0.1:11211")
        for server in self.servers:
            if not (server.startswith("/") or re.fullmatch(r"[^\s:]+:\d{1,5}", server)):
                raise ValueError(f"gates.servers: {server!r} is no address; write host:port")


@frozen
class DrainerOptions:
    """
    The loop.
    """

    SECTION = "drainer."
    id: str = option(
        Factory(socket.gethostname),
        "name of this drainer in the rows; must stay the same over restarts, and be no other's",
        lambda value: (
            None
            if re.fullmatch(r"[\w.:-]{1,64}", value, re.A)
            else f"{value!r} is no name; use 1 to 64 letters, digits, dots, colons and dashes"
        ),
    )
    slots: int = option(
        0,
        "executions in flight through this drainer, for boxes with an executor each; 0: as many as"
        " limits.in_flight, which counts over all drainers",
        between(0, 1000),
    )
    tick: float = option(1.0, "seconds between ticks (brief §4: 1 Hz)", between(0.01, 60))
    drain_limit: float = option(
        60.0, "seconds to wait for answers after SIGTERM; the rest goes on in the executor"
    )
    stop_limit: float = option(
        75.0, "seconds after which a stop is over whatever happens; below the unit's TimeoutStopSec"
    )
    lock_file: str = option("crqueue.lock", "held while the daemon runs: one per box and queue")
    wake_socket: str = option(
        "",
        "path of a unix datagram socket at which the daemon is poked to look for work at once, by"
        " an admission process of its host or by whoever inserts rows there; empty: there is none",
    )

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.drain_limit <= self.stop_limit:
            raise ValueError(
                f"drainer.drain_limit: {self.drain_limit:g} is above drainer.stop_limit"
                f" ({self.stop_limit:g}) or negative; the stop limit must leave room for the drain"
            )


@frozen
class ExecutorOptions:
    """
    The executor, seen from the drainer (url, deadline, liveness) and from itself (the rest).
    """

    SECTION = "executor."
    contract: Literal["fenced", "plain"] = option(
        "fenced",
        "fenced: an executor that uses up nonces and writes outcomes; plain: any HTTP endpoint,"
        " whose status is the outcome (docs/plain-endpoints.md)",
    )
    url: str = option(
        "http://127.0.0.1:8081", "where runAsync is POSTed to; plain: the endpoint itself", http_url
    )
    token_file: str = option(
        "", "plain: file with the bearer token that the endpoint knows us by; empty: none is sent"
    )
    send_apikey: bool = option(
        False, "plain: whether the endpoint is sent the API key itself, unsealed"
    )
    bind: str = option("127.0.0.1:8081", "where our own executor listens")
    workers: int = option(8, "processes: the hard ceiling (brief §2)", between(1, 256))
    wall: float = option(
        300.0, "seconds after which a worker is killed (brief §3)", between(1, 86400)
    )
    deadline: float = option(
        330.0, "seconds for one whole answer; above the wall, so that the wall decides first"
    )
    grace: float = option(
        30.0, "seconds after the wall until a row counts as over where locks cannot be trusted"
    )
    liveness: Literal["lock", "wall"] = option(
        "lock",
        "how a dead worker is known: its lock (plain: the process that POSTed), or the wall"
        " (Galera, proxies; plain: where slots must count work that a dead daemon left behind)",
    )
    lock_dir: str = option("locks", "directory of the liveness locks with SQLite")
    answer_limit: int = option(
        65536, "bytes read of an answer; an outcome has under 5,000", between(1024, 10_000_000)
    )
    script_seconds: float = option(
        180.0,
        "seconds after which no loop iteration starts (brief §3)",
        between(0.1, 86400),
    )
    memory_mb: int = option(
        512, "address space a script may add to its worker, in MB", between(64, 1_000_000)
    )

    def __attrs_post_init__(self) -> None:
        problem = http_url(self.url)
        if problem:
            raise ValueError(f"executor.url: {problem}")
        if self.deadline <= self.wall:
            raise ValueError(
                f"executor.deadline: {self.deadline:g} is not above executor.wall"
                f" ({self.wall:g}); an answer must be awaited longer than a script may take"
            )
        for name, given in (("token_file", self.token_file), ("send_apikey", self.send_apikey)):
            if given and self.contract != "plain":
                raise ValueError(
                    f'executor.{name}: is for executor.contract = "plain" alone, a fenced executor'
                    " reads the rows itself; leave it out, or set the contract"
                )

    def token(self) -> str:
        """
        Read the bearer token; empty: there is none.

        :raise ValueError: it cannot be read, or is none; the text names the option.
        """
        if not self.token_file:
            return ""
        token = _secret(
            self.token_file, "executor.token_file", "write the token, or leave the option out"
        )
        if re.fullmatch(r"[\x21-\x7e]+", token) is None:
            raise ValueError(
                f"executor.token_file: {self.token_file} is no token; write one line of printable"
                " ASCII characters without blanks"
            )
        return token


@frozen
class ApiOptions:
    """
    The rate-limited API that scripts call.
    """

    SECTION = "api."
    base_url: str = option(
        "https://{subdomain}.invalid/api/v2",
        "its address; {subdomain} becomes the account's, so a script never chooses the host",
        lambda value: http_url(value.replace("{subdomain}", "account")),
    )
    key_header: str = option("apikey", "request header that carries the API key")
    timeout: float = option(180.0, "seconds for one call (brief §3)", between(0.1, 3600))
    attempts: int = option(3, "attempts of one call on 429 and 401 (brief §10)", between(1, 10))
    wait_below: int = option(
        100, "a 429 with a shorter Retry-After is waited for; from here on it ends the script"
    )
    wait_unauthorized: float = option(
        60.0,
        "seconds before a 401 'API limit' is tried again (brief §10)",
        between(0, 3600),
    )


@frozen
class Token:
    """
    A caller's bearer token: its SHA-256, what it may do and for whom.
    """

    SECTION = "tokens."
    name: str
    sha256: str = option(
        NOTHING,
        "SHA-256 of the token, 64 hex digits (crq token new)",
        lambda value: (
            None
            if re.fullmatch(r"[0-9a-f]{64}", value)
            else "is no SHA-256; run `crq token new` and copy its sha256 line"
        ),
    )
    scopes: tuple[str, ...] = option(
        ("admit", "read"),
        "what it may do: " + ", ".join(SCOPES),
        lambda value: (
            None
            if value and set(value) <= set(SCOPES)
            else f"{list(value)!r}: known scopes are {', '.join(SCOPES)}"
        ),
    )
    accounts: tuple[str, ...] = option((), "subdomains it is limited to; none: all accounts")


@frozen
class WebOptions:
    """
    The HTTP door.
    """

    SECTION = "web."
    listen: str = option(
        "tcp:8080:interface=127.0.0.1", "a Twisted endpoint description; loopback by default"
    )
    body_limit: int = option(
        1_048_576, "bytes of a request body; MEDIUMTEXT holds 16 MB", between(1024, 16_000_000)
    )
    request_seconds: float = option(30.0, "seconds for a whole request to arrive", between(1, 600))
    rate: float = option(
        100.0,
        "requests a second that a token may make, on average over ten; 0: any number. The busiest"
        " minute on record had 137 in all (brief §6)",
        between(0, 100_000),
    )
    connections: int = option(
        512,
        "connections at once; beyond, those are let go that have waited longest for a request,"
        " first those without a known token",
        between(8, 100_000),
    )


@frozen
class ScriptOptions:
    """
    The language of the scripts.
    """

    SECTION = "script."
    language: Literal["starlark", "opaque"] = option(
        "starlark", "starlark is parsed at admission; opaque goes to the executor as it came"
    )


@frozen
class ReaperOptions:
    """
    The janitor (rulings 1-3).
    """

    SECTION = "reaper."
    every: float = option(60.0, "seconds between rounds", between(1, 3600))
    running_limit: float = option(
        900.0, "seconds after which a running row is closed as 303 (brief §3)"
    )
    queued_limit: float = option(
        0.0,
        "seconds after which a waiting row is closed; 0: never (brief §11.1)",
        lambda value: (
            None
            if value == 0 or value >= 86400
            else f"{value:g} is under a day; waiting work is not aged out: give 0 or 86400"
        ),
    )
    scrub_after: float = option(
        7200.0, "seconds after the end until the API key is wiped", between(60, 31_536_000)
    )
    keep_days: int = option(92, "days a finished execution is kept: three months", between(1, 3660))
    batch: int = option(1000, "rows of one purge transaction", between(1, 100_000))


@frozen
class MetricsOptions:
    """
    What Prometheus scrapes at /metrics.
    """

    SECTION = "metrics."
    loopback: bool = option(
        False,
        "whether /metrics needs no token from this very machine; not with a proxy on it that does"
        " not say for whom it asks",
    )
    accounts: bool = option(
        False, "whether the 20 deepest accounts have series of their own, by a short hash"
    )


@frozen
class ManholeOptions:
    """
    A shell into the living daemon over SSH, for keys alone; off unless it is told where to listen.
    """

    SECTION = "manhole."
    listen: str = option("", "tcp:PORT:interface=127.0.0.1 or unix:/PATH; empty: there is none")
    authorized_keys_file: str = option(
        "", "public keys that open it, one a line; of mode 640 or 600"
    )
    host_key_file: str = option(
        "manhole.key", "its own private key, of mode 600; made when it is missing"
    )


@frozen
class HistoryOptions:
    """
    What is kept for operators beside the executions.
    """

    SECTION = "history."
    series_days: int = option(
        30, "days the series of minutes is kept: 1,440 small rows each", between(1, 3660)
    )
    audit_days: int = option(366, "days the audit is kept: a year and a day", between(1, 3660))


@frozen
class LogOptions:
    """
    The daemon's log. Where it goes is twistd's to say: standard output, or its --logfile.
    """

    SECTION = "log."
    level: Literal["debug", "info", "warn", "error"] = option(
        "info", "the least level that is written; debug has a line for each settled dispatch"
    )
    format: Literal["auto", "text", "json", "journal"] = option(
        "auto",
        "text; one JSON object a line; the journal's own fields; auto: the latter where standard"
        " output leads to the journal, else text",
    )


def allowed_tables(value: tuple[str, ...]) -> str | None:
    """
    Allow ``table:tenant_column:id_column``.
    """
    for text in value:
        if re.fullmatch(r"[A-Za-z_]\w{0,63}(:[A-Za-z_]\w{0,63}){2}", text, re.A) is None:
            return f"{text!r} names no table; write table:tenant_column:id_column"
    return None


@frozen
class AutomationOptions:
    """
    Automations: schedules, runs and what they decide about.
    """

    SECTION = "automations."
    scheduler: Literal["on", "off"] = option(
        "on", "whether this daemon makes and advances runs; one of several is enough"
    )
    threads: int = option(
        4, "automations that decide or act at once, each on a thread of its own", between(1, 64)
    )
    keep_days: int = option(
        92, "days an ended run is kept with its items: as long as an execution", between(1, 3660)
    )
    tables: tuple[str, ...] = option(
        (),
        "tables that run_script may read, each as table:tenant_column:id_column; a tenant's"
        " automations see its own rows",
        allowed_tables,
    )


@frozen
class Config:
    """
    The whole configuration.
    """

    database: DatabaseOptions = Factory(DatabaseOptions)
    secrets: SecretOptions = Factory(SecretOptions)
    limits: LimitOptions = Factory(LimitOptions)
    gates: GateOptions = Factory(GateOptions)
    drainer: DrainerOptions = Factory(DrainerOptions)
    executor: ExecutorOptions = Factory(ExecutorOptions)
    api: ApiOptions = Factory(ApiOptions)
    web: WebOptions = Factory(WebOptions)
    script: ScriptOptions = Factory(ScriptOptions)
    reaper: ReaperOptions = Factory(ReaperOptions)
    log: LogOptions = Factory(LogOptions)
    history: HistoryOptions = Factory(HistoryOptions)
    metrics: MetricsOptions = Factory(MetricsOptions)
    manhole: ManholeOptions = Factory(ManholeOptions)
    automations: AutomationOptions = Factory(AutomationOptions)
    tokens: tuple[Token, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.reaper.running_limit <= self.executor.wall + self.executor.grace:
            raise ValueError(
                f"reaper.running_limit: {self.reaper.running_limit:g} is not above executor.wall"
                f" + executor.grace; a row must not be reaped while its script may still run"
            )
        executor = self.executor
        if executor.contract == "plain" and self.reaper.running_limit <= executor.deadline:
            raise ValueError(
                f"reaper.running_limit: {self.reaper.running_limit:g} is not above"
                f" executor.deadline ({executor.deadline:g}); a row must not be reaped while its"
                " answer may still come"
            )
        if self.database.cluster == "galera" and self.executor.liveness == "lock":
            raise ValueError(
                'executor.liveness: "lock" with database.cluster = "galera": a named lock is known'
                ' to one node alone, and others would take a living worker for dead; set "wall"'
            )

    def open_database(self) -> Database:
        """
        The database this configuration names.
        """
        galera = self.database.cluster == "galera"
        return Database(self.database.url, self.database.timeout, galera)

    def sealer(self) -> Sealer:
        """
        Read the secrets.

        :raise ValueError: one is missing, empty or unreadable; the text names the option.
        """
        salt = self.secrets.salt or _secret(self.secrets.salt_file, "secrets.salt_file")
        keys = self.secrets.seal_keys or _secret(
            self.secrets.seal_keys_file, "secrets.seal_keys_file"
        )
        try:
            return Sealer(salt, tuple(keys.split()), self.gates.key_hash == "salted")
        except ValueError as error:
            raise ValueError(f"secrets: {error}; `crq init` makes good ones") from None


def _secret(path: str, name: str, why: str = "without it every account would look the same") -> str:
    if not path:
        raise ValueError(f"{name}: not set; `crq init` makes one, or set it to the file's path")
    try:
        text = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"{name}: {path} cannot be read: {reason}") from None
    if not text:
        raise ValueError(f"{name}: {path} is empty; {why}")
    return text
