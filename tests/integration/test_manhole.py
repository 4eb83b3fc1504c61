"""
The manhole of a real daemon, over real SSH.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest_twisted
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from twisted.conch.ssh import channel, connection, keys, session, transport, userauth
from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from crq import actions
from crq.actions import By
from tests.installation import Installation
from tests.servers import HOST, free_port

WITHIN = 20.0  # s


class Shell(channel.SSHChannel):
    """
    A session with a terminal.

    :ivar seen: what the other side has written.
    """

    name = b"session"
    conn: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen = b""

    def channelOpen(self, _data: bytes) -> None:  # noqa: N802
        size = (40, 200, 0, 0)
        self.conn.sendRequest(self, b"pty-req", session.packRequest_pty_req(b"xterm", size, b""))
        self.conn.sendRequest(self, b"shell", b"")
        self.conn.opened.callback(self)

    def dataReceived(self, data: bytes) -> None:
        self.seen += data


class Connection(connection.SSHConnection):
    def __init__(self, opened: Deferred[Shell]) -> None:
        super().__init__()
        self.opened = opened

    def serviceStarted(self) -> None:  # noqa: N802
        self.openChannel(Shell(conn=self))


class Auth(userauth.SSHUserAuthClient):
    def __init__(self, key: keys.Key, conn: Connection) -> None:
        super().__init__(b"anybody", conn)
        self._key: keys.Key | None = key

    def getPublicKey(self) -> keys.Key | None:  # noqa: N802
        key, self._key = self._key, None
        self._private = key
        return None if key is None else key.public()

    def getPrivateKey(self) -> Deferred[keys.Key]:  # noqa: N802
        assert self._private is not None
        return succeed(self._private)

    def getPassword(self, _prompt: bytes | None = None) -> None:  # noqa: N802
        return None


class Client(transport.SSHClientTransport):
    def __init__(self, key: keys.Key) -> None:
        self.key = key
        self.shell: Deferred[Shell] = Deferred()
        self.lost: Deferred[None] = Deferred()

    def verifyHostKey(self, _key: bytes, _fingerprint: str) -> Deferred[int]:  # noqa: N802
        return succeed(1)

    def connectionSecure(self) -> None:  # noqa: N802
        self.requestService(Auth(self.key, Connection(self.shell)))

    def connectionLost(self, reason: Failure | None = None) -> None:
        super().connectionLost(reason)
        if not self.shell.called:
            self.shell.errback(ConnectionRefusedError("not let in"))
        self.lost.callback(None)


def key_pair() -> tuple[keys.Key, bytes]:
    made = Ed25519PrivateKey.generate()
    private = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return keys.Key.fromString(private), public


async def opened(port: int, key: keys.Key) -> tuple[Client, Shell]:
    client: Client = await connectProtocol(TCP4ClientEndpoint(reactor, HOST, port), Client(key))
    client.shell.addTimeout(WITHIN, reactor)
    return client, await client.shell


async def until(shell: Shell, word: bytes) -> bytes:
    for _ in range(int(WITHIN / 0.05)):
        if word in shell.seen:
            return shell.seen
        await deferLater(reactor, 0.05)
    raise AssertionError(f"{word!r} is not in {shell.seen[-2000:]!r}")


async def said(shell: Shell, line: str, word: str) -> str:
    shell.seen = b""
    shell.write(line.encode() + b"\r")
    return (await until(shell, word.encode())).decode("utf-8", "replace")


@pytest_twisted.ensureDeferred
async def test_whoever_has_the_key_looks_inside(tmp_path: Path) -> None:
    """
    The banner, then the queue's state, an explanation and the next plan, from the living daemon;
    another key does not open, and what is typed wrong ends nothing.
    """
    mine, public = key_pair()
    other, _ = key_pair()
    authorized = tmp_path / "authorized_keys"
    authorized.touch(0o600)
    authorized.write_bytes(public + b" me\n")
    port = free_port()
    settings: dict[str, dict[str, object]] = {
        "manhole": {
            "listen": f"tcp:{port}:interface={HOST}",
            "authorized_keys_file": str(authorized),
        }
    }
    with Installation(tmp_path, settings) as installation:
        database = installation.config.open_database()
        rows = database.connect()
        database.transact(rows, actions.pause, "all", "", By("token:ops", 0.0))
        rows.close()
        installation.start_daemon()
        assert "manhole_open" in installation.log("daemon")
        status, answer = installation.submit(subdomain="acme", apikey="k", source_code="x = 1")
        assert status == 202, answer
        try:
            await opened(port, other)
        except ConnectionRefusedError:
            pass
        else:
            raise AssertionError("a strange key was let in")
        client, shell = await opened(port, mine)
        await until(shell, b">>> ")
        assert b"Safe, they only look" in shell.seen
        assert "'verdict': 'gated'" in await said(shell, "status()", "'lastErrorAt'")
        why = await said(shell, f"explain({answer['executionId']})", "'earliestStart'")
        assert "everything is paused" in why
        assert "Plan(takes=" in await said(shell, "plan()", "Plan(")
        assert "ZeroDivisionError" in await said(shell, "1/0", "ZeroDivisionError")
        number = await said(shell, "ask(lambda txn: txn.execute('SELECT 40 + 2').scalar())", "42")
        assert "42" in number
        assert installation.get("/health/ready")[0] == 200
        client.loseConnection()
        await client.lost


def test_unsafe_configuration_does_not_start(tmp_path: Path) -> None:
    """
    The daemon ends with one line that names the option (F39).
    """
    settings: dict[str, dict[str, object]] = {"manhole": {"listen": "tcp:2222"}}
    with Installation(tmp_path, settings) as installation:
        installation.start_daemon(wait=False)
        code = installation._processes["daemon"].wait(WITHIN)
        log = installation.log("daemon")
        assert code == 1
        assert "manhole.listen: 'tcp:2222' could be reached from elsewhere" in log
        assert "Traceback" not in log
