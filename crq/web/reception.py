"""
What the doors have of the automations: the desk, and threads of their own for previews.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from crq.automations import limits
from crq.automations.calls import Calls
from crq.automations.desk import Desk
from crq.automations.workers import IWorkers

PREVIEWS: Final = 2  # at once: people may not take the threads of runs, nor wait for them
# A preview begins no call after `limits.CALL_SECONDS`, and its last one may take as long.
PREVIEW_SECONDS: Final = 2 * limits.CALL_SECONDS


@frozen
class Reception:
    """
    Where people come to, and who makes the calls of previews.
    """

    desk: Desk
    calls: Calls
    previews: IWorkers
