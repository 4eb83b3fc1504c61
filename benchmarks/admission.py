"""
How many executions per second the store admits, and whether the caps are exact meanwhile.

One process, then 50 processes at once, each with a connection of its own, admit under the default
caps into a queue that already holds 1,000 executions of 50 accounts; what a round has admitted is
deleted before the next, so that no cap is ever met. Then the caps are what is measured: 50
processes race for the last ten places, first of one account, then of the whole queue.

Submissions are sealed beforehand: a sealed key and a parsed script cost the door, not the store.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from cryptography.fernet import Fernet

from benchmarks.report import Figure, Measured, Stage, median
from crq import executions, schema
from crq.database import Cursor, Database
from crq.instants import instant_of
from crq.messages import Admitted, SealedSubmission, Submission
from crq.model import Limits
from crq.sealing import Sealer
from tests.servers import MariaDB

PROCESSES = 50
WAITING = 1000  # rows that are in the queue before each round
ACCOUNTS = 50
ROUND = 900  # admissions of a round: below what the caps leave
PLACES, RACE = 10, 1000  # in a race for the last places, and how many submissions take part
NOON = instant_of("2026-03-02 12:00:00.000")
LIMITS = Limits()
UNLIMITED = Limits(queued_per_account=10**6, queued_total=10**7)
SEALER = Sealer("benchmark", (Fernet.generate_key().decode(),))


class _Admitters:
    """
    Processes that admit when they are told to; each has a connection of its own.
    """

    def __init__(self, url: str, count: int) -> None:
        # Not forked from here: a progress display has a thread.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.admission"])
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_admit_on_demand, args=(url, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> _Admitters:
        return self

    def __exit__(self, *_error: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # they read the end of it and go
        for process in self._processes:
            process.join()

    def admit(self, parts: list[list[SealedSubmission]]) -> tuple[int, float]:
        """
        Let each process admit its part; tells how many were admitted, and in how many seconds.
        """
        pipes = self._pipes[: len(parts)]
        for pipe, part in zip(pipes, parts, strict=True):
            pipe.send(part)
        for pipe in pipes:
            pipe.recv()  # it has read its part and waits
        begun = time.perf_counter()
        for pipe in pipes:
            pipe.send(None)
        admitted = sum(pipe.recv() for pipe in pipes)
        return admitted, time.perf_counter() - begun


def _admit_on_demand(url: str, pipe: Connection) -> None:
    database = Database(url, timeout=60)
    connection = database.connect()
    try:
        while True:
            part = pipe.recv()
            pipe.send("ready")
            pipe.recv()
            answers = [
                database.transact(connection, executions.admit, submission, LIMITS, NOON)
                for submission in part
            ]
            pipe.send(sum(isinstance(answer, Admitted) for answer in answers))
    except EOFError:
        connection.close()


def run(stage: Stage, rounds: int = 7) -> Measured:
    """
    Measure on MariaDB.
    """
    with MariaDB(flush_log_at_commit=1) as server:
        database = Database(server.create_database("admission"))
        schema.upgrade(database)
        connection = database.connect()
        figures: dict[str, Figure] = {}
        stage("starting processes")
        with _Admitters(database.url, PROCESSES) as admitters:
            last = database.transact(connection, _fill, WAITING, ACCOUNTS)
            for processes in (1, PROCESSES):
                rates = []
                for done in range(rounds):
                    stage(f"{processes} at once", done, rounds)
                    database.transact(connection, _delete, last)
                    admitted, seconds = admitters.admit(_parts(ROUND, processes, ACCOUNTS))
                    if admitted != ROUND:
                        raise RuntimeError(f"{ROUND - admitted} of {ROUND} admissions met a cap")
                    rates.append(admitted / seconds)
                figures[f"rows_per_s_{processes}"] = Figure(median(rates), "1/s")
            over = 0
            for cap, limit, accounts in (
                ("account", LIMITS.queued_per_account, 1),
                ("total", LIMITS.queued_total, ACCOUNTS),
            ):
                stage(f"race for the last places: {cap}")
                database.transact(connection, _delete, 0)
                database.transact(connection, _fill, limit - PLACES, accounts)
                admitters.admit(_parts(RACE, PROCESSES, accounts))
                depth = database.read(connection, _depth)
                figures[f"{cap}_depth_reached"] = Figure(depth, "rows")
                over += max(0, depth - limit)
            figures["over_cap"] = Figure(over, "rows")
        version = str(server.execute("SELECT VERSION()")[0][0])
        connection.close()
    return Measured(figures, {"mariadb": version})


def _parts(count: int, processes: int, accounts: int) -> list[list[SealedSubmission]]:
    """
    So many submissions, spread over processes and accounts.
    """
    submissions = [_submission(n % accounts) for n in range(count)]
    random.Random(count).shuffle(submissions)
    return [submissions[first::processes] for first in range(processes)]


def _submission(account: int) -> SealedSubmission:
    return SEALER.seal(
        Submission(
            subdomain=f"account{account}",
            apikey=f"key of {account}",
            source_code="x = 1\n" * 33,
            payload='{"cardId":1}',
        )
    )


def _fill(txn: Cursor, count: int, accounts: int) -> int:
    """
    Let so many executions wait; returns the id of the last.
    """
    answers = [
        executions.admit(txn, _submission(n % accounts), UNLIMITED, NOON) for n in range(count)
    ]
    return answers[-1].execution_id


def _delete(txn: Cursor, after: int) -> None:
    txn.execute("DELETE FROM codeRunner_executions WHERE execution_id > ?", (after,))


def _depth(txn: Cursor) -> int:
    return int(
        txn.execute("SELECT COUNT(*) FROM codeRunner_executions WHERE status = 'queued'").scalar()
    )
