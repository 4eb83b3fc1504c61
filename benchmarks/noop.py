"""
An executor that runs nothing: it starts, finishes and answers, by the contract of a real one.

A process of its own, so that its cost is not the daemon's: ``python -m benchmarks.noop PORT
URL [STAMPS]``, with a URL that holds no password. Each connection of the daemon has a thread and a
database connection. Without a URL (``-``) it is a plain endpoint, which answers 204 and knows no
database. Into a file STAMPS it writes, for each request, when its first byte was there: nanoseconds
of the monotonic clock.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import time
from typing import Any
from urllib.parse import parse_qs

from crq import executions
from crq.database import Database
from crq.messages import Outcome
from crq.model import ErrorCode, Status
from tests.servers import HOST

SUCCESS = Outcome(Status.SUCCESS)


class Server(socketserver.ThreadingTCPServer):
    """
    Listens for the daemon.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int, database: Database | None, stamps: str | None = None) -> None:
        super().__init__((HOST, port), _Plain if database is None else _Handler)
        self.database = database
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._stamps = None if stamps is None else os.open(stamps, flags, 0o600)

    def stamp(self) -> None:
        """
        Take note that a request begins.
        """
        if self._stamps is not None:
            os.write(self._stamps, b"%d\n" % time.monotonic_ns())


class _Handler(socketserver.StreamRequestHandler):
    server: Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        database = self.server.database
        assert database is not None
        connection: Any = None
        try:
            while request := self.read():
                connection = connection or database.connect()
                fields = parse_qs(request.decode("ascii"))
                body = json.dumps(_execute(database, connection, fields)).encode("ascii")
                self.wfile.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
        finally:
            if connection is not None:
                connection.close()

    def read(self) -> bytes:
        """
        The body of the next request; empty: there is none.
        """
        if not self.rfile.peek(1):  # type: ignore[attr-defined]
            return b""
        self.server.stamp()
        self.rfile.readline()
        length = 0
        while line := self.rfile.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return self.rfile.read(length)


class _Plain(_Handler):
    def handle(self) -> None:
        while self.read():
            self.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")


def _execute(database: Database, connection: Any, fields: dict[str, list[str]]) -> dict[str, Any]:
    job_id, nonce = int(fields["jobId"][0]), fields["asyncNonce"][0]
    # Each is one statement, which is a transaction of its own: no BEGIN, no COMMIT.
    row = database.read(connection, executions.startable, job_id)
    if row is None or not database.read(
        connection, executions.start, row.execution_id, nonce, "noop", time.time()
    ):
        return {"errorCode": ErrorCode.NONCE_INVALID}
    database.read(connection, executions.finish, row.execution_id, SUCCESS, time.time())
    return {"executionId": row.execution_id, "status": SUCCESS.status.value}


if __name__ == "__main__":
    url = sys.argv[2] if sys.argv[2:] else "-"
    database = None if url == "-" else Database(url)
    with Server(int(sys.argv[1]), database, *sys.argv[3:4]) as server:
        server.serve_forever()
