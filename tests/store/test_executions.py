"""
The transitions, on SQLite and on MariaDB.
"""

from __future__ import annotations

import threading
from typing import Any

import pymysql
import pytest

from crq import executions
from crq.database import Cursor, Database
from crq.instants import instant_text
from crq.messages import Outcome, Rejected
from crq.model import Lane, Limits, Status
from crq.sealing import NONCE_TTL
from tests import rows
from tests.rows import NOON, SEALER

SUCCESS = Outcome(Status.SUCCESS)


def test_execution_goes_its_way(database: Database, connection: Any) -> None:
    """
    From queued to success each instant is written once, in order, and the nonce is used up.
    """
    number = rows.admit(database, connection, at=NOON)
    (claimed,) = rows.claim(database, connection, at=NOON + 1)
    assert rows.row(database, connection, number)["status"] == "claimed"
    assert rows.start(database, connection, claimed, at=NOON + 2)
    assert database.transact(connection, executions.finish, number, SUCCESS, NOON + 3)
    row = rows.row(database, connection, number)
    assert (row["status"], row["error_code"], row["nonce_hash"]) == ("success", None, None)
    instants = [row[name] for name in ("queued_at", "claimed_at", "started_at", "finished_at")]
    assert instants == [instant_text(NOON + seconds) for seconds in range(4)]


def test_only_the_hash_of_the_nonce_is_stored(database: Database, connection: Any) -> None:
    """
    Whoever reads the table cannot start an execution with what is in it.
    """
    number = rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    row = rows.row(database, connection, number)
    assert claimed.nonce not in str(row)
    stolen = database.transact(
        connection, executions.start, number, row["nonce_hash"], "thief", NOON
    )
    assert not stolen


def test_a_nonce_starts_once(database: Database, connection: Any) -> None:
    """
    The second use of a nonce starts nothing.
    """
    rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    assert rows.start(database, connection, claimed)
    assert not rows.start(database, connection, claimed)


@pytest.mark.parametrize("status", ["queued", "running", "success", "cancelled"])
def test_only_a_claimed_row_starts(database: Database, connection: Any, status: str) -> None:
    """
    Whatever went wrong with a row, a nonce that is still on it starts nothing but a claimed one.
    """
    rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    database.transact(
        connection,
        lambda txn: txn.execute("UPDATE codeRunner_executions SET status = ?", (status,)),
    )
    assert not rows.start(database, connection, claimed)


def test_what_does_not_fit_is_not_cut(database: Database, connection: Any) -> None:
    """
    A value that a column cannot hold is an error that leaves nothing, never a silent cut: an
    INSERT that ignored duplicates would ignore that too (ruling 11).
    """
    if database.dialect == "sqlite":
        pytest.skip("SQLite's columns hold any length")
    given = rows.submission(identifier="x" * 300)
    with pytest.raises(pymysql.err.DataError):
        database.transact(connection, executions.admit, given, rows.LIMITS, NOON)
    with pytest.raises(pymysql.err.DataError):
        database.transact(connection, executions.record_invalid, given, "no", 1, 1, NOON)
    assert database.read(connection, executions.heads) == ()


def test_one_nonce_has_one_winner(database: Database) -> None:
    """
    Of many parallel uses of one nonce one is accepted (F109).
    """
    connection = database.connect()
    rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    connection.close()
    won: list[bool] = []
    barrier = threading.Barrier(12)

    def use() -> None:
        mine = database.connect()
        barrier.wait()
        won.append(rows.start(database, mine, claimed))
        mine.close()

    _in_threads(use, 12)
    assert sorted(won) == [False] * 11 + [True]


def test_a_late_nonce_starts_nothing(database: Database, connection: Any) -> None:
    """
    A nonce older than 300 s is refused, and the row can be released and claimed anew.
    """
    number = rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    assert not rows.start(database, connection, claimed, at=NOON + NONCE_TTL + 0.001)
    assert database.transact(connection, executions.release, number, claimed.claim_epoch)
    (again,) = rows.claim(database, connection, at=NOON + 400)
    assert not rows.start(database, connection, claimed, at=NOON + 401)
    assert rows.start(database, connection, again, at=NOON + 401)


def test_a_released_row_keeps_its_place(database: Database, connection: Any) -> None:
    """
    A released row is claimed before rows that were queued after it; its old nonce is worthless.
    """
    first = rows.admit(database, connection, at=NOON)
    second = rows.admit(database, connection, at=NOON + 1)
    one = Limits(in_flight=1, per_account=1)
    (claimed,) = rows.claim(database, connection, limits=one)
    assert claimed.execution_id == first
    assert database.transact(connection, executions.release, first, claimed.claim_epoch)
    row = rows.row(database, connection, first)
    assert (row["status"], row["queued_at"]) == ("queued", instant_text(NOON))
    assert (row["claimed_at"], row["nonce_hash"], row["drainer_id"]) == (None, None, None)
    assert not rows.start(database, connection, claimed)
    assert rows.claim(database, connection, limits=one)[0].execution_id == first != second


def test_a_release_of_an_old_claim_leaves_the_new_one(database: Database, connection: Any) -> None:
    """
    Releasing by the epoch of an earlier claim does not touch a row that was claimed anew.
    """
    number = rows.admit(database, connection)
    (old,) = rows.claim(database, connection)
    database.transact(connection, executions.release, number, old.claim_epoch)
    (new,) = rows.claim(database, connection)
    assert not database.transact(connection, executions.release, number, old.claim_epoch)
    assert rows.start(database, connection, new)


def test_a_running_row_is_not_released(database: Database, connection: Any) -> None:
    """
    What has begun never goes back to the queue.
    """
    number = rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    rows.start(database, connection, claimed)
    assert not database.transact(connection, executions.release, number, claimed.claim_epoch)
    assert rows.row(database, connection, number)["status"] == "running"


def test_a_claim_holds_both_caps(database: Database, connection: Any) -> None:
    """
    With many rows of three accounts, 4 are claimed and 2 of each account at most, oldest first.
    """
    for second in range(6):
        rows.admit(database, connection, "acme", at=NOON + second)
    bravo = rows.admit(database, connection, "bravo", at=NOON + 10)
    late = [rows.admit(database, connection, "carla", at=NOON + 11 + n) for n in range(3)]
    claimed = rows.claim(database, connection, at=NOON + 20)
    assert [row.execution_id for row in claimed] == [1, 2, bravo, late[0]]
    assert rows.claim(database, connection, at=NOON + 21) == ()


def test_a_stale_plan_cannot_break_the_caps(database: Database, connection: Any) -> None:
    """
    Two claims from one and the same plan take no more than the caps allow.
    """
    for account in ("acme", "bravo", "carla"):
        for _ in range(3):
            rows.admit(database, connection, account)
    snapshot = database.read(connection, executions.snapshot, 4)
    from crq import policy

    plan = policy.plan(snapshot, {}, rows.LIMITS, NOON)
    taken = [
        database.transact(
            connection, executions.claim, plan, rows.LIMITS, "d", NOON, lambda: "nonce"
        )
        for _ in range(2)
    ]
    assert [len(claimed) for claimed in taken] == [4, 0]


def test_parallel_drainers_hold_the_caps(database: Database) -> None:
    """
    Several drainers that claim at once never have more in flight than one would.
    """
    connection = database.connect()
    for number in range(30):
        rows.admit(database, connection, f"account{number % 5}", at=NOON + number)
    barrier = threading.Barrier(4)
    claimed: list[int] = []

    def drain() -> None:
        mine = database.connect()
        barrier.wait()
        for _ in range(3):
            claimed.extend(row.execution_id for row in rows.claim(database, mine, at=NOON + 60))
        mine.close()

    _in_threads(drain, 4)
    assert len(claimed) == len(set(claimed)) == 4
    flights = database.read(connection, executions.in_flight)
    assert {flight.execution_id for flight in flights} == set(claimed)
    connection.close()


def test_gated_rows_do_not_hide_others(database: Database, connection: Any) -> None:
    """
    600 older rows behind a gate do not keep another key's rows waiting (F50).
    """
    account = SEALER.account("acme")

    def flood(txn: Cursor) -> None:
        rows.insert_queued(txn, account, "a" * 64, NOON, 600)

    database.transact(connection, flood)
    others = [
        rows.admit(
            database, connection, "acme", "other", at=NOON + 60, limits=Limits(4, 2, 5000, 5000)
        )
        for _ in range(5)
    ]
    claimed = rows.claim(database, connection, at=NOON + 61, gates={"a" * 64: NOON + 3600})
    assert [row.execution_id for row in claimed] == others[:2]


def test_lane_heads_are_the_oldest_of_each_lane(database: Database, connection: Any) -> None:
    """
    Heads are read by account and key; rows without a key are a lane of their own.
    """

    def insert(txn: Cursor) -> None:
        for account, key, at in (
            ("a" * 64, "k" * 64, NOON + 5),
            ("a" * 64, "k" * 64, NOON + 3),
            ("a" * 64, None, NOON + 4),
            ("a" * 64, None, NOON + 2),
            ("b" * 64, "k" * 64, NOON + 1),
            ("c" * 64, None, NOON),
        ):
            rows.insert_queued(txn, account, key, at)

    database.transact(connection, insert)
    heads = database.read(connection, executions.heads)
    assert {(head.lane, head.queued_at) for head in heads} == {
        (Lane("a" * 64, "k" * 64), NOON + 3),
        (Lane("a" * 64, None), NOON + 2),
        (Lane("b" * 64, "k" * 64), NOON + 1),
        (Lane("c" * 64, None), NOON),
    }


def test_heads_are_read_only_when_a_slot_is_free(database: Database, connection: Any) -> None:
    """
    A full pool costs one statement a tick.
    """
    for account in ("acme", "bravo", "carla"):
        for _ in range(2):
            rows.admit(database, connection, account)
    rows.claim(database, connection)
    snapshot = database.read(connection, executions.snapshot, 4)
    assert len(snapshot.in_flight) == 4
    assert snapshot.heads == ()


def test_rows_of_one_instant_go_by_id(database: Database, connection: Any) -> None:
    """
    Two rows of the same millisecond start in the order of their ids.
    """
    numbers = [rows.admit(database, connection, at=NOON) for _ in range(5)]
    order: list[int] = []
    while claimed := rows.claim(database, connection, limits=Limits(1, 1)):
        order.append(claimed[0].execution_id)
        rows.start(database, connection, claimed[0])
        database.transact(connection, executions.finish, order[-1], SUCCESS, NOON)
    assert order == numbers


def test_instants_are_cut_and_stay_in_order(database: Database, connection: Any) -> None:
    """
    Admitted, claimed, started and finished within one ms just before midnight, a row is claimable
    at once and no instant is rounded into the next day (F18).
    """
    late = NOON + 12 * 3600 - 0.0004
    number = rows.admit(database, connection, at=late)
    (claimed,) = rows.claim(database, connection, at=late)
    assert rows.start(database, connection, claimed, at=late)
    assert database.transact(connection, executions.finish, number, SUCCESS, late)
    row = rows.row(database, connection, number)
    stored = {row[name] for name in ("queued_at", "claimed_at", "started_at", "finished_at")}
    assert stored == {"2026-03-02 23:59:59.999"}


def test_a_clock_that_is_behind_breaks_no_order(database: Database, connection: Any) -> None:
    """
    Hosts whose clocks are minutes behind still write queued ≤ claimed ≤ started ≤ finished.
    """
    number = rows.admit(database, connection, at=NOON)
    (claimed,) = rows.claim(database, connection, at=NOON - 60)
    assert rows.start(database, connection, claimed, at=NOON - 120)
    assert database.transact(connection, executions.finish, number, SUCCESS, NOON - 180)
    row = rows.row(database, connection, number)
    instants = [row[name] for name in ("queued_at", "claimed_at", "started_at", "finished_at")]
    assert instants == sorted(instants)


def test_a_real_outcome_replaces_unknown(database: Database, connection: Any) -> None:
    """
    A worker taken for dead that finishes after all is believed; a second outcome is not.
    """
    number = rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    rows.start(database, connection, claimed)
    assert database.transact(connection, executions.died, number, NOON + 1)
    assert rows.row(database, connection, number)["error_code"] == 303
    late = Outcome(Status.FAILED, 301, "no such card")
    assert database.transact(connection, executions.finish, number, late, NOON + 2)
    assert rows.row(database, connection, number)["error_code"] == 301
    assert not database.transact(connection, executions.finish, number, SUCCESS, NOON + 3)
    assert not database.transact(connection, executions.died, number, NOON + 4)
    assert rows.row(database, connection, number)["error_message"] == "no such card"


def test_a_row_that_never_started_gets_no_outcome(database: Database, connection: Any) -> None:
    """
    An outcome for a row that is queued, claimed or aged out changes nothing.
    """
    number = rows.admit(database, connection)
    assert not database.transact(connection, executions.finish, number, SUCCESS, NOON)
    rows.claim(database, connection)
    assert not database.transact(connection, executions.finish, number, SUCCESS, NOON)
    other = rows.admit(database, connection, "bravo")
    assert database.transact(connection, executions.reap_queued, NOON + 1, NOON + 1) == 1
    assert not database.transact(connection, executions.finish, other, SUCCESS, NOON + 2)
    row = rows.row(database, connection, other)
    assert (row["status"], row["error_code"], row["started_at"]) == ("failed", 303, None)


def test_a_row_of_its_own_fault_fails_before_its_start(database: Database, connection: Any) -> None:
    """
    106 closes a claimed row: finished, never started, its nonce gone.
    """
    number = rows.admit(database, connection)
    (claimed,) = rows.claim(database, connection)
    assert database.transact(
        connection, executions.fail_dispatch, number, claimed.claim_epoch, "no key", NOON + 1
    )
    row = rows.row(database, connection, number)
    assert (row["status"], row["error_code"], row["started_at"]) == ("failed", 106, None)
    assert not rows.start(database, connection, claimed)


def test_cancelling_is_for_queued_rows(database: Database, connection: Any) -> None:
    """
    A queued row can be cancelled; a claimed or running one cannot.
    """
    first, second = (rows.admit(database, connection, account) for account in ("acme", "bravo"))
    assert database.transact(connection, executions.cancel, first, NOON)
    (claimed,) = rows.claim(database, connection)
    assert claimed.execution_id == second
    assert not database.transact(connection, executions.cancel, second, NOON)
    assert rows.row(database, connection, first)["status"] == "cancelled"


def test_the_refusal_is_exact_and_visible(database: Database, connection: Any) -> None:
    """
    At the cap an admission is refused with a row that carries 107 and is never claimed.
    """
    limits = Limits(queued_per_account=3, queued_total=4)
    for _ in range(3):
        rows.admit(database, connection, "acme", limits=limits)
    refused = database.transact(
        connection, executions.admit, rows.submission("acme"), limits, NOON + 1
    )
    assert isinstance(refused, Rejected)
    assert (refused.depth, refused.limit) == ("account", 3)
    row = rows.row(database, connection, refused.execution_id)
    assert (row["status"], row["error_code"], row["job_id"]) == ("rejected", 107, None)
    rows.admit(database, connection, "bravo", limits=limits)
    total = database.transact(
        connection, executions.admit, rows.submission("carla"), limits, NOON + 2
    )
    assert isinstance(total, Rejected)
    assert total.depth == "total"


def test_keys_are_scrubbed_after_the_end_only(database: Database, connection: Any) -> None:
    """
    A key is wiped a while after its execution finished, never while it waits or runs (ruling 2).
    """
    done, waiting = rows.admit(database, connection), rows.admit(database, connection, "bravo")
    (first, second) = rows.claim(database, connection)
    assert (first.execution_id, second.execution_id) == (done, waiting)
    database.transact(connection, executions.release, waiting, second.claim_epoch)
    rows.start(database, connection, first)
    database.transact(connection, executions.finish, done, SUCCESS, NOON)
    assert database.transact(connection, executions.scrub, NOON, 10) == 0
    assert database.transact(connection, executions.scrub, NOON + 1, 10) == 1
    assert database.transact(connection, executions.scrub, NOON + 1, 10) == 0
    kept = database.read(connection, executions.startable, second.job_id)
    assert kept is not None
    assert SEALER.unseal(kept.sealed_apikey) == "key"
    wiped = database.read(connection, executions.startable, first.job_id)
    assert wiped is not None
    assert wiped.sealed_apikey is None


def test_purge_goes_by_the_day_it_was_queued(database: Database, connection: Any) -> None:
    """
    Finished rows go, with their jobs, in batches; rows that still wait stay (ruling 3).
    """
    for account in ("acme", "bravo", "carla"):
        number = rows.admit(database, connection, account)
        database.transact(connection, executions.cancel, number, NOON + 9999)
    waiting = rows.admit(database, connection, "delta")
    assert database.transact(connection, executions.purge, NOON, 2) == 0
    purge = [database.transact(connection, executions.purge, NOON + 1, 2) for _ in range(3)]
    assert purge == [2, 1, 0]
    assert rows.row(database, connection, waiting)["status"] == "queued"

    def jobs(txn: Cursor) -> int:
        return int(txn.execute("SELECT COUNT(*) FROM codeRunner_jobs").scalar())

    assert database.read(connection, jobs) == 1


def test_a_lost_lock_row_is_an_error(database: Database, connection: Any) -> None:
    """
    Without its lock row a claim refuses to work instead of working without a lock.
    """
    rows.admit(database, connection)
    database.transact(connection, lambda txn: txn.execute("DELETE FROM codeRunner_drain"))
    try:
        with pytest.raises(RuntimeError, match="crq db upgrade"):
            rows.claim(database, connection)
    finally:
        database.transact(
            connection,
            lambda txn: txn.execute("INSERT INTO codeRunner_drain (id, epoch) VALUES (1, 0)"),
        )


def _in_threads(function: Any, count: int) -> None:
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
