"""Scores for an OpenTelemetry collector over OTLP/HTTP, sent at least once; off unless an address is configured.

A score becomes events `gen_ai.evaluation.result`: one per tier with a number or a failure, one per dimension. The names are those of the
semantic conventions for generative AI (status: development); attributes without such a name begin with `driftline.`. Events contain no
text of an exchange, and the judge's explanations only if configured.

1. A watermark in the database moves after the collector has accepted scores, so scores interrupted by a kill are sent again. Scores
   from before the address was configured are not sent.
2. Scores for a busy or unreachable collector are retried later. Scores that it calls malformed are logged and skipped, because it
   would never accept them.
3. No other work waits for it: it runs beside the server's work and reads with its own cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_not_result, stop_after_attempt, wait_exponential

from analytics.queries import query_rows
from analytics.store.store import Store
from schemas.errors import DriftlineError, SettingsError
from schemas.lazy import httpx2
from service.setup.settings import Settings
from service.setup.version import version
from streams.judges.rate_limits import retry_after

PATH = "/v1/logs"
"""The path of a collector that takes log records, which events are."""


@dataclass(frozen=True, slots=True)
class Collector:
    """The address and headers of a collector, and whether to send the judge's words."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    explain: bool = False


def collector_of(settings: Settings, environment: Mapping[str, str]) -> Collector | None:
    """Return the collector from the settings, or else from OpenTelemetry's own variables; None without one.

    SettingsError for an invalid address or invalid headers.
    """
    whole = environment.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "")
    base = settings.otlp_endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    url = whole if whole and not settings.otlp_endpoint else base and base.rstrip("/") + PATH
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_ENDPOINT: is not an address", hint="Give one that begins with http:// or https://."
        )
    headers_text = environment.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    return Collector(url, _headers(headers_text), settings.otlp_explanations)


def _headers(text: str) -> dict[str, str]:
    """Return the headers in OpenTelemetry's form, `name=value,name=value`, percent-encoded."""
    headers = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise SettingsError(
                "OTEL_EXPORTER_OTLP_HEADERS: must have the form name=value,name=value", hint="Correct the variable."
            )
        headers[name.strip().lower()] = urllib.parse.unquote(value.strip())
    return headers


EVENT = "gen_ai.evaluation.result"
NAME, VALUE, LABEL = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label"
EXPLANATION, ERROR = "gen_ai.evaluation.explanation", "error.type"
PASS, FLAGGED = "pass", "flagged"
LOW = 2
"""A dimension of Tier 3 at or below this is an anomaly."""
COMMON = {
    "gen_ai.response.id": "exchange_id",
    "gen_ai.conversation.id": "session_id",
    "gen_ai.agent.name": "agent",
    "driftline.project": "project",
    "driftline.connection": "connection",
    "driftline.turn": "turn_number",
    "driftline.score.id": "score_id",
    "driftline.score.revision": "revision",
    "driftline.disposition": "disposition",
    "driftline.sampling.reason": "sampling_reason",
    "driftline.sampling.probability": "sampling_probability",
    "driftline.anomaly": "anomaly",
    "driftline.judge.model": "judge_model",
    "driftline.judge.simulated": "simulated",
    "driftline.methodology": "methodology",
    "driftline.methodology.version": "methodology_version",
}
"""The attributes of every event of a score, by the score's columns; missing values are left out."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Judged:
    """The columns of a tier's judgement in a score."""

    name: str
    state: str
    reason: str
    value: str
    dimensions: str | None
    words: str | None


_JUDGED = (
    _Judged("tier2", "tier2_state", "tier2_reason", "tier2_score", "tier2_dimensions", "tier2_flag_reason"),
    _Judged("tier2_5", "tier2_5_state", "tier2_5_reason", "tier2_5_alignment", None, "tier2_5_reasoning"),
    _Judged("tier3", "tier3_state", "tier3_reason", "tier3_score", "tier3_dimensions", None),
)


def request_of(rows: Sequence[Row], version: str, *, explain: bool) -> ExportLogsServiceRequest:
    """Return the request to a collector with the events of scores."""
    records = [_record(row, attributes) for row in rows for attributes in evaluations(row, explain=explain)]
    scope = InstrumentationScope(name="driftline", version=version)
    resource = Resource(attributes=[_pair("service.name", "driftline"), _pair("service.version", version)])
    return ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(resource=resource, scope_logs=[ScopeLogs(scope=scope, log_records=records)])]
    )


def evaluations(row: Row, *, explain: bool) -> Iterator[dict[str, Any]]:
    """Return the attributes of each event of a score, besides the common ones."""
    yield {NAME: "tier1", VALUE: row["tier1_score"], LABEL: FLAGGED if row["tier1_flags"] else PASS}
    for tier in _JUDGED:
        if row[tier.state] == "unscored":
            yield {NAME: tier.name, ERROR: row[tier.reason] or "unscored"}
        elif row[tier.state] == "scored":
            explanation = row[tier.words] if explain and tier.words else None
            yield {
                NAME: tier.name,
                VALUE: row[tier.value],
                LABEL: FLAGGED if _is_flagged(row, tier.name) else PASS,
                EXPLANATION: explanation,
            }
            for dimension in row[tier.dimensions] if tier.dimensions else ():
                explanation = dimension["reasoning"] if explain else None
                yield {NAME: f"{tier.name}.{dimension['dimension']}", VALUE: dimension["score"], EXPLANATION: explanation}


def _is_flagged(row: Row, tier: str) -> bool:
    if tier == "tier2":
        return bool(row["tier2_flagged"])
    if tier == "tier2_5":
        return bool(row["tier2_5_sycophancy"] or row["tier2_5_advocacy_suppression"])
    return any(dimension["score"] <= LOW for dimension in row["tier3_dimensions"])


def _record(row: Row, attributes: Mapping[str, Any]) -> LogRecord:
    """Return an event at the time of the exchange, observed at the time of its score."""
    given = {**attributes, **{name: row[column] for name, column in COMMON.items()}}
    return LogRecord(
        time_unix_nano=_nanoseconds(row["exchange_at"]),
        observed_time_unix_nano=_nanoseconds(row["scored_at"]),
        severity_number=SeverityNumber.SEVERITY_NUMBER_INFO,
        event_name=EVENT,
        attributes=[_pair(name, value) for name, value in given.items() if value is not None],
    )


def _nanoseconds(moment: datetime) -> int:
    seconds = int(moment.timestamp())
    return seconds * 1_000_000_000 + moment.microsecond * 1000


def _pair(key: str, value: bool | float | str) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=key, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=key, value=AnyValue(double_value=value))
    return KeyValue(key=key, value=AnyValue(string_value=value))


CONSUMER = "otlp"
TOPIC = "scores"
BATCH = 500
"""Scores of one request."""
INTERVAL = 10.0
DEADLINE = 10.0
"""Seconds for a request."""
TRIES = 3
PAUSE = 1.0
"""Seconds before the first retry; each further one waits twice as long, or as long as the collector requests."""
LONGEST_PAUSE = 30.0
AGAIN = frozenset({429, 502, 503, 504})
MALFORMED = 400
log = logging.getLogger(__name__)


class CollectorError(DriftlineError):
    """The collector refused the scores for now; they will be sent again later."""

    hint = "Check that DRIFTLINE_OTLP_ENDPOINT is a collector's address for OTLP over HTTP, and look at the collector's log."


class ScoreEvents:
    """The periodic task that sends new scores."""

    name = "otlp"
    interval = INTERVAL

    def __init__(self, store: Store, collector: Collector) -> None:
        self._store, self._collector = store, collector

    async def run(self) -> None:
        """Send all pending scores, batch by batch; CollectorError if the collector refuses them for now."""
        positions = await asyncio.to_thread(self._begin)
        async with httpx2.AsyncClient(follow_redirects=False, timeout=DEADLINE) as client:
            for partition in positions:
                while rows := await asyncio.to_thread(self._read, partition, positions[partition]):
                    await self._send(client, rows)
                    positions[partition] = rows[-1]["_offset"] + 1
                    await asyncio.to_thread(self._move, partition, positions[partition])

    def _begin(self) -> dict[int, int]:
        """Return the position to continue from in each partition; on the first run, the end of each partition."""
        with contextlib.closing(self._store.cursor()) as cursor:
            ends = {row["partition"]: row["next_position"] for row in query_rows(cursor, "score_positions")}
        with self._store.transaction() as transaction:
            watermarks = {partition: at for (_, partition), at in transaction.watermarks(CONSUMER).items()}
            if not watermarks:
                started = ends or {0: 0}
                transaction.set_watermarks(CONSUMER, {(TOPIC, partition): at for partition, at in started.items()})
                return started
        # Send partitions added later from their beginning. A rebuilt table may end before the watermark.
        return {partition: min(watermarks.get(partition, 0), end) for partition, end in ends.items()}

    def _read(self, partition: int, position: int) -> list[dict[str, Any]]:
        with contextlib.closing(self._store.cursor()) as cursor:
            return query_rows(cursor, "scores_after", {"partition": partition, "position": position, "limit": BATCH})

    def _move(self, partition: int, position: int) -> None:
        with self._store.transaction() as transaction:
            transaction.set_watermarks(CONSUMER, {(TOPIC, partition): position})

    async def _send(self, client: httpx2.AsyncClient, rows: list[dict[str, Any]]) -> None:
        body = request_of(rows, version(), explain=self._collector.explain).SerializeToString()
        again = AsyncRetrying(retry=retry_if_not_result(_is_settled), wait=_pause, stop=stop_after_attempt(TRIES))
        try:
            await again(self._try, client, body, rows)
        except RetryError:
            raise CollectorError("the collector is unreachable, or accepts nothing at the moment") from None

    async def _try(self, client: httpx2.AsyncClient, body: bytes, rows: list[dict[str, Any]]) -> float | None:
        """Send once; return None if the batch is settled, otherwise the wait in seconds that the collector requests."""
        headers = {**self._collector.headers, "content-type": "application/x-protobuf"}
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await client.post(self._collector.url, content=body, headers=headers)
        except (httpx2.HTTPError, TimeoutError):
            return 0.0
        if answer.status_code in AGAIN:
            return retry_after(answer.headers, time.time) or 0.0
        span = f"scores from {rows[0]['_offset']} to {rows[-1]['_offset']}"
        if answer.status_code == MALFORMED:
            log.error("the collector rejects %s as malformed: they are left out", span)
        elif not answer.is_success:
            raise CollectorError(f"the collector answers {answer.status_code}")
        else:
            _note_partial(answer.content, span)
        return None


def _is_settled(wait: float | None) -> bool:
    return wait is None


def _pause(tried: RetryCallState) -> float:
    """Return the seconds until the next attempt: `PAUSE`, doubled with each attempt, or longer if the collector requests it."""
    wanted = tried.outcome.result() if tried.outcome else 0.0
    return min(max(wanted, wait_exponential(multiplier=PAUSE)(tried)), LONGEST_PAUSE)


def _note_partial(content: bytes, span: str) -> None:
    """Log scores that the collector rejected, which by the protocol must not be sent again."""
    with contextlib.suppress(Exception):  # an answer in another form: the scores were accepted all the same
        partial = ExportLogsServiceResponse.FromString(content).partial_success
        if partial.rejected_log_records:
            log.warning("the collector left %d events of %s out", partial.rejected_log_records, span)
