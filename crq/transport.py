"""
The way to the executor: POST one execution, and say what came of it.

The plan keeps to the caps; here they are kept once more, by one semaphore for each account. What
becomes of a single POST is told by `crq.exchange`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from twisted.internet.defer import CancelledError, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.iweb import IAgent
from zope.interface import implementer

from crq.config import Config
from crq.exchange import Exchange, Letter
from crq.frugal import Address, OneEndpoint, QuietFactory, client_of
from crq.interfaces import ITransport
from crq.messages import DispatchResult, NotSent
from crq.model import Claimed, Limits

PATH = "/codeRunner/runAsync"
IDLE_FOR = 2  # s a connection is kept: below what servers, balancers and NAT keep it for
CLOSE_WITHIN = 2.0  # s for idle connections to say goodbye

_FORM_TYPE = b"application/x-www-form-urlencoded"


@implementer(ITransport)
class Transport:
    """
    Dispatches over one pool of persistent connections, at most so many of one account at once.

    The plan keeps to the caps already; the semaphores here are a second fence around them (I4).
    """

    def __init__(
        self,
        agent: IAgent,
        clock: IReactorTime,
        url: str,
        *,
        deadline: float,
        answer_limit: int,
        per_account: int,
        pool: HTTPConnectionPool | None = None,
        path: str | None = PATH,
    ) -> None:
        """
        Take what a dispatch needs. Nothing is connected yet.

        :param url: the executor's address, without the path.
        :param deadline: seconds for one dispatch: connection, headers and body.
        :param answer_limit: bytes of an answer that are read.
        :param pool: the agent's idle connections, to be let go of by `close`.
        :param path: where runAsync is at that address; None: the address is the whole URL.
        """
        self._client = client_of(agent)
        self._clock = clock
        self._url = Address.of(url if path is None else url.rstrip("/") + path)
        self._deadline = deadline
        self._answer_limit = answer_limit
        self._per_account = per_account
        self._caps: Mapping[str, int] = {}
        self._pool = pool
        self._slots: dict[str, DeferredSemaphore] = {}
        self._freed: deque[tuple[str, DeferredSemaphore]] = deque()

    @classmethod
    def to_executor(cls, reactor: Any, config: Config) -> Transport:
        """
        The transport that the configuration asks for, over real connections.
        """
        pool = HTTPConnectionPool(reactor)
        pool.maxPersistentPerHost = config.limits.in_flight
        pool.cachedConnectionTimeout = IDLE_FOR
        pool.retryAutomatically = False  # a request is sent once; what follows is ours to decide
        pool._factory = QuietFactory
        return cls(
            Agent.usingEndpointFactory(reactor, OneEndpoint(reactor), pool=pool),
            reactor,
            config.executor.url,
            deadline=config.executor.deadline,
            answer_limit=config.executor.answer_limit,
            per_account=config.limits.per_account,
            pool=pool,
            path=None if config.executor.contract == "plain" else PATH,
        )

    async def dispatch(self, claimed: Claimed) -> DispatchResult:
        """
        POST one execution and wait for its answer; cancelling it aborts it.

        Never raises for a reason of the network. The deadline begins when the account has a slot.
        """
        fields = {"jobId": claimed.job_id, "asyncNonce": claimed.nonce}
        letter = Letter(urlencode(fields).encode("ascii"), {b"Content-Type": _FORM_TYPE})
        return await self.post(claimed, letter)

    async def post(self, claimed: Claimed, letter: Letter) -> DispatchResult:
        """
        POST a letter about an execution, in its account's turn, and wait for the answer.
        """
        account = claimed.lane.subdomain_hash
        slots = self._slots.get(account)
        if slots is None:
            slots = self._slots[account] = DeferredSemaphore(
                self._caps.get(account, self._per_account)
            )
        try:
            await slots.acquire()
        except CancelledError:
            return NotSent("cancelled while it waited for a slot of its account")
        try:
            exchange = Exchange(self._client, self._url, self._answer_limit, claimed, letter)
            return await exchange.begin(self._clock, self._deadline)
        finally:
            self._give_back(account, slots)

    def limit(self, limits: Limits) -> None:
        """
        Keep to other caps from now on; what is on its way keeps the slot it has.
        """
        self._per_account = limits.per_account
        self._caps = limits.accounts
        self._slots = {}
        if self._pool is not None:
            self._pool.maxPersistentPerHost = limits.in_flight

    async def close(self) -> None:
        """
        Let go of idle connections.
        """
        if self._pool is not None:
            closed = self._pool.closeCachedConnections()
            closed.addTimeout(CLOSE_WITHIN, self._clock)
            await closed.addErrback(lambda _: None)  # a peer that says no goodbye holds up nothing

    def _give_back(self, account: str, slots: DeferredSemaphore) -> None:
        # One after the other, not one inside the other: a release may let a dispatch run to its
        # end, and thousands of those must not pile up on the stack.
        self._freed.append((account, slots))
        if len(self._freed) > 1:
            return
        while self._freed:
            account, slots = self._freed[0]
            slots.release()
            if slots.tokens == slots.limit and self._slots.get(account) is slots:
                del self._slots[account]
            self._freed.popleft()
