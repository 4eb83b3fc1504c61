"""
What the door needs of the kernel: file descriptors, and a queue for connections not yet accepted.
"""

from __future__ import annotations

import resource

BACKLOG = 1024  # connections; Twisted's 50 make a burst of callers wait seconds for a second try
OTHERS = 128  # file descriptors of everything that is no connection to the door

_LISTENING = ("tcp:", "tcp4:", "tcp6:", "ssl:", "unix:")


def backlogged(description: str) -> str:
    """
    An endpoint description with a backlog, unless it names one or is of a kind without.
    """
    if not description.startswith(_LISTENING) or ":backlog=" in description:
        return description
    return f"{description}:backlog={BACKLOG}"


def provide(connections: int) -> None:
    """
    Raise this process's limit of file descriptors so far that so many connections fit.

    :raise ValueError: it may not be raised so far.
    """
    wanted = 2 * connections + OTHERS  # a long body is kept in a file
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(
            f"web.connections: {connections} connections need {wanted} file descriptors, the limit"
            f" is {hard}; lower the option, or raise LimitNOFILE in the unit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
