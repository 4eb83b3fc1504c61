"""
The checks that faults are measured by find what is wrong.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq.instants import instant_of
from crq.model import Limits
from tests import invariants
from tests.invariants import History
from tests.journal import Change

NOON = "2026-03-02 12:00:00.000"
LATER = "2026-03-02 12:00:30.000"
AT_NOON = instant_of(NOON)


def change(number: int, old: str | None, new: str, **more: Any) -> Change:
    given: dict[str, Any] = {
        "account": "acme",
        "apikey": "key",
        "epoch": None,
        "queued_at": NOON,
        "claimed_at": LATER if new == "claimed" else None,
        "at": AT_NOON,
        **more,
    }
    return Change(seq=0, execution_id=number, old=old, new=new, **given)


def life(number: int, *states: str, **more: Any) -> list[Change]:
    """
    The changes of one row.
    """
    before = (None, *states)
    return [change(number, old, new, **more) for old, new in zip(before, states, strict=False)]


def told(*changes: Change) -> list[str]:
    """
    The invariants that a history breaks.
    """
    history = History(Limits(in_flight=3, per_account=2)).tell(changes)
    return [problem.partition(":")[0] for problem in history.problems]


class HistoryTests(SynchronousTestCase):
    """
    `History`.
    """

    def test_a_life_at_a_plain_endpoint(self) -> None:
        """
        Its claim is its start; what did not begin goes back and may start, what began may not.
        """

        def of_plain(*changes: Change) -> list[str]:
            history = History(Limits(in_flight=3, per_account=2), plain=True).tell(changes)
            return [problem.partition(":")[0] for problem in history.problems]

        good = ("queued", "running", "queued", "running", "failed", "success")
        at = {"claimed_at": LATER}
        self.assertEqual(of_plain(*life(1, *good, **at)), [])
        self.assertEqual(told(*life(1, *good, **at))[0], "I1")
        self.assertEqual(of_plain(*life(1, "queued", "claimed"))[0], "I1")
        again = life(1, "queued", "running", "failed", "running", **at)
        self.assertEqual(of_plain(*again), ["I1", "I2"])

    def test_a_good_life(self) -> None:
        """
        Released once, started, unknown, and a real outcome in the end: nothing to say.
        """
        states = ("queued", "claimed", "queued", "claimed", "running", "failed", "success")
        self.assertEqual(told(*life(1, *states)), [])

    def test_arrows_that_do_not_exist(self) -> None:
        """
        A row that starts twice, begins anew or jumps is seen.
        """
        twice = life(1, "queued", "claimed", "running", "queued", "claimed", "running")
        self.assertEqual(told(*twice), ["I1", "I2"])
        self.assertEqual(told(*life(1, "queued", "running")), ["I1"])
        self.assertEqual(told(change(1, "running", "success")), ["I1"])

    def test_caps(self) -> None:
        """
        A third one of an account, and a fourth of all, are seen.
        """
        many = [each for n in (1, 2, 3) for each in life(n, "queued", "claimed", epoch=n)]
        self.assertEqual(told(*many), ["I4"])
        many = [
            each
            for n, account in enumerate(("a", "a", "b", "b"))
            for each in life(n, "queued", "claimed", epoch=n, account=account)
        ]
        self.assertEqual(told(*many), ["I4"])

    def test_order(self) -> None:
        """
        A row that waits while a younger one of its lane is claimed is seen; one that the same claim
        takes, one of another lane and one that came at the last moment are not.
        """
        old, young = life(1, "queued"), life(2, "queued")
        claims = [change(n, "queued", "claimed", epoch=7) for n in (2, 1)]
        self.assertEqual(told(*old, *young, claims[0]), ["I6"])
        self.assertEqual(told(*old, *young, *claims), [])
        other = life(1, "queued", apikey="another")
        self.assertEqual(told(*other, *young, claims[0]), [])
        late = life(1, "queued", at=instant_of(LATER) - 1)
        self.assertEqual(told(*late, *young, claims[0]), [])


class RowTests(SynchronousTestCase):
    """
    What is told from rows and counts.
    """

    def row(self, **more: Any) -> dict[str, Any]:
        instants = dict.fromkeys(("queued_at", "claimed_at", "started_at", "finished_at"), NOON)
        return {
            "identifier": "1/2",
            "status": "success",
            "error_code": None,
            "nonce_hash": None,
            **instants,
            **more,
        }

    def test_stored(self) -> None:
        """
        Instants that a status does not have, or that run backwards, are seen.
        """
        self.assertEqual(invariants.stored([self.row()]), [])
        for wrong in (
            {"started_at": None},
            {"started_at": LATER},
            {"nonce_hash": "x"},
            {"status": "queued"},
            {"status": "failed", "error_code": 106},
        ):
            self.assertEqual(len(invariants.stored([self.row(**wrong)])), 1, wrong)

    def test_effects(self) -> None:
        """
        Effects that came twice, that a success lacks, or that nobody started are seen.
        """
        both = {(1, 1): 1, (1, 2): 1}
        self.assertEqual(invariants.effects([self.row()], both), [])
        self.assertEqual(len(invariants.effects([self.row()], {(1, 1): 1})), 1)
        self.assertEqual(len(invariants.effects([self.row()], {(1, 1): 2, (1, 2): 1})), 1)
        never = self.row(status="failed", started_at=None)
        self.assertEqual(len(invariants.effects([never], {(1, 1): 1})), 1)
        unknown = self.row(status="failed", error_code=303)
        self.assertEqual(invariants.effects([unknown], {(1, 1): 1}), [])

    def test_accepted(self) -> None:
        """
        Rows that are lost, doubled, unfinished or unheard of are seen.
        """
        queued = {"1/2": "queued"}
        self.assertEqual(invariants.accepted([self.row()], queued), [])
        self.assertEqual(len(invariants.accepted([], queued)), 1)
        self.assertEqual(len(invariants.accepted([self.row(), self.row()], queued)), 1)
        self.assertEqual(len(invariants.accepted([self.row(status="running")], queued)), 1)
        self.assertEqual(len(invariants.accepted([self.row()], {})), 1)
        self.assertEqual(invariants.accepted([self.row(status="rejected")], {}), [])

    def test_caps(self) -> None:
        """
        More scripts at once than a cap allows are seen, of an account and in total.
        """
        limits = Limits(in_flight=3, per_account=2)
        self.assertEqual(invariants.caps({"total": 3, "acme": 2}, limits), [])
        self.assertEqual(len(invariants.caps({"total": 4, "acme": 3}, limits)), 2)
