"""
The index of lanes: what it reads when, and that narrowing changes no decision.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from crq import lanes as module
from crq import policy
from crq.lanes import CONFIRM, OVERLAP, TOUCHED_MOST, TURN, Lanes, News, Question
from crq.model import Controls, InFlight, Lane, LaneHead, Limits, Snapshot, Status

NOON = 1_000_000.0


def _lane(number: int) -> Lane:
    return Lane(f"a{number}", f"k{number}")


class LanesTests(SynchronousTestCase):
    """
    `crq.lanes`, with more than two lanes being many.
    """

    def setUp(self) -> None:
        self.patch(module, "FEW", 2)
        self.lanes = Lanes()

    def learn(self, now: float, *heads: LaneHead, newest: int | None = None) -> Question:
        question = self.lanes.question(now)
        self.lanes.learn(question, News(heads, newest), now)
        return question

    def fill(self, count: int = 3, newest: int = 1000) -> None:
        heads = [LaneHead(_lane(number), NOON + number) for number in range(count)]
        self.learn(0.0, *heads)
        self.learn(0.0, *heads, newest=newest)

    def test_few_lanes_are_read_each_time(self) -> None:
        """
        Up to `FEW` lanes nothing is kept: each question is for all heads, without more.
        """
        self.learn(0.0, LaneHead(_lane(1), NOON), LaneHead(_lane(2), NOON))
        self.assertEqual(self.lanes.question(0.1), Question())
        self.assertFalse(self.lanes.many)

    def test_many_lanes_are_read_once_and_then_what_is_new(self) -> None:
        """
        With more, the next full reading asks for the highest id too, and after that only rows from
        a little below it are asked for.
        """
        self.fill(newest=1000)
        self.assertTrue(self.lanes.many)
        self.assertEqual(self.lanes.question(1.0), Question(1000 - OVERLAP))
        self.learn(1.0, LaneHead(_lane(9), NOON), newest=1001)
        self.assertEqual(self.lanes.question(2.0), Question(1001 - OVERLAP))
        self.assertIn(LaneHead(_lane(9), NOON), self.lanes.heads())

    def test_all_are_confirmed_in_time(self) -> None:
        """
        After `CONFIRM` seconds all are read, and what they say replaces what was known.
        """
        self.fill()
        self.assertNotEqual(self.lanes.question(CONFIRM - 0.1).after, None)
        heads = [LaneHead(_lane(number), NOON) for number in range(5, 9)]
        self.assertEqual(self.learn(CONFIRM, *heads, newest=7), Question(newest=True))
        self.assertEqual(self.lanes.heads(), tuple(heads))

    def test_a_touched_lane_is_read_again(self) -> None:
        """
        The head of a lane that was touched is asked for, and forgotten if there is none any more.
        """
        self.fill()
        self.lanes.touch([_lane(1), _lane(2)])
        question = self.learn(1.0, LaneHead(_lane(2), NOON + 50))
        self.assertEqual(set(question.lanes), {_lane(1), _lane(2)})
        self.assertEqual(
            dict.fromkeys(self.lanes.heads()),
            dict.fromkeys([LaneHead(_lane(0), NOON), LaneHead(_lane(2), NOON + 50)]),
        )
        self.assertEqual(self.lanes.question(1.0).lanes, ())

    def test_a_touch_during_a_question_is_not_lost(self) -> None:
        """
        A lane touched while the answer is on its way is asked for by the next question.
        """
        self.fill()
        self.lanes.touch([_lane(1)])
        question = self.lanes.question(1.0)
        self.lanes.touch([_lane(2)])
        self.lanes.learn(question, News((), None), 1.0)
        self.assertEqual(self.lanes.question(1.0).lanes, (_lane(2),))

    def test_too_many_touched_lanes_are_read_with_all(self) -> None:
        """
        More than `TOUCHED_MOST` of them, or a claim of unknown end, make the next reading a full
        one.
        """
        self.fill()
        self.lanes.touch(map(_lane, range(TOUCHED_MOST + 1)))
        self.assertEqual(self.lanes.question(1.0), Question(newest=True))
        self.fill()
        self.lanes.forget()
        self.assertEqual(self.lanes.question(1.0), Question(newest=True))

    def test_what_is_in_flight_no_more_touches_its_lane(self) -> None:
        """
        An execution that was in flight, whoever's it was, may be back in its lane.
        """
        self.fill()
        self.lanes.note_flights({7: _lane(1), 8: _lane(2)})
        self.lanes.note_flights({8: _lane(2)})
        self.assertEqual(self.lanes.question(1.0).lanes, (_lane(1),))

    def test_new_rows_of_a_known_lane_leave_its_head(self) -> None:
        """
        A lane's head is the older of what was known and what is new.
        """
        self.fill()
        self.learn(1.0, LaneHead(_lane(1), NOON + 99), LaneHead(_lane(2), NOON - 5))
        heads = {head.lane: head.queued_at for head in self.lanes.heads()}
        self.assertEqual((heads[_lane(1)], heads[_lane(2)]), (NOON + 1, NOON - 5))

    def test_each_closed_gate_has_its_turn(self) -> None:
        """
        Within `TURN` ticks each gate known to be closed is asked for, and no tick asks for many.
        """
        closed = {f"k{number}" for number in range(95)}
        asked: set[str] = set()
        for _ in range(TURN):
            some = self.lanes.turn(closed)
            self.assertLessEqual(len(some), 10)
            asked |= set(some)
        self.assertEqual(asked, closed)

    def test_narrowing_changes_no_decision(self) -> None:
        """
        In random queues, with gates, pauses, caps, half-open keys and lanes that back off, a plan
        over the narrowed heads starts what a plan over all heads starts.
        """
        chance = random.Random(7)
        for _ in range(400):
            accounts = [f"a{number}" for number in range(chance.randrange(1, 6))]
            keys = [f"k{number}" for number in range(6)]
            everything = [Lane(account, key) for account in accounts for key in [*keys, None]]
            found = chance.sample(everything, chance.randrange(3, len(everything) + 1))
            heads = [LaneHead(lane, NOON + chance.randrange(9)) for lane in found]
            flights = tuple(
                InFlight(number, chance.choice(everything), Status.RUNNING)
                for number in range(chance.randrange(4))
            )
            controls = Controls(
                accounts=frozenset(chance.sample(accounts, chance.randrange(2))),
                keys=frozenset(chance.sample(keys, chance.randrange(2))),
            )
            limits = Limits(in_flight=chance.randrange(1, 8), per_account=chance.randrange(1, 4))
            gates = dict.fromkeys(chance.sample(keys, chance.randrange(5)), NOON + 60)
            half_open = set(chance.sample(keys, chance.randrange(3))) - gates.keys()
            failed = dict.fromkeys(chance.sample(found, chance.randrange(3)), NOON + 5)
            self.lanes = Lanes()
            self.learn(0.0, *heads)
            snapshot = Snapshot(tuple(heads), flights, controls)
            narrowed = self.lanes.narrowed(snapshot, limits, gates, half_open, failed.keys())

            def starts(heads: tuple[LaneHead, ...]) -> list[tuple[Lane, float]]:
                plan = policy.plan(
                    Snapshot(heads, flights, controls),  # noqa: B023
                    gates,  # noqa: B023
                    limits,  # noqa: B023
                    NOON,
                    half_open=half_open,  # noqa: B023
                    backing_off=failed,  # noqa: B023
                )
                return [(take.lane, take.queued_at) for take in plan.takes]

            self.assertEqual(starts(narrowed), starts(tuple(heads)))
            self.assertLessEqual(len(narrowed), limits.in_flight + len(failed))
