"""
The gates' store fails in all the ways a network knows, and a tick goes on.

Real sockets and threads; the servers run in the test's own reactor.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThreadPool
from twisted.logger import LogEvent, capturedLogs
from twisted.protocols.basic import LineReceiver
from twisted.python.threadpool import ThreadPool

from crq.gatememory import PATIENCE, GateMemory
from crq.gates import MemcachedGates
from crq.interfaces import IGateStore
from tests.servers import HOST, Memcached, free_port

NOW = 1_788_000_000.0
A = "a" * 64
TIMEOUT = 0.2
SLACK = 0.5  # s; on a machine with other things to do


class _Silent(Protocol):
    """
    Accepts, reads, and never says a word.
    """


class _Garbage(Protocol):
    """
    Is no memcached.
    """

    answer = b""

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(self.answer)


class _Full(LineReceiver):
    """
    Answers readings, and takes nothing.
    """

    def lineReceived(self, line: bytes) -> None:
        command = line.split()[0]
        if command in (b"get", b"gets"):
            self.sendLine(b"END")
        elif command in (b"add", b"set", b"cas"):
            self.sendLine(b"SERVER_ERROR out of memory storing object")


@asynccontextmanager
async def _serve(protocol: type[Protocol]) -> AsyncIterator[str]:
    open_ones: list[Protocol] = []

    class Serving(Factory):
        def buildProtocol(self, addr: object) -> Protocol:
            open_ones.append(protocol())
            return open_ones[-1]

    port = await TCP4ServerEndpoint(reactor, 0, interface=HOST).listen(Serving())
    try:
        yield f"{HOST}:{port.getHost().port}"
    finally:
        for each in open_ones:
            if each.transport is not None:
                each.transport.abortConnection()  # type: ignore[attr-defined]
        await port.stopListening()


@pytest.fixture
def threads() -> Iterator[ThreadPool]:
    pool = ThreadPool(1, 2, "gates")
    pool.start()
    yield pool
    pool.stop()


Remember = Callable[[IGateStore], GateMemory]


@pytest.fixture
def remember(threads: ThreadPool) -> Remember:
    def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        return deferToThreadPool(
            reactor,  # type: ignore[arg-type]
            threads,
            function,
            *arguments,
        )

    return lambda store: GateMemory(store, in_thread, reactor)


async def _ticks(memory: GateMemory, number: int) -> tuple[list[float], list[LogEvent]]:
    """
    Read a key some times; return what each took, and what was logged.
    """
    took = []
    with capturedLogs() as logged:
        for tick in range(number):
            began = reactor.seconds()
            assert (await memory.read([A], NOW + tick)).closed == {}
            took.append(reactor.seconds() - began)
    return took, [event for event in logged if event.get("log_namespace", "").startswith("crq")]


@pytest_twisted.ensureDeferred
async def test_a_server_that_refuses(remember: Remember) -> None:
    """
    F71 (a): ticks go on at once; one line for the whole outage.
    """
    memory = remember(MemcachedGates([f"{HOST}:{free_port()}"], "p", TIMEOUT))
    took, logged = await _ticks(memory, 5)
    assert max(took) < SLACK
    assert [event["action"] for event in logged] == ["gates_unreachable"]
    assert not memory.reachable


@pytest_twisted.ensureDeferred
async def test_a_server_that_is_silent(remember: Remember) -> None:
    """
    F71 (b): a tick waits for the configured time-out and no longer.
    """
    async with _serve(_Silent) as address:
        store = MemcachedGates([address], "p", TIMEOUT)
        took, logged = await _ticks(remember(store), 4)
        store.disconnect()
    assert max(took) < TIMEOUT + SLACK
    assert [event["action"] for event in logged] == ["gates_unreachable"]


@pytest_twisted.ensureDeferred
async def test_a_name_nobody_resolves(remember: Remember, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    F71 (c): no time-out bounds the look-up of a name, so patience does; the thread that hangs in
    it is left alone, the ticks after it do not wait at all, and all is well once it is back.
    """
    resolving, asked = threading.Event(), []
    look_up = socket.getaddrinfo

    def hang(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "gates.invalid":
            return look_up(host, *arguments, **options)
        asked.append(host)
        resolving.wait(30)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    memory = remember(MemcachedGates(["gates.invalid:11211"], "p", TIMEOUT))
    try:
        took, logged = await _ticks(memory, 5)
    finally:
        resolving.set()
    assert PATIENCE <= took[0] < PATIENCE + SLACK
    assert max(took[1:]) < SLACK
    assert len(asked) == 1
    assert [event["action"] for event in logged] == ["gates_unreachable"]


@pytest_twisted.ensureDeferred
async def test_a_server_that_comes_back(remember: Remember) -> None:
    """
    F73: within two ticks, with one line at the begin and one at the end, and nothing raised.
    """
    with Memcached() as server:
        store = MemcachedGates(["{}:{}".format(*server.address)], "p", TIMEOUT)
        memory = remember(store)
        with capturedLogs() as logged:
            await memory.read([A], NOW)
            server.kill()
            for tick in range(3):
                await memory.read([A], NOW + tick)
            assert not memory.reachable
            server.start()
            store.close(A, NOW + 60, NOW)
            readings = [(await memory.read([A], NOW + tick)).closed for tick in (3, 4)]
        assert readings[-1] == {A: NOW + 60}
        assert memory.reachable
        store.disconnect()
    actions = [event["action"] for event in logged if "action" in event]
    assert actions == ["gates_unreachable", "gates_reachable"]


@pytest_twisted.ensureDeferred
async def test_a_server_that_takes_nothing(remember: Remember) -> None:
    """
    F74: the write is reported as failed, and the gate holds although the store says it is open.
    """
    async with _serve(_Full) as address:
        store = MemcachedGates([address], "p", TIMEOUT)
        memory = remember(store)
        with capturedLogs() as logged:
            assert await memory.close(A, NOW + 60, NOW) == NOW + 60
            assert (await memory.read([A], NOW + 1)).closed == {A: NOW + 60}
        assert memory.reachable
        store.disconnect()
    (line,) = [event for event in logged if event.get("action") == "gate_not_written"]
    assert "out of memory" in line["error"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"VALUE\r\n",
        b"VALUE p%b x y\r\n" % A.encode(),
        b"VALUE other 0 1\r\n1\r\nEND\r\n",
        b"\x00\xff\r\n",
        b"CLIENT_ERROR no\r\n",
        b"VALUE p%b 0 4\r\n12" % A.encode(),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_server_that_is_no_memcached(remember: Remember, answer: bytes) -> None:
    """
    Whatever it answers is an outage, and no fault of ours in the log.
    """
    _Garbage.answer = answer
    async with _serve(_Garbage) as address:
        store = MemcachedGates([address], "p", TIMEOUT)
        took, logged = await _ticks(remember(store), 2)
        store.disconnect()
    assert max(took) < TIMEOUT + SLACK
    assert [event["action"] for event in logged] == ["gates_unreachable"]
    assert "log_failure" not in logged[0]
