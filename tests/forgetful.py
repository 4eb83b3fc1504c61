"""
An executor that cannot write how a script ended, only tell it: its database is lost by then.
"""

from __future__ import annotations

import threading
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from crq.executor.app import App
from crq.executor.clock import Clock
from crq.executor.run import Executor
from crq.gates import open_store
from tests.installation import Installation
from tests.servers import HOST


class _ForgetfulExecutor(Executor):
    def _finish(self, *_: Any) -> None:
        pass


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Forgetful:
    """
    Our executor, in a thread, which cannot write an outcome.
    """

    def __init__(self, installation: Installation) -> None:
        config = installation.config
        gates = open_store(config, config.open_database())
        executor = _ForgetfulExecutor.of(config, gates, Clock())
        self._executor = executor
        self._server = make_server(
            HOST, installation.executor_port, App(config, executor), handler_class=_Quiet
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        """
        End it.
        """
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._executor.connection.close()
