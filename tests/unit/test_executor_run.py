"""
The way of one execution, in one process on SQLite.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from typing import Any

from crq import executions, gatehistory
from crq.database import CommitUnknown
from crq.executor import interpret
from crq.executor.api import ApiClient
from crq.executor.run import PAUSES
from crq.liveness import Liveness, LockBusy
from tests import rows
from tests.fake_api import Answer, FakeApi
from tests.rows import NOON
from tests.workers import DoorCase


class Busy(Liveness):
    """
    Locks that somebody else holds.
    """

    def hold(self, execution_id: int) -> Any:
        raise LockBusy(execution_id)


class DispatchTests(DoorCase):
    """
    What a dispatch is answered, and what becomes of its row.
    """

    def test_success(self) -> None:
        """
        A claimed execution is started, run and finished, and the answer says so.
        """
        claimed = self.claimed("x = payload['a'] + 1", payload='{"a": 1}')
        status, answer = self.dispatch(claimed)
        self.assertEqual(status, 200)
        self.assertEqual(
            answer,
            {
                "executionId": claimed.execution_id,
                "status": "success",
                "errorCode": None,
                "errorMessage": None,
            },
        )
        row = self.row(claimed)
        self.assertEqual((row["status"], row["error_code"]), ("success", None))
        self.assertEqual(row["started_at"], "2026-03-02 12:00:00.000")
        self.assertIn(f":{os.getpid()}:", row["worker_id"])
        self.assertIsNone(row["nonce_hash"])

    def test_without_a_nonce(self) -> None:
        """
        A request without a nonce is 112, whatever its shape; the row waits.
        """
        claimed = self.claimed()
        for form in (b"", b"jobId=1", b"jobId=1&asyncNonce=", b"\xff\x00", b'{"asyncNonce": 1}'):
            status, answer = self.request("POST", "/codeRunner/runAsync", form)
            self.assertEqual((status, answer["errorCode"]), (400, 112), form)
        self.assertEqual(self.row(claimed)["status"], "claimed")

    def test_a_nonce_that_does_not_fit(self) -> None:
        """
        A wrong nonce, another job, no such job, or what is no number of a job: 113, nothing runs.
        """
        claimed, other = self.claimed(), self.claimed("fail('other')", account="beta")
        for changes in (
            {"asyncNonce": "guess"},
            {"asyncNonce": "ñ\ud7ff"},
            {"jobId": other.job_id},
            {"jobId": 4711},
            {"jobId": ""},
            {"jobId": "1 OR 1"},
            {"jobId": "9" * 30},
            {"jobId": "²"},
        ):
            status, answer = self.dispatch(claimed, **changes)
            self.assertEqual((status, answer["errorCode"]), (409, 113), changes)
        for each in (claimed, other):
            self.assertEqual(self.row(each)["status"], "claimed")
        self.assertEqual(self.dispatch(claimed)[0], 200)

    def test_a_nonce_is_used_once(self) -> None:
        """
        The nonce that started an execution starts nothing any more; the outcome stays.
        """
        claimed = self.claimed("fail('once')")
        self.assertEqual(self.dispatch(claimed)[1]["errorCode"], 301)
        before = self.row(claimed)
        status, answer = self.dispatch(claimed)
        self.assertEqual((status, answer["errorCode"]), (409, 113))
        self.assertEqual(self.row(claimed), before)

    def test_a_nonce_expires(self) -> None:
        """
        After 300 s a nonce is worth nothing, by the executor's own clock.
        """
        claimed = self.claimed()
        self.time.offset += 301
        self.assertEqual(self.dispatch(claimed)[1]["errorCode"], 113)
        self.time.offset -= 1
        self.assertEqual(self.dispatch(claimed)[0], 200)

    def test_a_nonce_is_replaced(self) -> None:
        """
        Once the drainer has minted a newer nonce, the older one starts nothing.
        """
        claimed = self.claimed()
        self.database.transact(
            self.rows, executions.release, claimed.execution_id, claimed.claim_epoch
        )
        (again,) = rows.claim(self.database, self.rows)
        self.assertEqual(self.dispatch(claimed)[1]["errorCode"], 113)
        self.assertEqual(self.dispatch(again)[0], 200)

    def test_the_nonce_reaches_nobody_without_the_lock(self) -> None:
        """
        While another worker holds the lock a claimed row is busy, a started one is not ours.
        """
        claimed = self.claimed()
        self.app = self.make(Busy)
        status, answer = self.dispatch(claimed)
        self.assertEqual((status, answer["errorCode"]), (503, None))
        looks: list[str] = []

        def start_meanwhile(name: str) -> None:
            looks.append(name)
            if len(looks) == 2:
                rows.start(self.database, self.rows, claimed)

        self.connection.disturb = start_meanwhile
        self.assertEqual(self.dispatch(claimed)[1]["errorCode"], 113)

    def test_the_lock_is_held_while_it_runs(self) -> None:
        """
        From before the start until after the finish the lock is held, and free afterwards.
        """
        claimed = self.claimed()
        locks = Liveness(self.database, self.folder / "locks")
        seen = {}

        def look(name: str) -> None:
            seen[name] = bool(self.database.read(self.rows, locks.held, [claimed.execution_id]))

        self.connection.disturb = look
        self.dispatch(claimed)
        self.assertEqual(seen, {"_look": False, "start": True, "finish": True})
        self.assertEqual(
            self.database.read(self.rows, locks.held, [claimed.execution_id]), frozenset()
        )

    def test_no_lock_where_it_cannot_be_trusted(self) -> None:
        """
        With liveness = "wall" no lock is taken, and the execution runs as ever.
        """
        self.app = self.make(None)
        self.assertEqual(self.dispatch(self.claimed())[0], 200)
        self.assertFalse((self.folder / "locks").exists())

    def test_a_row_that_cannot_be_run(self) -> None:
        """
        What is wrong with the row itself is 422 before any start, and repeats no secret.
        """
        scrubbed, account, key, source = (
            self.claimed(account=name) for name in ("a", "b", "c", "d")
        )
        self.app = self.make(base_url="https://{subdomain}.example.com/api")
        change = self.rows.execute
        change("UPDATE codeRunner_jobs SET apikey = NULL WHERE job_id = ?", (scrubbed.job_id,))
        change(
            "UPDATE codeRunner_executions SET subdomain = 'a.b/' WHERE job_id = ?",
            (account.job_id,),
        )
        change(
            "UPDATE codeRunner_jobs SET apikey = ? WHERE job_id = ?",
            (rows.submission(key="with\nbreak").sealed_apikey, key.job_id),
        )
        change(
            "UPDATE codeRunner_executions SET source_code = NULL WHERE job_id = ?",
            (source.job_id,),
        )
        for claimed, word in (
            (scrubbed, "scrubbed"),
            (account, "subdomain"),
            (key, "header"),
            (source, "source code"),
        ):
            status, answer = self.dispatch(claimed)
            self.assertEqual((status, answer["errorCode"]), (422, None))
            self.assertIn(word, answer["errorMessage"])
            self.assertEqual(self.row(claimed)["status"], "claimed")

    def test_a_replay_of_a_scrubbed_row(self) -> None:
        """
        A late second delivery is 113 even when the key is gone by then.
        """
        claimed = self.claimed()
        self.dispatch(claimed)
        self.rows.execute("UPDATE codeRunner_jobs SET apikey = NULL")
        self.assertEqual(self.dispatch(claimed)[1]["errorCode"], 113)


class OutcomeTests(DoorCase):
    """
    How a script's end becomes an outcome.
    """

    def ended(self, source_code: str, **more: Any) -> tuple[int, str]:
        claimed = self.claimed(source_code, **more)
        status, answer = self.dispatch(claimed)
        self.assertEqual((status, answer["status"]), (200, "failed"))
        row = self.row(claimed)
        self.assertEqual(row["status"], "failed")
        self.assertEqual(row["error_code"], answer["errorCode"])
        self.assertEqual(row["error_message"], answer["errorMessage"])
        return answer["errorCode"], answer["errorMessage"]

    def test_an_error_in_the_script(self) -> None:
        """
        301 says what and where; emoji and Hebrew come through.
        """
        self.assertEqual(
            self.ended("x = 1\nfail('👨‍👩‍👧 → שלום')"),
            (301, "line 2, column 1: fail: 👨‍👩‍👧 → שלום"),
        )

    def test_a_script_that_does_not_parse(self) -> None:
        """
        A script that came past admission and does not parse is 201.
        """
        code, message = self.ended("x = (")
        self.assertEqual(code, 201)
        self.assertIn("line 1, column", message)

    def test_an_api_that_is_away(self) -> None:
        """
        An API that refuses is 301 at the script's line, and names neither host nor key.
        """
        code, message = self.ended("\napi.get('/cards')", key="secret-key")
        self.assertEqual(code, 301)
        self.assertIn("line 2", message)
        self.assertIn("the connection to the API failed", message)
        self.assertNotIn("secret-key", message)
        self.assertNotIn("127.0.0.1", message)

    def test_a_payload_that_is_no_json(self) -> None:
        """
        A payload that cannot be read is the executor's failure: 302.
        """
        for payload in ("{", "NaN", "[" * 5000 + "]" * 5000):
            self.assertEqual(self.ended("x = payload", payload=payload)[0], 302)

    def test_memory(self) -> None:
        """
        Running out of memory is 302, if the worker lives to tell.
        """
        self.patch(ApiClient, "send", _raising(MemoryError()))
        self.assertEqual(self.ended("api.get('/x')"), (302, "the worker ran out of memory"))

    def test_a_fault_of_ours(self) -> None:
        """
        An error of the executor is 302; what it says goes to the log, not to the customer.
        """
        self.patch(ApiClient, "send", _raising(ZeroDivisionError("inner words")))
        with self.assertLogs("crq.executor", "ERROR") as logged:
            code, message = self.ended("api.get('/x')")
        self.assertEqual(code, 302)
        self.assertIn("ZeroDivisionError", message)
        self.assertNotIn("inner words", message)
        self.assertIn("inner words", logged.output[0])

    def test_a_panic_of_the_interpreter(self) -> None:
        """
        The interpreter's own crash, which Python takes for no Exception, is 302 and named.
        """

        class Panic(BaseException):
            pass

        for panic, word in ((Panic("out of memory"), "out of memory"), (Panic("x"), "Panic")):
            self.patch(ApiClient, "send", _raising(panic))
            code, message = self.ended("api.get('/x')")
            self.assertEqual(code, 302)
            self.assertIn(word, message)

    def test_the_wall_is_no_outcome(self) -> None:
        """
        What ends the worker writes nothing: the row stays running and its lock is free.
        """
        self.patch(ApiClient, "send", _raising(SystemExit(1)))
        claimed = self.claimed("api.get('/x')")
        self.assertRaises(SystemExit, self.dispatch, claimed)
        self.assertEqual(self.row(claimed)["status"], "running")
        locks = Liveness(self.database, self.folder / "locks")
        self.assertEqual(
            self.database.read(self.rows, locks.held, [claimed.execution_id]), frozenset()
        )

    def test_a_message_is_made_fit_to_be_stored(self) -> None:
        """
        NUL and control characters are replaced, and a message has an end.
        """
        self.assertIn("a\ufffdb\ufffd", self.ended(r"fail('a\x00b\x1b')")[1])
        message = self.ended("fail('é' * 10000)")[1]
        self.assertEqual(len(message), interpret.MESSAGE_LENGTH)
        self.assertTrue(message.endswith("é…"))
        self.assertEqual(interpret.clean("a\ud800\tb\n\x7f"), "a?\tb\n\x7f")

    def test_a_refusal_goes_into_the_history(self) -> None:
        """
        With its cause and its execution; a history that cannot be written ends no script.
        """
        with FakeApi() as api:
            self.app = self.make(base_url=api.url)
            limit = Answer(429, {}, {"Retry-After": "10\x00"})
            api.answer(limit, Answer(), limit)
            claimed = self.claimed("api.get('/a')")
            self.assertEqual(self.dispatch(claimed)[1]["status"], "success")
            (closing,) = self.database.read(self.rows, gatehistory.closings)
            self.assertEqual(closing.execution_id, claimed.execution_id)
            self.assertEqual(closing.cause, "429, Retry-After: 10\N{REPLACEMENT CHARACTER}")
            self.rows.execute("DROP TABLE codeRunner_gate_history")
            with self.assertLogs("crq.executor", "ERROR") as logged:
                again = self.claimed("api.get('/a')\napi.get('/b')")
                self.assertEqual(self.dispatch(again)[1]["status"], "success")
            self.assertIn("history of gates not written: OperationalError", logged.output[0])

    def test_the_loop_limit(self) -> None:
        """
        After executor.script_seconds no call begins any more (brief §3).
        """

        def send(client: Any, *_: Any) -> dict[str, Any]:
            client.clock.sleep(100)
            return {"status": 200, "json": None, "text": ""}

        self.patch(ApiClient, "send", send)
        code, message = self.ended("for i in range(9):\n    api.get('/x')")
        self.assertEqual((code, self.time.sleeps), (301, [100, 100]))
        self.assertIn("line 2", message)
        self.assertIn("180 s", message)

    def test_a_wall_clock_that_is_stepped_back(self) -> None:
        """
        A duration is monotonic: an hour back in the midst of a script does not make it negative,
        an hour forward does not lengthen it.
        """

        def send(client: Any, *_: Any) -> dict[str, Any]:
            client.clock.sleep(10)
            return {"status": 200, "json": None, "text": ""}

        self.patch(ApiClient, "send", send)
        for step in (-3600, 3600):
            self.time.step, self.time.offset = step, NOON - (self.time.seconds - 5000)
            claimed = self.claimed("api.get('/x')")
            self.dispatch(claimed)
            row = self.row(claimed)
            self.assertEqual(row["started_at"], "2026-03-02 12:00:00.000")
            self.assertEqual(row["finished_at"], "2026-03-02 12:00:10.000")

    def test_what_a_debugged_script_prints(self) -> None:
        """
        The output of an execution with debug goes to the log, one line, whatever is in it.
        """
        with self.assertLogs("crq.executor", "INFO") as logged:
            self.dispatch(self.claimed(r"print('a\nERROR forged')"))
            self.dispatch(self.claimed(r"print('a\nERROR forged')", debug=True))
        printed = [line for line in logged.output if "forged" in line]
        self.assertEqual(len(printed), 1)
        self.assertNotIn("\n", printed[0])


class OutageTests(DoorCase):
    """
    A database that goes away at each step.
    """

    def away(self, name: str, times: int = 99) -> None:
        left = [times]

        def disturb(function: str) -> None:
            if function == name and left[0]:
                left[0] -= 1
                raise sqlite3.OperationalError("disk I/O error at /secret/path")

        self.connection.disturb = disturb

    def test_before_the_start(self) -> None:
        """
        A database that is away before the start is 503: nothing ran, and it can be sent again.
        """
        claimed = self.claimed()
        for step in ("_look", "start"):
            self.away(step)
            with self.assertLogs("crq.executor", "ERROR"):
                status, answer = self.dispatch(claimed)
            self.assertEqual((status, answer["errorCode"]), (503, None))
            self.assertNotIn("secret", json.dumps(answer))
            self.assertEqual(self.row(claimed)["status"], "claimed")
        self.away("nothing")
        self.assertEqual(self.dispatch(claimed)[0], 200)

    def test_for_a_moment_at_the_end(self) -> None:
        """
        An outcome is written when the database is back, with the instant at which the script ended.
        """
        claimed = self.claimed()
        self.away("finish", times=2)
        with self.assertLogs("crq.executor", "ERROR"):
            self.assertEqual(self.dispatch(claimed)[1]["status"], "success")
        row = self.row(claimed)
        self.assertEqual((row["status"], row["finished_at"]), ("success", row["started_at"]))
        self.assertEqual(self.time.sleeps, list(PAUSES[:2]))

    def test_for_good_at_the_end(self) -> None:
        """
        The answer carries the outcome even if it could not be written: the drainer writes it.
        """
        claimed = self.claimed("fail('so')")
        self.away("finish")
        with self.assertLogs("crq.executor", "ERROR"):
            status, answer = self.dispatch(claimed)
        self.assertEqual((status, answer["errorCode"]), (200, 301))
        self.assertEqual(self.row(claimed)["status"], "running")
        self.assertEqual(self.time.sleeps, list(PAUSES))

    def test_near_the_wall_it_answers(self) -> None:
        """
        A worker does not wait for the database until it is killed with its outcome untold.
        """

        def send(client: Any, *_: Any) -> dict[str, Any]:
            client.clock.sleep(296.6)
            return {"status": 200, "json": None, "text": ""}

        self.patch(ApiClient, "send", send)
        self.away("finish")
        claimed = self.claimed("api.get('/x')")
        with self.assertLogs("crq.executor", "ERROR"):
            self.assertEqual(self.dispatch(claimed)[1]["status"], "success")
        self.assertEqual(self.time.sleeps, [296.6, 0.1])

    def test_a_statement_that_fails_at_the_end(self) -> None:
        """
        An outcome that the database refuses is told all the same, at once.
        """

        def disturb(name: str) -> None:
            if name == "finish":
                raise sqlite3.IntegrityError("no")

        self.connection.disturb = disturb
        with self.assertLogs("crq.executor", "ERROR"):
            self.assertEqual(self.dispatch(self.claimed())[1]["status"], "success")
        self.assertEqual(self.time.sleeps, [])

    def test_the_answer_to_the_starts_commit_is_lost(self) -> None:
        """
        A start whose COMMIT held but was not answered is found by reading, and runs once.
        """
        self.connection.lose = frozenset({"start"})
        claimed = self.claimed("x = 1")
        self.assertEqual(self.dispatch(claimed)[1]["status"], "success")
        self.assertEqual(self.row(claimed)["status"], "success")

    def test_the_starts_commit_is_lost(self) -> None:
        """
        A start whose COMMIT did not hold is no start: 503, and the nonce is still good.
        """

        def disturb(name: str) -> None:
            if name == "start":
                raise CommitUnknown

        self.connection.disturb = disturb
        claimed = self.claimed("x = 1")
        with self.assertLogs("crq.executor", "ERROR"):
            self.assertEqual(self.dispatch(claimed)[0], 503)
        self.connection.disturb = lambda name: None
        self.assertEqual(self.dispatch(claimed)[0], 200)

    def test_somebody_elses_start_is_not_ours(self) -> None:
        """
        A row that another worker has started while our COMMIT was unknown is left to it.
        """
        claimed = self.claimed("fail('twice')")

        def disturb(name: str) -> None:
            if name == "start":
                rows.start(self.database, self.rows, claimed)
                raise CommitUnknown

        self.connection.disturb = disturb
        with self.assertLogs("crq.executor", "ERROR"):
            self.assertEqual(self.dispatch(claimed)[0], 503)
        self.assertEqual(self.row(claimed)["status"], "running")

    def test_the_answer_to_the_finishs_commit_is_lost(self) -> None:
        """
        A finish is repeated: it cannot finish twice.
        """
        self.connection.lose = frozenset({"finish"})
        claimed = self.claimed()
        with self.assertLogs("crq.executor", "ERROR"):
            self.assertEqual(self.dispatch(claimed)[1]["status"], "success")
        self.assertEqual(self.row(claimed)["status"], "success")

    def test_a_real_outcome_replaces_unknown(self) -> None:
        """
        A row that was closed as 303 while its script ran gets its real outcome.
        """
        claimed = self.claimed("fail('late')")

        def disturb(name: str) -> None:
            if name == "finish":
                self.database.transact(self.rows, executions.died, claimed.execution_id, NOON)

        self.connection.disturb = disturb
        self.dispatch(claimed)
        self.assertEqual(self.row(claimed)["error_code"], 301)

    def test_a_connection_is_replaced_after_an_error(self) -> None:
        """
        The connection that met an error is not used again.
        """

        def disturb(name: str) -> None:
            self.connection._open.close()

        self.dispatch(self.claimed())
        self.connection.disturb = disturb
        with self.assertLogs("crq.executor", "ERROR"):
            self.assertEqual(self.request("GET", "/health")[0], 500)
        self.connection.disturb = lambda name: None
        self.assertEqual(self.request("GET", "/health")[0], 200)


def _raising(error: BaseException) -> Callable[..., Any]:
    def send(*_: Any) -> Any:
        raise error

    return send
