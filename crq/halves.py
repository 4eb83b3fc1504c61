"""
Where the two halves meet: what automations are handed of the queue, and who may promote.

Used by `crq.tap` and the command line, which both need the shipped automation types put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from attrs import define, field, frozen

from crq import admission, tokens
from crq.automations.desk import Desk
from crq.automations.drafting import Drafting
from crq.automations.housekeeping import Housekeeper
from crq.automations.interfaces import Context, Later
from crq.automations.model import Json
from crq.automations.runscript import RunScripts, Wanted
from crq.automations.sources import SourceFault, Table
from crq.automations.types import Types, discover
from crq.config import Config, Token
from crq.database import CommitUnknown, Cursor
from crq.executions import housekeeping
from crq.instants import Instant, iso
from crq.interfaces import IGateStore
from crq.messages import Admitted, Rejected
from crq.model import Limits
from crq.sealing import Sealer, same_secret

SCOPE = "promote"  # what a token needs to promote
KEPT_BACK = 1.0  # s of a call that are left when the API is not waited for any more


class NotAdmitted(Exception):
    """
    The queue does not take an execution, and will not take it later either.
    """


@frozen
class Shelf:
    """
    A tenant's executions, for housekeeping (see `crq.automations.housekeeping.IShelf`).
    """

    sealer: Sealer = field(repr=False)

    def kept(
        self,
        txn: Cursor,
        tenant: str,
        before: Instant,
        after: tuple[Instant, int] | None,
        limit: int,
    ) -> Sequence[housekeeping.Kept]:
        """
        Executions queued before an instant, in the order of instant and number.
        """
        return housekeeping.kept(txn, self.sealer.account(tenant), before, after, limit)

    def delete(self, txn: Cursor, tenant: str, execution_id: int) -> bool:
        """
        Delete one that has ended.
        """
        return housekeeping.delete_one(txn, self.sealer.account(tenant), execution_id)

    def scrub(self, txn: Cursor, tenant: str, execution_id: int) -> bool:
        """
        Wipe the API key of one that has ended.
        """
        return housekeeping.scrub_one(txn, self.sealer.account(tenant), execution_id)


@define(eq=False)
class Queue:
    """
    The queue, as the type ``run_script`` is handed it.

    :ivar limits: the caps in force.
    :ivar wall: the wall clock.
    """

    config: Config
    sealer: Sealer = field(repr=False)
    gates: IGateStore
    limits: Callable[[], Limits]
    wall: Callable[[], Instant]

    def fetch(self, context: Context, apikey: str, path: str) -> Json:
        """
        GET a path of the tenant's API: what an execution of this key could read, too.

        :raise Later: its gate is closed, or the API does not answer now.
        :raise SourceFault: the API refuses, or answers what is no JSON.
        """
        # Heavy, and only who has such an automation needs it.
        from crq.executor.api import Access, ApiClient
        from crq.executor.clock import Clock
        from crq.script import CallFailed

        key, now = self.sealer.key(apikey), self.wall()
        until = self.gates.read([key], now).closed.get(key)
        if until is not None:
            raise Later(f"the gate of its API key, closed until {iso(until)}")
        try:
            access = Access.of(self.config.api, context.tenant, apikey, key)
        except ValueError as error:
            raise SourceFault(str(error)) from None
        client = ApiClient(
            self.config.api,
            access,
            self.gates,
            Clock(),
            lambda: context.left() - KEPT_BACK,
            self.config.gates,
        )
        with closing(client):
            try:
                answer = client.send("GET", path)
            except CallFailed as error:
                raise Later(f"the API: {error}") from None
        status = answer["status"]
        if status >= 500:
            raise Later(f"the API, which answers {status}")
        if status != 200 or answer["json"] is None:
            what = f"{status}" if status != 200 else "what is no JSON"
            raise SourceFault(f"GET {path.partition('?')[0]} is answered with {what}")
        return answer["json"]

    def admit(self, context: Context, wanted: Wanted) -> str:
        """
        Admit an execution and say which; the same key is the same execution.

        :raise Later: the queue is full. The refusal leaves no row: nobody is there to be told.
        :raise NotAdmitted: it is refused for good.
        """
        submission = admission.submission(
            {
                "subdomain": wanted.tenant,
                "apikey": wanted.apikey,
                "source_code": wanted.source_code,
                "payload": wanted.payload,
                "identifier": wanted.identifier,
            },
            wanted.idempotency_key,
        )
        prepared = admission.prepare(submission, self.sealer, self.config.script.language)

        def admit_or_leave(txn: Cursor) -> admission.Answer:
            answer = admission.admit_in(txn, prepared, self.limits(), self.wall())
            if isinstance(answer, Rejected):
                raise Later(f"a place in the queue: {answer.limit} of the {answer.depth} wait")
            return answer

        try:
            answer = context.transact(admit_or_leave)
        except CommitUnknown:
            answer = context.read(admission.settle_in, prepared)
        if isinstance(answer, Admitted):
            return f"execution {answer.execution_id}"
        raise NotAdmitted(admission.as_json(answer)["problem"])


def tables(config: Config) -> Mapping[str, Table]:
    """
    The tables that the operator allows as a source.
    """
    return {table.name: table for table in map(Table.of, config.automations.tables)}


def types(config: Config, sealer: Sealer, queue: Queue) -> Types:
    """
    The automation types: those that ship, put together, and those that others have written.
    """
    shipped = [RunScripts(queue.fetch, queue.admit, tables(config)), Housekeeper(Shelf(sealer))]
    found, faults = discover()
    return Types(shipped, found, faults=faults)


def desk(config: Config, sealer: Sealer, installed: Types) -> Desk:
    """
    Where people come to.
    """
    drafting = Drafting(installed, sealer.seal_text, sealer.unseal)
    return Desk(drafting, authority(config))


def authority(config: Config) -> Callable[[Cursor, str, str], str | None]:
    """
    What tells whether a token, by its name, may promote automations of a tenant.
    """

    def speaks_against(txn: Cursor, promoter: str, tenant: str) -> str | None:
        for token in config.tokens:
            if token.name == promoter:
                return lacking(token, tenant)
        stored = tokens.get(txn, promoter)
        if stored is None or stored.revoked_at is not None:
            return f"there is no valid token {promoter!r} any more"
        return lacking(stored.token, tenant)

    return speaks_against


def lacking(token: Token, tenant: str) -> str | None:
    """
    What a token lacks for promoting automations of a tenant, or None.
    """
    if SCOPE not in token.scopes:
        return f"the token {token.name!r} may not promote"
    if token.accounts and tenant not in token.accounts:
        return f"the token {token.name!r} has no say about {tenant}"
    return None


def token_of(txn: Cursor, config: Config, secret: str) -> Token | None:
    """
    The token that somebody shows; None: nobody knows it.
    """
    given = secret.encode("utf-8")
    for token in (*config.tokens, *tokens.active(txn)):
        if same_secret(given, token.sha256):
            return token
    return None
