"""
A scheduler on clocks that a test turns, over a real store, with automation types that a test plays.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import define, field, frozen
from twisted.internet import defer
from twisted.internet.defer import Deferred
from zope.interface import implementer

from crq.automations import limits, runs
from crq.automations.advance import Advancer
from crq.automations.calls import Calls
from crq.automations.desk import Desk
from crq.automations.drafting import Drafting
from crq.automations.interfaces import Context, IAutomation
from crq.automations.model import Automation, Chunk, Decision, Item, Json, Run, Verdict
from crq.automations.rounds import Rounds, Ticked
from crq.automations.scheduler import Scheduler
from crq.automations.settings import setting
from crq.automations.types import Types
from crq.automations.workers import Caller
from crq.database import Cursor, Database
from tests.house import Clocks
from tests.support import SynchronousPool

MAY = "promoter"  # the name of the one token that may promote


def utc(*when: int) -> float:
    """
    An instant by year, month, day, hour, minute, second in UTC.
    """
    return datetime(*when, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


@frozen
class Rule:
    """
    The settings of a played type.
    """

    threshold: int = setting(0, "records below it are declined")
    secret: str = setting("", "a secret", secret=True)


@implementer(IAutomation)
@define(eq=False, slots=False)
class Played:
    """
    A type over a list of numbers, whose world is a counter.

    :ivar records: what there is.
    :ivar effects: what was done, by run and subject: what others can see.
    :ivar overlap: so many records are offered again with each chunk.
    :ivar before: called before each evaluation; ``applying``: before each effect.
    """

    name: str = "played"
    records: list[int] = field(factory=lambda: list(range(1, 11)))
    effects: Counter[tuple[str, str]] = field(factory=Counter)
    evaluated: list[tuple[Json, int]] = field(factory=list)
    repeatable: bool = False
    acts: bool = True
    before: Callable[[Context, Json], Chunk | None] = lambda context, cursor: None
    applying: Callable[[Context, Decision], None] = lambda context, decision: None
    page: int = limits.BATCH
    overlap: int = 0

    summary = "for tests"
    settings = Rule
    subject_types = ("number",)

    def evaluate(self, context: Context, config: Rule, cursor: Json, limit: int) -> Chunk:
        self.evaluated.append((cursor, limit))
        other = self.before(context, cursor)
        if other is not None:
            return other
        after = 0 if cursor is None else cursor["after"]
        limit = min(limit, self.page)
        found = [number for number in self.records if number > after - self.overlap][:limit]
        decisions = tuple(
            Decision(
                "number",
                str(number),
                Verdict.APPROVED if number >= config.threshold else Verdict.DECLINED,
                "big enough" if number >= config.threshold else "too small",
                {"number": number},
            )
            for number in found
        )
        return Chunk(decisions, {"after": found[-1] if found else after}, len(found) >= limit)

    def apply(self, context: Context, decision: Decision) -> str | None:
        self.applying(context, decision)
        self.effects[context.run_key, decision.subject_id] += 1
        return f"did {decision.intent['number']}"


class AtOnce:
    """
    Calls of types without threads: they are made at once.

    :ivar refuse: raised instead of the next call, if set.
    """

    def __init__(self) -> None:
        self.calls: list[Caller] = []
        self.refuse: BaseException | None = None
        self.hold: Deferred[Any] | None = None

    def call(self, caller: Caller, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        self.calls.append(caller)
        if self.refuse is not None:
            return defer.fail(self.refuse)
        return defer.execute(function, *args)


class House:
    """
    One daemon's scheduler; making a second one over the same parts is a restart.
    """

    def __init__(
        self,
        database: Database,
        clocks: Clocks | None = None,
        *kinds: Any,
        pool: SynchronousPool | None = None,
    ) -> None:
        self.database = database
        self.clocks = clocks or Clocks()
        self.kind = kinds[0] if kinds else Played()
        self.types = Types(kinds or (self.kind,))
        self.pool = pool or SynchronousPool(database)
        self.workers = AtOnce()
        self.may: set[str] = {MAY}
        numbers = itertools.count(1)
        self.calls = Calls(Database(database.url), self.clocks.seconds)
        self.advancer = Advancer(
            pool=self.pool,
            types=self.types,
            calls=self.calls,
            workers=self.workers,
            unseal=unseal,
            authority=self.authority,
            clock=self.clocks,
            wall=self.clocks.wall,
            mint=lambda: f"{id(self)}.{next(numbers)}"[:32],
        )
        self.rounds = Rounds(self.pool, self.advancer, self.clocks, self.clocks.wall)
        self.scheduler = Scheduler(self.pool, self.rounds, self.clocks, self.clocks.wall)
        self.desk = Desk(Drafting(self.types, seal, unseal), self.authority)

    def authority(self, txn: Cursor, promoter: str, tenant: str) -> str | None:
        return None if promoter in self.may else f"{promoter} may not promote"

    def close(self) -> None:
        """
        End it.
        """
        if self.scheduler.running:
            self.scheduler.stopService()
        self.pool.close()

    def restart(self) -> House:
        """
        End this process without a farewell, and start another.
        """
        for call in self.clocks.getDelayedCalls():
            call.cancel()
        self.pool.close()
        return House(self.database, self.clocks, *self.types)

    # -- what people do

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """
        One transaction.
        """
        return self.database.transact(self.pool.connection, function, *args, **kwargs)

    def do_with_pool(self, function: Callable[..., Any], *args: Any) -> Any:
        """
        One transaction on the pool's database, which a test may watch.
        """
        return self.pool.database.transact(self.pool.connection, function, *args)

    def read(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """
        One read.
        """
        return self.database.read(self.pool.connection, function, *args, **kwargs)

    def add(
        self,
        tenant: str = "acme",
        name: str = "rule",
        cron: str = "* * * * *",
        zone: str = "UTC",
        config: Mapping[str, Json] | None = None,
        observe: bool = True,
        **more: Any,
    ) -> Automation:
        """
        Declare an automation, and let it observe.
        """
        given = {
            "name": name,
            "type": self.kind.name,
            "config": {} if config is None else config,
            "cron": cron,
            "zone": zone,
            **more,
        }
        draft = self.desk.drafting.drafted(tenant, given, self.now)
        added = self.do(self.desk.add, draft, "tester", self.now)
        return self.observe(added) if observe else added

    def observe(self, automation: Automation) -> Automation:
        """
        Let it observe.
        """
        found: Automation = self.do(self.desk.observe, automation.automation_id, "tester", self.now)
        return found

    def live(self, tenant: str = "acme", **more: Any) -> Automation:
        """
        An automation that has observed once and is live.
        """
        automation = self.add(tenant, **more)
        self.do(self.desk.run_now, automation.automation_id, "tester", self.now)
        self.tick()
        (last,) = self.runs(automation)
        assert last.status.value == "completed", last
        return self.promote(automation)

    def promote(self, automation: Automation) -> Automation:
        """
        Promote it; there is no obstacle.
        """
        outcome = self.do(self.desk.promote, automation.automation_id, MAY, self.now)
        assert outcome.obstacles == ()
        found: Automation = outcome.automation
        return found

    # -- time

    @property
    def now(self) -> float:
        """
        The wall clock.
        """
        return self.clocks.wall()

    def tick(self) -> Ticked:
        """
        One tick now.
        """
        done: list[Ticked] = []
        failed: list[Any] = []
        Deferred.fromCoroutine(self.scheduler.run_once()).addCallbacks(done.append, failed.append)
        if failed:
            failed[0].raiseException()
        assert done, "the tick waits for something"
        return done[0]

    def minutes(self, count: int = 1) -> None:
        """
        So many minutes, each with its tick.
        """
        for _ in range(count):
            self.clocks.advance(60)
            self.tick()

    # -- what there is

    def automation(self, automation: Automation) -> Automation:
        """
        It, as it is stored now.
        """
        found: Automation = self.read(runs.find, automation.automation_id)
        return found

    def runs(self, automation: Automation) -> list[Run]:
        """
        Its runs, oldest first.
        """
        page = self.read(runs.latest_runs, automation.automation_id)
        return list(reversed(page.rows))

    def items(self, run: Run) -> list[Item]:
        """
        The items of a run.
        """
        found: list[Item] = []
        after: int | None = 0
        while after is not None:
            page = self.read(runs.items, run.run_id, after)
            found += page.rows
            after = page.after
        return found

    def sql(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        """
        Any statement.
        """

        def run(txn: Cursor) -> list[tuple[Any, ...]]:
            txn.execute(text, parameters)
            return list(txn.all()) if text.lstrip().upper().startswith("SELECT") else []

        found: list[tuple[Any, ...]] = self.do(run)
        return found

    def check(self) -> None:
        """
        Invariants I9 and I10, by SQL.
        """
        for table, unique in (
            ("automation_runs", "idempotency_key"),
            ("automation_run_items", "run_id, subject_type, subject_id"),
        ):
            twice = self.sql(f"SELECT {unique} FROM {table} GROUP BY {unique} HAVING COUNT(*) > 1")
            assert twice == []
        assert self.read(runs.violations, 1_000_000) == ()


def seal(secret: str) -> str:
    """
    Not sealed, but it can be told from what it was.
    """
    return secret[::-1]


unseal = seal
