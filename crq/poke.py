"""
A poke between processes of one host: a datagram on a unix socket that says "look for work now".

Whoever may write to the socket's file may poke: no token, no answer, and what the datagram holds is
read by nobody. One that is lost costs nothing: the next tick looks anyway.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attrs import define, field
from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import ConnectedDatagramProtocol
from twisted.logger import Logger

MODE = 0o660  # the daemon's user and group may poke


@define(eq=False)
class Poke:
    """
    Pokes whoever listens at a path; nobody may.
    """

    path: str

    def __call__(self) -> None:
        """
        Poke, without waiting and without a word when nobody is there.
        """
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(b"\n", self.path)


class _Ear(ConnectedDatagramProtocol):
    def __init__(self, poked: Callable[[], None]) -> None:
        self._poked = poked

    def datagramReceived(self, datagram: bytes, *_: Any) -> None:  # noqa: N802 - Twisted's
        self._poked()


@define(eq=False)
class PokeListener(Service):
    """
    Listens at a path, which is ours: whoever holds our lock file is the only one to listen there.

    :ivar poked: called for each poke.
    """

    path: str
    reactor: Any
    poked: Callable[[], None]
    _port: Any = field(init=False, default=None)

    _log = Logger()

    def startService(self) -> None:
        """
        Listen; where that cannot be, the ticks find what there is.
        """
        super().startService()
        with suppress(OSError):
            os.unlink(self.path)  # of a daemon that was killed
        try:
            self._port = self.reactor.listenUNIXDatagram(self.path, _Ear(self.poked), mode=MODE)
        except (CannotListenError, OSError) as error:
            self._log.error(
                "drainer.wake_socket: {path}: {error}; work is found by the tick",
                action="no wake socket",
                path=self.path,
                error=str(error),
            )

    def stopService(self) -> Deferred[None] | None:
        """
        Listen no more.
        """
        super().stopService()
        port, self._port = self._port, None
        if port is None:
            return None
        with suppress(OSError):
            os.unlink(self.path)
        stopped: Deferred[None] = maybeDeferred(port.stopListening)
        return stopped
