"""
One run goes on: evaluate, record, apply, and again, until it pauses or ends.

A run in a tick is a `Turn`. Whoever has one calls `chunk` until it says False; the turns of many
tenants are taken in between (`crq.automations.scheduler`). What goes wrong with the database is
raised and ends the turn: the lease runs out, and a later tick takes the run over.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from crq.automations import contract, limits, policy, promotion, runs, settings
from crq.automations.calls import Applied, Calls, Evaluated, doubtful, failure
from crq.automations.context import About
from crq.automations.contract import BadChunk
from crq.automations.interfaces import Later
from crq.automations.model import (
    Automation,
    Close,
    Effect,
    Item,
    Mode,
    Pause,
    Run,
    RunStatus,
)
from crq.automations.promotion import Evidence, Obstacle
from crq.automations.types import Types
from crq.automations.workers import Caller, IWorkers, NoThread, Overdue
from crq.database import Cursor, is_lost, is_repeatable
from crq.instants import Instant
from crq.pool import Pool
from crq.sealing import Unsealable

Authority = Callable[[Cursor, str, str], str | None]


@define(eq=False)
class Turn:
    """
    A run that this worker holds.

    :ivar cursor_json: the run's cursor as it is stored.
    :ivar chunks: so many in this tick.
    """

    run: Run
    lease: runs.Lease
    kind: Any
    about: About
    caller: Caller
    cursor_json: str
    chunks: int = 0


@define(eq=False)
class Advancer:
    """
    Takes runs forward.

    :ivar authority: asked with a cursor, who promoted, and the tenant: what speaks against it, or
        None.
    :ivar wall: the wall clock: what is stored, leases.
    :ivar clock: the monotonic clock: deadlines.
    """

    pool: Pool
    types: Types
    calls: Calls
    workers: IWorkers
    unseal: Callable[[str], str]
    authority: Authority
    clock: IReactorTime
    wall: Callable[[], Instant]
    mint: Callable[[], str] = field(default=lambda: secrets.token_hex(16))

    _log = Logger()

    async def begin(self, run_id: int) -> Turn | None:
        """
        Take a run. None: somebody else has it, or it came to its end at once.
        """
        taken = await self.pool.transact(
            runs.take, run_id, self.mint(), limits.LEASE_SECONDS, self.wall()
        )
        if taken is None:
            return None
        run, lease, automation, governed = taken
        close = governed if isinstance(governed, Close) else policy.too_old(run, self.wall())
        if close is not None or automation is None:
            assert close is not None
            await self._finish(lease, run, close)
            return None
        kind = self.types.get(run.type)
        if run.mode is Mode.LIVE:
            obstacles = await self._obstacles(run, automation, kind)
            if obstacles:
                why = "; ".join(obstacle.problem for obstacle in obstacles)
                await self._finish(lease, run, Close(RunStatus.REFUSED, why))
                return None
        if kind is None:
            problem = f"the type {run.type!r} is not installed"
            await self._finish(lease, run, Close(RunStatus.FAILED, problem))
            return None
        try:
            config = settings.structured(kind.settings, run.config, self.unseal)
        except (ValueError, Unsealable) as error:
            problem = f"its configuration cannot be used: {error}"
            await self._finish(lease, run, Close(RunStatus.FAILED, problem))
            return None
        about = About(
            tenant=run.tenant,
            automation_uuid=automation.automation_uuid,
            scheduled_for=run.scheduled_for_utc,
            run_key=run.idempotency_key,
            config=config,
        )
        caller = Caller(run.tenant, automation.automation_uuid)
        cursor_json = contract.json_text(run.cursor, "the cursor")
        return Turn(run, lease, kind, about, caller, cursor_json)

    async def _obstacles(self, run: Run, automation: Automation, kind: Any) -> tuple[Obstacle, ...]:
        """
        The preconditions of going live, once more: they may have held only when it was promoted.
        """
        evidence = None
        if automation.promoted_revision is not None:
            evidence = Evidence(
                automation.promoted_run_id or 0,
                automation.promoted_revision,
                automation.promoted_would_count or 0,
            )
        authority: str | None = "nobody has promoted it"
        if automation.promoted_by is not None:
            authority = await self.pool.read(
                self.authority, automation.promoted_by, automation.tenant
            )
        return promotion.obstacles(
            promotion.Standing(
                type=run.type,
                acts=None if kind is None else kind.acts,
                revision=run.config_revision,
                max_changes_per_run=run.max_changes_per_run,
                evidence=evidence,
                authority=authority,
            )
        )

    async def chunk(self, turn: Turn, deadline: float) -> bool:
        """
        Go on by one chunk, with its effects; False: the turn is over.

        :param deadline: on the monotonic clock: until when this tenant may go on.
        """
        if not await self._effects(turn, deadline):
            return False
        step = policy.next_step(turn.run, turn.chunks, self.clock.seconds(), deadline)
        if isinstance(step, Close):
            await self._finish(turn.lease, turn.run, step)
            return False
        if isinstance(step, Pause):
            await self._pause(turn, step.why)
            return False
        found = await self._evaluate(turn, step.limit)
        if found is None or not await self._record(turn, found):
            return False
        if turn.run.status is not RunStatus.RUNNING:
            self._log_end(turn.run)
            return False
        return not turn.run.ended or await self.chunk(turn, deadline)  # its end needs no other turn

    async def _evaluate(self, turn: Turn, limit: int) -> Evaluated | None:
        try:
            found: Evaluated = await self.workers.call(
                turn.caller, self.calls.evaluate, turn.kind, turn.about, turn.run.cursor, limit
            )
        except Later as error:
            await self._pause(turn, policy.short(str(error) or "the type"))
        except NoThread as error:
            await self._finish(turn.lease, turn.run, Close(RunStatus.FAILED, str(error)))
        except Overdue as error:
            why = f"evaluate {error}"
            await self._finish(turn.lease, turn.run, Close(RunStatus.FAILED, why))
        except Exception as error:  # noqa: BLE001 - the boundary to somebody else's code
            if is_lost(error) or is_repeatable(error):
                await self._pause(turn, "the database did not answer")
                return None
            why = failure(error, turn.kind, turn.about.config)
            await self._finish(turn.lease, turn.run, Close(RunStatus.FAILED, why))
        else:
            return found
        return None

    async def _record(self, turn: Turn, found: Evaluated) -> bool:
        chunk, run = found.chunk, turn.run
        guard = run.guard
        try:
            if chunk.has_more:
                guard = contract.moved(guard, turn.cursor_json, found.cursor_json)
        except BadChunk as error:
            await self._finish(turn.lease, run, Close(RunStatus.FAILED, str(error)))
            return False
        try:
            turn.run = await self.pool.transact(
                runs.record_and_finish,
                turn.lease,
                run,
                chunk,
                found.cursor_json,
                guard,
                self.wall(),
            )
        except runs.Changed:
            await self._regovern(turn)
            return False
        if turn.run.guard is guard:
            turn.cursor_json = found.cursor_json
        turn.chunks += 1
        return True

    async def _effects(self, turn: Turn, deadline: float) -> bool:
        """
        Apply what is decided and not applied; False: the turn is over.
        """
        if turn.run.mode is not Mode.LIVE:
            return True
        while policy.outstanding(turn.run.counts):
            items = await self.pool.read(
                runs.pending, turn.run.run_id, turn.kind.repeatable, limits.BATCH
            )
            if not items:
                return True
            if not await self._apply_all(turn, items, deadline):
                return False
        return True

    async def _apply_all(self, turn: Turn, items: Sequence[Item], deadline: float) -> bool:
        ended: runs.Ended | None = None
        why: str | None = None
        for item in items:
            if self.clock.seconds() >= deadline:
                why = "its time in this tick is up"
                break
            if turn.run.counts.failed + (ended is not None and ended.effect is Effect.FAILED) >= (
                limits.FAILED_EFFECTS
            ):
                break
            may = await self._note(turn, ended, item.item_id)
            ended = None
            if not may:
                await self._regovern(turn)
                return False
            applied = await self._apply(turn, item)
            if applied.effect is not Effect.APPLYING:  # as its row says already
                ended = runs.Ended(item.item_id, applied.effect, applied.detail)
            if applied.effect in (Effect.INTENDED, Effect.APPLYING):
                why = applied.detail
                break
        if ended is not None:
            await self._note(turn, ended, None)
        if why is not None:
            await self._pause(turn, why)
            return False
        if turn.run.counts.failed >= limits.FAILED_EFFECTS:
            close = Close(RunStatus.FAILED, f"{turn.run.counts.failed} effects failed")
            await self._finish(turn.lease, turn.run, close)
            return False
        return True

    async def _note(self, turn: Turn, ended: runs.Ended | None, begun: int | None) -> bool:
        turn.run, may = await self.pool.transact(
            runs.effect, turn.lease, turn.run, ended, begun, turn.kind.repeatable, self.wall()
        )
        return may

    async def _apply(self, turn: Turn, item: Item) -> Applied:
        try:
            applied: Applied = await self.workers.call(
                turn.caller, self.calls.apply, turn.kind, turn.about, item.decision
            )
        except NoThread as error:
            return Applied(Effect.INTENDED, str(error))
        except Overdue as error:
            return doubtful(turn.kind, f"apply {error}")
        return applied

    async def _regovern(self, turn: Turn) -> None:
        """
        The automation was changed under the run: end it if that is what the change means.
        """
        governed = await self.pool.read(runs.governed, turn.run)
        if isinstance(governed, Close):
            await self._finish(turn.lease, turn.run, governed)
        else:
            await self._pause(turn, "the automation was changed")

    async def _pause(self, turn: Turn, why: str) -> None:
        await self.pool.transact(runs.pause, turn.lease, why, self.wall())

    async def _finish(self, lease: runs.Lease, run: Run, close: Close) -> None:
        self._log_end(await self.pool.transact(runs.finish, lease, run, close, self.wall()))

    def _log_end(self, run: Run) -> None:
        self._log.info(
            "automation {automation_id}: run {run_id} {status} ({mode}): {summary}",
            action="run ended",
            automation_id=run.automation_id,
            run_id=run.run_id,
            status=run.status.value,
            mode=run.mode.value,
            summary=runs.summary(run),
        )
