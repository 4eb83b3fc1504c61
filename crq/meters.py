"""
What a daemon measures of itself, as Prometheus metrics: durations and counts of what passed by.

One registry for each daemon and none for the process, so that tests are alone with theirs. Names
follow Prometheus' conventions (base units, ``_total``); label values come from closed sets. What a
report can say at the moment of a scrape is not kept here: `crq.web.metrics` reads it then.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from crq.instants import Instant
from crq.model import shown_as

disable_created_metrics()  # each counter would come with the instant at which it was made

OUTCOMES = {
    "success": "success",
    "failed": "failed",
    "outcome unknown": "unknown",
    "never started": "never_started",
    "cancelled": "cancelled",
}
# A tick is some statements: below a millisecond on SQLite, and at most a lock wait of 5 s.
TICK_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# From "at once" to "behind an hourly limit" and "over night".
WAIT_BUCKETS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 7200.0, 43200.0)
# A healthy script takes 1.6 s; its wall is 300 s (brief §6).
SERVICE_BUCKETS = (
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    180.0,
    240.0,
    300.0,
    330.0,
)


class Meters:
    """
    The metrics that are counted as things happen.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tick = Histogram(
            "crqueue_tick_duration_seconds",
            "How long a tick of the drainer took.",
            buckets=TICK_BUCKETS,
            registry=self.registry,
        )
        self.ticks_failed = Counter(
            "crqueue_ticks_failed",
            "Ticks that ended with an error.",
            registry=self.registry,
        )
        self.clock_steps = Counter(
            "crqueue_wall_clock_steps",
            "Times the wall clock was stepped.",
            registry=self.registry,
        )
        self.gates_early = Counter(
            "crqueue_gates_opened_early",
            "Gates that opened early because the wall clock was stepped.",
            registry=self.registry,
        )
        self.wait = Histogram(
            "crqueue_wait_seconds",
            "How long executions waited from their admission to their start.",
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        self.service = Histogram(
            "crqueue_service_seconds",
            "How long executions ran, as far as their end is known.",
            buckets=SERVICE_BUCKETS,
            registry=self.registry,
        )
        self.finished = Counter(
            "crqueue_executions_finished",
            "Executions whose end this daemon has seen.",
            ["outcome"],
            registry=self.registry,
        )
        self.admitted = Counter(
            "crqueue_executions_admitted",
            "Executions admitted through this daemon's HTTP door.",
            registry=self.registry,
        )
        self.rejected = Counter(
            "crqueue_executions_rejected",
            "Executions refused through this daemon's HTTP door because the queue was full.",
            ["depth"],
            registry=self.registry,
        )
        self.requests = Counter(
            "crqueue_http_requests",
            "Requests answered by the HTTP door.",
            ["route", "code"],
            registry=self.registry,
        )
        self.limited = Counter(
            "crqueue_http_rate_limited",
            "Requests refused because their token had asked too often.",
            registry=self.registry,
        )
        for outcome in OUTCOMES.values():  # a series that appears with its first event has no rate
            self.finished.labels(outcome)
        for depth in ("account", "total"):
            self.rejected.labels(depth)

    def ended(
        self,
        status: str,
        error_code: int | None,
        queued_at: Instant | None,
        started_at: Instant | None,
        finished_at: Instant | None,
    ) -> None:
        """
        Count an execution that has ended, with how long it waited and ran.

        The end of one whose outcome is unknown is when that was noticed, and is no duration.
        """
        outcome = OUTCOMES.get(shown_as(status, error_code, started_at))
        if outcome is None:
            return
        self.finished.labels(outcome).inc()
        if started_at is None:
            return
        if queued_at is not None:
            self.wait.observe(max(0.0, started_at - queued_at))
        if finished_at is not None and outcome != "unknown":
            self.service.observe(max(0.0, finished_at - started_at))
