"""
Telling a service manager how the process is: sd_notify, in one datagram.

The words (READY, RELOADING, STOPPING, STATUS, WATCHDOG, EXTEND_TIMEOUT_USEC) are those of
systemd's sd_notify(3). Nothing here blocks or raises: a manager that does not listen must not
hold up a queue.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from attrs import define, field

SOCKET = "NOTIFY_SOCKET"
USEC = 1_000_000  # in a second


def watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    """
    Seconds after which the manager ends a silent process; None: it does not watch this one.
    """
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None  # meant for the process that forked us
    text = environment.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return int(text) / USEC


@define(eq=False)
class Notify:
    """
    The way to the manager that has started this process.

    :ivar address: of its socket: a path, or a name of the abstract namespace behind ``@``; None:
        there is none, or one we cannot reach, and nothing is ever sent.
    """

    address: str | None
    _socket: socket.socket | None = field(init=False, default=None)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Notify:
        """
        The manager that an environment names.
        """
        address = environment.get(SOCKET, "")
        # Anything else is a transport of another kind (vsock:), or nonsense.
        return cls(address if address[:1] in ("/", "@") and len(address) > 1 else None)

    def send(self, *words: str) -> bool:
        """
        Send some ``NAME=value``, together; says whether the manager's queue has taken them.
        """
        if self.address is None or not words:
            return False
        text = "\n".join(" ".join(word.splitlines()) for word in words)
        address = self.address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            if self._socket is None:
                kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                self._socket = socket.socket(socket.AF_UNIX, kind)
            self._socket.sendto(text.encode("utf-8", "backslashreplace"), address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """
        Let go of the socket.
        """
        if self._socket is not None:
            self._socket.close()
            self._socket = None
