"""
What a tick reads before it plans: what is in flight, what is set, the lanes.

# Note [Few statements]

A statement costs both sides more than the handful of index entries it reads. So what is wanted at
the same moment is asked in one, its parts joined by UNION ALL: each part is planned by itself (the
lane heads keep their loose scan) and nothing is sorted or stored in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from attrs import evolve

from crq import controls
from crq.database import Cursor
from crq.executions.rows import instant, set_instant
from crq.lanes import News, Question
from crq.model import InFlight, Lane, LaneHead, Snapshot, Status
from crq.plain import MARK

_IN_FLIGHT = """
    SELECT execution_id, subdomain_hash, apikey_hash, status, claim_epoch, drainer_id, claimed_at,
           started_at, worker_id
      FROM codeRunner_executions
     WHERE status IN ('claimed', 'running')
"""

# One seek for each state; the whole question costs an idle server three times as much.
_ANYTHING = """
    SELECT 1 FROM codeRunner_executions WHERE status IN ('queued', 'claimed', 'running') LIMIT 1
"""

# The same with what operators have set, in the columns of the first part (note [Few statements]).
_STATE = """
    SELECT 'flight', execution_id, subdomain_hash, apikey_hash, status, claim_epoch, drainer_id,
           claimed_at, started_at, worker_id
      FROM codeRunner_executions
     WHERE status IN ('claimed', 'running')
     UNION ALL
    SELECT 'control', value, subdomain_hash, apikey_hash, kind, NULL, name, set_at, NULL, NULL
      FROM codeRunner_controls
"""

# idx_lane; a loose index scan, only because status is in the GROUP BY ("Using index for group-by").
_HEADS_MYSQL = """
    SELECT status, subdomain_hash, apikey_hash, MIN(queued_at)
      FROM codeRunner_executions
     WHERE status = 'queued'
     GROUP BY status, subdomain_hash, apikey_hash
"""

# idx_lane; SQLite has no loose scan, so two seeks a lane are spelled out.
_HEADS_SQLITE = """
    WITH RECURSIVE lanes (a, k, q) AS (
        SELECT * FROM (
            SELECT subdomain_hash, apikey_hash, queued_at FROM codeRunner_executions
             WHERE status = 'queued' ORDER BY subdomain_hash, apikey_hash, queued_at LIMIT 1)
        UNION ALL
        SELECT n.subdomain_hash, n.apikey_hash, n.queued_at
          FROM lanes JOIN codeRunner_executions n ON n.execution_id = COALESCE(
            (SELECT execution_id FROM codeRunner_executions
              WHERE status = 'queued' AND subdomain_hash = lanes.a
                AND apikey_hash > COALESCE(lanes.k, '')
              ORDER BY apikey_hash, queued_at LIMIT 1),
            (SELECT execution_id FROM codeRunner_executions
              WHERE status = 'queued' AND subdomain_hash > lanes.a
              ORDER BY subdomain_hash, apikey_hash, queued_at LIMIT 1)))
    SELECT 'queued', a, k, q FROM lanes
"""

_STATE_AND_HEADS_MYSQL = f"""{_STATE}
     UNION ALL
    SELECT 'head', NULL, subdomain_hash, apikey_hash, NULL, NULL, NULL, MIN(queued_at), NULL, NULL
      FROM codeRunner_executions
     WHERE status = 'queued'
     GROUP BY status, subdomain_hash, apikey_hash
"""

_STATE_AND_HEADS_SQLITE = f"""{_STATE}
     UNION ALL
    SELECT 'head', NULL, a, k, NULL, NULL, NULL, q, NULL, NULL
      FROM ({_HEADS_SQLITE.replace("'queued', a, k, q", "a, k, q")})
"""

# What may have changed of the lanes (`crq.lanes`). By the primary key, whatever the status: an
# index on that would lead through all that waits.
_NEW = """
     UNION ALL
    SELECT 'new', MAX(execution_id), subdomain_hash, apikey_hash, status, NULL, NULL,
           MIN(queued_at), NULL, NULL
      FROM codeRunner_executions{hint}
     WHERE execution_id > ?
     GROUP BY {plus}status, {plus}subdomain_hash, {plus}apikey_hash
"""
_NEW_MYSQL = _NEW.format(hint=" FORCE INDEX (PRIMARY)", plus="")
_NEW_SQLITE = _NEW.format(hint=" NOT INDEXED", plus="+")

_HEAD_OF_MYSQL = """
     UNION ALL
    (SELECT 'lane', ?, NULL, NULL, NULL, NULL, NULL, queued_at, NULL, NULL
       FROM codeRunner_executions
      WHERE status = 'queued' AND subdomain_hash = ? AND apikey_hash <=> ?
      ORDER BY queued_at LIMIT 1)
"""
_HEAD_OF_SQLITE = """
     UNION ALL
    SELECT * FROM (
        SELECT 'lane', ?, NULL, NULL, NULL, NULL, NULL, queued_at, NULL, NULL
          FROM codeRunner_executions
         WHERE status = 'queued' AND subdomain_hash = ? AND apikey_hash IS ?
         ORDER BY queued_at LIMIT 1)
"""

_NEWEST = """
     UNION ALL
    SELECT 'newest', MAX(execution_id), NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           NULL
      FROM codeRunner_executions
"""


def in_flight(txn: Cursor) -> tuple[InFlight, ...]:
    """
    Read what holds a slot: at most as many rows as the global cap, counted by the caller.
    """
    return tuple(map(_flight, txn.execute(_IN_FLIGHT).all()))


def _flight(row: Sequence[Any]) -> InFlight:
    return InFlight(
        execution_id=int(row[0]),  # a union of kinds of integers is a decimal
        lane=Lane(row[1], row[2]),
        status=Status(row[3]),
        claim_epoch=row[4],
        drainer_id=row[5],
        claimed_at=instant(row[6]),
        started_at=instant(row[7]),
        begun_by=row[8] if (row[8] or "").startswith(MARK) else None,
    )


def state(txn: Cursor, with_heads: bool) -> Snapshot:
    """
    Read what is in flight, what operators have set and, where wanted, the heads, in one statement.
    """
    text = _STATE
    if with_heads:
        text = _STATE_AND_HEADS_SQLITE if txn.dialect == "sqlite" else _STATE_AND_HEADS_MYSQL
    return _snapshot(_parts(txn, text))


def _parts(
    txn: Cursor, text: str, values: Sequence[object] = ()
) -> defaultdict[str, list[Sequence[Any]]]:
    parts: defaultdict[str, list[Sequence[Any]]] = defaultdict(list)
    for part, *row in txn.execute(text, values).all():
        parts[part].append(row)
    return parts


def _snapshot(parts: defaultdict[str, list[Sequence[Any]]]) -> Snapshot:
    return Snapshot(
        tuple(LaneHead(Lane(row[1], row[2]), set_instant(row[6])) for row in parts["head"]),
        tuple(map(_flight, parts["flight"])),
        controls.of(
            (kind, name, value, account, key, at)
            for value, account, key, kind, _, name, at, _, _ in parts["control"]
        ),
    )


def heads(txn: Cursor) -> tuple[LaneHead, ...]:
    """
    Read the oldest queued instant of each lane, by index seeks alone.
    """
    rows = txn.execute(_HEADS_SQLITE if txn.dialect == "sqlite" else _HEADS_MYSQL).all()
    return tuple(LaneHead(Lane(row[1], row[2]), set_instant(row[3])) for row in rows)


def waits(txn: Cursor) -> bool:
    """
    Tell whether anything is queued, by one index seek.
    """
    row = txn.execute("SELECT 1 FROM codeRunner_executions WHERE status = 'queued' LIMIT 1").one()
    return row is not None


def waiting(txn: Cursor, lane: Lane) -> int:
    """
    Count a lane's queued rows (idx_lane); admission's caps bound how many there are.
    """
    same = "IS" if txn.dialect == "sqlite" else "<=>"
    count = txn.execute(
        "SELECT COUNT(*) FROM codeRunner_executions"
        f" WHERE status = 'queued' AND subdomain_hash = ? AND apikey_hash {same} ?",
        (lane.subdomain_hash, lane.apikey_hash),
    ).scalar()
    return int(count)


def snapshot(txn: Cursor, slots: int | None = None, expected: int = 0) -> Snapshot:
    """
    Read what a plan needs, in one statement; heads only when a slot is free.

    :param slots: the configured cap, which operators may have changed; 0: look for no work; None:
        read everything, whatever is in flight.
    :param expected: how many executions the caller knows to be in flight. When they fill the slots
        the heads are not read at once, and in a second statement if there is room all the same.
    """
    if slots is None:
        return state(txn, with_heads=True)
    if not slots:
        return Snapshot((), in_flight(txn))
    found = state(txn, with_heads=expected < slots)
    cap = slots if found.controls.in_flight is None else found.controls.in_flight
    if len(found.in_flight) >= cap:
        return evolve(found, heads=())
    return found if expected < slots else evolve(found, heads=heads(txn))


def news(txn: Cursor, question: Question) -> tuple[Snapshot, News]:
    """
    Read, in one statement, what is in flight, what is set, and what an index of lanes asks.

    The heads are in the news and not in the snapshot. Where nothing waits and nothing runs it is a
    cheaper statement that says so, if the question takes that for likely.
    """
    if question.idle and txn.execute(_ANYTHING).one() is None:
        return Snapshot(), News((), None)
    lite = txn.dialect == "sqlite"
    values: list[object] = []
    if question.after is None:
        text = _STATE_AND_HEADS_SQLITE if lite else _STATE_AND_HEADS_MYSQL
        text += _NEWEST if question.newest else ""
    else:
        text = _STATE + (_NEW_SQLITE if lite else _NEW_MYSQL)
        text += (_HEAD_OF_SQLITE if lite else _HEAD_OF_MYSQL) * len(question.lanes)
        values.append(question.after)
        for number, lane in enumerate(question.lanes):
            values += (number, lane.subdomain_hash, lane.apikey_hash)
    parts = _parts(txn, text, values)
    found = _snapshot(parts)
    heads = [
        *found.heads,
        *(LaneHead(question.lanes[int(row[0])], set_instant(row[6])) for row in parts["lane"]),
        *(
            LaneHead(Lane(row[1], row[2]), set_instant(row[6]))
            for row in parts["new"]
            if row[3] == Status.QUEUED.value
        ),
    ]
    ids = [int(row[0]) for row in (*parts["new"], *parts["newest"]) if row[0] is not None]
    return evolve(found, heads=()), News(tuple(heads), max(ids, default=None))
