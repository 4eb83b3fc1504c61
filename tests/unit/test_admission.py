"""
The way into the queue: prepared, admitted, refused, settled.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from crq import admission, records
from crq.admission import Answer
from crq.database import CommitUnknown
from crq.messages import Admitted, Invalid, Mismatch, Rejected, Submission
from crq.model import Limits
from crq.recordvalues import Record
from tests.rows import LIMITS, NOON, SEALER
from tests.support import memory_pool

BROKEN = "def f(:\n  pass\n"


class AdmissionTests(SynchronousTestCase):
    """
    On SQLite in memory.
    """

    def setUp(self) -> None:
        self.pool = memory_pool()
        self.addCleanup(self.pool.close)

    def admit(self, limits: Limits = LIMITS, language: Any = "starlark", **more: Any) -> Answer:
        """
        Admit a submission in the one call that Python callers have.
        """
        wanted = Submission(**{"subdomain": "acme", "apikey": "k", "source_code": "x = 1", **more})
        return admission.admit(
            self.pool.database, self.pool.connection, wanted, SEALER, limits, NOON, language
        )

    def record(self, execution_id: int) -> Record:
        """
        The row of an execution.
        """
        found = self.successResultOf(self.pool.read(records.execution, execution_id))
        assert found is not None
        return found.record

    def test_sound_script_is_queued(self) -> None:
        """
        A script that parses waits in the queue.
        """
        answer = self.admit()
        self.assertEqual(answer, Admitted(1))
        self.assertEqual(self.record(1).status, "queued")

    def test_faulty_script_is_recorded_and_not_queued(self) -> None:
        """
        A script that does not parse is failed with 201, and the answer says where (brief §3).
        """
        answer = self.admit(source_code=BROKEN)
        assert isinstance(answer, Invalid)
        self.assertEqual((answer.execution_id, answer.line), (1, 1))
        self.assertGreater(answer.column, 0)
        row = self.record(1)
        self.assertEqual((row.status, row.error_code, row.started_at), ("failed", 201, None))
        self.assertEqual(row.error_message, answer.message)

    def test_opaque_script_is_not_parsed(self) -> None:
        """
        What has a language of its own goes to the executor as it came.
        """
        self.assertEqual(self.admit(language="opaque", source_code=BROKEN), Admitted(1))

    def test_repetition_finds_the_first(self) -> None:
        """
        The same submission under the same key is the same execution; another one is a mismatch.
        """
        self.assertEqual(self.admit(idempotency_key="once"), Admitted(1))
        self.assertEqual(self.admit(idempotency_key="once"), Admitted(1, repeated=True))
        self.assertEqual(self.admit(idempotency_key="once", source_code="x = 2"), Mismatch(1))
        self.assertEqual(self.admit(idempotency_key="once", subdomain="other"), Admitted(2))

    def test_faulty_script_under_a_used_key_is_a_mismatch(self) -> None:
        """
        A key that belongs to a sound script is not answered with another script's fault.
        """
        self.admit(idempotency_key="once")
        self.assertEqual(self.admit(idempotency_key="once", source_code=BROKEN), Mismatch(1))

    def test_full_queue_refuses_with_a_row(self) -> None:
        """
        The cap's next submission is rejected, and the log shows it with 107 (brief §16).
        """
        limits = Limits(queued_per_account=1)
        self.admit(limits)
        self.assertEqual(self.admit(limits), Rejected(2, "account", 1))
        self.assertEqual((self.record(2).status, self.record(2).error_code), ("rejected", 107))

    def test_lost_commit_is_settled_by_reading(self) -> None:
        """
        When the answer to COMMIT is lost, a row that is there is admitted, and only once (F08).
        """
        self.lose_commit(after=True)
        self.assertEqual(self.admit(idempotency_key="once"), Admitted(1))
        self.assertEqual(self.admit(idempotency_key="once"), Admitted(1, repeated=True))

    def test_lost_commit_that_did_not_hold_is_not_called_admitted(self) -> None:
        """
        When it is not there, the caller is told that nobody knows, and may repeat it.
        """
        self.lose_commit(after=False)
        with self.assertRaises(CommitUnknown):
            self.admit(idempotency_key="once")
        self.assertEqual(self.admit(idempotency_key="once"), Admitted(1))

    def lose_commit(self, *, after: bool) -> None:
        """
        Lose the answer to the next COMMIT, after it has been done or before it arrived.
        """
        database = self.pool.database

        class Losing(type(database)):  # type: ignore[misc]
            lost = False

            def transact(self, connection: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
                if Losing.lost:
                    return super().transact(connection, function, *args, **kwargs)
                Losing.lost = True
                if after:
                    super().transact(connection, function, *args, **kwargs)
                raise CommitUnknown

        self.pool.database = Losing(database.url)


class AnswerTests(SynchronousTestCase):
    """
    `as_json`.
    """

    def test_what_was_not_taken_says_what_to_do(self) -> None:
        """
        Each refusal carries the execution, what is wrong and the remedy; codes where there are any.
        """
        for answer, code in (
            (Rejected(5, "account", 500), 107),
            (Rejected(5, "total", 2000), 107),
            (Invalid(5, "unexpected )", 3, 7), 201),
            (Mismatch(5), None),
        ):
            body = admission.as_json(answer)
            self.assertEqual((body["executionId"], body.get("errorCode")), (5, code))
            self.assertTrue(body["field"] and body["problem"] and body["remedy"])

    def test_place_of_a_fault_is_given(self) -> None:
        """
        Line and column are numbers of their own.
        """
        body = admission.as_json(Invalid(5, "unexpected )", 3, 7))
        self.assertEqual((body["line"], body["column"]), (3, 7))
