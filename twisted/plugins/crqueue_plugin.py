"""
Tells twistd about crqueue, and nothing else.
"""

from twisted.application.service import ServiceMaker

crqueue = ServiceMaker(
    "crqueue",
    "crq.tap",
    "a durable, fair, rate-limit-aware dispatch queue",
    "crqueue",
)
