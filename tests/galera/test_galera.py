"""
Drainers and admission on different nodes of Galera: I1 to I7 hold while nodes come and go.
``python -m benchmarks galera`` is the long form.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from attrs import evolve

from crq import executions, schema
from crq.config import Config, DatabaseOptions, ExecutorOptions
from crq.database import Database
from crq.messages import Admitted, Outcome
from crq.model import Limits, Status
from tests import rows
from tests.effects import script
from tests.galera.boxes import Boxes, depths
from tests.galera.cluster import Cluster
from tests.journal import Change
from tests.rows import NOON

pytestmark = pytest.mark.slow


@pytest.fixture
def databases(cluster: Cluster) -> list[Database]:
    """
    One empty queue, as each node shows it.
    """
    cluster.nodes[0].create_database("queue")
    found = [Database(node.dsn("queue"), galera=True) for node in cluster.nodes]
    schema.upgrade(found[0])
    return found


@pytest.fixture
def connections(databases: list[Database]) -> Iterator[list[Any]]:
    """
    A connection to each.
    """
    opened = [database.connect() for database in databases]
    yield opened
    for each in opened:
        each.close()


def test_what_one_node_has_committed_the_next_one_sees(
    databases: list[Database], connections: list[Any]
) -> None:
    """
    A nonce that is claimed on one node is worth something on another at once, and its outcome is
    seen on the third: 60 executions in a row, and none of them meets 113.
    """
    (one, two, three), (first, second, third) = databases, connections
    for number in range(60):
        execution = rows.admit(one, first, f"a{number}")
        (claimed,) = rows.claim(two, second)
        assert claimed.execution_id == execution
        assert rows.start(three, third, claimed)
        assert one.transact(first, executions.finish, execution, Outcome(Status.SUCCESS), NOON + 1)
        state = two.read(second, executions.row_states, [execution])[execution]
        assert state.status == "success"


def test_the_caps_hold_over_all_nodes(databases: list[Database]) -> None:
    """
    Three drainers claim on three nodes as fast as they can: conflicts are repeated and never seen,
    and no more than four are in flight, counted in the claims' own order.
    """
    connection = databases[0].connect()
    for number in range(90):
        rows.admit(databases[0], connection, f"a{number % 6}", at=NOON + number)
    limits, done = Limits(), Counter[int]()
    repeated: list[BaseException] = []
    faults: list[BaseException] = []
    lock, flying = threading.Lock(), set[int]()
    most = [0]

    def drain(database: Database, name: str) -> None:
        own = evolve(database, repeated=repeated.append)
        opened = own.connect()
        try:
            deadline = time.monotonic() + 60
            while sum(done.values()) < 90 and time.monotonic() < deadline:
                for claimed in rows.claim(own, opened, NOON + 100, limits, name):
                    with lock:
                        flying.add(claimed.execution_id)
                        most[0] = max(most[0], len(flying))
                    assert rows.start(own, opened, claimed, NOON + 100)
                    with lock:  # before it is finished: from then on it may be replaced
                        flying.remove(claimed.execution_id)
                        done[claimed.execution_id] += 1
                    own.transact(
                        opened,
                        executions.finish,
                        claimed.execution_id,
                        Outcome(Status.SUCCESS),
                        NOON + 101,
                    )
        except BaseException as error:
            faults.append(error)
        finally:
            opened.close()

    threads = [
        threading.Thread(target=drain, args=(database, f"d{number}"))
        for number, database in enumerate(databases)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.close()
    assert faults == []
    assert most[0] <= 4
    assert len(done) == 90
    assert set(done.values()) == {1}
    assert repeated  # else this has shown nothing
    assert {error.args[0] for error in repeated} <= {1213, 1205, 1020}


def test_a_claim_is_undone_by_one_that_came_first(
    databases: list[Database], connections: list[Any]
) -> None:
    """
    Two claims that have both counted an empty executor: the second to commit is undone whole, since
    each has written the lock row; a lock that is only read would have let both through.
    """
    (one, two, _), (first, second, _) = databases, connections
    rows.admit(one, first, "acme")
    slow, quick = first.cursor(), second.cursor()
    slow.execute("BEGIN")
    slow.execute("UPDATE codeRunner_drain SET epoch = epoch + 1 WHERE id = 1")
    slow.execute("SELECT COUNT(*) FROM codeRunner_executions WHERE status = 'claimed'")
    assert slow.fetchone() == (0,)
    assert len(rows.claim(two, second)) == 1
    with pytest.raises(pymysql.err.OperationalError) as undone:
        slow.execute("COMMIT")
    assert undone.value.args[0] == 1213
    slow.execute("ROLLBACK")
    quick.close()


def test_the_depth_is_exact_over_all_nodes(databases: list[Database]) -> None:
    """
    Three callers on three nodes race for the last places: 25 get in, and not one more.
    """
    limits = Limits(queued_per_account=25)
    admitted = Counter[str]()
    faults: list[BaseException] = []

    def admit(database: Database) -> None:
        opened = database.connect()
        try:
            for _ in range(15):
                sealed = rows.submission("acme")
                answer = database.transact(opened, executions.admit, sealed, limits, NOON)
                admitted[type(answer).__name__] += 1
        except BaseException as error:
            faults.append(error)
        finally:
            opened.close()

    threads = [threading.Thread(target=admit, args=(each,)) for each in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert admitted == {Admitted.__name__: 25, "Rejected": 20}


def test_locks_of_one_node_are_not_trusted() -> None:
    """
    A configuration for Galera that would take a living worker for dead is refused by name.
    """
    with pytest.raises(ValueError, match=r'executor\.liveness: "lock" with database\.cluster'):
        Config(database=DatabaseOptions("mysql://u@h/d", cluster="galera"))
    good = ExecutorOptions(liveness="wall")
    assert (
        Config(database=DatabaseOptions("mysql://u@h/d", cluster="galera"), executor=good)
        .open_database()
        .galera
    )


def test_nodes_come_and_go(cluster: Cluster, tmp_path: Path) -> None:
    """
    Three boxes drain one queue; one node is killed and comes back, another is isolated and found
    again. What was accepted has ended, no effect came twice, no cap was broken, and the queue went
    on while either was away.
    """
    boxes = Boxes(cluster, tmp_path)
    site = boxes.site
    try:
        boxes.start()
        site.until(
            lambda: all(each.get("/health/ready")[0] == 200 for each in boxes.daemons), "not ready"
        )
        over = threading.Event()
        load = threading.Thread(target=_submit, args=(boxes, over))
        load.start()
        time.sleep(1.5)
        killed_at = time.time()
        cluster.nodes[2].kill()
        time.sleep(4)
        cluster.nodes[2].start()
        isolated_at = time.time()
        cluster.nodes[1].isolate()
        time.sleep(4)
        cluster.nodes[1].rejoin()
        cluster.until(3)
        over.set()
        load.join()
        assert boxes.until_ended(60), dict(site.statuses())
        assert boxes.problems() == []
        ended = site.statuses()
        assert ended["success"] >= 0.8 * sum(ended.values())
        for away_at in (killed_at, isolated_at):
            took = boxes.failover(away_at)
            assert took is not None
            assert took < 6
    finally:
        boxes.close()


def _submit(boxes: Boxes, over: threading.Event) -> None:
    number = turn = 0
    while not over.is_set():
        number += 1
        account = f"account{number % 4}"
        identifier = f"{number}/1"
        fields = {
            "subdomain": account,
            "apikey": f"{account}.0",
            "source_code": script(number, 0.1),
            "identifier": identifier,
        }
        word = None
        while word is None:
            turn += 1
            word = boxes.submit(turn, str(number), fields)
            time.sleep(0.1)
        boxes.site.answers[identifier] = word


def test_depths_are_counted() -> None:
    """
    The judge of I7 sees a row too many, and counts none that goes back to the queue.
    """

    def change(number: int, old: str | None, new: str) -> Change:
        return Change(number, number, "a", None, old, new, None, "", None, float(number))

    full = [change(1, None, "queued"), change(2, None, "queued")]
    assert depths(full, 2, 2) == []
    assert len(depths([*full, change(3, None, "queued")], 2, 3)) == 1
    assert depths([*full, change(3, "claimed", "queued")], 2, 2) == []
    assert depths([*full, change(1, "queued", "claimed"), change(4, None, "queued")], 2, 2) == []
