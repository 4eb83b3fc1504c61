"""
The rate-limited API that the scripts of a replay call: it works as long as it is asked to, and
refuses a key that is over its quota.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field

from crq.replay.trace import Quota

WORK = re.compile(r".*/work/(?P<milliseconds>[0-9]{1,9})\Z")


@define(eq=False)
class Quotas:
    """
    Counts the calls of each key, in windows that all begin with the replay.

    :ivar speed: how many seconds of the trace pass in one.
    :ivar refused: how many calls of a key were answered 429.
    :ivar calls: how many calls of a key were answered at all.
    """

    quotas: dict[str, Quota]
    speed: float
    began: float
    refused: Counter[str] = field(factory=Counter)
    calls: Counter[str] = field(factory=Counter)
    _used: Counter[tuple[str, int]] = field(init=False, factory=Counter)

    def ask(self, key: str, now: float) -> int | None:
        """
        Count one call; None: it is granted; else whole seconds until the next window.
        """
        self.calls[key] += 1
        quota = self.quotas.get(key)
        if quota is None:
            return None
        length = quota.seconds / self.speed
        window = math.floor((now - self.began) / length)
        if self._used[key, window] < quota.calls:
            self._used[key, window] += 1
            return None
        self.refused[key] += 1
        return math.ceil(self.began + (window + 1) * length - now)


class ReplayApi:
    """
    The server. It listens from the begin to `close`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        key_header: str,
        quotas: Collection[Quota],
        speed: float,
        monotonic: Callable[[], float],
    ) -> None:
        """
        Begin to listen.

        :raise OSError: the address is taken.
        """
        self.quotas = Quotas({one.key: one for one in quotas}, speed, monotonic())
        self._lock = threading.Lock()
        self._over = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                """
                Stay silent: there are thousands of calls.
                """

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self._answer
                raise AttributeError(name)

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                found = WORK.match(self.path)
                if found is None:
                    self._say(404, {"error": "only /work/MILLISECONDS is known here"})
                    return
                with api._lock:
                    wait = api.quotas.ask(self.headers.get(key_header, ""), monotonic())
                if wait is None:
                    api._over.wait(int(found["milliseconds"]) / 1000 / speed)
                    self._say(200, {"ok": True})
                else:
                    self._say(429, {"error": "API limit reached"}, {"Retry-After": str(wait)})

            def _say(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
                data = json.dumps(value).encode("ascii")
                with suppress(OSError):  # the caller may have hung up, or been killed at the wall
                    self.send_response(status)
                    for name, text in (headers or {}).items():
                        self.send_header(name, text)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 256

            def handle_error(self, request: Any, client_address: Any) -> None:
                """
                A caller that hangs up is no news.
                """

        self._server = Server(address, Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """
        Where it listens.
        """
        return self._server.server_port

    def close(self) -> None:
        """
        Answer nobody any more.
        """
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
