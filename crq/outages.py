"""
One line when something begins to fail, one when it works again; nothing in between.

# Note [Flapping]

An outage is over with the first success that `quiet` seconds without a failure have followed. What
comes back within `SOON` after its end has its quiet time doubled, up to `LONGEST`: a server that
fails every few seconds, or one statement in two, is told ever more rarely instead of twice for each
time.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field
from twisted.logger import Logger
from twisted.python.failure import Failure

from crq.answers import shown
from crq.database import is_outage

FIRST = 5.0  # s of quiet that the first repetition asks for
LONGEST = 120.0  # s; longer than a minute, the period of the slowest loop
SOON = 300.0  # s
KINDS = 10  # faults of different places that one bad time tells of


@define(eq=False)
class Outage:
    """
    Whether one thing fails, and since when (see note [Flapping]).

    :ivar what: its name in the lines, such as "the database".
    :ivar clock: the monotonic clock.
    :ivar log: whose lines they are.
    :ivar away: the ``action`` of the line that tells the beginning; ``back``: of the other.
    :ivar quiet: seconds without a failure after which the first outage is over.
    """

    what: str
    clock: Callable[[], float]
    log: Logger
    away: str
    back: str
    quiet: float = 0.0
    _begun: float | None = field(init=False, default=None)
    _ended: float | None = field(init=False, default=None)
    _failed: float = field(init=False, default=0.0)
    _well_since: float | None = field(init=False, default=None)
    _failures: int = field(init=False, default=0)
    _wanted: float = field(init=False, default=0.0)
    _told: set[str] = field(init=False, factory=set)

    @property
    def on(self) -> bool:
        """
        Whether it counts as failing.
        """
        return self._begun is not None

    def failed(self, error: BaseException | str) -> None:
        """
        Take note of a failure: a line if it is the first, a traceback if the fault is ours.
        """
        now = self.clock()
        self._over(now)
        first = self._begun is None
        if first:
            soon = self._ended is not None and now - self._ended < SOON
            self._wanted = min(LONGEST, max(FIRST, 2 * self._wanted)) if soon else self.quiet
            self._begun, self._failures = now, 0
            self._told = set()
        self._failed, self._well_since = now, None
        self._failures += 1
        if isinstance(error, str) or is_outage(error):
            if first:
                self.log.warn(
                    "{what} fails: {error}",
                    action=self.away,
                    what=self.what,
                    error=error if isinstance(error, str) else one_line(error),
                )
            return
        kind = place(error)
        if kind not in self._told and len(self._told) < KINDS:
            self._told.add(kind)
            self.log.failure(
                "{what} fails: {error}",
                Failure(error),
                action=self.away,
                what=self.what,
                error=one_line(error),
            )

    def went_well(self) -> None:
        """
        Take note of a success: a line if the outage is over with it.
        """
        if self._begun is None:
            return
        now = self.clock()
        if self._well_since is None:
            self._well_since = now
        self._over(now)

    def _over(self, now: float) -> None:
        well = self._well_since
        if self._begun is None or well is None or now - well < self._wanted:
            return
        self.log.info(
            "{what} works again: it failed for {seconds:.1f} s, {failures} times",
            action=self.back,
            what=self.what,
            seconds=self._failed - self._begun,
            failures=self._failures,
        )
        self._begun, self._ended = None, now


def one_line(error: BaseException) -> str:
    """
    An error's kind and text, fit for one line of a log.
    """
    cause = error.__cause__
    text = str(error) or (one_line(cause) if cause is not None else "")
    return shown(f"{type(error).__name__}: {text}".removesuffix(": "))


def place(error: BaseException) -> str:
    """
    What kind of error it is and where it was raised; its text may differ each time.
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return type(error).__name__
    code = traceback.tb_frame.f_code
    return f"{type(error).__name__} {code.co_filename}:{traceback.tb_lineno}"
