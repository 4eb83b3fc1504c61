"""
The HTTP door over a store in memory, spoken to in bytes, without sockets and without waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

from attrs import field, frozen
from twisted.internet import defer
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from crq import halves, web
from crq.automations.calls import Calls
from crq.automations.types import Types
from crq.config import Config, LimitOptions, ScriptOptions, Token, WebOptions
from crq.gatememory import GateMemory
from crq.interfaces import IGateStore
from crq.model import GateReading, Limits
from crq.pulse import Pulse
from crq.sealing import sha256_hex
from crq.web.reception import Reception
from tests.automations.house import AtOnce, Played
from tests.rows import NOON, SEALER
from tests.support import SynchronousPool, memory_pool

TOKEN = "crq_all"
HERE = IPv4Address("TCP", "127.0.0.1", 8080)
READER, ADMITTER, ACME = "crq_reader", "crq_admitter", "crq_acme"
TOKENS = (
    Token(name="all", sha256=sha256_hex(TOKEN)),
    Token(name="reader", sha256=sha256_hex(READER), scopes=("read",)),
    Token(name="admitter", sha256=sha256_hex(ADMITTER), scopes=("admit",)),
    Token(name="acme", sha256=sha256_hex(ACME), accounts=("acme",)),
)


@frozen
class Answer:
    """
    What came back.
    """

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> dict[str, Any]:
        """
        The body, read.
        """
        value: dict[str, Any] = json.loads(self.body)
        return value


class Wire(StringTransport):
    """
    One connection to a door; `bytes_sent` by the door are read off it.

    :ivar server: the port that accepted it.
    """

    server: Any = None

    def __init__(self, door: Door, here: Any = HERE) -> None:
        super().__init__(hostAddress=here, peerAddress=IPv4Address("TCP", "127.0.0.1", 31337))
        self._clock = door.clock
        self.protocol: Any = door.site.buildProtocol(here)
        self.protocol.makeConnection(self)
        self._clock.pump([0, 0])

    @property
    def closed(self) -> bool:
        """
        Whether the door has let go of it.
        """
        return self.disconnecting or self.disconnected

    def send(self, *pieces: bytes) -> None:
        """
        Send bytes, as a socket would deliver them: nothing after the end.
        """
        for piece in pieces:
            if not self.closed:
                self.protocol.dataReceived(piece)
            self._clock.advance(0)  # one request a turn of the reactor

    def hang_up(self) -> None:
        """
        End the connection from the client's side.
        """
        self.protocol.connectionLost(Failure(ConnectionError("gone")))

    def answer(self) -> Answer:
        """
        Take one answer off the wire.
        """
        head, _, rest = self.value().partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        self.clear()
        self.write(rest[length:])
        return Answer(int(first.split()[1]), headers, rest[:length])


@implementer(IGateStore)
class StoredGates:
    """
    A store of gates in a dictionary.

    :ivar fault: raised instead of an answer.
    """

    def __init__(self) -> None:
        self.stored: dict[str, float] = {}
        self.fault: Exception | None = None

    def read(self, keys: Collection[str], now: float) -> GateReading:
        if self.fault is not None:
            raise self.fault
        return GateReading({key: self.stored[key] for key in keys if key in self.stored})

    def close(self, key: str, until: float, now: float) -> float:
        self.stored[key] = until
        return until

    def open(self, key: str) -> None:
        self.stored.pop(key, None)


class Door:
    """
    A door with everything behind it.

    :ivar woken: how often the drainer was woken.
    :ivar kind: the one automation type that is installed.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        observe: Callable[[str], None] | None = None,
        body_limit: int = 4096,
        language: Literal["starlark", "opaque"] = "starlark",
        tokens: Iterable[Token] = TOKENS,
        pool: SynchronousPool | None = None,
        connections: int = 512,
        admits: bool = True,
        drains: bool = True,
    ) -> None:
        self.clock = Clock()
        self.pool = pool or memory_pool(observe)
        self.pulse = Pulse(NOON, last_good_tick=NOON, last_good_monotonic=0.0)
        self.stored_gates = StoredGates()
        self.gates = GateMemory(self.stored_gates, defer.execute, self.clock)
        self.woken = 0
        self.kind = Played()
        self.previews = AtOnce()
        config = Config(
            limits=LimitOptions(
                limits.in_flight,
                limits.per_account,
                limits.queued_per_account,
                limits.queued_total,
            ),
            web=WebOptions(body_limit=body_limit, connections=connections),
            script=ScriptOptions(language),
            tokens=tuple(tokens),
        )
        self.desk = halves.desk(config, SEALER, Types([self.kind]))
        self.site = web.site(
            config=config,
            pool=self.pool,
            sealer=SEALER,
            pulse=self.pulse if drains else None,
            gates=self.gates,
            wake=self.wake,
            wall=self.wall,
            monotonic=self.clock.seconds,
            reactor=self.clock,
            admits=admits,
            reception=Reception(
                self.desk, Calls(self.pool.database, self.clock.seconds), self.previews
            ),
        )

    def wake(self) -> None:
        """
        Count a wake-up.
        """
        self.woken += 1

    def wall(self) -> float:
        """
        The wall clock.
        """
        return NOON + self.clock.seconds()

    def close(self) -> None:
        """
        Close the store.
        """
        self.pool.close()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        token: str | bytes | None = TOKEN,
        headers: Iterable[tuple[str, str | bytes]] = (),
    ) -> Answer:
        """
        Ask once, on a connection of its own.
        """
        wire = Wire(self)
        wire.send(request(method, path, body, token, headers))
        return wire.answer()

    def submit(self, token: str | None = TOKEN, key: str | None = None, **fields: Any) -> Answer:
        """
        Submit as JSON.
        """
        given = {"subdomain": "acme", "apikey": "k", "source_code": "x = 1", **fields}
        more = [("Content-Type", "application/json")]
        more += [("Idempotency-Key", key)] if key is not None else []
        return self.ask("POST", "/codeRunner", json.dumps(given).encode(), token, more)


def request(
    method: str,
    path: str,
    body: bytes = b"",
    token: str | bytes | None = TOKEN,
    headers: Iterable[tuple[str, str | bytes]] = (),
) -> bytes:
    """
    The bytes of a request.
    """
    lines: list[tuple[str, str | bytes]] = [("Host", "door"), *headers]
    if token is not None:
        bearer = token if isinstance(token, bytes) else token.encode("latin-1")
        lines.append(("Authorization", b"Bearer " + bearer))
    if body:
        lines.append(("Content-Length", str(len(body))))
    head = b"".join(
        name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
        for name, value in lines
    )
    return f"{method} {path} HTTP/1.1\r\n".encode() + head + b"\r\n" + body
