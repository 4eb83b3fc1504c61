"""
The executor: does it answer, and does it agree with us on the wall, the locks and the gates?
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from attrs import field, frozen

from crq.config import Config
from crq.doctor import clocks
from crq.doctor.findings import Finding, error, note, ok, warning
from crq.instants import Instant

PATH = "/health"
WITHIN = 5.0  # s for the answer: a worker that is free answers at once
BODY_LIMIT = 65_536  # bytes
LEEWAY = 5.0  # s that an answer needs to come back after the wall


@frozen
class Health:
    """
    What came back.

    :ivar status: of HTTP; 0: nothing came.
    :ivar told: the fields of the answer, if it had any.
    :ivar date: the answer's Date, if it had one: cut to the second.
    """

    status: int
    problem: str = ""
    told: Mapping[str, Any] = field(factory=dict)
    date: Instant | None = None

    @property
    def time(self) -> Instant | None:
        """
        The executor's clock; None: it does not tell.
        """
        told = self.told.get("time")
        return float(told) if isinstance(told, (int, float)) else self.date

    @property
    def coarse(self) -> float:
        """
        Seconds that its time is cut to.
        """
        return 0.0 if isinstance(self.told.get("time"), (int, float)) else 1.0


def look(
    config: Config, wall: Callable[[], Instant], monotonic: Callable[[], float]
) -> Iterator[Finding]:
    """
    Ask the executor that the configuration names.
    """
    if config.executor.contract == "plain":
        yield from endpoint(config, ask(config.executor.url, ""))
        return
    answers: list[Health] = []

    def question() -> Instant | None:
        answers.append(ask(config.executor.url))
        return answers[-1].time

    skew = clocks.measure(question, wall, monotonic)
    (health,) = answers
    yield reachable(config.executor.url, health)
    if health.status:
        if skew is not None and health.coarse:
            skew = clocks.Skew(skew.ahead + health.coarse / 2, skew.give + health.coarse / 2)
        yield clocks.judge("clock of the executor", "executor", skew)
        yield from agreed(config, health)


def endpoint(config: Config, health: Health) -> Iterator[Finding]:
    """
    Judge a plain endpoint: whether anybody is there, and what goes there in the clear.
    """
    ours = config.executor
    if health.status == 0:
        yield reachable(ours.url, health)
    else:
        yield ok("executor", f"{ours.url} answers a GET with {health.status}, as a plain endpoint")
    parts = urlsplit(ours.url)
    host = parts.hostname or ""
    secret = [
        what
        for what, sent in (("API keys", ours.send_apikey), ("the token", bool(ours.token_file)))
        if sent
    ]
    if secret and parts.scheme == "http" and not _loopback(host):
        yield warning(
            "secrets in the clear",
            f"{' and '.join(secret)} go to {ours.url} unencrypted",
            "use https, or see that nobody else is on that network",
        )
    drainer = config.drainer
    if drainer.drain_limit < ours.deadline:
        yield note(
            "stops",
            f"a stop waits {drainer.drain_limit:g} s for answers, which may take"
            f" {ours.deadline:g} s: what is unanswered then is closed as unknown (303)",
            "raise drainer.drain_limit and drainer.stop_limit, and the unit's TimeoutStopSec, above"
            " what your endpoint takes",
        )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def ask(url: str, path: str = PATH) -> Health:
    """
    GET its health. Follows nothing and sends no secret.

    :param path: of the health; empty: what is at the URL itself.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, parts.port, timeout=WITHIN, context=context)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=WITHIN)
    try:
        at = parts.path.rstrip("/") + path if path else parts.path or "/"
        if parts.query and not path:
            at += f"?{parts.query}"
        connection.request("GET", at, headers={"Connection": "close"})
        answer = connection.getresponse()
        told = _object(answer.read(BODY_LIMIT))
        return Health(answer.status, str(told.get("problem", "")), told, _date(answer))
    except (OSError, http.client.HTTPException) as fault:
        return Health(0, f"{type(fault).__name__}: {fault}")
    finally:
        connection.close()


def reachable(url: str, health: Health) -> Finding:
    """
    Judge whether there is an executor.
    """
    if health.status == 0:
        return error(
            "executor",
            f"{url} does not answer: {health.problem}",
            "see that it runs, and executor.url; until then the queue keeps its work",
        )
    if health.status == 200:
        version = health.told.get("version")
        return ok("executor", f"{url} is well" + (f", version {version}" if version else ""))
    if health.status in (404, 405):
        return note(
            "executor",
            f"{url} answers, but has no {PATH}: it is another kind of executor, or the URL is"
            " not its own",
            "compare its wall with executor.wall by hand (PHP: request_terminate_timeout)",
        )
    text = f"{url} answers {health.status}"
    if health.problem:
        text += f": {health.problem}"
    remedy = "see the executor's log; until then the queue keeps its work"
    return error("executor", text, remedy)


def agreed(config: Config, health: Health) -> Iterator[Finding]:
    """
    Compare what an executor told with what we believe of it.
    """
    ours = config.executor
    wall = health.told.get("wall")
    if isinstance(wall, (int, float)) and not isinstance(wall, bool):
        yield deadline(float(wall), ours.wall, ours.deadline)
    elif health.status == 200:
        yield note("wall", "the executor does not tell its wall", "compare it with executor.wall")
    for name, value, why in (
        ("liveness", ours.liveness, "a living worker would be taken for dead, or a dead one kept"),
        ("gates", config.gates.backend, "a key that was refused would not be seen as closed"),
    ):
        told = health.told.get(name)
        if told is not None and told != value:
            option = "executor.liveness" if name == "liveness" else "gates.backend"
            yield error(
                f"agreement on {name}",
                f"{option} is {value} here and {told} in the executor: {why}",
                "give both the same configuration, and restart both",
            )


def deadline(wall: float, believed: float, limit: float) -> Finding:
    """
    Judge an executor's wall: it must end a script before we stop listening.
    """
    text = f"the executor's wall is {wall:g} s, executor.deadline {limit:g} s"
    if wall >= limit:
        return error(
            "wall",
            f"{text}: we hang up while scripts still run, and their outcomes come late",
            f"raise executor.deadline above {wall + LEEWAY:g}, and executor.wall to {wall:g}",
        )
    if wall != believed:
        return warning(
            "wall",
            f"{text}, but executor.wall is {believed:g} here: grace and reaping count from it",
            f"set executor.wall = {wall:g} in the daemon's configuration too",
        )
    if limit - wall < LEEWAY:
        return warning("wall", f"{text}: an answer has little time", "leave some 30 s between them")
    return ok("wall", text)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _date(answer: http.client.HTTPResponse) -> Instant | None:
    try:
        moment = parsedate_to_datetime(answer.getheader("Date", ""))
    except (TypeError, ValueError):
        return None
    return moment.replace(tzinfo=UTC).timestamp()  # HTTP knows no other zone
