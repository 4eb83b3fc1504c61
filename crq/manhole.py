"""
A shell into the living daemon, over SSH: off by default, for keys alone, from this machine alone.

Whoever comes in is the daemon: they can read every secret it holds and break whatever they like. So
what could let the wrong people in is refused at the start instead of warned about (`checked`): a
listener that others can reach, a file of keys that others can read or write, or that has no keys.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Service
from twisted.conch import manhole_ssh
from twisted.conch.insults.insults import ServerProtocol
from twisted.conch.manhole import ColoredManhole
from twisted.conch.ssh.keys import BadKeyError, Key
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, UNIXServerEndpoint
from twisted.logger import Logger
from zope.interface import implementer

from crq import executions, explain, records
from crq.config import DrainerOptions, ManholeOptions
from crq.drainer import Drainer
from crq.gatememory import GateMemory
from crq.pool import Pool
from crq.statusreport import as_json
from crq.watch import Watch

with warnings.catch_warnings():
    # It asks for spwd, which Python is about to drop, and does without.
    warnings.simplefilter("ignore", DeprecationWarning)
    from twisted.conch.checkers import (
        IAuthorizedKeysDB,
        SSHPublicKeyChecker,
        readAuthorizedKeyFile,
    )

BANNER = """\
This is the live crqueue daemon: what you type runs inside it, between its ticks.
Safe, they only look:   status()   explain(17)   plan()   pulse   drainer.limits
                        ask(records.execution, 17)   any SELECT of yours through ask()
They answer later (a Deferred); the answer is printed, and _ holds it.
Not safe: anything that blocks (the whole daemon waits for you), writes to rows outside of
crq.actions, and setting attributes of drainer. End with Ctrl-D; quit() would ask for your life.
"""
_TCP = re.compile(r"tcp:(?P<port>\d{1,5}):interface=(?P<host>127\.0\.0\.1|\\:\\:1)")
_UNIX = re.compile(r"unix:(?P<path>/[^:]+)")
_log = Logger()


class Unsafe(ValueError):
    """
    The manhole is configured in a way that might let others in; the text says how and what to do.
    """


@frozen
class Keys:
    """
    What the manhole needs to know its people and to be known by them.
    """

    host: Key
    authorized: tuple[Key, ...]


def checked(options: ManholeOptions) -> Keys:
    """
    Make sure that the manhole is safe, and read its keys; makes a host key where there is none.

    :raise Unsafe: it is not.
    """
    if _TCP.fullmatch(options.listen) is None and _UNIX.fullmatch(options.listen) is None:
        raise Unsafe(
            f"manhole.listen: {options.listen!r} could be reached from elsewhere; use"
            " tcp:2222:interface=127.0.0.1 or unix:/run/crqueue/manhole.sock"
        )
    path = _named(options.authorized_keys_file, "manhole.authorized_keys_file")
    text = _private(path, "manhole.authorized_keys_file", group=True)
    try:
        with path.open("rb") as file:
            authorized = tuple(readAuthorizedKeyFile(file))
    except (BadKeyError, OSError, ValueError) as error:
        raise Unsafe(
            f"manhole.authorized_keys_file: {path} cannot be read ({type(error).__name__}); put"
            " public keys into it, one a line"
        ) from None
    if not text.strip() or not authorized:
        raise Unsafe(f"manhole.authorized_keys_file: {path} has no keys; put yours into it")
    path = _named(options.host_key_file, "manhole.host_key_file")
    if not path.exists():
        _make_key(path)
    _private(path, "manhole.host_key_file", group=False)
    try:
        host = Key.fromFile(str(path))
    except (BadKeyError, OSError, ValueError):
        raise Unsafe(
            f"manhole.host_key_file: {path} is no private key; remove it, and one is made"
        ) from None
    return Keys(host, authorized)


def namespace(
    drainer: Drainer, watch: Watch, pool: Pool, gates: GateMemory, options: DrainerOptions
) -> dict[str, Any]:
    """
    What is there by name for whoever comes in. The configuration is not: it may hold secrets.
    """

    async def status_now() -> dict[str, Any]:
        return as_json(await watch.report())

    async def explain_now(execution_id: int) -> dict[str, Any] | None:
        reading = await pool.read(explain.read, execution_id)
        if reading is None:
            return None
        now = drainer.wall()
        explanation = explain.explain(
            reading,
            gates.closed(now),
            drainer.limits,
            now,
            half_open=gates.half_open,
            pulse=drainer.pulse,
            drainer_id=drainer.drainer_id,
            monotonic=drainer.clock.seconds(),
            tick=options.tick,
        )
        return explanation.as_json()

    return {
        "drainer": drainer,
        "pool": pool,
        "gates": gates,
        "pulse": drainer.pulse,
        "executions": executions,
        "records": records,
        "ask": pool.read,
        "status": lambda: Deferred.fromCoroutine(status_now()),
        "explain": lambda number: Deferred.fromCoroutine(explain_now(number)),
        "plan": lambda: Deferred.fromCoroutine(drainer.preview()),
    }


def service(
    options: ManholeOptions, keys: Keys, namespace: Mapping[str, Any], reactor: Any
) -> Service:
    """
    Make the manhole.

    :param namespace: what is there by name for whoever comes in.
    """

    def protocol() -> ServerProtocol:
        return ServerProtocol(Manhole, dict(namespace))

    realm: Any = manhole_ssh.TerminalRealm()
    realm.chainedProtocolFactory = protocol
    factory: Any = manhole_ssh.ConchFactory(
        Portal(realm, [SSHPublicKeyChecker(_Authorized(keys.authorized))])
    )
    factory.publicKeys = {keys.host.sshType(): keys.host.public()}
    factory.privateKeys = {keys.host.sshType(): keys.host}
    made = StreamServerEndpointService(_endpoint(options.listen, reactor), factory)
    _log.warn(
        "the manhole is open at {listen} for {count} keys",
        action="manhole open",
        listen=options.listen,
        count=len(keys.authorized),
    )
    return made


class Manhole(ColoredManhole):
    """
    The shell, with a banner that says what is safe.
    """

    def initializeScreen(self) -> None:  # noqa: N802
        """
        Show the banner.
        """
        self.terminal.reset()
        self.terminal.write(BANNER.replace("\n", "\r\n").encode("ascii"))
        self.terminal.write(self.ps[self.pn])
        self.setInsertMode()


@implementer(IAuthorizedKeysDB)
class _Authorized:
    """
    The keys that open, whatever the user calls themselves: there is one user, the daemon.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def getAuthorizedKeys(self, _user: bytes) -> tuple[Key, ...]:  # noqa: N802
        return self._keys


def _endpoint(listen: str, reactor: Any) -> Any:
    match = _TCP.fullmatch(listen)
    if match is None:
        unix = _UNIX.fullmatch(listen)
        assert unix is not None
        # wantPID: a socket that a killed daemon left behind is taken over.
        return UNIXServerEndpoint(reactor, unix["path"], mode=0o600, wantPID=True)
    if match["host"] == "127.0.0.1":
        return TCP4ServerEndpoint(reactor, int(match["port"]), interface="127.0.0.1")
    return TCP6ServerEndpoint(reactor, int(match["port"]), interface="::1")


def _named(path: str, name: str) -> Path:
    if not path:
        raise Unsafe(f"{name}: is not set; without keys the manhole stays shut")
    return Path(path)


def _private(path: Path, name: str, group: bool) -> str:
    try:
        found = path.stat()
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise Unsafe(
            f"{name}: {path} cannot be read: {error.strerror}; correct the path, or let the"
            " daemon's user read it"
        ) from None
    mode = stat.S_IMODE(found.st_mode)
    wrong = mode & (0o027 if group else 0o077)
    if wrong or not stat.S_ISREG(found.st_mode):
        wanted = "640 or 600" if group else "600"
        raise Unsafe(f"{name}: {path} has mode {mode:o}, others could use it; chmod it to {wanted}")
    if found.st_uid not in (0, os.geteuid()):
        raise Unsafe(f"{name}: {path} belongs to another user; chown it to the daemon's")
    return text


def _make_key(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise Unsafe(
            f"manhole.host_key_file: {path} cannot be made: {error.strerror}; name a file in a"
            " directory of the daemon"
        ) from None
    with open(descriptor, "wb") as file:
        file.write(pem)
