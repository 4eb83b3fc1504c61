"""
Who submits what, and when: one account that floods, a polite one, and one with a throttled key.
"""

from __future__ import annotations

import math
from pathlib import Path

from attrs import frozen

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


CALLS = 4  # that sum_of_subtasks.star makes on a card of the demo


@frozen
class Account:
    """
    An account of the demo.

    :ivar script: file name in ``examples/``.
    :ivar count: how many executions it submits.
    :ivar every: seconds between two of them; 0: all at once.
    :ivar first_card: each execution works on a card of its own, from this number on.
    """

    name: str
    script: str
    count: int
    every: float
    first_card: int

    @property
    def key(self) -> str:
        """
        Its API key.
        """
        return f"key-of-{self.name}"

    @property
    def source_code(self) -> str:
        """
        The text of its script.
        """
        return (EXAMPLES / self.script).read_text("utf-8")


@frozen
class Load:
    """
    What is submitted, and how the throttled key is throttled.

    :ivar free_calls: calls of the account ``limited`` until the API answers 429.
    :ivar retry_after: seconds for which it then does.
    """

    accounts: tuple[Account, ...]
    free_calls: int
    retry_after: int

    def submissions(self) -> list[tuple[float, Account, int]]:
        """
        Seconds after the start, account and card of each submission, in order.
        """
        return sorted(
            (
                (number * account.every, account, account.first_card + number)
                for account in self.accounts
                for number in range(account.count)
            ),
            key=lambda each: each[0],
        )


def load(scale: float) -> Load:
    """
    The load, made smaller by a factor of at most 1.
    """

    def some(count: int, least: int) -> int:
        return max(least, math.ceil(count * scale))

    limited = some(10, 6)
    return Load(
        accounts=(
            Account("flood", "comment_on_card.star", some(120, 3), 0.0, 1000),
            Account("limited", "sum_of_subtasks.star", limited, 0.0, 3000),
            Account("polite", "escalate_overdue.star", some(12, 3), 1.5, 2000),
        ),
        # Enough for half of its executions: at most two end in the 429, the others need the rest.
        free_calls=CALLS * math.ceil(limited / 2),
        retry_after=math.ceil(15 * scale),
    )
