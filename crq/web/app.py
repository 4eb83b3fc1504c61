"""
The resources of the HTTP door and their answers.

Whatever goes wrong is answered as JSON with ``field``, ``problem`` and ``remedy``, and never with a
traceback. A database that is away is 503 with Retry-After: nothing was taken, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attrs import define, evolve, field
from klein import Klein
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from werkzeug.exceptions import MethodNotAllowed, NotFound

from crq import admission, crashpoints, records, status
from crq.admission import Answer, Prepared, Refusal
from crq.config import Config
from crq.database import CommitUnknown, Cursor, is_outage
from crq.gatememory import GateMemory
from crq.instants import Instant
from crq.messages import Admitted, Rejected
from crq.model import GateReading, Limits
from crq.pool import Pool
from crq.pulse import Pulse
from crq.sealing import Sealer
from crq.verdict import not_ready
from crq.web import answers, bodies, wire
from crq.web.answers import Reply
from crq.web.tokens import Caller, callers, who

T = TypeVar("T")

NOTE_EVERY = 60.0  # s between two log lines about refused executions


def site(
    *,
    config: Config,
    pool: Pool,
    sealer: Sealer,
    pulse: Pulse,
    gates: GateMemory,
    wake: Callable[[], None],
    wall: Callable[[], Instant],
    monotonic: Callable[[], float],
    reactor: IReactorTime,
) -> wire.Site:
    """
    Make the site.

    :param wake: called after each admission.
    """
    door = Door(config, pool, sealer, pulse, gates, wake, wall, monotonic)
    return wire.Site(
        door.app.resource(), reactor, config.web.body_limit, config.web.request_seconds
    )


@define(eq=False)
class Door:
    """
    The handlers.
    """

    config: Config
    pool: Pool
    sealer: Sealer
    pulse: Pulse
    gates: GateMemory
    wake: Callable[[], None]
    wall: Callable[[], Instant]
    monotonic: Callable[[], float]

    _limits: Limits = field(init=False)
    _callers: tuple[Caller, ...] = field(init=False)
    _away: bool = field(init=False, default=False)
    _refused: int = field(init=False, default=0)
    _noted_at: float | None = field(init=False, default=None)

    _log = Logger()
    _routes = Klein()
    # No redirect: it would repeat the Host header, and turn a POST into a GET.
    _routes.url_map.merge_slashes = False

    def __attrs_post_init__(self) -> None:
        self._limits = self.config.limits.limits()
        self._callers = callers(self.config.tokens, self.sealer)

    @property
    def app(self) -> Klein:
        """
        The routes, bound to this door.
        """
        bound: Klein = self._routes.__get__(self, Door)
        return bound

    # -- admission

    @_routes.route("/codeRunner", methods=["POST"])
    async def _submit(self, request: IRequest) -> bytes:
        caller = self._caller(request, "admit")
        headers = request.requestHeaders
        prepared = await self._ask(
            self.pool.read(
                self._prepare,
                request.content.read(),
                bodies.media_type(headers),
                bodies.idempotency_key(headers),
                caller,
            )
        )
        try:
            answer = await self._ask(self.pool.transact(self._admit, prepared))
        except CommitUnknown:
            answer = await self._ask(self.pool.read(admission.settle_in, prepared))
        crashpoints.reached("admitted")
        if isinstance(answer, Admitted) and not answer.repeated:
            self.wake()
        return await self._answered(request, answer)

    def _prepare(
        self, _txn: Cursor, body: bytes, media: str, idempotency_key: str | None, caller: Caller
    ) -> Prepared:
        # On a pool thread, for the time it takes to read and parse; it asks the database nothing.
        wanted = admission.submission(bodies.fields(body, media), idempotency_key)
        if not caller.owns(self.sealer.account(wanted.subdomain)):
            raise Refusal(
                "subdomain", "this token may not admit for it", "use a token of this account", 403
            )
        return admission.prepare(wanted, self.sealer, self.config.script.language)

    def _admit(self, txn: Cursor, prepared: Prepared) -> Answer:
        return admission.admit_in(txn, prepared, self._limits, self.wall())

    async def _answered(self, request: IRequest, answer: Answer) -> bytes:
        shown = None
        if isinstance(answer, Admitted) and answer.repeated:
            found = await self._ask(self.pool.read(records.execution, answer.execution_id))
            shown = found.record.shown if found is not None else "purged"
        elif isinstance(answer, Rejected):
            self._note_refusal()
        return self._reply(request, answers.of(answer, shown))

    # -- reading

    @_routes.route("/codeRunner/logs/data", methods=["GET"])
    async def _logs(self, request: IRequest) -> bytes:
        caller = self._caller(request, "read")
        filters, cursor, limit = bodies.query(request.args, self.sealer)
        if caller.accounts is not None:
            if filters.accounts is None:
                filters = evolve(filters, accounts=tuple(sorted(caller.accounts)))
            elif not caller.accounts.issuperset(filters.accounts):
                raise Refusal(
                    "account", "this token may not read it", "use a token of this account", 403
                )
        try:
            page = await self._ask(self.pool.read(records.page, filters, cursor, limit))
        except ValueError as error:
            raise Refusal("cursor", "is not one", str(error)) from None
        executions = [record.as_json() for record in page.records]
        body = {"executions": executions, "cursor": page.cursor}
        return self._reply(request, Reply(200, body))

    @_routes.route("/codeRunner/executions/<int:execution_id>", methods=["GET"])
    async def _execution(self, request: IRequest, execution_id: int) -> bytes:
        caller = self._caller(request, "read")
        found = await self._ask(self.pool.read(records.execution, execution_id))
        # What belongs to others is not even there.
        if found is None or not caller.owns(found.record.subdomain_hash):
            raise Refusal(
                "execution", "there is none of this number", "take a number out of the log", 404
            )
        return self._reply(request, Reply(200, found.as_json()))

    @_routes.route("/status", methods=["GET"])
    async def _status(self, request: IRequest) -> bytes:
        caller = self._caller(request, "read")
        report = await self.report()
        if caller.accounts is not None:
            report = report.limited_to(caller.accounts)
        return self._reply(request, Reply(200, status.as_json(report)))

    async def report(self) -> status.StatusReport:
        """
        Report how the queue is now.
        """
        reading = await self._ask(self.pool.read(status.read))
        now = self.wall()
        return status.report(
            reading,
            GateReading(self.gates.closed(now)),
            self._limits,
            now,
            half_open=self.gates.half_open,
            pulse=self.pulse,
            monotonic=self.monotonic(),
            tick=self.config.drainer.tick,
            gates_reachable=self.gates.reachable,
        )

    # -- health; for load balancers and supervisors, so without a token and without detail

    @_routes.route("/health/live", methods=["GET"])
    def _live(self, request: IRequest) -> bytes:
        return self._reply(request, Reply(200, {"live": True}))

    @_routes.route("/health/ready", methods=["GET"])
    def _ready(self, request: IRequest) -> bytes:
        problem = not_ready(self.pulse, self.monotonic(), self.config.drainer.tick)
        if problem is None:
            return self._reply(request, Reply(200, {"ready": True}))
        body = {"ready": False, "problem": problem}
        return self._reply(request, Reply(503, body, answers.RETRY_SOON))

    # -- what all of them share

    def _caller(self, request: IRequest, scope: str) -> Caller:
        caller = who(request.requestHeaders, self._callers)
        if caller is None:
            request.setHeader(b"WWW-Authenticate", b'Bearer realm="crqueue"')
            remedy = "send Authorization: Bearer with a token; `crq token new` makes one"
            raise Refusal("Authorization", "no known token was sent", remedy, 401)
        if not caller.may(scope):
            remedy = f"use one with the scope {scope}"
            raise Refusal("Authorization", f"this token may not {scope}", remedy, 403)
        return caller

    @_routes.handle_errors(Exception)
    def _error(self, request: IRequest, failure: Failure) -> bytes:
        # The boundary of a request. Only what is our fault is logged, and then in full.
        error = failure.value
        if isinstance(error, Refusal):
            reply = answers.problem(error.http_status, error.field, error.problem, error.remedy)
        elif isinstance(error, NotFound):
            reply = answers.NOTHING_HERE
        elif isinstance(error, MethodNotAllowed):
            allowed = ", ".join(sorted(error.valid_methods or ()))
            request.setHeader(b"Allow", allowed.encode("ascii"))
            reply = answers.problem(405, "method", "is not allowed here", f"use {allowed}")
        elif error is not None and is_outage(error):
            reply = answers.AWAY
        else:
            self._log.failure(
                "{method} {path} failed",
                failure,
                action="failed",
                method=request.method.decode("ascii"),
                path=ascii(request.path),
            )
            reply = answers.BROKEN
        return self._reply(request, reply)

    def _reply(self, request: IRequest, reply: Reply) -> bytes:
        request.setResponseCode(reply.code)
        request.setHeader(b"Server", b"crqueue")
        request.setHeader(b"Content-Type", b"application/json; charset=utf-8")
        request.setHeader(b"Content-Length", b"%d" % len(reply.text))
        if reply.retry_after is not None:
            request.setHeader(b"Retry-After", b"%d" % reply.retry_after)
        return reply.text

    async def _ask(self, question: Deferred[T]) -> T:
        """
        Wait for the database, and log once when it goes away and once when it is back.
        """
        try:
            answer = await question
        except Exception as error:
            if is_outage(error) and not self._away:
                self._away = True
                self._log.warn(
                    "the database is away, requests are answered with 503: {error}",
                    action="database away",
                    error=f"{type(error).__name__}: {error}",
                )
            raise
        if self._away:
            self._away = False
            self._log.info("the database is back", action="database back")
        return answer

    def _note_refusal(self) -> None:
        # Each refusal is a row; the log gets a line a minute, so that a flood is not one there.
        self._refused += 1
        now = self.monotonic()
        if self._noted_at is None or now - self._noted_at >= NOTE_EVERY:
            self._log.warn(
                "the queue is full: {count} executions refused since the last line",
                action="rejected",
                count=self._refused,
            )
            self._noted_at, self._refused = now, 0
