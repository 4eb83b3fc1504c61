"""
A plain endpoint in a thread of its own: it counts what it is sent and answers as it is told.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field, frozen

from tests.servers import HOST


@frozen
class Reply:
    """
    What a POST is answered.

    :ivar status: of HTTP; 0: the connection is cut instead.
    :ivar wait: event that is waited for before.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(factory=dict)
    wait: threading.Event | None = None


@define(eq=False)
class Endpoint:
    """
    Listens until `close`.

    :ivar reply: says what a job is answered, by the job and how often it has come.
    :ivar posts: how often each execution came.
    :ivar jobs: what came, in order, with its headers.
    :ivar most: the most jobs at once, of each account and in ``total``.
    """

    port: int
    reply: Callable[[dict[str, Any], int], Reply] = lambda _job, _times: Reply()
    posts: Counter[int] = field(factory=Counter)
    jobs: list[tuple[dict[str, Any], Mapping[str, str]]] = field(factory=list)
    most: Counter[str] = field(factory=Counter)
    _now: Counter[str] = field(init=False, factory=Counter)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    _server: _Server = field(init=False)
    _thread: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._server = _Server((HOST, self.port), _Handler)
        self._server.endpoint = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        """
        End it.
        """
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, job: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        """
        Count a job in.
        """
        with self._lock:
            self.jobs.append((job, headers))
            self.posts[job["executionId"]] += 1
            for name in (job["account"], "total"):
                self._now[name] += 1
                self.most[name] = max(self.most[name], self._now[name])
            return self.reply(job, self.posts[job["executionId"]])

    def let_go(self, job: dict[str, Any]) -> None:
        """
        Count it out.
        """
        with self._lock:
            self._now.subtract((job["account"], "total"))


class _Server(ThreadingHTTPServer):
    endpoint: Endpoint
    daemon_threads = True
    block_on_close = False  # the daemon keeps connections
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.server.endpoint.take(job, dict(self.headers.items()))
        if reply.wait is not None:
            reply.wait.wait(30)
        self.server.endpoint.let_go(job)
        if not reply.status:
            self.close_connection = True
            # A reset, as of a process that died.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status != 204:
            self.send_header("Content-Length", str(len(reply.body)))
        with suppress(OSError):  # the daemon may be dead: nobody is left to be told
            self.end_headers()
            self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
