"""
What the author of an automation type writes, and what is handed to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from twisted.plugin import IPlugin
from zope.interface import Attribute

from crq.automations.model import Chunk, Decision, Json
from crq.instants import Instant

T = TypeVar("T")
P = ParamSpec("P")


class Later(Exception):
    """
    Raised by `evaluate` or `apply`: nothing was done, try again in a later tick. No failure.

    The text says what is waited for; it is shown with the run.
    """


class Context(Protocol):
    """
    What a call is about, and what it may use. It does not say whether the run is live: a decision
    that depended on it would make preview and observe worthless.

    :ivar tenant: whose automation it is.
    :ivar automation_uuid: which one.
    :ivar scheduled_for: the occurrence; take it as "now", so that every chunk has the same.
    :ivar run_key: names the run; with a subject's id it names an effect, for idempotency.
    :ivar config: the configuration, an instance of the type's `settings`.
    """

    tenant: str
    automation_uuid: str
    scheduled_for: Instant
    run_key: str
    config: Any

    def left(self) -> float:
        """
        Seconds until nobody waits for this call any more.
        """

    def read(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kw: P.kwargs) -> T:
        """
        Run a function on a cursor of crqueue's database that cannot write.
        """

    def transact(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kw: P.kwargs
    ) -> T:
        """
        Run a function in one transaction. Only while applying.
        """


class IAutomation(IPlugin):
    """
    An automation type. Its methods may block: they are called on threads of their own, for at most
    `limits.CALL_SECONDS`; a call that takes longer is not waited for and its result is dropped.
    """

    name = Attribute("What configurations call it: lower-case letters, digits, underscores.")
    summary = Attribute("What it does, in one line.")
    settings = Attribute("The attrs class of its configuration, made of `settings.setting`.")
    subject_types = Attribute("The kinds of records it decides about: a tuple of words.")
    acts = Attribute("False: it only reports; it cannot be promoted and `apply` is not called.")
    repeatable = Attribute(
        "True: applying one decision twice is as good as once (a key, a DELETE). After a crash it"
        " is applied again; otherwise its item stays unknown."
    )

    def evaluate(context: Context, config: Any, cursor: Json, limit: int) -> Chunk:  # noqa: N805
        """
        Decide about the next records, at most ``limit``, and change nothing.

        :param cursor: where to begin: None at first, then what the last chunk said.
        :raise Later: it cannot be done now.
        """

    def apply(context: Context, decision: Decision) -> str | None:  # noqa: N805
        """
        Do what was decided; returns a short text about it for the item.

        :raise Later: nothing was done; try again.
        """
