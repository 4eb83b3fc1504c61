"""
Hostile callers of a door, in a process of their own: slow senders, silent ones, floods.

    python -m tests.besieger PLAN        # a file: JSON, see `Plan`

It prints one line of counts (JSON) each second, and stops with SIGTERM. Nothing it sends is an
honest admission: whoever counts the rows afterwards can tell.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

HOST = "127.0.0.1"
AGAIN = 0.5  # s until somebody who was let go comes again
PATIENCE = 10.0  # s for an answer


@frozen
class Plan:
    """
    What is done, for how long it is told.

    :ivar token: a valid token, of a caller who means no good.
    :ivar slow_headers: connections that send a byte of a header every ``slow_every`` seconds.
    :ivar slow_bodies: the same with a body, half of them under the valid token.
    :ivar idle_rate: connections opened each second that say nothing; ``idle`` of them in all.
    :ivar abuse_rate: requests a second of every kind in `abuses`.
    """

    port: int
    token: str
    slow_headers: int = 0
    slow_bodies: int = 0
    slow_every: float = 5.0
    idle: int = 0
    idle_rate: float = 1000.0
    abuse_rate: float = 0.0


def abuses(token: str) -> list[bytes]:
    """
    Requests that must be refused, or lead nowhere.
    """
    known = f"Authorization: Bearer {token}\r\n".encode()
    forged = b"Authorization: Bearer crq_forged\xe9\xff\r\n"
    json_kind = b"Content-Type: application/json\r\n"

    def post(headers: bytes, body: bytes = b"") -> bytes:
        return b"POST /codeRunner HTTP/1.1\r\nHost: door\r\n" + json_kind + headers + b"\r\n" + body

    chunk = b"1000;" + b"e" * 500 + b"\r\n" + b"x" * 4096 + b"\r\n"
    return [
        post(known + b"Content-Length: 10000000000\r\n"),
        post(forged + b"Content-Length: 1000000\r\n", b"x" * 60_000),
        post(forged + b"Transfer-Encoding: chunked\r\n", chunk * 20),
        post(known + b"Transfer-Encoding: chunked\r\n", chunk * 400),
        post(known + b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello"),
        post(known + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        post(known + b"Transfer-Encoding: chunked\r\n", b"-5\r\nhello\r\n"),
        post(known + b"Content-Length: " + b"9" * 5000 + b"\r\n"),
        post(known + b"X-Note: a\r\n b\r\nContent-Length: 2\r\n", b"{}"),
        post(b"".join(b"X-%d: %s\r\n" % (n, b"v" * 100) for n in range(400))),
        post(b"X: " + b"v" * 30_000 + b"\r\n"),
        post(known + b"Content-Length: 300000\r\n", b"[" * 300_000),
        post(known + b"Content-Length: 2\r\n", b"{}"),
        b"GET /codeRunner/logs/data?"
        + b"&".join(b"a%d=1" % n for n in range(1000))
        + b" HTTP/1.1\r\nHost: door\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: door\r\n\r\n" * 200,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200 + b"\r\n",
    ]


class Besieger:
    """
    Carries out a plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._counts: Counter[str] = Counter()

    async def besiege(self) -> None:
        """
        Go on until cancelled.
        """
        plan = self._plan
        parts: list[Coroutine[Any, Any, None]] = [self._tell()]
        parts += [self._again(self._slow_head) for _ in range(plan.slow_headers)]
        parts += [
            self._again(partial(self._slow_body, n % 2 == 0)) for n in range(plan.slow_bodies)
        ]
        if plan.idle:
            parts.append(self._crowd())
        if plan.abuse_rate:
            parts.append(self._abuse())
        await asyncio.gather(*parts)

    async def _tell(self) -> None:
        while True:
            sys.stdout.write(json.dumps(self._counts) + "\n")
            sys.stdout.flush()
            await asyncio.sleep(1)

    async def _again(self, attack: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await attack()
            self._counts["let go"] += 1
            await asyncio.sleep(AGAIN)

    async def _slow_head(self) -> None:
        async with self._connected() as (reader, writer):
            writer.write(b"POST /codeRunner HTTP/1.1\r\nHost: slow\r\nX-Slow: ")
            await self._drip(reader, writer)

    async def _slow_body(self, known: bool) -> None:
        token = self._plan.token if known else "crq_forged"
        async with self._connected() as (reader, writer):
            writer.write(
                b"POST /codeRunner HTTP/1.1\r\nHost: slow\r\nContent-Type: application/json\r\n"
                b"Content-Length: 4000\r\nAuthorization: Bearer %s\r\n\r\n" % token.encode()
            )
            await self._drip(reader, writer)

    async def _drip(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), self._plan.slow_every)
                return  # an answer, or the end
            writer.write(b"x")

    async def _crowd(self) -> None:
        held = []
        for _ in range(self._plan.idle):
            with suppress(OSError, TimeoutError):
                connecting = asyncio.open_connection(HOST, self._plan.port)
                held.append((await asyncio.wait_for(connecting, PATIENCE))[1])
                self._counts["idle"] += 1
            await asyncio.sleep(1 / self._plan.idle_rate)
        await asyncio.Event().wait()

    async def _abuse(self) -> None:
        running: set[asyncio.Task[None]] = set()
        requests = abuses(self._plan.token)
        number = 0
        while True:
            if len(running) < 100:
                task = asyncio.create_task(self._send(requests[number % len(requests)]))
                running.add(task)
                task.add_done_callback(running.discard)
                number += 1
            await asyncio.sleep(1 / self._plan.abuse_rate)

    async def _send(self, data: bytes) -> None:
        answer = b""
        with suppress(OSError, TimeoutError):
            async with self._connected() as (reader, writer):
                writer.write(data)
                with suppress(OSError, TimeoutError):
                    answer = await asyncio.wait_for(reader.read(65536), PATIENCE)
        self._counts[answer[9:12].decode("ascii", "replace") or "nothing"] += 1

    @asynccontextmanager
    async def _connected(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        connecting = asyncio.open_connection(HOST, self._plan.port)
        reader, writer = await asyncio.wait_for(connecting, PATIENCE)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


def room(connections: int) -> int:
    """
    Allow this process so many connections, or as many as it may have; returns how many.
    """
    wanted = connections + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted - 200


def main(path: str) -> None:
    """
    Besiege as a file says.
    """
    plan = Plan(**json.loads(Path(path).read_text()))
    room(plan.slow_headers + plan.slow_bodies + plan.idle + 100)

    async def run() -> None:
        task = asyncio.ensure_future(Besieger(plan).besiege())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


if __name__ == "__main__":
    main(sys.argv[1])
