"""
PHP-FPM with two pools, and Apache or nginx in front: the shipped files of ``deploy/``, with paths,
users and times of a test put in, as private servers.

`shipped` refuses to change what is not there, so a file that is edited cannot slip out of a test.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.processes import SEARCH_PATH, kill, spawn
from tests.servers import HOST, ServerMissing, _program, _Server

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
PHP = DEPLOY / "php"
WWW = Path(__file__).resolve().parent / "www"
MODULES = Path("/usr/lib/apache2/modules")
WWW_WORKERS = 40  # of the shared pool, as in the incident


def shipped(path: str, changes: Mapping[str, str]) -> str:
    """
    A file of ``deploy/`` with some of its text replaced.
    """
    text = (DEPLOY / path).read_text("utf-8")
    for old, new in changes.items():
        assert old in text, f"deploy/{path} does not have: {old}"
        text = text.replace(old, new)
    return text


def php_fpm() -> str:
    """
    The program; Debian has the version in its name.
    """
    for folder in SEARCH_PATH.split(os.pathsep):
        found = sorted(Path(folder).glob("php-fpm[0-9]*"))
        if found:
            return str(found[-1])
    path = shutil.which("php-fpm", path=SEARCH_PATH)
    if path is None:
        raise ServerMissing("php-fpm is not installed; run: scripts/provision servers")
    return path


class _WithWorkers(_Server):
    """
    A server whose master process has workers: they end with it, however it ends.
    """

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # Killed outright, a master of these leaves its workers behind; SIGTERM ends them as well.
        return spawn(command, self.directory / "log", self.directory, death_signal="TERM")

    def kill(self) -> None:
        """
        End master and workers at once (SIGKILL).
        """
        if self._process is not None:
            kill(self._process)
            self._process = None

    def close(self) -> None:
        """
        End it in order, so that its workers end too, and delete its directory.
        """
        self.stop()
        self._temporary.cleanup()

    def _write(self, name: str, text: str) -> None:
        # php-fpm takes no blanks before a section.
        (self.directory / name).write_text("\n".join(line.strip() for line in text.splitlines()))


class Fpm(_WithWorkers):
    """
    PHP-FPM with the shared pool ``www`` and the pool ``codeRunner`` as it is shipped.
    """

    name = "php-fpm"

    def __init__(
        self, environment: Mapping[str, object], wall: float = 300, memory: str = "256M"
    ) -> None:
        """
        Choose the settings; nothing is started yet.

        :param environment: of both pools: ``CODERUNNER_…`` without the prefix.
        :param wall: seconds after which a worker of either pool is killed.
        :param memory: that a worker of the scripts' pool may use.
        """
        super().__init__()
        self.directory.chmod(0o755)  # the front server may be another user
        self._environment = environment
        self._wall = wall
        self._memory = memory

    def socket(self, pool: str) -> Path:
        """
        Where a pool listens; ``codeRunner-status`` and ``www-status`` too.
        """
        return self.directory / f"{pool}.sock"

    def _prepare(self) -> None:
        for path in self.directory.glob("*.sock"):
            path.unlink()
        changes = {
            "/run/php/": f"{self.directory}/",
            "listen.mode = 0660": "listen.mode = 0666",
            "request_terminate_timeout = 300s": f"request_terminate_timeout = {self._wall:g}s",
            "[memory_limit] = 256M": f"[memory_limit] = {self._memory}",
        }
        pool = _as_ourselves(shipped("php-fpm/codeRunner.conf", changes))
        pool = re.sub(r"env\[CODERUNNER.*\n", "", pool)
        environment = "".join(
            f'env[CODERUNNER_{name.upper()}] = "{value}"\n'
            for name, value in self._environment.items()
            if value != ""  # which FPM refuses
        )
        self._write(
            "fpm.conf",
            f"""
            [global]
            error_log = {self.directory}/log
            daemonize = no
            process_control_timeout = 310s
            {pool}
            {environment}
            [www]
            {_as_ourselves("user = www-data")}
            listen = {self.socket("www")}
            listen.mode = 0666
            listen.backlog = 4096
            pm = dynamic
            pm.max_children = {WWW_WORKERS}
            pm.start_servers = 4
            pm.min_spare_servers = 4
            pm.max_spare_servers = 8
            request_terminate_timeout = {self._wall:g}s
            pm.status_path = /fpm-status
            pm.status_listen = {self.socket("www-status")}
            catch_workers_output = yes
            {environment}
            """,
        )

    def _command(self) -> list[str]:
        root = ["--allow-to-run-as-root"] if os.geteuid() == 0 else []
        return [php_fpm(), "--nodaemonize", *root, "--fpm-config", str(self.directory / "fpm.conf")]

    def _answers(self) -> bool:
        return all(_listens(self.socket(pool)) for pool in ("codeRunner", "www"))


class _Front(_WithWorkers):
    """
    The web server in front of FPM.
    """

    def __init__(self, fpm: Fpm, timeout: int = 320) -> None:
        """
        Choose the settings; nothing is started yet.

        :param timeout: seconds after which it gives up on the scripts' pool.
        """
        super().__init__()
        self.directory.chmod(0o755)
        self._fpm = fpm
        self._timeout = timeout

    @property
    def url(self) -> str:
        """
        Its address.
        """
        return f"http://{HOST}:{self.port}"

    def status(self, pool: str) -> dict[str, Any]:
        """
        FPM's status page of a pool.
        """
        status, text = self.ask("GET", f"/fpm-status/{pool}?json")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def ask(
        self,
        method: str,
        path: str,
        body: str = "",
        headers: Mapping[str, str] | None = None,
        within: float = 60.0,
    ) -> tuple[int, str]:
        """
        Ask once; status 0: no answer.
        """
        connection = http.client.HTTPConnection(HOST, self.port, timeout=within)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def _answers(self) -> bool:
        return self.ask("GET", "/index.php")[0] == 200


class Apache(_Front):
    """
    Apache with mpm_event and mod_proxy_fcgi.
    """

    name = "apache2"

    def _prepare(self) -> None:
        routes = shipped(
            "apache/codeRunner.conf",
            {
                "/run/php/codeRunner.sock": str(self._fpm.socket("codeRunner")),
                "/run/php/codeRunner-status.sock": str(self._fpm.socket("codeRunner-status")),
                "/opt/crqueue/php": str(PHP),
                " timeout=320 ": f" timeout={self._timeout} ",
            },
        )
        modules = ("mpm_event", "authz_core", "authz_host", "dir", "proxy", "proxy_fcgi")
        loaded = "\n".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in modules)
        as_whom = "User www-data\nGroup www-data" if os.geteuid() == 0 else ""
        self._write(
            "apache.conf",
            f"""
            ServerRoot {self.directory}
            ServerName {HOST}
            Listen {HOST}:{self.port}
            PidFile {self.directory}/pid
            ErrorLog {self.directory}/log
            LogLevel warn
            {loaded}
            {as_whom}
            ThreadsPerChild 64
            MaxRequestWorkers 256
            DocumentRoot {WWW}
            <Directory {WWW}>
                Require all granted
                FallbackResource /index.php
            </Directory>
            {routes}
            <FilesMatch "\\.php$">
                SetHandler "proxy:unix:{self._fpm.socket("www")}|fcgi://www"
            </FilesMatch>
            <Proxy "fcgi://www">
                ProxySet timeout=320 retry=0
            </Proxy>
            <Location "/fpm-status/www">
                SetHandler "proxy:unix:{self._fpm.socket("www-status")}|fcgi://www-status/fpm-status"
            </Location>
            """,
        )

    def _command(self) -> list[str]:
        program = _program("apache2")
        return [program, "-DFOREGROUND", "-f", str(self.directory / "apache.conf")]


class Nginx(_Front):
    """
    nginx with its FastCGI client.
    """

    name = "nginx"

    def _prepare(self) -> None:
        sockets = {"/run/php/codeRunner.sock": str(self._fpm.socket("codeRunner"))}
        here = {"/etc/nginx/snippets": str(self.directory)}
        (self.directory / "codeRunner-pool.conf").write_text(
            shipped(
                "nginx/codeRunner-pool.conf",
                {
                    **sockets,
                    **here,
                    "/opt/crqueue/php": str(PHP),
                    "read_timeout 320s": f"read_timeout {self._timeout}s",
                },
            )
        )
        status = {"/run/php/codeRunner-status.sock": str(self._fpm.socket("codeRunner-status"))}
        (self.directory / "codeRunner.conf").write_text(
            shipped("nginx/codeRunner.conf", {**status, **here})
        )
        shutil.copy("/etc/nginx/fastcgi_params", self.directory)
        paths = "".join(
            f"{kind}_temp_path {self.directory}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        self._write(
            "nginx.conf",
            f"""
            {"user root;" if os.geteuid() == 0 else ""}
            daemon off;
            pid {self.directory}/pid;
            error_log {self.directory}/log;
            events {{ worker_connections 512; }}
            http {{
                access_log off;
                {paths}
                server {{
                    listen {HOST}:{self.port};
                    root {WWW};
                    include {self.directory}/codeRunner.conf;
                    location / {{
                        include fastcgi_params;
                        fastcgi_param SCRIPT_FILENAME {WWW}/index.php;
                        fastcgi_pass unix:{self._fpm.socket("www")};
                    }}
                }}
            }}
            """,
        )

    def _command(self) -> list[str]:
        files = ["-p", str(self.directory), "-c", str(self.directory / "nginx.conf")]
        return [_program("nginx"), *files, "-e", str(self.directory / "log")]


def _as_ourselves(pool: str) -> str:
    """
    Let a pool run as whoever runs the tests.
    """
    pool = re.sub(r"(?m)^(group|listen\.(owner|group)) = .*\n?", "", pool)
    mine = "user = root\ngroup = root" if os.geteuid() == 0 else ""
    return re.sub(r"(?m)^user = .*$", mine, pool)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
