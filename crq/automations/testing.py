"""
The conformance kit: what an author runs against a type before anybody installs it.

    class OverdueTests(ConformanceTests, unittest.TestCase):
        def setUp(self) -> None:
            self.kit = Kit(Overdue(), {"days": 30}, database, world)

Each rule of the contract is one test. ``world`` is a function that takes a picture of everything
the type could change; the tests compare pictures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

from attrs import define, field, fields

from crq.automations import contract, limits, settings
from crq.automations.calls import Calls
from crq.automations.context import About, CallContext
from crq.automations.model import Chunk, Decision, Json, Unfit, Verdict
from crq.automations.types import broken
from crq.database import Database
from crq.instants import Instant, instant_of

NOON: Instant = instant_of("2026-03-02 12:00:00.000")
LEAST = 4  # subjects that the prepared world must have, one of them approved
MOST = 1_000  # subjects that a walk may find: more show nothing new


@define(eq=False)
class Kit:
    """
    A type with a prepared world: at least four subjects, at least one of them approved.

    :ivar config: of the automation, as an operator would write it.
    :ivar database: what the context's `read` and `transact` work on.
    :ivar world: a picture of everything the type could change, to be compared by ``==``.
    :ivar scheduled_for: the occurrence: what the type takes for now.
    """

    kind: Any
    config: Mapping[str, Json]
    database: Database
    world: Callable[[], Any]
    tenant: str = "acme"
    scheduled_for: Instant = NOON
    _calls: Calls = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._calls = Calls(self.database, time.monotonic)

    def structured(self) -> Any:
        """
        The configuration as the type gets it.
        """
        return settings.structured(self.kind.settings, self.config, lambda sealed: sealed)

    def about(self) -> About:
        """
        What the calls are about.
        """
        return About(self.tenant, "kit", self.scheduled_for, "kit", self.structured())

    def evaluate(self, cursor: Json, limit: int) -> Chunk:
        """
        One checked chunk, whose cursor has been through JSON as between two ticks.
        """
        return self._calls.evaluate(self.kind, self.about(), cursor, limit).chunk

    def apply(self, decision: Decision) -> None:
        """
        Apply a decision; what it raises is raised.
        """
        ends = time.monotonic() + limits.CALL_SECONDS
        context = CallContext(self.about(), self.database, time.monotonic, ends, writes=True)
        with closing(context):
            self.kind.apply(context, decision)

    def walk(self, limit: int, cursor: Json = None) -> list[tuple[Json, Chunk]]:
        """
        All chunks from a cursor to the end, each with the cursor it began at.
        """
        found: list[tuple[Json, Chunk]] = []
        guard, text = contract.first_guard(), contract.json_text(cursor, "the cursor")
        decided = 0
        while True:
            chunk = self.evaluate(cursor, limit)
            found.append((cursor, chunk))
            decided += len(chunk.decisions)
            assert decided <= MOST, f"prepare a world of at most {MOST} subjects"
            if not chunk.has_more:
                return found
            following = contract.json_text(chunk.next_cursor, "the cursor")
            guard = contract.moved(guard, text, following)
            cursor, text = chunk.next_cursor, following
            assert len(found) < limits.CHUNKS_PER_RUN, "it does not come to an end"

    def decisions(self, limit: int, cursor: Json = None) -> list[Decision]:
        """
        All decisions from a cursor to the end.
        """
        return [one for _, chunk in self.walk(limit, cursor) for one in chunk.decisions]

    def approved(self) -> Decision:
        """
        The first approved decision.
        """
        decisions = self.decisions(limits.BATCH)
        approved = [one for one in decisions if one.verdict is Verdict.APPROVED]
        wanted = f"prepare a world of at least {LEAST} subjects, one of them approved"
        assert len(decisions) >= LEAST, wanted
        assert approved, wanted
        return approved[0]


class ConformanceTests:
    """
    The rules of the contract, one test each; to be mixed into a TestCase that sets ``kit``.
    """

    kit: Kit

    def test_it_provides_the_interface(self) -> None:
        """
        The type has everything that `IAutomation` asks for, in the right form.
        """
        problem = broken(self.kit.kind)
        assert problem is None, problem

    def test_its_settings_are_checked_and_explained(self) -> None:
        """
        The configuration is taken, an unknown setting is refused, and each has a meaning.
        """
        self.kit.structured()
        for attribute in fields(self.kit.kind.settings):
            assert attribute.metadata.get("meaning"), f"{attribute.name} has no meaning"
        try:
            given = {**self.kit.config, "no_such_setting": 1}
            settings.structured(self.kit.kind.settings, given, lambda sealed: sealed)
        except Unfit:
            return
        raise AssertionError("a setting that does not exist is taken")

    def test_it_comes_to_an_end_and_offers_each_subject_once(self) -> None:
        """
        Walking from the beginning ends, and no subject comes twice.
        """
        self.kit.approved()
        for limit in (1, 3, limits.BATCH):
            subjects = [(one.subject_type, one.subject_id) for one in self.kit.decisions(limit)]
            assert len(set(subjects)) == len(subjects), f"a subject comes twice at limit {limit}"

    def test_the_size_of_a_chunk_changes_nothing(self) -> None:
        """
        Every limit leads to the same decisions: none falls between two chunks.
        """
        whole = _sorted(self.kit.decisions(limits.BATCH))
        for limit in (1, 2, 3):
            assert _sorted(self.kit.decisions(limit)) == whole, f"other decisions at limit {limit}"

    def test_cursors_are_absolute(self) -> None:
        """
        From each cursor alone the rest is found: nothing of the way there is remembered elsewhere.
        """
        steps = self.kit.walk(2)
        for index, (cursor, _) in enumerate(steps):
            rest = [one for _, chunk in steps[index:] for one in chunk.decisions]
            assert self.kit.decisions(2, cursor) == rest, f"from {cursor!r} it is another rest"

    def test_the_same_is_decided_again(self) -> None:
        """
        Asked twice, a type decides the same: so observe predicts what live does.
        """
        assert self.kit.decisions(limits.BATCH) == self.kit.decisions(limits.BATCH)

    def test_evaluate_changes_nothing(self) -> None:
        """
        After a walk the world is as it was before.
        """
        before = self.kit.world()
        self.kit.walk(2)
        assert self.kit.world() == before, "evaluate has changed something"

    def test_an_unknown_cursor_does_no_harm(self) -> None:
        """
        A cursor of another version may fail, but fails as an ordinary error and changes nothing.
        """
        before = self.kit.world()
        for cursor in ("?", -1, {"unknown": True}, ["?"]):
            with suppress(Exception):  # whichever it is, it is an ordinary one
                self.kit.evaluate(cursor, 1)
        assert self.kit.world() == before, "evaluate has changed something"

    def test_apply_does_something(self) -> None:
        """
        Applying an approved decision changes the world.
        """
        if not self.kit.kind.acts:
            return
        decision, before = self.kit.approved(), self.kit.world()
        self.kit.apply(decision)
        assert self.kit.world() != before, "apply has changed nothing that the world shows"

    def test_applying_again_is_as_it_says(self) -> None:
        """
        A type that calls itself repeatable changes nothing the second time.
        """
        if not (self.kit.kind.acts and self.kit.kind.repeatable):
            return
        decision = self.kit.approved()
        self.kit.apply(decision)
        once = self.kit.world()
        self.kit.apply(decision)
        assert self.kit.world() == once, "applied twice is not as good as once"


def _sorted(decisions: list[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda one: (one.subject_type, one.subject_id))
