"""
``GET /metrics``: what Prometheus scrapes.

What has passed is counted in `crq.meters`; what is so now is read for the scrape, by the same
bounded statements as the status. A scrape needs a token with the scope ``read``, or, where the
configuration says so, a connection from this very machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.web.iweb import IRequest

from crq import __version__
from crq.model import Reason
from crq.pulse import Pulse
from crq.statusreport import StatusReport
from crq.verdict import Verdict
from crq.web.door import Door, routes
from crq.web.rates import NOBODY
from crq.web.reading import unlimited

ACCOUNTS = 20  # accounts with series of their own, those with most waiting
HASH = 8  # hex digits of an account that a label shows


@routes.route("/metrics", methods=["GET"])
async def metrics(door: Door, request: IRequest) -> bytes:
    """
    All metrics, in Prometheus' text format.
    """
    if door.config.metrics.loopback and local(request):
        door.count(request, NOBODY)
    else:
        unlimited(await door.caller(request, "read"))
    report = await door.report(names=False)
    registry = CollectorRegistry()
    registry.register(Snapshot(report, door.pulse, door.config.metrics.accounts))
    text = generate_latest(door.meters.registry) + generate_latest(registry)
    request.setHeader(b"Content-Type", CONTENT_TYPE_LATEST.encode("ascii"))
    request.setHeader(b"Server", b"crqueue")
    request.setHeader(b"Content-Length", b"%d" % len(text))
    return text


def local(request: IRequest) -> bool:
    """
    Whether a request comes from this very machine, and not through a proxy on it.
    """
    if request.requestHeaders.hasHeader(b"X-Forwarded-For") or request.requestHeaders.hasHeader(
        b"Forwarded"
    ):
        return False
    peer: Any = request.getClientAddress()
    if isinstance(peer, UNIXAddress):
        return True
    if not isinstance(peer, (IPv4Address, IPv6Address)):
        return False
    try:
        address = ipaddress.ip_address(peer.host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class Snapshot:
    """
    What is so now, as a collector.
    """

    def __init__(self, report: StatusReport, pulse: Pulse | None, accounts: bool) -> None:
        self._report = report
        self._pulse = pulse
        self._accounts = accounts

    def collect(self) -> Iterator[Metric]:
        """
        The metrics of this moment.
        """
        yield from self._queue()
        yield from self._gates()
        yield from self._daemon()
        if self._accounts:
            yield from self._by_account()

    def _queue(self) -> Iterator[Metric]:
        report = self._report
        yield _labelled(
            "crqueue_verdict",
            "The queue's one word: 1 for the one that holds.",
            "verdict",
            {word.value: float(word is report.verdict) for word in Verdict},
        )
        yield _gauge("crqueue_queued_executions", "Executions that wait.", report.depth)
        yield _gauge(
            "crqueue_queued_executions_capped",
            "1 while more wait than are counted.",
            report.depth_capped,
        )
        yield _gauge("crqueue_queued_lanes", "Accounts and keys with work.", _lanes(report))
        yield _gauge(
            "crqueue_oldest_queued_age_seconds",
            "How long the oldest has waited; 0: nothing waits.",
            report.oldest_queued_age or 0,
        )
        yield _gauge("crqueue_in_flight_executions", "Claimed and running.", report.in_flight)
        yield _gauge(
            "crqueue_in_flight_limit", "The cap over all accounts.", report.limits.in_flight
        )
        yield _gauge(
            "crqueue_queued_limit",
            "Depth at which everybody is refused.",
            report.limits.queued_total,
        )
        yield _labelled(
            "crqueue_held_lanes",
            "Accounts and keys whose work is held, by the reason.",
            "reason",
            {
                reason.value.replace(" ", "_"): float(report.holds.get(reason, 0))
                for reason in Reason
            },
        )

    def _gates(self) -> Iterator[Metric]:
        report = self._report
        yield _gauge("crqueue_gates_closed", "Gates that hold work now.", len(report.gates))
        yield _gauge(
            "crqueue_gates_unreadable",
            "Gates whose value cannot be read.",
            len(report.unreadable),
        )
        yield _gauge(
            "crqueue_gates_reachable",
            "1 while the gates' store answers.",
            report.gates_reachable,
        )

    def _daemon(self) -> Iterator[Metric]:
        report, pulse, controls = self._report, self._pulse, self._report.controls
        yield _gauge("crqueue_draining", "1 while nothing is started.", controls.draining)
        yield _labelled(
            "crqueue_pauses",
            "Pauses that operators have set.",
            "scope",
            {
                "all": float(controls.everything),
                "account": float(len(controls.accounts)),
                "key": float(len(controls.keys)),
            },
        )
        info = GaugeMetricFamily("crqueue_build_info", "The version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield _gauge(
            "crqueue_drainers_alive",
            "Drainers that have reported lately.",
            sum(beat.alive(report.at) for beat in report.drainers),
        )
        if pulse is None:  # a process that only admits
            return
        yield _gauge(
            "crqueue_executor_refusing",
            "1 while the executor takes no work.",
            pulse.alarm is not None,
        )
        daemon = report.daemon
        age = None if daemon is None else daemon.last_good_age
        yield _gauge(
            "crqueue_last_good_tick_age_seconds",
            "How long ago a tick has ended well; +Inf: none has.",
            float("inf") if age is None else age,
        )
        yield _gauge("crqueue_start_time_seconds", "When the daemon started.", pulse.started_at)
        yield CounterMetricFamily("crqueue_ticks", "Ticks of the drainer.", value=pulse.ticks)
        yield CounterMetricFamily(
            "crqueue_ticks_skipped",
            "Ticks left out because one was still running.",
            value=pulse.skipped_ticks,
        )
        yield CounterMetricFamily(
            "crqueue_executions_dispatched",
            "Executions sent to the executor.",
            value=pulse.starts,
        )
        yield CounterMetricFamily(
            "crqueue_transactions_repeated",
            "Transactions run again after a deadlock, a lock wait or a lost connection.",
            value=pulse.repeats,
        )

    def _by_account(self) -> Iterator[Metric]:
        shown = self._report.accounts[:ACCOUNTS]
        yield _labelled(
            "crqueue_account_queued_executions",
            "Executions of an account that wait.",
            "account",
            {each.subdomain_hash[:HASH]: float(each.queued) for each in shown},
        )
        yield _labelled(
            "crqueue_account_in_flight_executions",
            "Executions of an account in flight.",
            "account",
            {each.subdomain_hash[:HASH]: float(each.in_flight) for each in shown},
        )


def _lanes(report: StatusReport) -> int:
    return len(report.startable) + sum(report.holds.values())


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=float(value))


def _labelled(name: str, meaning: str, label: str, values: dict[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
