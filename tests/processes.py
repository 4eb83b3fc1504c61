"""
Programs in processes of their own, for tests, benchmarks and the demo: started, watched, ended.

# Note [No process outlives its run]

A run ends in three ways. Normally, and on Ctrl-C, whoever started a process ends it; it is in a
session of its own, so that Ctrl-C reaches the run alone and its processes end in order. On SIGKILL
nothing of ours runs, so the kernel must do it: ``setpriv --pdeathsig`` asks it to kill the process
when its parent dies. (``preexec_fn`` with prctl would do the same, but it runs Python between fork
and exec, which is unsafe once the reactor has threads; Python 3.12 warns of it.) "Parent" is a
thread to the kernel: start processes from a thread that lasts, best the main one. What such a
process has started is not killed with it; gunicorn's workers see by themselves that they are alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# Debian keeps daemons where a user's PATH does not look.
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))


def spawn(
    command: Sequence[str],
    log: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    death_signal: str = "KILL",
) -> subprocess.Popen[bytes]:
    """
    Start a program (see note [No process outlives its run]).

    :param log: a file that gets what the program prints, after what is there already.
    :param env: its environment; ours when None.
    :param death_signal: what it gets when we die; TERM for one that must end its own workers.
    """
    leash = shutil.which("setpriv", path=SEARCH_PATH)  # in every Debian's util-linux
    with log.open("ab") as output:
        return subprocess.Popen(
            [leash, "--pdeathsig", death_signal, "--", *command] if leash else command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes], within: float) -> int:
    """
    End a process in order (SIGTERM); after some seconds end it, and what it started, by SIGKILL.

    :return: its exit code, negative for a signal.
    """
    process.terminate()
    try:
        return process.wait(within)
    except subprocess.TimeoutExpired:
        kill(process)
        return process.returncode


def kill(process: subprocess.Popen[bytes]) -> None:
    """
    End a process and what it has started, all in its session, at once (SIGKILL).
    """
    if process.poll() is None:  # afterwards its number may belong to somebody else
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
