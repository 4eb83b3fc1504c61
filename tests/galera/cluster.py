"""
A private Galera cluster: three MariaDB servers that replicate to each other synchronously.

# Note [How it begins]

A node that joins with an empty data directory asks for a whole copy, by rsync or mariadb-backup,
which is slow and fails as root. So one node is made first, alone in a new cluster, stopped in
order, and its directory copied: all three know a position of one history, and whoever joins gets
only the writes it has missed (``wsrep_sst_position`` tells it from where on). One that was killed
is asked for its position first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pymysql

from tests.processes import SEARCH_PATH, spawn
from tests.servers import HOST, MariaDB, ServerFailed, ServerMissing, free_port

LIBRARIES = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib/libgalera_smm.so")
NODES = 3
SUSPECT = 2  # s of silence after which a node is suspected; 5 by default


def library() -> str:
    """
    Where Galera is.

    :raise ServerMissing: it is not installed.
    """
    for path in LIBRARIES:
        if Path(path).exists():
            return path
    raise ServerMissing("galera-4 is not installed; run: scripts/provision servers")


class Node(MariaDB):
    """
    One node.

    :ivar group_port: where the other nodes reach it.
    """

    name = "galera"

    def __init__(self, number: int) -> None:
        self.number = number
        self.group_port, self._ist_port = free_port(), free_port()
        self.peers: Sequence[Node] = ()
        self.alone = False  # to begin a cluster
        self._position: str | None = None
        self._killed = False
        provider = library()
        super().__init__(
            extra=[
                "--binlog-format=ROW",
                "--innodb-autoinc-lock-mode=2",
                "--log-bin-trust-function-creators=ON",  # for the triggers of the journal
                "--wsrep-on=ON",
                f"--wsrep-provider={provider}",
                "--wsrep-cluster-name=crq-test",
                f"--wsrep-node-name=node{number}",
                f"--wsrep-node-address={HOST}:{self.group_port}",
                "--wsrep-slave-threads=2",
                "--wsrep-sst-method=position",  # the script beside this module
            ]
        )

    def _command(self) -> list[str]:
        options = (
            f"gmcast.listen_addr=tcp://{HOST}:{self.group_port}",
            f"ist.recv_addr={HOST}:{self._ist_port}",
            "gcache.size=64M",
            f"evs.suspect_timeout=PT{SUSPECT}S",
            f"evs.inactive_timeout=PT{3 * SUSPECT}S",
            "evs.inactive_check_period=PT0.5S;evs.keepalive_period=PT0.5S;evs.join_retrans_period=PT0.5S",
            # A node that was isolated is found again soon.
            "gmcast.peer_timeout=PT1S",
        )
        peers = ",".join(f"{HOST}:{node.group_port}" for node in self.peers)
        command = super()._command()
        command = [word for word in command if not word.startswith("--init-file")]
        if not self.alone:
            command.append(f"--wsrep-cluster-address=gcomm://{peers}")
        else:
            command += ["--wsrep-cluster-address=gcomm://", "--wsrep-new-cluster"]
        if self._position is not None:
            command.append(f"--wsrep-start-position={self._position}")
        return [*command, f"--wsrep-provider-options={';'.join(options)}"]

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "PATH": os.pathsep.join((str(Path(__file__).parent), SEARCH_PATH)),
            "CRQ_GALERA": str(self.peers[0].directory),
            "CRQ_NODE": str(self.number),
        }
        return spawn(command, self.directory / "log", self.directory, environment)

    def start(self) -> None:
        """
        Start, and wait until the node takes part.
        """
        if not self.running and self._killed:
            self._position = self._recovered()
        self._killed = False
        super().start()

    def kill(self) -> None:
        """
        End it at once.
        """
        self._killed = self._killed or self.running
        super().kill()

    def _recovered(self) -> str:
        command = [*super()._command(), "--wsrep-recover", "--wsrep-cluster-address=gcomm://"]
        command = [word for word in command if not word.startswith("--init-file")]
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, check=False
        )
        found = re.findall(r"Recovered position: (\S+)", done.stderr + done.stdout)
        if not found:
            raise ServerFailed(f"no position of a killed node:\n{done.stderr[-2000:]}")
        return str(found[-1])

    def status(self, name: str) -> str:
        """
        One of its status variables.
        """
        rows = self.execute(f"SHOW STATUS LIKE '{name}'")
        return str(rows[0][1]) if rows else ""

    def isolate(self) -> None:
        """
        Cut it off from the other nodes; clients reach it still.
        """
        self.execute("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'")

    def rejoin(self) -> None:
        """
        Undo it.
        """
        self.execute("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")

    def _answers(self) -> bool:
        if not super()._answers():
            return False
        try:
            return self.status("wsrep_ready") == "ON"
        except pymysql.MySQLError:
            return False


class Cluster:
    """
    Three nodes; `close` ends them and deletes their directories.
    """

    def __init__(self) -> None:
        self.nodes = [Node(number) for number in range(1, NODES + 1)]
        for node in self.nodes:
            node.peers = self.nodes

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """
        Begin the cluster (see note).
        """
        first, *others = self.nodes
        first._prepare()
        with _Plain(first) as plain:  # the account, before anything is replicated
            plain.start()
            plain.stop()
        first.alone = True
        first.start()
        first.stop()
        for node in others:
            shutil.copytree(first._data, node._data)
            for name in ("gvwstate.dat", "galera.cache"):
                (node._data / name).unlink(missing_ok=True)
        first.start()
        for node in others:
            node.start()
        first.alone = False
        self.until(NODES)

    def until(self, size: int, within: float = 60.0) -> float:
        """
        Wait until so many nodes that run are one cluster; returns how many seconds it took.
        """
        begun = time.monotonic()
        while not self._whole(size):
            if time.monotonic() > begun + within:
                logs = "\n".join(node.log()[-2000:] for node in self.nodes)
                raise ServerFailed(f"no cluster of {size}:\n{logs}")
            time.sleep(0.05)
        return time.monotonic() - begun

    def _whole(self, size: int) -> bool:
        count = 0
        for node in self.nodes:
            if not node.running:
                continue
            try:
                ready = node.status("wsrep_ready") == "ON"
                count += ready and node.status("wsrep_cluster_size") == str(size)
            except pymysql.MySQLError:
                return False
        return count == size

    def close(self) -> None:
        """
        End it all.
        """
        for node in self.nodes:
            node.close()


class _Plain:
    """
    A node's server without Galera.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> MariaDB:
        self._server = MariaDB(extra=["--wsrep-on=OFF"])
        self._own = self._server._data
        self._server._files = self._node._files
        self._server._data = self._node._data
        (self._server.directory / "init.sql").write_text(
            (self._node.directory / "init.sql").read_text()
        )
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.close()
