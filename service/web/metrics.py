"""Figures for a monitoring system, in Prometheus' text format.

Labels are outcomes, endpoints and queues; never tokens, projects or sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from streams.engine.record_intake import EngineState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The metrics of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "driftline_requests", "Calls, by endpoint and status.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "driftline_request_seconds",
            "Duration of calls.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._ingested = Counter(
            "driftline_ingested_exchanges",
            "Exchanges that were sent: scored, sampled_out, cost_cap, queued, known or conflict.",
            ["outcome"],
            registry=self._registry,
        )
        self._events = Counter(
            "driftline_ingested_events", "Events: accepted, known, refused.", ["outcome"], registry=self._registry
        )

        self._spans = Counter(
            "driftline_ingested_spans",
            "Spans and log records of OpenTelemetry: accepted, known, refused, passed_over (records of a log that are not of a model), "
            "late (a day after their trace: they make nothing).",
            ["outcome"],
            registry=self._registry,
        )
        self._refused_metrics = Counter(
            "driftline_refused_metrics",
            "Metrics of OpenTelemetry that were sent: none are stored, and the answer says so.",
            registry=self._registry,
        )
        # Keep the children: looking up a metric by its labels takes longer than counting.
        self._of_call = cache(self._figures_of)
        self._of_outcome = cache(self._ingested.labels)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call."""
        counted, timed = self._of_call(method, route, status)
        counted.inc()
        timed.observe(seconds)

    def _figures_of(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)

    def ingested(self, outcomes: Iterable[str]) -> None:
        """Count exchanges by outcome."""
        for outcome in outcomes:
            self._of_outcome(outcome).inc()

    def events(self, counts: Mapping[str, int]) -> None:
        """Count the events of a batch by outcome."""
        for outcome, count in counts.items():
            self._events.labels(outcome).inc(count)

    def spans(self, counts: Mapping[str, int]) -> None:
        """Count the spans of a request by outcome."""
        for outcome, count in counts.items():
            self._spans.labels(outcome).inc(count)

    def refused_metrics(self, count: int) -> None:
        """Count metrics sent by exporters, which are refused."""
        self._refused_metrics.inc(count)

    def text(self, state: EngineState, unused_spans: Mapping[str, int] | None = None) -> bytes:
        """Return all metrics, including the engine's state, and `unused_spans` by state if they could be read."""
        now = CollectorRegistry()
        now.register(_Snapshot((*_engine(state), *_unused(unused_spans))))
        return generate_latest(self._registry) + generate_latest(now)


class _Snapshot(Collector):
    """Metrics read from another source."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _unused(counts: Mapping[str, int] | None) -> Iterator[Metric]:
    if counts is not None:
        unused = GaugeMetricFamily(
            "driftline_unused_spans", "Spans of the last day of which nothing was made, by the reason why.", labels=["state"]
        )
        for state, count in counts.items():
            unused.add_metric([state], count)
        yield unused


def _engine(state: EngineState) -> Iterator[Metric]:
    yield GaugeMetricFamily("driftline_ready", "Whether records are taken.", value=float(state.ready))
    queues = GaugeMetricFamily("driftline_queue_size", "Waiting records, and sessions with work in progress.", labels=["queue"])
    for name, size in state.queues.items():
        queues.add_metric([name], size)
    calls = CounterMetricFamily("driftline_judge_questions", "Questions to the judge since the start.", labels=["outcome"])
    for outcome, count in state.judge_calls.items():
        calls.add_metric([outcome], count)
    yield from (queues, calls)
    yield CounterMetricFamily("driftline_judge_cost_usd", "Cost of the calls with known prices.", value=state.spent_usd)
