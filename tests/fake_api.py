"""
A rate-limited HTTP API on the loopback interface, as scripts call it: scripted, and counting.

    with FakeApi() as api:
        api.answer(Answer(429, headers={"Retry-After": "10"}))
        ...                  # the next call gets that, those after it {"ok": true}
        api.calls            # what came
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from attrs import field, frozen

KEY_HEADER = "apikey"
HELD = 60.0  # s; an answer with such a delay is held until `FakeApi.released` is set


@frozen
class Answer:
    """
    One answer.

    :ivar body: bytes as they are, or a JSON value.
    :ivar delay: seconds before it is sent.
    :ivar drip: send the body byte by byte, so many seconds apart.
    """

    status: int = 200
    body: Any = field(factory=lambda: {"ok": True})
    headers: Mapping[str, str] = field(factory=dict)
    delay: float = 0.0
    drip: float = 0.0


@frozen
class Call:
    """
    One request as it came.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str | None:
        """
        The API key it carried.
        """
        return self.headers.get(KEY_HEADER)


class FakeApi:
    """
    The API. It answers with what was given to `answer`, in that order; then with 200.

    :ivar calls: every request, oldest first.
    :ivar throttled: Retry-After by API key: such a key gets nothing but 429.
    :ivar most: the most calls that were unanswered at once, of each API key, and in ``total``; a
        call whose caller is gone is not counted any more.
    :ivar released: set it, and no answer is held any longer.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.throttled: dict[str, str] = {}
        self.most: Counter[str] = Counter()
        self.released = threading.Event()
        self._open: Counter[str] = Counter()
        self._answers: deque[Answer] = deque()
        self._lock = threading.Lock()
        self._over = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self._answer
                raise AttributeError(name)

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                call = Call(self.command, self.path, headers, body)
                api._begin(call)
                try:
                    answer = api._take(call)
                    api._wait(self.connection, answer.delay)
                finally:
                    api._end(call)
                data = answer.body
                if not isinstance(data, bytes):
                    data = json.dumps(data).encode()
                with suppress(OSError):  # the caller may have hung up
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    if "Content-Length" not in answer.headers:
                        self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    for piece in [data] if not answer.drip else [bytes([each]) for each in data]:
                        self.wfile.write(piece)
                        self.wfile.flush()
                        api._over.wait(answer.drip)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # callers that hang up are part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """
        Its address, with a path as APIs have one.
        """
        return f"http://127.0.0.1:{self._server.server_port}/api/v2"

    def answer(self, *answers: Answer) -> None:
        """
        Queue what the next calls get.
        """
        self._answers.extend(answers)

    def close(self) -> None:
        """
        Answer nobody any more.
        """
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self, call: Call) -> Answer:
        with self._lock:
            self.calls.append(call)
            if call.key in self.throttled:
                return Answer(429, {}, {"Retry-After": self.throttled[call.key or ""]})
            return self._answers.popleft() if self._answers else Answer()

    def _whose(self, call: Call) -> str:
        """
        For whom a call counts in `most`.
        """
        return call.key or ""

    def _begin(self, call: Call) -> None:
        with self._lock:
            for name in ("total", self._whose(call)):
                self._open[name] += 1
                self.most[name] = max(self.most[name], self._open[name])

    def _end(self, call: Call) -> None:
        with self._lock:
            self._open.subtract(("total", self._whose(call)))
            self._open += Counter()  # forgets those at zero

    def _wait(self, connection: socket.socket, delay: float) -> None:
        """
        Wait, unless the caller hangs up: its worker is dead.
        """
        ends = time.monotonic() + delay
        while (left := ends - time.monotonic()) > 0 and not self._over.is_set():
            if delay >= HELD and self.released.is_set():
                return
            if select.select([connection], [], [], min(left, 0.1))[0]:
                with suppress(OSError):
                    if connection.recv(1, socket.MSG_PEEK):
                        self._over.wait(min(left, 0.1))  # the next request, too early
                        continue
                return
