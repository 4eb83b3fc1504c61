"""
What the kernel says of a process.
"""

from __future__ import annotations

import os
from pathlib import Path

from attrs import frozen

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """
    The CPU time a process has used so far, in user and kernel mode, to a hundredth of a second.
    """
    # The name, in parentheses, may hold blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """
    The memory a process holds now, in MB of 1024² bytes.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the kernel names no VmRSS of process {pid}")


@frozen
class Work:
    """
    What a process has done so far.

    :ivar cpu: seconds, to a nanosecond, of the threads that live.
    :ivar wakes: how often one of them had waited and went on.
    """

    cpu: float
    wakes: int


def work(pid: int) -> Work:
    """
    Sum up the living threads of a process; one that has ended is missing, with all it did.
    """
    cpu = wakes = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            cpu += int((thread / "schedstat").read_text().split()[0])
            status = (thread / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        wakes += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return Work(cpu / 1e9, wakes)
