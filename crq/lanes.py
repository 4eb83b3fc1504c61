"""
The lanes with work, kept in memory where they are many, so that a tick need not read them all.

# Note [What the index may miss, and for how long]

With up to `FEW` lanes each tick reads the head of every lane, and nothing is kept. With more, all
are read every `CONFIRM` seconds, and a tick in between reads what may have changed:

* rows with a higher id than any seen before (less `OVERLAP`: neighbours may commit out of order),
  whoever inserted them: the next tick finds them;
* the head of each lane that was planned, or whose execution was in flight and is not any more: a
  row that went back to the queue is found by the next tick.

What is left is a row that becomes queued in another way: its transaction was open while a hundred
later ones committed, or another program wrote ``queued`` over a row that no drainer had claimed.
Such a row is hidden until the next full reading, `CONFIRM` seconds at most. A lane that is here and
has emptied (cancelled, or claimed by another drainer) is planned in vain once: the claim finds no
row, and its head is read again. The index decides nothing: the claim's transaction reads the rows
themselves. It dies with the process; the first tick of the next one reads all.

# Note [Narrowing]

Where lanes are many, most are held; a plan over all of them, and a look at all their gates, would
cost more than reading them did. So only the oldest lanes that no known rule holds are planned, as
many of an account as it has room. Whether a gate has closed is asked of these. Gates known to be
closed are asked in turn, a `TURN`-th in each tick: one that was opened early, by another process,
is seen that many ticks later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from attrs import define, field, frozen

from crq.instants import Instant
from crq.model import Lane, LaneHead, Limits, Snapshot

FEW = 500  # lanes; as many are read in two milliseconds
CONFIRM = 10.0  # s between two readings of all lanes
OVERLAP = 100  # ids read again
TOUCHED_MOST = 64  # lanes whose heads are read one by one; more: all
TURN = 10  # ticks in which each closed gate is asked once


@frozen
class Question:
    """
    What a tick reads of the lanes.

    :ivar after: rows with a higher id; None: the heads of all lanes.
    :ivar lanes: whose heads are read.
    :ivar newest: whether the highest id is wanted as well.
    :ivar idle: whether to look first whether there is anything at all.
    """

    after: int | None = None
    lanes: tuple[Lane, ...] = ()
    newest: bool = False
    idle: bool = False


@frozen
class News:
    """
    What there was to read.

    :ivar heads: the heads of lanes, and of lanes with new rows the oldest of these.
    :ivar newest: the highest id; None: it was not asked, or there is none.
    """

    heads: tuple[LaneHead, ...]
    newest: int | None


@define(eq=False)
class Lanes:
    """
    The index (see note).
    """

    _heads: dict[Lane, Instant] = field(init=False, factory=dict)
    _many: bool = field(init=False, default=False)
    _newest: int | None = field(init=False, default=None)
    _confirmed: float = field(init=False, default=0.0)
    _touched: set[Lane] = field(init=False, factory=set)
    _flying: dict[int, Lane] = field(init=False, factory=dict)
    _turn: list[str] = field(init=False, factory=list)

    @property
    def many(self) -> bool:
        """
        Whether the lanes are kept, and plans narrowed.
        """
        return self._many

    def question(self, now: float) -> Question:
        """
        What is to be read now (monotonic seconds).
        """
        if self._newest is None or now - self._confirmed >= CONFIRM:
            return Question(newest=self._many)
        if len(self._touched) > TOUCHED_MOST:
            return Question(newest=True)
        return Question(max(0, self._newest - OVERLAP), tuple(self._touched))

    def learn(self, question: Question, news: News, now: float) -> None:
        """
        Take up what was read.
        """
        if question.after is None:
            self._heads = {head.lane: head.queued_at for head in news.heads}
            self._many = len(self._heads) > FEW
            self._newest = news.newest if self._many else None
            self._confirmed = now
            self._touched.clear()
            return
        self._touched.difference_update(question.lanes)
        for lane in question.lanes:
            self._heads.pop(lane, None)
        for head in news.heads:
            at = self._heads.get(head.lane, head.queued_at)
            self._heads[head.lane] = min(at, head.queued_at)
        if news.newest is not None and self._newest is not None:
            self._newest = max(self._newest, news.newest)

    def touch(self, lanes: Iterable[Lane]) -> None:
        """
        Note lanes whose heads may be others by now.
        """
        if self._many:
            self._touched.update(lanes)

    def forget(self) -> None:
        """
        Read all lanes at the next tick: nobody knows what has become of some of them.
        """
        self._newest = None

    def note_flights(self, flights: Mapping[int, Lane]) -> None:
        """
        Note what is in flight: what is not any more may have gone back to its lane.
        """
        self.touch(lane for each, lane in self._flying.items() if each not in flights)
        self._flying = dict(flights)

    def heads(self) -> tuple[LaneHead, ...]:
        """
        All that is known.
        """
        return tuple(LaneHead(lane, at) for lane, at in self._heads.items())

    def narrowed(
        self,
        snapshot: Snapshot,
        limits: Limits,
        closed: Collection[str],
        half_open: Collection[str],
        failed: Collection[Lane],
    ) -> tuple[LaneHead, ...]:
        """
        The heads that a plan may start, oldest first, and no more than may matter.

        :param limits: the caps in force.
        :param closed: keys whose gates are known to be closed.
        :param failed: lanes that may be backing off; they are always among the heads, and none of
            those that are counted.
        """
        free = limits.in_flight - len(snapshot.in_flight)
        if free <= 0:
            return ()
        accounts = Counter(flight.lane.subdomain_hash for flight in snapshot.in_flight)
        keys = Counter(flight.lane.apikey_hash for flight in snapshot.in_flight)
        controls = snapshot.controls
        startable = (
            (at, lane.subdomain_hash, lane.apikey_hash or "", lane)
            for lane, at in self._heads.items()
            if lane.apikey_hash not in closed
            and lane not in failed
            and accounts[lane.subdomain_hash] < limits.of(lane.subdomain_hash)
            and not (lane.apikey_hash in half_open and keys[lane.apikey_hash])
            and controls.pause_of(lane) is None
        )
        chosen: list[LaneHead] = []
        for at, account, _, lane in sorted(startable):
            if len(chosen) >= free:
                break
            if accounts[account] >= limits.of(account):
                continue
            if lane.apikey_hash in half_open and keys[lane.apikey_hash]:
                continue
            accounts[account] += 1
            keys[lane.apikey_hash] += 1
            chosen.append(LaneHead(lane, at))
        chosen += (LaneHead(lane, self._heads[lane]) for lane in failed if lane in self._heads)
        return tuple(chosen)

    def turn(self, closed: Collection[str]) -> list[str]:
        """
        The closed gates whose turn it is to be asked.
        """
        if not self._turn:
            self._turn = sorted(closed)
        count = -(-len(closed) // TURN)
        asked, self._turn = self._turn[:count], self._turn[count:]
        return asked
