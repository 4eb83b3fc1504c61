"""
A small rate-limited API for scripts to call; it knows nothing of crqueue.

A process of its own: ``python -m demo.api PORT RECORD [KEY:CALLS:SECONDS …]``. Each KEY has CALLS
calls, then it is answered 429 for SECONDS seconds; Retry-After says how many are left. Each call
goes as one line of JSON into the file RECORD, with the instants at which it came and was answered.
"""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from attrs import define, field

HOST = "127.0.0.1"
RULED, RULED_CARDS = "ruled", range(5001, 5013)  # the account of the automation, and its cards
SERVICE_TIME = 0.08  # s that each call takes
PATH = re.compile(
    r"/(?P<account>[a-z0-9-]+)/api/v2/cards/(?P<card>\d+)(/comments|/subtasks/\d+)?\Z"
)
LIST = re.compile(rf"/{RULED}/api/v2/cards\Z")


@define(eq=False)
class Quota:
    """
    A key's calls: so many are free, the next closes it for a while, and then all begins anew.
    """

    calls: int
    seconds: float
    monotonic: Callable[[], float] = time.monotonic
    _used: int = field(default=0, init=False)
    _closed_until: float = field(default=-math.inf, init=False)

    def refused(self) -> int | None:
        """
        Count a call; None when it is free, else the seconds to wait, rounded up.
        """
        now = self.monotonic()
        if now >= self._closed_until:
            self._used += 1
            if self._used <= self.calls:
                return None
            self._used = 0
            self._closed_until = now + self.seconds
        return math.ceil(self._closed_until - now)


class Api(ThreadingHTTPServer):
    """
    The server with what it remembers.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, record: Path, quotas: dict[str, Quota]) -> None:
        super().__init__((HOST, port), _Handler)
        self._quotas = quotas
        self._record = record.open("a")
        self._lock = threading.Lock()

    def refused(self, key: str) -> int | None:
        """
        Seconds that this key has to wait; None when its call is free.
        """
        with self._lock:
            quota = self._quotas.get(key)
            return None if quota is None else quota.refused()

    def remember(self, call: dict[str, Any]) -> None:
        """
        Write a call into the record.
        """
        with self._lock:
            self._record.write(json.dumps(call) + "\n")
            self._record.flush()


class _Handler(BaseHTTPRequestHandler):
    server: Api
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def log_message(self, *_args: object) -> None:
        pass  # the record says it all

    def _answer(self) -> None:
        at = time.time()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        if self.command == "GET" and LIST.match(path):
            self._send(200, {"data": _page(query)})
            return
        found = PATH.match(self.path)
        if found is None:
            self._send(404, {"message": "there is nothing here"})
            return
        card = int(found["card"])
        wait = self.server.refused(self.headers.get("apikey") or "")
        if wait is None:
            time.sleep(SERVICE_TIME)
            status = 200
            self._send(status, {"data": _data(card, self.command, body)})
        else:
            status = 429
            self._send(status, {"message": "API limit reached"}, {"Retry-After": str(wait)})
        self.server.remember(
            {
                "account": found["account"],
                "card": card,
                "at": at,
                "ended": time.time(),
                "status": status,
                "effect": self.command == "POST",
                "retry_after": wait,
            }
        )

    def _send(
        self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _page(query: str) -> list[dict[str, Any]]:
    """
    Cards after a number, at most so many.
    """
    given = parse_qs(query)
    after, limit = (int(given.get(name, ["0"])[0]) for name in ("after", "limit"))
    return [_data(card, "GET", b"") for card in RULED_CARDS if card > after][:limit]


def _data(card: int, method: str, body: bytes) -> dict[str, Any]:
    """
    A card, with what a PATCH changes.
    """
    found = {
        "card_id": card,
        "title": f"Card {card}",
        "size": card % 13,
        "subtasks": 2,
        "priority": 2,
        "deadline": "2026-02-01" if card % 3 == 0 else None,
    }
    return {**found, **json.loads(body)} if method == "PATCH" and body else found


def _main(port: str, record: str, *limited: str) -> None:
    quotas = {}
    for each in limited:
        key, calls, seconds = each.split(":")
        quotas[key] = Quota(int(calls), float(seconds))
    with Api(int(port), Path(record), quotas) as api:
        api.serve_forever()


if __name__ == "__main__":
    _main(*sys.argv[1:])
