"""
The seams of the queue: only where two real implementations exist, or the other side is not ours.
"""

from __future__ import annotations

from collections.abc import Collection

from zope.interface import Interface

from crq.instants import Instant
from crq.messages import DispatchResult
from crq.model import Claimed, GateReading


class IGateStore(Interface):
    """
    Where gates are kept. Synchronous: a daemon calls it on a thread of its own.

    Every method raises `crq.gates.GatesUnreachable` when the store does not answer.
    """

    def read(keys: Collection[str], now: Instant) -> GateReading:  # noqa: N805
        """
        Tell which of these keys are closed, in one round trip.
        """

    def close(key: str, until: Instant, now: Instant) -> Instant:  # noqa: N805
        """
        Close a key until an instant and return until when it is closed now.

        A shorter gate never shortens a longer one (ruling 7).
        """

    def open(key: str) -> None:  # noqa: N805
        """
        Forget a key's gate.
        """


class ITransport(Interface):
    """
    The way to the executor.
    """

    async def dispatch(claimed: Claimed) -> DispatchResult:  # noqa: N805
        """
        POST one execution and wait for its answer. Never raises for a reason of the network.
        """

    async def close() -> None:
        """
        Let go of idle connections.
        """
