"""
Calls of a type, as they are made on a thread: evaluate, apply, and the preview made of the first.

Preview, observe and live come through the one `evaluate` here; only what is kept differs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from attrs import define, frozen

from crq.automations import contract, limits, policy, settings
from crq.automations.context import About, CallContext
from crq.automations.contract import BadChunk
from crq.automations.interfaces import Later
from crq.automations.model import Chunk, Decision, Effect, Json
from crq.database import CommitUnknown, Database


@frozen
class Evaluated:
    """
    A checked chunk, and its cursor as it is stored.
    """

    chunk: Chunk
    cursor_json: str


@frozen
class Applied:
    """
    How an effect has ended: applied, failed or unknown. Otherwise it is to be tried in a later
    tick: intended, when it was not begun; applying, when it may have been.
    """

    effect: Effect
    detail: str | None = None


@frozen
class Preview:
    """
    What a run would decide.

    :ivar more: there is more than a preview shows.
    :ivar problem: why it came to an early end.
    """

    decisions: tuple[Decision, ...]
    reasons: dict[str, int]
    notices: tuple[str, ...]
    more: bool
    problem: str | None


@define(eq=False)
class Calls:
    """
    Makes calls of types.

    :ivar database: what a type may read.
    :ivar monotonic: the clock of deadlines.
    :ivar seconds: how long a call is waited for.
    """

    database: Database
    monotonic: Callable[[], float]
    seconds: float = limits.CALL_SECONDS

    def _context(self, about: About, writes: bool) -> CallContext:
        ends = self.monotonic() + self.seconds
        return CallContext(about, self.database, self.monotonic, ends, writes)

    def evaluate(self, kind: Any, about: About, cursor: Json, limit: int) -> Evaluated:
        """
        Ask a type for a chunk and make sure that it is one.

        :raise BadChunk: it is not.
        :raise Later: not now.
        """
        with closing(self._context(about, writes=False)) as context:
            try:
                chunk = kind.evaluate(context, about.config, cursor, limit)
            except Exception:
                raise
            except BaseException as error:
                # sys.exit(), or a panic of a library in Rust: not on the reactor's thread.
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
        checked = contract.check_chunk(chunk, limit, kind.subject_types)
        return Evaluated(checked, contract.json_text(checked.next_cursor, "the cursor"))

    def apply(self, kind: Any, about: About, decision: Decision) -> Applied:
        """
        Let a type do what it decided; whatever it raises becomes how the effect has ended.
        """
        with closing(self._context(about, writes=True)) as context:
            try:
                detail = kind.apply(context, decision)
            except Later as error:
                return Applied(Effect.INTENDED, policy.short(str(error) or "the type"))
            except CommitUnknown:
                return doubtful(kind, "the database went away in its commit")
            except BaseException as error:  # noqa: BLE001 - the boundary to somebody else's code
                return Applied(Effect.FAILED, told(error, kind, about.config))
        return Applied(Effect.APPLIED, None if detail is None else policy.short(str(detail)))

    def preview(self, kind: Any, about: About, most: int = limits.PREVIEW_ITEMS) -> Preview:
        """
        Evaluate as a run would, and keep nothing.
        """
        decisions: list[Decision] = []
        reasons: dict[str, int] = {}
        notices: tuple[str, ...] = ()
        seen: set[tuple[str, str]] = set()
        cursor, cursor_json, guard = None, contract.BEGINNING, contract.first_guard()
        problem = None
        more = True
        ends = self.monotonic() + self.seconds
        while more and len(decisions) < most:
            if self.monotonic() >= ends:
                problem = "its time is up"
                break
            try:
                found = self.evaluate(kind, about, cursor, min(limits.BATCH, most - len(decisions)))
                if found.chunk.has_more:
                    guard = contract.moved(guard, cursor_json, found.cursor_json)
            except Exception as error:  # noqa: BLE001 - the boundary to somebody else's code
                problem = failure(error, kind, about.config)
                break
            new = [
                one
                for one in found.chunk.decisions
                if (one.subject_type, one.subject_id) not in seen
            ]
            seen.update((one.subject_type, one.subject_id) for one in new)
            decisions += new
            reasons = policy.reasons(reasons, new)
            notices = policy.notices(notices, found.chunk.notices)
            cursor, cursor_json = found.chunk.next_cursor, found.cursor_json
            more = found.chunk.has_more
        return Preview(tuple(decisions), reasons, notices, more, problem)


def doubtful(kind: Any, detail: str) -> Applied:
    """
    How an effect has ended that nobody knows the end of (ruling 15).
    """
    return Applied(Effect.APPLYING if kind.repeatable else Effect.UNKNOWN, detail)


def failure(error: BaseException, kind: Any, config: Any) -> str:
    """
    Why a call of evaluate came to nothing.
    """
    if isinstance(error, BadChunk):
        return str(error)
    if isinstance(error, Later):
        return f"cannot be done now: {policy.short(str(error))}"
    return f"evaluate raised {told(error, kind, config)}"


def told(error: BaseException, kind: Any, config: Any) -> str:
    """
    An exception of a type, without the secrets of its configuration.
    """
    text = f"{type(error).__name__}: {error}"
    for secret in settings.secrets(kind.settings, config):
        text = text.replace(secret, "(hidden)")
    return policy.short(text, 400)
