"""
Plays a trace: submits each arrival when it is due, looks at the health check meanwhile, waits for
the end.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field, frozen

from crq import admission, executions, records
from crq.config import Config
from crq.database import Cursor, Database
from crq.instants import Instant
from crq.messages import Admitted, Invalid, Rejected
from crq.recordvalues import Record, stored_instant
from crq.replay.report import Played, Probe
from crq.replay.scripts import Writer
from crq.replay.trace import Arrival, Trace

IDENTIFIER = "replay"  # of its executions in the log
LOOK_EVERY = 0.25  # s between two looks at what has ended
PROBE_TIMEOUT = 600.0  # s; a health check that hangs is to be measured, not cut off


@frozen
class Clock:
    """
    The clocks of a replay, and its way to wait.
    """

    wall: Callable[[], Instant]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


class NotPlayable(Exception):
    """
    The trace cannot be played on this installation; the text says what to do.
    """


@define(eq=False)
class Queue:
    """
    An installation, as a replay uses it: it admits as ``crq submit`` does, and reads the log.

    :ivar admitted: numbers of the executions that it has admitted.
    :ivar refused: submissions refused for depth, by the cap that fired.
    """

    config: Config
    database: Database
    connection: Any
    write: Writer
    clock: Clock
    admitted: set[int] = field(init=False, factory=set)
    refused: Counter[str] = field(init=False, factory=Counter)
    _accounts: set[str] = field(init=False, factory=set)
    _began: Instant | None = field(init=False, default=None)

    def submit(self, arrival: Arrival) -> None:
        """
        Submit one arrival.

        :raise NotPlayable: the installation does not take such a script.
        """
        now = self.clock.wall()
        if self._began is None:
            self._began = now
        sealer = self.config.sealer()
        self._accounts.add(sealer.account(arrival.account))
        answer = admission.admit(
            self.database,
            self.connection,
            admission.submission(
                {
                    "subdomain": arrival.account,
                    "apikey": arrival.key,
                    "source_code": self.write(arrival),
                    "identifier": IDENTIFIER,
                },
                None,
            ),
            sealer,
            self.config.limits.limits(),
            now,
            self.config.script.language,
        )
        match answer:
            case Admitted(execution_id=number):
                self.admitted.add(number)
            case Rejected(depth=depth):
                self.refused[depth] += 1
            case Invalid(message=message):
                raise NotPlayable(
                    f"the script does not parse here: {message}; give a template with --script"
                )

    def open_ones(self) -> int:
        """
        How many of its executions have not ended.
        """

        def count(txn: Cursor) -> int:
            waiting = records.depth(txn).by_account
            flights = executions.in_flight(txn)
            return sum(waiting.get(account, 0) for account in self._accounts) + sum(
                flight.execution_id in self.admitted for flight in flights
            )

        return self.database.read(self.connection, count)

    def played(self) -> list[Played]:
        """
        Read what became of them.
        """
        filters = records.Filters(since=self._began)
        found: list[Played] = []
        cursor: str | None = None
        while True:
            page = self.database.read(
                self.connection, records.page, filters, cursor, records.PAGE_LIMIT
            )
            found += (_played(one) for one in page.records if one.execution_id in self.admitted)
            cursor = page.cursor
            if cursor is None:
                return found


def _played(record: Record) -> Played:
    return Played(
        account=record.subdomain or "",
        shown=record.shown,
        error_code=record.error_code,
        queued_at=stored_instant(record.queued_at) or 0.0,
        claimed_at=stored_instant(record.claimed_at),
        started_at=stored_instant(record.started_at),
        finished_at=stored_instant(record.finished_at),
    )


def arrive(
    trace: Trace,
    submit: Callable[[Arrival], None],
    speed: float,
    clock: Clock,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """
    Submit each arrival when it is due.

    :param progress: told after each how many have been submitted.
    """
    began = clock.monotonic()
    for number, arrival in enumerate(trace.arrivals, 1):
        early = began + arrival.offset / speed - clock.monotonic()
        if early > 0:
            clock.sleep(early)
        submit(arrival)
        progress(number)


def wait_for_end(
    open_ones: Callable[[], int],
    within: float,
    clock: Clock,
    progress: Callable[[int], None] = lambda _: None,
) -> bool:
    """
    Wait until nothing is open any more; False: it is not, after so many seconds.

    :param progress: told how many are open.
    """
    over = clock.monotonic() + within
    while left := open_ones():
        progress(left)
        if clock.monotonic() >= over:
            return False
        clock.sleep(LOOK_EVERY)
    progress(0)
    return True


class Health:
    """
    Looks at a health check at a steady pace, however long each look takes, as a balancer does.

    A look that waited for the one before it would hide what it is to measure: while the check hangs
    there would be one bad look, instead of as many as a balancer has made.
    """

    def __init__(
        self, url: str, every: float, clock: Clock, timeout: float = PROBE_TIMEOUT
    ) -> None:
        """
        Take the address. Nothing is asked yet.

        :param every: seconds between the begins of two looks.
        :param timeout: seconds after which a look has failed.
        """
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._make = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._every = every
        self._clock = clock
        self._timeout = timeout

    def look(self) -> Probe:
        """
        Look once.
        """
        began = self._clock.monotonic()
        connection = self._make(self._host, self._port, timeout=self._timeout)
        try:
            connection.request("GET", self._path)
            answer = connection.getresponse()
            answer.read()
            good = answer.status == 200
        except (OSError, http.client.HTTPException):
            good = False
        finally:
            connection.close()
        return Probe(began, self._clock.monotonic() - began, good)

    def looks(self, seconds: float) -> list[Probe]:
        """
        Look for so many seconds.
        """
        with self.watching() as found:
            self._clock.sleep(seconds)
        return found

    @contextmanager
    def watching(self) -> Iterator[list[Probe]]:
        """
        Look meanwhile; gives the list that fills.

        At the end what is under way is waited for: a health check that hangs counts.
        """
        found: list[Probe] = []
        over = threading.Event()
        looks: list[threading.Thread] = []

        def watch() -> None:
            while not over.is_set():
                one = threading.Thread(target=lambda: found.append(self.look()), daemon=True)
                one.start()
                looks.append(one)
                over.wait(self._every)

        thread = threading.Thread(target=watch, name="health", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
            for one in looks:
                one.join()
