"""
A TCP proxy on loopback that can lose what a real network loses.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """
    Forwards connections to a server.

    :ivar lose_answer_to: called with each chunk a client sends; when it says True the chunk is
        forwarded, the server's answer is swallowed, and the client's connection is cut.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.lose_answer_to: Callable[[bytes], bool] = lambda _: False
        self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """
        Where clients connect to.
        """
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in (self._listener, *self._open):
            _close(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._address)
            self._open += [client, server]
            losing = threading.Event()
            for arguments in ((client, server, losing, True), (server, client, losing, False)):
                threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(
        self, source: socket.socket, target: socket.socket, losing: threading.Event, up: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if up and self.lose_answer_to(data):
                    losing.set()
                if not up and losing.is_set():
                    self.cut += 1
                    break
                target.sendall(data)
        _close(source)
        _close(target)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
