"""
The demo's checks can fail: each is given a sound run, and runs with one fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from crq import script
from crq.model import Limits
from demo.api import RULED_CARDS, Quota, _page
from demo.automate import RULE
from demo.checks import (
    Automated,
    Call,
    Check,
    Row,
    automation_kept,
    caps_by_calls,
    caps_by_rows,
    examine,
    failures_explained,
    gates,
    gates_kept,
    most_at_once,
    none_lost,
    nothing_twice,
)
from demo.load import CALLS, EXAMPLES, load
from demo.show import quantile

LIMITS = Limits(in_flight=4, per_account=2)


def row(number: int, account: str = "flood", begin: float = 0.0, end: float = 1.0) -> Row:
    """
    A successful execution on card ``number``.
    """
    return Row(number, account, number, "success", None, begin - 1, begin - 0.1, begin, end)


def call(number: int, account: str = "flood", at: float = 0.2, **more: Any) -> Call:
    """
    The effect of an execution on card ``number``.
    """
    return Call(
        account, number, **{"at": at, "ended": at + 0.1, "status": 200, "effect": True, **more}
    )


def refusal(number: int, at: float = 10.0, retry_after: int = 15) -> Call:
    """
    A 429 for the key of ``limited``.
    """
    return call(number, "limited", at, status=429, effect=False, retry_after=retry_after)


AUTOMATED = Automated(
    "ruled", frozenset({51, 54}), frozenset({51, 54}), 5, 40.0, 2, {51: 51, 54: 54}
)
IDLE = evolve(AUTOMATED, previewed=frozenset(), observed=frozenset(), changed=0, executions={})
RULED_ROWS = [row(51, "ruled", 41, 42), row(54, "ruled", 43, 44)]
RULED_CALLS = [call(51, "ruled", 41.5), call(54, "ruled", 43.5)]


class Whole(SynchronousTestCase):
    """
    `examine`.
    """

    def test_a_sound_run_passes(self) -> None:
        """
        A run that kept every promise passes every check.
        """
        refused = evolve(row(3, "limited", 10, 10.2), status="failed", error_code=301)
        rows = [row(1), row(2), refused, row(4, "limited", 35, 36), *RULED_ROWS]
        calls = [call(1), call(2), refusal(3), call(4, "limited", 35.5), *RULED_CALLS]
        admitted = {each.execution_id: each.account for each in rows}
        checks = examine(admitted, rows, calls, LIMITS, AUTOMATED)
        self.assertEqual([check for check in checks if not check.holds], [])
        self.assertEqual(len(checks), 7)

    def test_a_run_without_anything_does_not_pass(self) -> None:
        """
        A run in which no gate was closed does not count as one that kept them.
        """
        self.assertFalse(all(check.holds for check in examine({}, [], [], LIMITS, IDLE)))


class Caps(SynchronousTestCase):
    """
    `caps_by_rows`, `caps_by_calls` and `most_at_once`.
    """

    def test_touching_is_not_overlapping(self) -> None:
        """
        An execution that starts at the instant another ends does not run beside it.
        """
        self.assertEqual(most_at_once([(0, 1), (1, 2), (2, 3)]), 1)
        self.assertEqual(most_at_once([(0, 3), (1, 2), (1, 4)]), 3)

    def test_a_third_of_one_account_is_seen_in_the_log(self) -> None:
        """
        Three executions of one account at once break its cap.
        """
        self.assertTrue(caps_by_rows([row(1), row(2)], LIMITS).holds)
        self.assertFalse(caps_by_rows([row(1), row(2), row(3)], LIMITS).holds)

    def test_a_fifth_in_total_is_seen_in_the_log(self) -> None:
        """
        Five executions at once break the global cap, though no account has more than its two.
        """
        rows = [row(number, account) for number, account in enumerate("aabbc")]
        self.assertFalse(caps_by_rows(rows, LIMITS).holds)
        self.assertTrue(caps_by_rows(rows[:4], LIMITS).holds)

    def test_the_api_sees_what_the_log_hides(self) -> None:
        """
        Executions whose calls interleave ran at once, whatever the log says.
        """
        calls = [call(number, at=at, effect=False) for at in (0.0, 5.0) for number in (1, 2, 3)]
        self.assertFalse(caps_by_calls(calls, LIMITS).holds)
        self.assertTrue(caps_by_calls(calls[:2] + calls[3:5], LIMITS).holds)


class Gates(SynchronousTestCase):
    """
    `gates` and `gates_kept`.
    """

    def test_a_gate_lasts_for_the_wait_and_five_seconds(self) -> None:
        """
        429s while a gate is closed make one gate of it, up to the latest end.
        """
        (interval,) = gates([refusal(1, 10.0), refusal(2, 10.5, 15)])["limited"]
        self.assertEqual(interval, (10.1, 31.0))

    def test_a_claim_behind_the_gate_is_seen(self) -> None:
        """
        An execution of the key that was claimed while its gate was closed breaks the check.
        """
        self.assertFalse(gates_kept([row(4, "limited", 20, 21)], [refusal(3)]).holds)

    def test_others_may_start_and_the_key_may_afterwards(self) -> None:
        """
        Other accounts are not held, nor is the key once its gate has passed.
        """
        rows = [row(1, "flood", 20, 21), row(4, "limited", 30.2, 31)]
        self.assertTrue(gates_kept(rows, [refusal(3)]).holds)

    def test_the_tick_that_read_before_is_not_blamed(self) -> None:
        """
        What was claimed within a tick of the 429 was planned before it.
        """
        self.assertTrue(gates_kept([row(4, "limited", 10.9, 12)], [refusal(3)]).holds)


class Lost(SynchronousTestCase):
    """
    `none_lost`.
    """

    def test_a_row_that_vanished_is_missed(self) -> None:
        """
        An admitted execution that is not in the log breaks the check and is named.
        """
        check = none_lost({1: "flood", 2: "flood"}, [row(1)])
        self.assert_broken(check, "[2]")

    def test_a_row_that_has_not_ended_is_seen(self) -> None:
        """
        An execution that is still running, or was rejected, breaks the check.
        """
        for status in ("running", "queued", "rejected"):
            self.assert_broken(none_lost({1: "flood"}, [evolve(row(1), status=status)]), "flood/1")

    def test_a_row_nobody_admitted_is_seen(self) -> None:
        """
        More rows than admissions break the check.
        """
        self.assertFalse(none_lost({1: "flood"}, [row(1), row(2)]).holds)

    def assert_broken(self, check: Check, named: str) -> None:
        self.assertFalse(check.holds)
        self.assertIn(named, check.detail)


class Twice(SynchronousTestCase):
    """
    `nothing_twice`.
    """

    def test_a_second_effect_is_seen(self) -> None:
        """
        Two effects on one card break the check.
        """
        self.assertFalse(nothing_twice([row(1)], [call(1), call(1, at=3.0)]).holds)

    def test_a_success_without_effect_is_seen(self) -> None:
        """
        A success that the API never saw breaks the check.
        """
        self.assertFalse(nothing_twice([row(1)], []).holds)

    def test_an_effect_of_nobody_is_seen(self) -> None:
        """
        An effect on a card that no execution has breaks the check.
        """
        self.assertFalse(nothing_twice([row(1)], [call(1), call(2)]).holds)

    def test_a_call_that_was_refused_is_no_effect(self) -> None:
        """
        A 429 and the repetition that follows it are one effect.
        """
        refused = call(1, at=0.1, status=429, retry_after=5)
        self.assertTrue(nothing_twice([row(1)], [refused, call(1, at=5.0)]).holds)


class Failures(SynchronousTestCase):
    """
    `failures_explained`.
    """

    def test_a_failure_without_a_429_is_seen(self) -> None:
        """
        A failed execution that the API never refused breaks the check.
        """
        failed = evolve(row(1), status="failed", error_code=301)
        self.assertFalse(failures_explained([failed], [call(1)]).holds)

    def test_another_code_is_seen(self) -> None:
        """
        A worker that died is not explained by a 429.
        """
        failed = evolve(row(3, "limited"), status="failed", error_code=303)
        self.assertFalse(failures_explained([failed], [refusal(3)]).holds)


class Rules(SynchronousTestCase):
    """
    `automation_kept`, and the cards it goes through.
    """

    def broken(
        self,
        told: str,
        automated: Automated = AUTOMATED,
        rows: list[Row] = RULED_ROWS,
        calls: list[Call] = RULED_CALLS,
    ) -> None:
        """
        One fault breaks the check, which says what it is.
        """
        found = automation_kept(automated, rows, calls)
        self.assertFalse(found.holds)
        self.assertIn(told, found.detail)

    def test_each_fault_is_seen(self) -> None:
        """
        A change before the promotion, twice, missing or of another card; a preview that is not what
        was observed; counts and executions that are not those of the log.
        """
        self.assertTrue(automation_kept(AUTOMATED, RULED_ROWS, RULED_CALLS).holds)
        one, two = RULED_CALLS
        self.broken("1 changes before", calls=[evolve(one, at=39.0), two])
        self.broken("the API saw changes of [51, 51, 54]", calls=[one, one, two])
        self.broken("the API saw changes of [51]", calls=[one])
        self.broken("the API saw changes of [51, 99]", calls=[one, evolve(two, card=99)])
        self.broken("differ", evolve(AUTOMATED, previewed=frozenset({51})))
        self.broken("says that it changed 3", evolve(AUTOMATED, changed=3))
        self.broken("of other cards", evolve(AUTOMATED, executions={51: 51, 54: 55}))
        self.broken("not those of the log", rows=RULED_ROWS[:1])
        failed = evolve(RULED_ROWS[0], status="failed", error_code=301)
        self.broken("not well ended: ruled/51", rows=[failed, RULED_ROWS[1]])
        self.broken("nothing to see", IDLE, [], [])

    def test_others_do_not_disturb(self) -> None:
        """
        What other accounts do is none of its.
        """
        rows, calls = [*RULED_ROWS, row(1)], [*RULED_CALLS, call(1)]
        self.assertTrue(automation_kept(AUTOMATED, rows, calls).holds)

    def test_cards_come_in_pages_and_the_rule_takes_the_overdue(self) -> None:
        """
        The API sends the cards after a number; the rule approves those whose day has passed.
        """
        first = _page("limit=5")
        self.assertEqual([card["card_id"] for card in first], list(RULED_CARDS[:5]))
        rest = _page(f"after={first[-1]['card_id']}&limit=100")
        self.assertEqual([card["card_id"] for card in first + rest], list(RULED_CARDS))
        self.assertEqual(_page(f"after={RULED_CARDS[-1]}&limit=5"), [])
        decide = script.function(RULE, "decide", {"now": 0.0}, lambda: False)
        taken = [card["card_id"] for card in first + rest if decide(card)["approve"]]
        self.assertEqual(taken, [5001, 5004, 5007, 5010])


class Throttle(SynchronousTestCase):
    """
    The API's limit: `demo.api.Quota`.
    """

    def test_free_calls_then_refusals_then_free_calls(self) -> None:
        """
        After the free calls the key is refused for a while, and then all begins anew.
        """
        clock = Clock()
        quota = Quota(2, 15, clock.seconds)
        self.assertEqual([quota.refused() for _ in range(3)], [None, None, 15])
        clock.advance(4.5)
        self.assertEqual(quota.refused(), 11)
        clock.advance(10.5)
        self.assertEqual([quota.refused() for _ in range(3)], [None, None, 15])


class Examples(SynchronousTestCase):
    """
    ``examples/``, which users read and the demo runs.
    """

    def calls_of(self, path: Path, **card: Any) -> list[tuple[str, str]]:
        calls: list[tuple[str, str]] = []

        def send(method: str, path: str, _body: Any) -> dict[str, Any]:
            calls.append((method, path))
            data = {"title": "A", "size": 3, "subtasks": 2, "priority": 2, "deadline": None}
            return {"status": 200, "json": {"data": {**data, **card}}, "text": ""}

        payload = {"card_id": 7, "today": "2026-03-02"}
        script.run(path.read_text(), payload, send, lambda _: None, lambda: None)
        return calls

    def test_each_runs_and_writes_one_comment_at_the_end(self) -> None:
        """
        Every example runs to its end, and its one POST is the last call it makes.
        """
        found = sorted(EXAMPLES.glob("*.star"))
        self.assertEqual(len(found), 3)
        for path in found:
            calls = self.calls_of(path)
            self.assertEqual([method for method, _ in calls].count("POST"), 1)
            self.assertEqual(calls[-1], ("POST", "/cards/7/comments"))

    def test_only_overdue_cards_are_escalated(self) -> None:
        """
        A card is changed when its deadline has passed and it is not urgent already.
        """
        path = EXAMPLES / "escalate_overdue.star"
        for card, changed in (
            ({"deadline": "2026-03-01"}, True),
            ({"deadline": "2026-03-02"}, False),
            ({"deadline": "2026-03-01", "priority": 4}, False),
        ):
            self.assertEqual(("PATCH", "/cards/7") in self.calls_of(path, **card), changed)

    def test_the_demo_knows_how_often_the_throttled_script_calls(self) -> None:
        """
        The quota is made of the calls that the throttled account's script really makes.
        """
        self.assertEqual(len(self.calls_of(EXAMPLES / "sum_of_subtasks.star")), CALLS)


class Scale(SynchronousTestCase):
    """
    `load` and the numbers of the table.
    """

    def test_whole_and_scaled(self) -> None:
        """
        The whole load is 120, 10 and 12 executions; a scaled one still has some of each.
        """
        self.assertEqual([each.count for each in load(1.0).accounts], [120, 10, 12])
        self.assertTrue(all(3 <= each.count <= 12 for each in load(0.1).accounts))

    def test_no_two_executions_share_a_card(self) -> None:
        """
        Each execution works on a card of its own, or the checks could not tell them apart.
        """
        cards = [card for _, _, card in load(1.0).submissions()]
        self.assertEqual(len(cards), len(set(cards)))

    def test_quantiles(self) -> None:
        """
        A quantile is one of the values.
        """
        self.assertEqual(quantile([4, 1, 3, 2], 0.5), 2)
        self.assertEqual(quantile([4, 1, 3, 2], 0.95), 4)
        self.assertEqual(quantile([], 0.5), 0)
