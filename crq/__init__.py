"""
crqueue: a durable, fair, rate-limit-aware dispatch queue.
"""

__version__ = "0.1.0"
