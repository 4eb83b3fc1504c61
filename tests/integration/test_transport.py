"""
Dispatching over real sockets to servers that misbehave in every way a network knows.
"""

from __future__ import annotations

import gzip
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import SSL4ServerEndpoint, TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from crq import frugal
from crq import transport as transport_module
from crq.config import Config, ExecutorOptions
from crq.messages import Answered, DispatchResult, Lost, NotSent, Outcome
from crq.model import Claimed, Lane, Status
from crq.transport import Transport
from tests.servers import HOST, free_port

reactor: Any = _reactor

SUCCESS = Outcome(Status.SUCCESS)


class _Connection(Protocol):
    """
    The server's side of a connection: hands each whole request to the server's script.
    """

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._data = b""
        self.lost: Deferred[None] = Deferred()
        self.written = 0

    @property
    def wire(self) -> Any:
        return self.transport

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            headers, _, rest = self._data.partition(b"\r\n\r\n")
            length = int(headers.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            if len(rest) < length:
                return
            self._data = rest[length:]
            self._server.headers = headers + b"\r\n"
            self._server.requests.append(rest[:length])
            self._server.script(self, len(self._server.requests))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.callback(None)

    async def hung_up(self) -> None:
        """
        Wait until the client has let go of the connection, a second at most.
        """
        for _ in range(100):
            if self.lost.called:
                return
            await _pause(0.01)
        raise AssertionError("the connection is still there")

    def answer(
        self, body: bytes | None = None, status: bytes = b"200 OK", more: bytes = b""
    ) -> None:
        if body is None:
            body = b'{"executionId": 7, "status": "success", "errorCode": null}'
        self.wire.write(
            b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), more, body)
        )


Script = Callable[[_Connection, int], Any]


class _Server(Factory):
    """
    :ivar requests: the bodies of all requests that arrived; ``headers`` are those of the last one.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.headers = b""
        self.connections: list[_Connection] = []
        self.url = ""

    def buildProtocol(self, addr: object) -> _Connection:
        self.connections.append(_Connection(self))
        return self.connections[-1]


@asynccontextmanager
async def _serving(script: Script, tls: Path | None = None) -> AsyncIterator[_Server]:
    server = _Server(script)
    endpoint: Any = TCP4ServerEndpoint(reactor, 0, interface=HOST)
    if tls is not None:
        options = DefaultOpenSSLContextFactory(str(tls), str(tls))
        endpoint = SSL4ServerEndpoint(reactor, 0, options, interface=HOST)
    port = await endpoint.listen(server)
    server.url = f"{'https' if tls else 'http'}://{HOST}:{port.getHost().port}"
    try:
        yield server
    finally:
        for each in server.connections:
            if not each.lost.called:
                each.wire.abortConnection()
        await port.stopListening()
        await gatherResults([each.lost for each in server.connections])


def _answering(tls: Path | None = None) -> AbstractAsyncContextManager[_Server]:
    return _serving(lambda connection, _: connection.answer(), tls)


@asynccontextmanager
async def _transport(
    url: str, deadline: float = 5.0, limit: int = 65536
) -> AsyncIterator[Transport]:
    executor = ExecutorOptions(url=url, wall=1, deadline=2, answer_limit=limit)
    transport = Transport.to_executor(reactor, Config(executor=executor))
    transport._deadline = deadline
    try:
        yield transport
    finally:
        await transport.close()
        assert transport._slots == {}


def _dispatch(transport: Transport, account: str = "account") -> Deferred[DispatchResult]:
    claimed = Claimed(7, 8, Lane(account, "key"), 1, "nonce")
    return Deferred.fromCoroutine(transport.dispatch(claimed))


def _pause(seconds: float) -> Deferred[None]:
    return deferLater(reactor, seconds, lambda: None)


@contextmanager
def _black_hole() -> Iterator[str]:
    # The kernel drops what wants to connect to a listener whose backlog is full.
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://{HOST}:{listener.getsockname()[1]}"


async def _once(script: Script, deadline: float = 5.0) -> tuple[DispatchResult, _Server]:
    async with _serving(script) as server, _transport(server.url, deadline) as transport:
        result = await _dispatch(transport)
    assert server.requests == [b"jobId=8&asyncNonce=nonce"]
    return result, server


@pytest_twisted.ensureDeferred
async def test_connections_are_used_again() -> None:
    """
    Dispatches one after the other share a connection.
    """
    async with _answering() as server, _transport(server.url) as transport:
        for _ in range(20):
            assert await _dispatch(transport) == Answered(200, SUCCESS)
    assert len(server.requests) == 20
    assert len(server.connections) == 1


@pytest_twisted.ensureDeferred
async def test_an_executor_that_refuses() -> None:
    """
    F79: nothing listens; nothing was sent.
    """
    async with _transport(f"http://{HOST}:{free_port()}") as transport:
        result = await _dispatch(transport)
    assert isinstance(result, NotSent)
    assert result.detail.startswith("ConnectionRefusedError: ")


@pytest_twisted.ensureDeferred
async def test_the_log_stays_silent() -> None:
    """
    What a dispatch says it says in its result; neither connections nor failures fill the log.
    """
    with capturedLogs() as logged:
        async with _answering() as server, _transport(server.url) as transport:
            await _dispatch(transport)
        async with _transport(f"http://{HOST}:{free_port()}") as transport:
            await _dispatch(transport)
    client = [event for event in logged if "HTTP11Client" in formatEvent(event)]
    assert client == []
    assert "nonce" not in repr(logged)


@pytest_twisted.ensureDeferred
async def test_an_executor_without_an_address() -> None:
    """
    A name that cannot be a host's fails like one that nobody knows.
    """
    async with _transport(f"http://{'a' * 64}.invalid/") as transport:
        assert isinstance(await _dispatch(transport), NotSent)


@pytest_twisted.ensureDeferred
async def test_a_black_hole() -> None:
    """
    F79: a host that does not react to a connection; the deadline ends it and nothing was sent.
    """
    with _black_hole() as url:
        async with _transport(url, 0.4) as transport:
            began = reactor.seconds()
            result = await _dispatch(transport)
            took = reactor.seconds() - began
    assert result == NotSent("no whole answer within 0.4 s")
    assert 0.4 <= took < 1.4


@pytest_twisted.ensureDeferred
async def test_connecting_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A black hole does not hold a slot as long as a script may.
    """
    monkeypatch.setattr(frugal, "CONNECT_WITHIN", 0.3)
    with _black_hole() as url:
        async with _transport(url, 30) as transport:
            result = await _dispatch(transport)
    assert isinstance(result, NotSent)
    assert result.detail.startswith("TimeoutError: ")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"executionId": 7, "sta',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n27\r\n{"executionId": 7, "sta',
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["empty", "headers", "body", "chunk", "no http"],
)
@pytest.mark.parametrize("how", ["loseConnection", "abortConnection"])
@pytest_twisted.ensureDeferred
async def test_an_answer_that_breaks_off(reply: bytes, how: str) -> None:
    """
    F30, F76: the request was read and no whole answer came: lost, and not sent a second time.
    """

    def script(connection: _Connection, _: int) -> None:
        connection.wire.write(reply)
        reactor.callLater(0.02, getattr(connection.wire, how))

    result, _ = await _once(script)
    assert isinstance(result, Lost)


@pytest_twisted.ensureDeferred
async def test_a_second_request_that_breaks_off() -> None:
    """
    F30: on a connection that was used before, too, a request is sent once.
    """

    def script(connection: _Connection, number: int) -> None:
        connection.answer() if number == 1 else connection.wire.abortConnection()

    async with _serving(script) as server, _transport(server.url) as transport:
        assert await _dispatch(transport) == Answered(200, SUCCESS)
        assert isinstance(await _dispatch(transport), Lost)
    assert len(server.requests) == 2
    assert len(server.connections) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest_twisted.ensureDeferred
async def test_a_redirect(status: int) -> None:
    """
    F107: no request goes anywhere else, and the status is recorded.
    """
    async with _answering() as elsewhere:
        location = f"Location: {elsewhere.url}/\r\n".encode()
        result, _ = await _once(
            lambda connection, _: connection.answer(b"", b"%d Moved" % status, location)
        )
    assert result == Answered(status, detail=f"redirect to {elsewhere.url}/")
    assert elsewhere.connections == []


@pytest_twisted.ensureDeferred
async def test_a_page_of_a_proxy() -> None:
    """
    F75: a gateway that gave up is an answer with its status and no outcome.
    """
    result, _ = await _once(
        lambda connection, _: connection.answer(b"<h1>Gateway Time-out</h1>", b"504 Gateway")
    )
    assert result == Answered(504, detail="<h1>Gateway Time-out</h1>")


def _drip(connection: _Connection) -> None:
    if not connection.lost.called:
        connection.wire.write(b" ")
        reactor.callLater(0.05, _drip, connection)


@pytest_twisted.ensureDeferred
async def test_an_answer_that_drips() -> None:
    """
    F32: headers at once and then a byte now and then: cut off at the deadline.
    """

    def script(connection: _Connection, _: int) -> None:
        connection.wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        _drip(connection)

    async with _serving(script) as server, _transport(server.url, 0.5) as transport:
        began = reactor.seconds()
        result = await _dispatch(transport)
        assert 0.5 <= reactor.seconds() - began < 1.5
        assert result == Lost("no whole answer within 0.5 s")
        await server.connections[0].hung_up()


@pytest_twisted.ensureDeferred
async def test_an_answer_that_takes_its_time() -> None:
    """
    F82: as long as the executor works the connection stays, whatever it sends meanwhile.
    """

    def script(connection: _Connection, _: int) -> None:
        connection.wire.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for line in range(1, 6):
            reactor.callLater(0.1 * line, connection.wire.write, b"\n")
        body = b'{"executionId": 7, "status": "success"}'
        reactor.callLater(0.6, connection.wire.write, body)
        reactor.callLater(0.65, connection.wire.loseConnection)

    result, _ = await _once(script)
    assert result == Answered(200, SUCCESS)


class _Flood:
    """
    Sends as fast as the client reads, up to 100 MB.
    """

    def __init__(self, connection: _Connection, chunk: bytes) -> None:
        self._connection, self._chunk = connection, chunk
        connection.wire.registerProducer(self, False)

    def resumeProducing(self) -> None:  # noqa: N802
        if self._connection.written < 100_000_000:
            self._connection.written += len(self._chunk)
            self._connection.wire.write(self._chunk)

    def stopProducing(self) -> None:  # noqa: N802
        pass


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest_twisted.ensureDeferred
async def test_an_answer_of_a_hundred_megabytes(coding: str) -> None:
    """
    F114 seen from the client: it reads no more than it may, plus what the sockets hold.
    """
    chunk = b"x" * 65536

    def script(connection: _Connection, _: int) -> None:
        connection.wire.write(
            b"HTTP/1.1 500 Oops\r\nContent-Length: 100000000\r\nContent-Encoding: %b\r\n\r\n"
            % coding.encode()
        )
        _Flood(connection, chunk if coding == "identity" else gzip.compress(chunk))

    result, server = await _once(script)
    assert isinstance(result, Answered)
    assert (result.http_status, result.outcome) == (500, None)
    assert result.detail.startswith("answer of more than 65536 bytes: ")
    assert server.connections[0].written < 20_000_000


@pytest_twisted.ensureDeferred
async def test_a_compressed_answer() -> None:
    """
    It is not asked for, and not unpacked: the decoder at hand has no limit.
    """
    body = gzip.compress(b'{"executionId": 7, "status": "success"}')
    result, server = await _once(
        lambda connection, _: connection.answer(body, more=b"Content-Encoding: gzip\r\n")
    )
    assert isinstance(result, Answered)
    assert (result.http_status, result.outcome) == (200, None)
    assert b"accept-encoding: identity\r\n" in server.headers.lower()
    assert b"gzip" not in server.headers


@pytest_twisted.ensureDeferred
async def test_an_executor_that_hangs_up_when_idle() -> None:
    """
    F29: it promised to keep the connection and does not; four dispatches, four executions.
    """

    def script(connection: _Connection, number: int) -> None:
        connection.answer()
        reactor.callLater(0.2, lambda: connection.lost.called or connection.wire.loseConnection())

    async with _serving(script) as server, _transport(server.url) as transport:
        for pause in (0, 0.1, 0.3, 0.8):
            await _pause(pause)
            assert await _dispatch(transport) == Answered(200, SUCCESS)
    assert len(server.requests) == 4


@pytest_twisted.ensureDeferred
async def test_an_idle_connection_is_not_trusted_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    F84: something on the way may have forgotten it without a word, so it is closed soon.
    """
    assert transport_module.IDLE_FOR < 5
    monkeypatch.setattr(transport_module, "IDLE_FOR", 0.2)
    async with _answering() as server, _transport(server.url) as transport:
        for pause in (0, 0, 0.5):
            await _pause(pause)
            assert await _dispatch(transport) == Answered(200, SUCCESS)
    assert len(server.connections) == 2


@pytest_twisted.ensureDeferred
async def test_cancelling_hangs_up() -> None:
    """
    The executor's side sees the end of the connection, before and after it has sent headers.
    """
    for headers in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"):
        arrived: Deferred[None] = Deferred()

        def script(
            connection: _Connection, _: int, headers: bytes = headers, arrived: Any = arrived
        ) -> None:
            connection.wire.write(headers)
            reactor.callLater(0.05, arrived.callback, None)

        async with _serving(script) as server, _transport(server.url) as transport:
            result = _dispatch(transport)
            await arrived
            result.cancel()
            assert await result == Lost("cancelled")
            await server.connections[0].hung_up()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """
    A file with a key and a certificate for the loopback address, which can be trusted by itself.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "executor")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "executor.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest_twisted.ensureDeferred
async def test_tls_to_an_executor_that_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The platform's trust roots decide.
    """
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with _answering(certificate) as server, _transport(server.url) as transport:
        for _ in range(2):
            assert await _dispatch(transport) == Answered(200, SUCCESS)
    assert len(server.connections) == 1


@pytest_twisted.ensureDeferred
async def test_tls_to_an_executor_that_is_not_trusted(
    certificate: Path,
) -> None:
    """
    Whoever cannot prove to be the executor gets no nonce.
    """
    async with _answering(certificate) as server, _transport(server.url) as transport:
        result = await _dispatch(transport)
    assert isinstance(result, Lost)
    assert "certificate verify failed" in result.detail
    assert server.requests == []


@pytest_twisted.ensureDeferred
async def test_tls_is_aborted_without_a_goodbye(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A peer that does not read cannot answer a polite close; the connection ends all the same.
    """
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    def script(connection: _Connection, _: int) -> None:
        connection.wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        reactor.callLater(0.1, connection.wire.pauseProducing)
        _drip(connection)

    async with _serving(script, certificate) as server, _transport(server.url, 0.5) as transport:
        assert isinstance(await _dispatch(transport), Lost)
        await server.connections[0].hung_up()
