"""
What tests share: a pool that works at once, without threads.
"""

from __future__ import annotations

from collections.abc import Callable

from crq.database import Database
from crq.inmemory import SynchronousPool

__all__ = ["SynchronousPool", "memory_pool"]


def memory_pool(observe: Callable[[str], None] | None = None) -> SynchronousPool:
    """
    An empty database in memory, with the schema.
    """
    return SynchronousPool(Database("sqlite:///:memory:", observe=observe))
