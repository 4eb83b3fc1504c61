"""
A whole crqueue in a directory of its own: configuration, secrets, database, daemon, executor.

The daemon is the real ``twistd crqueue`` and the executor is the real gunicorn, each started as an
operator would start it, from a configuration file.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography.fernet import Fernet

from crq import configfile, schema
from crq.config import Config
from crq.sealing import sha256_hex
from tests.processes import end, kill, spawn
from tests.servers import HOST, LOG_TAIL, ServerFailed, free_port

CHECKOUT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent  # twistd and gunicorn of this environment
START_WITHIN = 30.0  # s
STOP_WITHIN = 10.0  # s, then SIGKILL

Settings = Mapping[str, Mapping[str, object]]


class Installation:
    """
    One installation. Nothing runs until it is started; `close` ends what still does.

    :ivar directory: everything is inside.
    :ivar config: the configuration, as the daemon reads it.
    :ivar settings: what of it was written, by section.
    :ivar token: a bearer token that may do everything.
    :ivar web_port: where the daemon listens.
    :ivar executor_port: where the executor listens, ours or another.
    :ivar environment: further variables for the ``daemon`` or the ``executor`` when it is started.
    """

    def __init__(self, directory: Path, settings: Settings | None = None) -> None:
        """
        Write the configuration and the secrets, and create the schema.

        :param settings: options by section; they win over ours.
        """
        self.directory = directory
        self.token = secrets.token_urlsafe(32)
        self.web_port, self.executor_port = free_port(), free_port()
        while self.executor_port == self.web_port:
            self.executor_port = free_port()
        self._write("salt", secrets.token_hex(16))
        self._write("seal_keys", Fernet.generate_key().decode("ascii"))
        ours: dict[str, dict[str, object]] = {
            "database": {"url": "sqlite:///crqueue.db"},
            "secrets": {"salt_file": "salt", "seal_keys_file": "seal_keys"},
            "web": {"listen": f"tcp:{self.web_port}:interface={HOST}"},
            "executor": {
                "url": f"http://{HOST}:{self.executor_port}",
                "bind": f"{HOST}:{self.executor_port}",
            },
        }
        for section, options in (settings or {}).items():
            ours.setdefault(section, {}).update(options)
        self.settings: Settings = ours
        self.path = directory / "crqueue.toml"
        self._write(self.path.name, _toml(ours, sha256_hex(self.token)))
        self.config: Config = configfile.load(str(self.path), environment={})
        schema.upgrade(self.config.open_database())
        self.environment: dict[str, dict[str, str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start_daemon(self, wait: bool = True, roles: str = "all") -> int:
        """
        Start ``twistd crqueue`` and return its process id.

        :param wait: until it is ready: its first tick has ended well.
        :param roles: what it is to do.
        """
        command = [str(BIN / "twistd"), "--nodaemon", "--pidfile="]
        return self._start(
            "daemon",
            [*command, "crqueue", "--config", str(self.path), "--roles", roles],
            (lambda: self.get("/health/ready")[0] == 200) if wait else None,
        )

    def start_executor(self) -> int:
        """
        Start the executor under gunicorn and wait until it answers; returns its process id.
        """
        settings = CHECKOUT / "deploy" / "gunicorn.conf.py"
        return self._start(
            "executor",
            [str(BIN / "gunicorn"), "--config", str(settings)],
            lambda: _get(self.executor_port, "/", {})[0] > 0,
        )

    def stop(self, name: str) -> int:
        """
        End the ``daemon`` or the ``executor`` in order; returns its exit code.
        """
        return end(self._processes.pop(name), STOP_WITHIN)

    def kill(self, name: str) -> None:
        """
        End one at once, as a crash would.
        """
        kill(self._processes.pop(name))

    def pid(self, name: str) -> int:
        """
        The process id of one that was started.
        """
        return self._processes[name].pid

    def runs(self, name: str) -> bool:
        """
        Whether one has been started and still runs.
        """
        return name in self._processes and self._processes[name].poll() is None

    def close(self) -> None:
        """
        End everything that runs. The directory stays: it is the caller's.
        """
        for name in ("daemon", "executor"):
            if name in self._processes:
                self.stop(name)

    def check(self) -> None:
        """
        Make sure that what was started still runs.

        :raise ServerFailed: it does not; with the end of its log.
        """
        for name, process in self._processes.items():
            if (code := process.poll()) is not None:
                raise self._failure(name, f"ended with code {code}")

    def log(self, name: str) -> str:
        """
        What the daemon or the executor has logged.
        """
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def get(self, path: str) -> tuple[int, str]:
        """
        GET from the daemon's door with the token; status 0: nobody answers.
        """
        return _get(self.web_port, path, {"Authorization": f"Bearer {self.token}"})

    def submit(
        self, idempotency_key: str | None = None, **fields: Any
    ) -> tuple[int, dict[str, Any]]:
        """
        Submit an execution over HTTP, as a customer would; returns the status and the answer.
        """
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        connection = http.client.HTTPConnection(HOST, self.web_port, timeout=30)
        try:
            connection.request(
                "POST",
                "/codeRunner",
                json.dumps(fields),
                {
                    "Authorization": f"Bearer {self.token}",
                    "Content-Type": "application/json",
                    **headers,
                },
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def _start(self, name: str, command: list[str], ready: Callable[[], bool] | None) -> int:
        environment = {
            variable: value for variable, value in os.environ.items() if variable[:4] != "CRQ_"
        }
        environment["CRQ_CONFIG"] = str(self.path)
        environment["PYTHONPATH"] = str(CHECKOUT)  # twistd looks for plugins along sys.path
        environment.update(self.environment.get(name, {}))
        process = spawn(command, self.directory / f"{name}.log", self.directory, environment)
        self._processes[name] = process
        deadline = time.monotonic() + START_WITHIN
        while ready is not None and not ready():
            self.check()
            if time.monotonic() > deadline:
                raise self._failure(name, f"was not ready within {START_WITHIN:g} s")
            time.sleep(0.005)
        return process.pid

    def _failure(self, name: str, what: str) -> ServerFailed:
        return ServerFailed(f"the {name} {what}; its log ends:\n{self.log(name)[-LOG_TAIL:]}")

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.touch(0o600)
        path.write_text(text)


def companion(
    first: Installation, directory: Path, name: str, settings: Settings | None = None
) -> Installation:
    """
    Another daemon for the same database, secrets and executor, with a door, a lock and a name of
    its own.

    :param settings: options by section; they win over those of the first.
    """
    ours = {section: dict(options) for section, options in first.settings.items()}
    ours["database"]["url"] = first.config.database.url
    for option in ("salt_file", "seal_keys_file"):
        ours["secrets"][option] = getattr(first.config.secrets, option)
    ours["executor"] |= {
        "url": first.config.executor.url,
        "lock_dir": first.config.executor.lock_dir,
    }
    for section, option in (("executor", "bind"), ("web", "listen")):
        ours[section].pop(option)
    ours.setdefault("drainer", {})["id"] = name
    for section, options in (settings or {}).items():
        ours.setdefault(section, {}).update(options)
    directory.mkdir(exist_ok=True)
    return Installation(directory, ours)


def _get(port: int, path: str, headers: dict[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except OSError:
        return 0, ""
    finally:
        connection.close()


def _toml(sections: Settings, token_sha256: str) -> str:
    lines = []
    for section, options in sections.items():
        lines.append(f"[{section}]")
        # Texts, numbers and lists of them are written alike in TOML and in JSON.
        lines += (f"{name} = {json.dumps(value)}" for name, value in options.items())
        lines.append("")
    lines += ["[[tokens]]", 'name = "everything"', f'sha256 = "{token_sha256}"']
    lines.append(f"scopes = {json.dumps(['admit', 'read', 'operate', 'promote'])}")
    return "\n".join(lines) + "\n"
