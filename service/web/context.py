"""The shared context of the endpoints, built once per application, and its metrics for a monitoring system."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from audit.spending import has_shared_caps
from schemas.errors import BusyError, DriftlineError, LakeError, RecordError, StoredRecordError, StoreError
from schemas.lazy import duckdb
from service.read.caps import SharedCap, reached_caps
from service.read.incidents import OpenIncidents, open_incidents
from service.read.judges import UnreadableJudge, unreadable_judges
from service.read.known_projects import is_known, known_projects, named_projects, nearest
from service.read.people import ScoreTimes
from service.read.project import Project, read_projects, with_changes, with_levels, worst_incidents
from service.read.runs import run_number
from service.read.telemetry import AlertReceiver, TriedReceiver
from service.setup.access import AccessStore
from service.web.bounds import ApiSettings
from service.web.errors import ApiError
from streams.engine.record_intake import EngineState, RecordIntake
from streams.watch.watching import Watch

if TYPE_CHECKING:
    from streams.lake.recall import Recall

Result = TypeVar("Result")
_LOCK_COUNT = 64
RETRY_AFTER = "2"
"""Seconds after which a caller may ask a busy server again."""
log = logging.getLogger(__name__)


class StripedLocks:
    """A fixed number of locks, on one event loop, for any number of names.

    Names can share a lock, so a call may wait for an unrelated one.
    """

    def __init__(self, count: int) -> None:
        self._locks = tuple(asyncio.Lock() for _ in range(count))

    @contextlib.asynccontextmanager
    async def held(self, names: Iterable[Hashable]) -> AsyncIterator[None]:
        """Hold the locks of these names."""
        async with contextlib.AsyncExitStack() as stack:
            # Acquire in a fixed order, so that two calls never deadlock.
            for index in sorted({hash(name) % len(self._locks) for name in names}):
                await stack.enter_async_context(self._locks[index])
            yield


@dataclass
class ApiContext:
    """The engine, tokens, metrics and limits of an application."""

    engine: RecordIntake
    access: AccessStore
    settings: ApiSettings
    metrics: Metrics
    watch: Watch = field(init=False)
    """Checks the projects, and records decisions on incidents."""
    evaluating: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    """Held while evaluations are requested."""
    score_times: ScoreTimes = field(init=False, default_factory=ScoreTimes)
    """The times of the exchanges that people have scored or looked for."""
    _readers: anyio.CapacityLimiter = field(init=False)
    turns: StripedLocks = field(init=False, default_factory=lambda: StripedLocks(_LOCK_COUNT))
    """Locks of sessions by connection and session id: a session's batches of events are processed one after another."""
    restart: Callable[[], None] | None = field(init=False, default=None)
    """Restarts the server in its process, with the policy from the file; None if that is not possible."""
    recall: Recall | None = field(init=False, default=None)
    """Fetches details that are in the lake only; None without a lake."""
    alert_receivers: Sequence[AlertReceiver] | None = field(init=False, default=None)
    """The receivers of alerts; None if not known."""
    try_receivers: Callable[[str | None], Awaitable[list[TriedReceiver]]] | None = field(init=False, default=None)
    """Sends a test message to a receiver by its name, or to all; None if the receivers are not known."""

    _figures: dict[tuple[str, str | None], tuple[Hashable, Any]] = field(init=False, default_factory=dict)
    """Cached figures of the pages by name and project, each with the version that it was read at."""

    def __post_init__(self) -> None:
        self.watch = Watch(self.engine)
        self._readers = anyio.CapacityLimiter(self.settings.max_readers)

    async def ask(self, read: Callable[[duckdb.DuckDBPyConnection], Result]) -> Result:
        """Run a reading function in a thread, with its own cursor; the number of concurrent ones is bounded.

        Raises StoredRecordError if stored data cannot be read, which is not the caller's fault.
        """
        # Flush, so that a sender who got a 201 sees the exchange. A failed flush does not stop reads of the tables as they are.
        with contextlib.suppress(DriftlineError, duckdb.Error):
            await self.engine.flush()

        def run() -> Result:
            with contextlib.closing(self.engine.store.cursor()) as cursor:
                try:
                    return read(cursor)
                except RecordError as error:
                    raise StoredRecordError(f"a stored record cannot be read: {error}", hint=error.hint) from error

        return await anyio.to_thread.run_sync(run, limiter=self._readers)

    async def open_incidents(self, project: str | None) -> OpenIncidents:
        """Return the number of open or acknowledged incidents of a project (None: all), counted again if incidents have changed, and once a minute."""
        minute = self.engine.now().replace(second=0, microsecond=0)  # a snooze may have ended since
        return await self._read_figure(
            "open", "incidents", project, lambda cursor: open_incidents(cursor, project, minute), minute
        )

    async def worst_incidents(self, project: str | None) -> Mapping[str, Mapping[str, Any]]:
        """Return the worst incident of each project (None: all), read again only if incidents have changed."""
        return await self._read_figure("worst", "incidents", project, lambda cursor: worst_incidents(cursor, project))

    async def unreadable_judges(self, project: str | None) -> tuple[UnreadableJudge, ...]:
        """Return the judges whose last answers about a project (None: all) cannot be read; read again only after new judgements."""
        now = self.engine.now()
        return await self._read_figure("judges", "judgements", project, lambda cursor: unreadable_judges(cursor, project, now))

    async def reached_caps(self, project: str | None) -> tuple[SharedCap, ...]:
        """Return the shared caps of a project (None: all) that have left out questions; read again only after new judgements."""
        policy, now = self.engine.policy, self.engine.now()
        if not has_shared_caps(policy):
            return ()
        return await self._read_figure("caps", "judgements", project, lambda cursor: reached_caps(cursor, policy, project, now))

    async def _read_figure(
        self,
        name: str,
        topic: str,
        project: str | None,
        read: Callable[[duckdb.DuckDBPyConnection], Result],
        period: Hashable = None,
    ) -> Result:
        """Return a figure, read again only after new records of its topic, in another `period`, and on a new UTC day."""
        version = self.engine.store.end_of(topic), period, self.engine.now().date()
        cached = self._figures.get((name, project))
        if cached is None or cached[0] != version:
            cached = self._figures[name, project] = version, await self.ask(read)
        figure: Result = cached[1]
        return figure

    async def fetch_cold(self, project: str, names: Mapping[str, str]) -> None:
        """Have the details of the session, run, exchange or score in the database that a request names in its path.

        Raises ApiError (503) if they are still being fetched from the lake, or if it cannot be read.
        """
        if self.recall is None:
            return
        try:
            if "session_id" in names:
                await self.recall.session(project, names["session_id"])
            if "run_id" in names and (number := run_number(names["run_id"])) is not None:
                await self.recall.run(project, number)
            if "exchange_id" in names:
                await self.recall.exchange(project, names["exchange_id"])
            if "score_id" in names:
                await self.recall.score(project, names["score_id"])
        except BusyError as error:
            raise ApiError(503, "busy", f"{error}. {error.hint}", {"Retry-After": RETRY_AFTER}) from error
        except LakeError as error:
            log.warning("details could not be fetched from the lake: %s", error)
            message = "the details are in the lake, which cannot be read at the moment"
            raise ApiError(503, "busy", message, {"Retry-After": RETRY_AFTER}) from error

    async def require_project(self, project: str) -> None:
        """Raise ApiError (404) for an unknown project, with the nearest known name."""
        configured = named_projects(self.engine.policy, self.access)
        if project in configured or await self.ask(lambda cursor: is_known(cursor, project, configured)):
            return
        projects = await self.ask(lambda cursor: known_projects(cursor, configured))
        suggestion = nearest(project, projects) or "there are no projects yet"
        raise ApiError(404, "not_found", f"there is no project {project}; {suggestion}")


@contextlib.contextmanager
def durable_or_refused() -> Iterator[None]:
    """Answer 503 if a record cannot be made durable, for instance on a full disk: the sender may retry later."""
    try:
        yield
    except (StoreError, duckdb.Error):
        log.exception("the log could not take a record")
        raise ApiError(503, "log_unavailable", "the log cannot take records at the moment", {"Retry-After": "30"}) from None


async def _get_services(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Services = Annotated[ApiContext, Depends(_get_services)]
"""The context of the application."""


async def projects_of(services: ApiContext, visible_project: str | None, until: date | None = None) -> list[Project]:
    """Return every project, or only the visible one, by name, including projects that only have a connection.

    `until` is the last day of their figures, today by default.
    """
    engine = services.engine
    connected = {project for project in services.access.connected_projects() if visible_project in (None, project)}
    return await services.ask(
        lambda cursor: read_projects(
            cursor, engine.policy, engine.now(), project=visible_project, until=until, connected=connected
        )
    )


async def worst_of(
    services: ApiContext, projects: Sequence[Project], visible_project: str | None
) -> Mapping[str, Mapping[str, Any]]:
    """Return the worst incident of each project, worst first. None as the visible project stands for all."""
    has_any = any(project.open_incidents or project.notice_incidents for project in projects)
    return await services.worst_incidents(visible_project) if has_any else {}


async def with_their_changes(services: ApiContext, projects: Sequence[Project], visible_project: str | None) -> list[Project]:
    """Return projects with their changes and daily levels; a change is None without data."""
    changed = with_changes(projects, await worst_of(services, projects, visible_project))
    return await services.ask(lambda cursor: with_levels(cursor, changed, visible_project))


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
        self._call_metrics = cache(self._find_call_metrics)
        self._ingest_counter = cache(self._ingested.labels)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call."""
        requests, durations = self._call_metrics(method, route, status)
        requests.inc()
        durations.observe(seconds)

    def _find_call_metrics(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)

    def ingested(self, outcomes: Iterable[str]) -> None:
        """Count exchanges by outcome."""
        for outcome in outcomes:
            self._ingest_counter(outcome).inc()

    def events(self, counts: Mapping[str, int]) -> None:
        """Count the events of a batch by outcome."""
        for outcome, count in counts.items():
            self._events.labels(outcome).inc(count)

    def spans(self, counts: Mapping[str, int]) -> None:
        """Count the spans of a request by outcome."""
        for outcome, count in counts.items():
            self._spans.labels(outcome).inc(count)

    def refused_metrics(self, count: int) -> None:
        """Count the metrics that exporters have sent, which are refused."""
        self._refused_metrics.inc(count)

    def text(self, state: EngineState, unused_spans: Mapping[str, int] | None = None) -> bytes:
        """Return all metrics, including the engine's state, and `unused_spans` by state if they could be read."""
        current = CollectorRegistry()
        current.register(_Snapshot((*_measure_engine(state), *_count_unused_spans(unused_spans))))
        return generate_latest(self._registry) + generate_latest(current)


class _Snapshot(Collector):
    """Metrics read from another source."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _count_unused_spans(counts: Mapping[str, int] | None) -> Iterator[Metric]:
    if counts is not None:
        unused = GaugeMetricFamily(
            "driftline_unused_spans", "Spans of the last day of which nothing was made, by the reason why.", labels=["state"]
        )
        for state, count in counts.items():
            unused.add_metric([state], count)
        yield unused


def _measure_engine(state: EngineState) -> Iterator[Metric]:
    yield GaugeMetricFamily("driftline_ready", "Whether records are taken.", value=float(state.ready))
    queues = GaugeMetricFamily("driftline_queue_size", "Waiting records, and sessions with work in progress.", labels=["queue"])
    for name, size in state.queues.items():
        queues.add_metric([name], size)
    calls = CounterMetricFamily("driftline_judge_questions", "Questions to the judge since the start.", labels=["outcome"])
    for outcome, count in state.judge_calls.items():
        calls.add_metric([outcome], count)
    yield from (queues, calls)
    erased = CounterMetricFamily(
        "driftline_erased_records",
        "Records of erased sessions that were read from encrypted topics, and skipped.",
        labels=["topic"],
    )
    for topic, count in state.erased.items():
        erased.add_metric([topic], count)
    yield erased
    yield CounterMetricFamily("driftline_judge_cost_usd", "Cost of the calls with known prices.", value=state.spent_usd)
