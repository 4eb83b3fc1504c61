"""
Who this process is, for those who share its database.
"""

from __future__ import annotations

import os
import secrets
import socket
from hashlib import sha256
from pathlib import Path

from crq import __version__
from crq.pulse import Origin

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def of_this_process(lock_file: str) -> Origin:
    """
    A new process, which holds this lock file.
    """
    return Origin(
        incarnation=secrets.token_hex(16),
        host=socket.gethostname()[:64],
        version=__version__[:32],
        lock_of=lock_of(lock_file),
    )


def lock_of(lock_file: str) -> str:
    """
    What tells a lock file from all others: whoever holds it now knows that all who held it before
    are dead. Empty: it cannot be told.

    The boot is part of it, since another machine may well have a file of the same number.
    """
    try:
        found = os.stat(lock_file)
        boot = _BOOT.read_text("ascii").strip()
    except OSError:
        return ""
    return sha256(f"{boot} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:32]
