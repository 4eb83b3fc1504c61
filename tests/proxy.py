"""
A TCP proxy on loopback that can do to connections what networks and gateways do.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


class Proxy:
    """
    Forwards connections to a server; hangs up on a client whose server cannot be reached.

    :ivar address: of the server; what connects later goes where it points then.
    :ivar also: a second server that is sent everything as well; its answers are thrown away.
    :ivar edit: called with each chunk a client sends; what it returns is forwarded instead.
    :ivar lose_answer_to: called with each chunk a client sends; when it says True the chunk is
        forwarded, the server's answer is swallowed, and the client's connection is cut.
    :ivar cut: how many answers were swallowed so.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.also: tuple[str, int] | None = None
        self.edit: Callable[[bytes], bytes] = lambda data: data
        self.lose_answer_to: Callable[[bytes], bool] = lambda _: False
        self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._lock = threading.Lock()
        self._open: set[_Pair] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """
        Where clients connect to.
        """
        return int(self._listener.getsockname()[1])

    @property
    def connections(self) -> int:
        """
        How many are open.
        """
        with self._lock:
            return len(self._open)

    def reset(self) -> int:
        """
        Cut every connection, on both sides, as a reset; returns how many.
        """
        pairs = self._pairs()
        for pair in pairs:
            for end in pair.ends:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            pair.end()
        return len(pairs)

    def answer(self, data: bytes) -> int:
        """
        Give each client these bytes and hang up, as a gateway that has lost patience; the server is
        not told and works on. Returns how many clients there were.
        """
        pairs = self._pairs()
        for pair in pairs:
            pair.left_alone = True
            with suppress(OSError):
                pair.client.sendall(data)
                pair.client.shutdown(socket.SHUT_RDWR)
        return len(pairs)

    def close(self) -> None:
        """
        Hang up on everybody and listen no more.
        """
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in self._pairs():
            pair.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _pairs(self) -> list[_Pair]:
        with self._lock:
            return list(self._open)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        ends = [client]
        try:
            for address in filter(None, (self.address, self.also)):
                ends.append(socket.create_connection(address, 5))
                ends[-1].settimeout(None)
        except OSError:
            for end in ends:
                end.close()
            return
        pair = _Pair(ends)
        with self._lock:
            self._open.add(pair)
        threads = [threading.Thread(target=self._down, args=(pair,), daemon=True)]
        threads += [
            threading.Thread(target=_drain, args=(end,), daemon=True) for end in pair.ends[2:]
        ]
        for thread in threads:
            thread.start()
        self._up(pair)
        for thread in threads:
            thread.join()
        with self._lock:
            self._open.discard(pair)
        for end in ends:
            end.close()

    def _up(self, pair: _Pair) -> None:
        with suppress(OSError):
            while data := pair.client.recv(65536):
                if self.lose_answer_to(data):
                    pair.losing = True
                forwarded = self.edit(data)
                for server in pair.ends[1:]:
                    server.sendall(forwarded)
        if not pair.left_alone:
            pair.end()

    def _down(self, pair: _Pair) -> None:
        with suppress(OSError):
            while data := pair.server.recv(65536):
                if pair.losing:
                    self.cut += 1
                    break
                if not pair.left_alone:
                    pair.client.sendall(data)
        pair.end()


class _Pair:
    """
    A client's connection and those to servers that belong to it.

    :ivar left_alone: the client is gone, and the server does not know.
    """

    def __init__(self, ends: list[socket.socket]) -> None:
        self.ends = ends
        self.client, self.server = ends[:2]
        self.losing = False
        self.left_alone = False

    def end(self) -> None:
        """
        Let whoever reads from one of the ends see its end; it is closed then.
        """
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)


def _drain(end: socket.socket) -> None:
    with suppress(OSError):
        while end.recv(65536):
            pass
