"""
What tests of the executor share: clocks that a test turns, gates in memory, a whole worker.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from attrs import define, evolve, field
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from crq import schema
from crq.config import ApiOptions, Config, DatabaseOptions, ExecutorOptions, Token
from crq.database import CommitUnknown, Database
from crq.executor.app import App
from crq.executor.clock import Clock
from crq.executor.connection import Connection
from crq.executor.run import Executor
from crq.instants import Instant
from crq.interfaces import IGateStore
from crq.liveness import Liveness
from crq.model import Claimed, GateReading
from crq.sealing import sha256_hex
from tests import rows
from tests.rows import NOON, SEALER

TOKEN = "token-of-everybody"
LIMITED = "token-of-acme"
READER = "token-of-a-reader"
_SCHEMA = schema.sql("sqlite")


@define(eq=False)
class TurnedClock:
    """
    Both clocks of a worker; a sleep turns them.

    :ivar offset: of the wall clock: change it and it has been stepped.
    :ivar tick: seconds that pass with each look at the monotonic clock.
    :ivar step: seconds by which the wall clock is stepped in each sleep.
    :ivar sleeps: each sleep, in seconds.
    """

    offset: float = NOON
    seconds: float = 5000.0
    tick: float = 0.0
    step: float = 0.0
    sleeps: list[float] = field(factory=list)

    @property
    def clock(self) -> Clock:
        """
        As the executor takes it.
        """
        return Clock(self.wall, self.monotonic, self.sleep)

    def wall(self) -> Instant:
        """
        The wall clock.
        """
        return self.offset + self.seconds - 5000.0

    def monotonic(self) -> float:
        """
        The monotonic clock.
        """
        self.seconds += self.tick
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """
        Let time pass.
        """
        self.sleeps.append(seconds)
        self.seconds += seconds
        self.offset += self.step


@implementer(IGateStore)
@define(eq=False)
class MemoryGates:
    """
    Gates as a store keeps them.

    :ivar closings: each call of `close`: key, until, now.
    :ivar fail: raises instead.
    """

    closings: list[tuple[str, Instant, Instant]] = field(factory=list)
    closed: dict[str, Instant] = field(factory=dict)
    fail: Callable[[], Exception] | None = None

    def read(self, keys: Collection[str], now: Instant) -> GateReading:
        return GateReading({k: v for k, v in self.closed.items() if k in keys and v > now})

    def close(self, key: str, until: Instant, now: Instant) -> Instant:
        if self.fail is not None:
            raise self.fail()
        self.closings.append((key, until, now))
        self.closed[key] = max(until, self.closed.get(key, 0.0))
        return self.closed[key]

    def open(self, key: str) -> None:
        self.closed.pop(key, None)


@define(eq=False)
class Disturbed(Connection):
    """
    A connection that fails where a test says.

    :ivar disturb: called before each transaction with the function's name; may raise.
    :ivar lose: names of functions whose COMMIT is done and not answered.
    """

    disturb: Callable[[str], None] = lambda name: None
    lose: frozenset[str] = frozenset()

    def read(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.disturb(function.__name__)
        return super().read(function, *args, **kwargs)

    def transact(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.disturb(function.__name__)
        result = super().transact(function, *args, **kwargs)
        if function.__name__ in self.lose:
            raise CommitUnknown
        return result


class DoorCase(SynchronousTestCase):
    """
    An application over an empty database, with the clocks at noon.
    """

    base_url = "http://127.0.0.1:1/api"

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        path = self.folder / "rows.db"
        path.touch()
        self.database = Database(f"sqlite:///{path}")
        self.rows = self.database.connect()
        self.addCleanup(self.rows.close)
        self.rows.executescript(f"PRAGMA journal_mode = MEMORY; {_SCHEMA}")
        self.config = Config(
            database=DatabaseOptions(self.database.url),
            executor=ExecutorOptions(lock_dir=str(self.folder / "locks")),
            api=ApiOptions(base_url=self.base_url),
            tokens=(
                _token(TOKEN, "admit"),
                _token(LIMITED, "admit", accounts=("Acme",)),
                _token(READER, "read"),
            ),
        )
        self.time = TurnedClock()
        self.gates = MemoryGates()
        self.connection = Disturbed(self.database)
        self.addCleanup(self.connection.close)
        self.app = self.make()

    def make(self, liveness: type[Liveness] | None = Liveness, **api: Any) -> App:
        config = evolve(self.config, api=evolve(self.config.api, **api))
        locks = None if liveness is None else liveness(self.database, self.folder / "locks")
        executor = Executor(config, self.connection, SEALER, self.gates, locks, self.time.clock)
        return App(config, executor)

    def claimed(self, source_code: str = "x = 1", **more: Any) -> Claimed:
        rows.admit(self.database, self.rows, source_code=source_code, **more)
        (claimed,) = rows.claim(self.database, self.rows)
        return claimed

    def request(
        self, method: str, path: str, body: bytes | io.RawIOBase = b"", **environ: Any
    ) -> tuple[int, dict[str, Any]]:
        given: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "CONTENT_LENGTH": str(len(body)) if isinstance(body, bytes) else "100",
            "wsgi.input": io.BytesIO(body) if isinstance(body, bytes) else body,
            **environ,
        }
        self.headers: dict[str, str] = {}
        status = 0

        def start_response(line: str, headers: list[tuple[str, str]]) -> None:
            nonlocal status
            status = int(line.split()[0])
            self.headers = dict(headers)

        text = b"".join(self.app(given, start_response))
        self.assertEqual(int(self.headers["Content-Length"]), len(text))
        answer: dict[str, Any] = json.loads(text)
        self.assertNotIn("Traceback", text.decode())
        if status >= 400:
            self.assertTrue(answer["field"] and answer["problem"] and answer["remedy"], answer)
        return status, answer

    def dispatch(self, claimed: Claimed, **changes: Any) -> tuple[int, dict[str, Any]]:
        form = {"jobId": claimed.job_id, "asyncNonce": claimed.nonce, **changes}
        return self.request("POST", "/codeRunner/runAsync", urlencode(form).encode())

    def row(self, claimed: Claimed) -> dict[str, Any]:
        return rows.row(self.database, self.rows, claimed.execution_id)


def _token(secret: str, *scopes: str, accounts: tuple[str, ...] = ()) -> Token:
    return Token(name=secret, sha256=sha256_hex(secret), scopes=scopes, accounts=accounts)
