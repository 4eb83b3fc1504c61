"""
What all handlers of the HTTP door share: who asks, how an answer is sent, what a fault becomes.

Handlers are functions of the modules beside this one: ``@routes.route(…) async def name(door,
request)``. Whatever goes wrong is answered as problem details with ``field``, ``problem`` and
``remedy``, and never with a traceback. A database that is away is 503 with Retry-After: nothing was
taken, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from attrs import define, field
from klein import Klein
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from werkzeug.exceptions import MethodNotAllowed, NotFound

from crq import status
from crq.actions import By
from crq.config import Config
from crq.database import is_outage
from crq.gatememory import GateMemory
from crq.gatevalues import GatesUnreachable
from crq.instants import Instant
from crq.meters import Meters
from crq.model import Limits
from crq.pool import Pool
from crq.pulse import Pulse
from crq.sealing import Sealer
from crq.statusreport import StatusReport
from crq.submissions import Refusal
from crq.verdict import Verdict
from crq.web import answers
from crq.web.answers import Reply
from crq.web.rates import NOBODY, Rates
from crq.web.reception import Reception
from crq.web.sessions import Sessions
from crq.web.tokens import Caller, TokenBook
from crq.web.turns import Busy

H = TypeVar("H", bound=Callable[..., Any])

NOTE_EVERY = 60.0  # s between two log lines about refused executions


class Routes(Klein):
    """
    Routes whose requests know which one they took: metrics count by it, and paths know no bounds.

    A route is called by its module and function: two modules may well have a ``pause`` each, and
    Klein would take the one for the other.
    """

    def route(self, url: str, *args: Any, **kwargs: Any) -> Callable[[H], H]:
        """
        Register a handler.
        """

        def register(handler: H) -> H:
            module = handler.__module__.removeprefix("crq.web.")
            name = kwargs.pop("endpoint", f"{module}.{handler.__name__}")
            super(Routes, self).route(url, *args, endpoint=name, **kwargs)(handler)
            return handler

        return register

    def execute_endpoint(self, endpoint: str, request: Any, *args: Any, **kwargs: Any) -> Any:
        """
        Handle a request.
        """
        request.route = endpoint
        return super().execute_endpoint(endpoint, request, *args, **kwargs)


routes = Routes()
# No redirect: it would repeat the Host header, and turn a POST into a GET.
routes.url_map.merge_slashes = False


@define(eq=False)
class Door:
    """
    The door of one daemon.

    :ivar wake: asks the drainer for a tick.
    :ivar limits: tells the configured caps.
    :ivar book: the tokens that are known.
    :ivar pulse: of this process's drainer; None: it has none, and only admits.
    :ivar admits: whether executions are admitted here.
    :ivar reception: where the automations' people come to.
    :ivar sessions: who is signed in on the pages.
    """

    config: Config
    pool: Pool
    sealer: Sealer
    pulse: Pulse | None
    gates: GateMemory
    wake: Callable[[], None]
    wall: Callable[[], Instant]
    monotonic: Callable[[], float]
    limits: Callable[[], Limits]
    meters: Meters
    book: TokenBook
    reception: Reception
    admits: bool = True

    rates: Rates = field(init=False)
    sessions: Sessions = field(init=False)
    _refused: int = field(init=False, default=0)
    _noted_at: float | None = field(init=False, default=None)

    _log = Logger()

    def __attrs_post_init__(self) -> None:
        self.rates = Rates(self.config.web.rate, self.monotonic)
        self.sessions = Sessions(self.monotonic)

    @property
    def app(self) -> Klein:
        """
        The routes, bound to this door.
        """
        bound: Klein = routes.__get__(self, Door)
        return bound

    async def caller(self, request: IRequest, scope: str) -> Caller:
        """
        Find out who asks, and make sure that they may.

        :raise Refusal: 401, 403, or 429 when they ask too often.
        """
        caller = await self.book.who(request.requestHeaders)
        self.count(request, NOBODY if caller is None else caller.token.name)
        if caller is None:
            request.setHeader(b"WWW-Authenticate", b'Bearer realm="crqueue"')
            remedy = "send Authorization: Bearer with a token; `crq token add` makes one"
            raise Refusal("Authorization", "no known token was sent", remedy, 401)
        if not caller.may(scope):
            remedy = f"use one with the scope {scope}"
            raise Refusal("Authorization", f"this token may not {scope}", remedy, 403)
        return caller

    def count(self, request: IRequest, name: str) -> None:
        """
        Count a request of a token.

        :raise Refusal: 429: it asks too often.
        """
        wait = self.rates.ask(name)
        if wait is not None:
            self.meters.limited.inc()
            request.setHeader(b"Retry-After", b"%d" % wait)
            problem = f"asks more than {self.config.web.rate:g} times a second"
            raise Refusal("Authorization", problem, f"wait {wait} s", 429)

    def by(self, caller: Caller, note: str | None) -> By:
        """
        Who acts, as the audit names them.
        """
        return By(f"token:{caller.token.name}", self.wall(), note)

    async def report(self, names: bool = True) -> StatusReport:
        """
        Report how the queue is now.

        :param names: whether accounts are looked up by name.
        """
        reading = await self.pool.read(status.read, names)
        await self.look_at_gates(reading.keys)
        now = self.wall()
        report = status.report(
            reading,
            self.gates.reading(now),
            self.limits(),
            now,
            half_open=self.half_open,
            pulse=self.pulse,
            drainer_id=self.config.drainer.id,
            monotonic=self.monotonic(),
            tick=self.config.drainer.tick,
            gates_reachable=self.gates.reachable,
        )
        if report.verdict is Verdict.STALLED:
            report = await self.pool.read(status.prove, report)
        return report

    @property
    def half_open(self) -> frozenset[str]:
        """
        The keys of which one execution goes first, as far as a drainer here knows.
        """
        return frozenset() if self.pulse is None else self.gates.half_open

    async def look_at_gates(self, keys: Collection[str]) -> None:
        """
        Read the gates of some keys, where no drainer does.
        """
        if self.pulse is None and keys:
            await self.gates.read(keys, self.wall())

    def reply(self, request: IRequest, reply: Reply) -> bytes:
        """
        Send an answer.
        """
        self.meters.requests.labels(getattr(request, "route", "none"), str(reply.code)).inc()
        request.setResponseCode(reply.code)
        request.setHeader(b"Server", b"crqueue")
        request.setHeader(b"Content-Type", reply.media)
        request.setHeader(b"Content-Length", b"%d" % len(reply.text))
        if reply.retry_after is not None:
            request.setHeader(b"Retry-After", b"%d" % reply.retry_after)
        return reply.text

    def note_refusal(self) -> None:
        """
        Tell that an execution was refused for depth; one line a minute, so that a flood is not one
        in the log: each refusal is a row.
        """
        self._refused += 1
        now = self.monotonic()
        if self._noted_at is None or now - self._noted_at >= NOTE_EVERY:
            self._log.warn(
                "the queue is full: {count} executions refused since the last line",
                action="rejected",
                count=self._refused,
            )
            self._noted_at, self._refused = now, 0

    def fault(self, request: IRequest, failure: Failure) -> Reply:
        """
        What a fault becomes. Only what is our fault is logged, and then in full.
        """
        error = failure.value
        if isinstance(error, Refusal):
            return answers.problem(error.http_status, error.field, error.problem, error.remedy)
        if isinstance(error, NotFound):
            return answers.NOTHING_HERE
        if isinstance(error, MethodNotAllowed):
            allowed = ", ".join(sorted(error.valid_methods or ()))
            request.setHeader(b"Allow", allowed.encode("ascii"))
            return answers.problem(405, "method", "is not allowed here", f"use {allowed}")
        if isinstance(error, GatesUnreachable):
            return answers.GATES_AWAY
        if error is not None and is_outage(error):
            return answers.AWAY
        if isinstance(error, Busy):
            return answers.BUSY
        self._log.failure(
            "{method} {path} failed",
            failure,
            action="failed",
            method=request.method.decode("ascii"),
            path=ascii(request.path),
        )
        return answers.BROKEN

    @routes.handle_errors(Exception)
    def _error(self, request: IRequest, failure: Failure) -> bytes:
        # The boundary of a request.
        return self.reply(request, self.fault(request, failure))
