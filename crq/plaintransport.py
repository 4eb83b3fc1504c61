"""
The way to a plain endpoint: what it is sent is read first, for all that were claimed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from crq import crashpoints, executions, plain
from crq.batch import Batch
from crq.config import Config
from crq.database import is_outage
from crq.exchange import Letter
from crq.interfaces import ITransport
from crq.messages import DispatchResult, NotSent, Parcel
from crq.model import Claimed, Limits
from crq.pool import Pool
from crq.sealing import Sealer, Unsealable
from crq.transport import Transport

READ_AT_ONCE = 64  # parcels; each may have some megabytes


@implementer(ITransport)
class PlainTransport:
    """
    POSTs executions as JSON to one URL. What is made of the answer: `crq.plain`.

    :ivar sent: called when the first byte of an execution is about to leave; must not raise.
    """

    _log = Logger()

    def __init__(
        self,
        transport: Transport,
        pool: Pool,
        clock: IReactorTime,
        unseal: Callable[[str | None], str] | None,
        token: str,
    ) -> None:
        """
        Take what a dispatch needs.

        :param unseal: opens sealed API keys; None: none is sent.
        :param token: bearer token that the endpoint knows us by; empty: it asks for none.
        """

        async def read(execution_ids: Sequence[int]) -> Sequence[Parcel | None]:
            found = await pool.read(executions.parcels, execution_ids)
            return [found.get(each) for each in execution_ids]

        self._transport = transport
        self._parcels: Batch[int, Parcel | None] = Batch(read, clock, READ_AT_ONCE)
        self._unseal = unseal
        self._token = token
        self.sent: Callable[[Claimed], None] = lambda _: None

    @classmethod
    def to_endpoint(
        cls, reactor: Any, config: Config, pool: Pool, sealer: Sealer
    ) -> PlainTransport:
        """
        The transport that the configuration asks for, over real connections.

        :raise ValueError: the token cannot be read; the text names the option.
        """
        return cls(
            Transport.to_executor(reactor, config),
            pool,
            reactor,
            sealer.unseal if config.executor.send_apikey else None,
            config.executor.token(),
        )

    def limit(self, limits: Limits) -> None:
        """
        Keep to other caps from now on.
        """
        self._transport.limit(limits)

    async def close(self) -> None:
        """
        Let go of idle connections.
        """
        await self._transport.close()

    async def dispatch(self, claimed: Claimed) -> DispatchResult:
        """
        POST one execution and wait for its answer; cancelling it aborts it.

        Never raises: whatever goes wrong before the POST is `NotSent`.
        """
        try:
            parcel = await self._parcels.ask(claimed.execution_id)
        except CancelledError:
            return NotSent("cancelled while it was read")
        except Exception as error:  # noqa: BLE001 - nothing has left yet, and that must be said
            if not is_outage(error):  # which the pool tells
                self._log.failure("what is to be sent was not read", action="parcel_not_read")
            return NotSent(f"what is to be sent was not read: {type(error).__name__}")
        crashpoints.reached("parcel read")
        if parcel is None:
            return NotSent("its row is gone", for_good=True)
        try:
            apikey = None if self._unseal is None else self._unseal(parcel.sealed_apikey)
        except Unsealable as error:
            return NotSent(str(error), for_good=True)
        headers = {
            b"Content-Type": plain.CONTENT_TYPE.encode("ascii"),
            b"Idempotency-Key": b"%d" % claimed.execution_id,
        }
        if self._token:
            headers[b"Authorization"] = b"Bearer " + self._token.encode("ascii")
        letter = Letter(plain.body(parcel, apikey), headers, lambda: self.sent(claimed))
        return await self._transport.post(claimed, letter)
