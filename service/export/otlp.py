"""Export of scores to an OpenTelemetry collector over OTLP/HTTP, at least once. It is off unless an address is configured.

Each score becomes events `gen_ai.evaluation.result`: one per tier with a score or a failure, and one per dimension. Names follow the
semantic conventions for generative AI (status: development); other attributes begin with `driftline.`. Events contain no text of an
exchange, and the judge's explanations only if configured.

1. A watermark in the database advances after the collector has accepted scores, so that scores are sent again after a crash. Scores
   from before the address was configured are not sent.
2. If the collector is busy or unreachable, scores are retried later. Scores that it rejects as malformed are logged and skipped, because
   it would never accept them.
3. The export delays no other work: it runs concurrently and reads with its own cursor.
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

LOGS_PATH = "/v1/logs"
"""The collector's path for log records; events are log records."""


@dataclass(frozen=True, slots=True)
class Collector:
    """The address and headers of a collector, and whether to send the judge's explanations."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    explain: bool = False


def read_collector(settings: Settings, environment: Mapping[str, str]) -> Collector | None:
    """Return the collector from the settings, or else from OpenTelemetry's own variables; None without one.

    Raises SettingsError if the address or the headers are invalid.
    """
    logs_url = environment.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "")
    base_url = settings.otlp_endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if logs_url and not settings.otlp_endpoint:
        url = logs_url
    elif base_url:
        url = base_url.rstrip("/") + LOGS_PATH
    else:
        return None
    if not url.startswith(("http://", "https://")):
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_ENDPOINT: is not a URL", hint="Set it to a URL that begins with http:// or https://."
        )
    headers_text = environment.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    return Collector(url, _parse_headers(headers_text), settings.otlp_explanations)


def _parse_headers(text: str) -> dict[str, str]:
    """Parse headers in OpenTelemetry's format: `name=value,name=value`, percent-encoded."""
    headers = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise SettingsError(
                "OTEL_EXPORTER_OTLP_HEADERS: must have the form name=value,name=value", hint="Correct the variable."
            )
        headers[name.strip().lower()] = urllib.parse.unquote(value.strip())
    return headers


EVENT_NAME = "gen_ai.evaluation.result"
NAME, VALUE, LABEL = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label"
EXPLANATION, ERROR = "gen_ai.evaluation.explanation", "error.type"
PASS, FLAGGED = "pass", "flagged"
MAX_ANOMALOUS_SCORE = 2
"""The highest score of a Tier 3 dimension that is an anomaly."""
COMMON_ATTRIBUTES = {
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
"""The attributes of every event of a score, with their columns. Missing values are left out."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _TierColumns:
    """The columns of a judged tier in a score."""

    name: str
    state: str
    reason: str
    value: str
    dimensions: str | None
    explanation: str | None


_JUDGED_TIERS = (
    _TierColumns("tier2", "tier2_state", "tier2_reason", "tier2_score", "tier2_dimensions", "tier2_flag_reason"),
    _TierColumns("tier2_5", "tier2_5_state", "tier2_5_reason", "tier2_5_alignment", None, "tier2_5_reasoning"),
    _TierColumns("tier3", "tier3_state", "tier3_reason", "tier3_score", "tier3_dimensions", None),
)


def build_request(rows: Sequence[Row], version: str, *, explain: bool) -> ExportLogsServiceRequest:
    """Return the request that sends the events of scores to a collector."""
    records = [_build_log_record(row, attributes) for row in rows for attributes in build_evaluations(row, explain=explain)]
    scope = InstrumentationScope(name="driftline", version=version)
    resource = Resource(
        attributes=[_build_attribute("service.name", "driftline"), _build_attribute("service.version", version)]
    )
    return ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(resource=resource, scope_logs=[ScopeLogs(scope=scope, log_records=records)])]
    )


def build_evaluations(row: Row, *, explain: bool) -> Iterator[dict[str, Any]]:
    """Yield the attributes of each event of a score, without the common ones."""
    yield {NAME: "tier1", VALUE: row["tier1_score"], LABEL: FLAGGED if row["tier1_flags"] else PASS}
    for tier in _JUDGED_TIERS:
        if row[tier.state] == "unscored":
            yield {NAME: tier.name, ERROR: row[tier.reason] or "unscored"}
        elif row[tier.state] == "scored":
            explanation = row[tier.explanation] if explain and tier.explanation else None
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
    return any(dimension["score"] <= MAX_ANOMALOUS_SCORE for dimension in row["tier3_dimensions"])


def _build_log_record(row: Row, attributes: Mapping[str, Any]) -> LogRecord:
    """Return an event with the time of the exchange, observed at the time of its score."""
    all_attributes = {**attributes, **{name: row[column] for name, column in COMMON_ATTRIBUTES.items()}}
    return LogRecord(
        time_unix_nano=_nanoseconds(row["exchange_at"]),
        observed_time_unix_nano=_nanoseconds(row["scored_at"]),
        severity_number=SeverityNumber.SEVERITY_NUMBER_INFO,
        event_name=EVENT_NAME,
        attributes=[_build_attribute(name, value) for name, value in all_attributes.items() if value is not None],
    )


def _nanoseconds(moment: datetime) -> int:
    seconds = int(moment.timestamp())
    return seconds * 1_000_000_000 + moment.microsecond * 1000


def _build_attribute(key: str, value: bool | float | str) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=key, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=key, value=AnyValue(double_value=value))
    return KeyValue(key=key, value=AnyValue(string_value=value))


CONSUMER = "otlp"
TOPIC = "scores"
BATCH_SIZE = 500
"""Scores per request."""
INTERVAL_SECONDS = 10.0
DEADLINE_SECONDS = 10.0
"""The timeout of a request."""
MAX_TRIES = 3
FIRST_PAUSE_SECONDS = 1.0
"""Seconds until the first retry. The delay doubles with each further one; the collector may request a longer one."""
MAX_PAUSE_SECONDS = 30.0
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
MALFORMED_STATUS = 400
log = logging.getLogger(__name__)


class CollectorError(DriftlineError):
    """The collector does not accept scores at the moment; they are sent again later."""

    hint = "Check that DRIFTLINE_OTLP_ENDPOINT is a collector's address for OTLP over HTTP, and look at the collector's log."


class ScoreEvents:
    """The periodic task that sends new scores."""

    name = "otlp"
    interval = INTERVAL_SECONDS

    def __init__(self, store: Store, collector: Collector) -> None:
        self._store = store
        self._collector = collector

    async def run(self) -> None:
        """Send all pending scores in batches. Raises CollectorError if the collector does not accept them at the moment."""
        positions = await asyncio.to_thread(self._read_positions)
        async with httpx2.AsyncClient(follow_redirects=False, timeout=DEADLINE_SECONDS) as client:
            for partition in positions:
                while rows := await asyncio.to_thread(self._read, partition, positions[partition]):
                    await self._send(client, rows)
                    positions[partition] = rows[-1]["_offset"] + 1
                    await asyncio.to_thread(self._store_position, partition, positions[partition])

    def _read_positions(self) -> dict[int, int]:
        """Return the position of the first pending score in each partition; on the first run, the end of each partition."""
        with contextlib.closing(self._store.cursor()) as cursor:
            ends = {row["partition"]: row["next_position"] for row in query_rows(cursor, "score_positions")}
        with self._store.transaction() as transaction:
            watermarks = {partition: position for (_, partition), position in transaction.watermarks(CONSUMER).items()}
            if not watermarks:
                positions = ends or {0: 0}
                transaction.set_watermarks(CONSUMER, {(TOPIC, partition): end for partition, end in positions.items()})
                return positions
        # New partitions are sent from their beginning. A rebuilt table may end before the watermark.
        return {partition: min(watermarks.get(partition, 0), end) for partition, end in ends.items()}

    def _read(self, partition: int, position: int) -> list[dict[str, Any]]:
        with contextlib.closing(self._store.cursor()) as cursor:
            return query_rows(cursor, "scores_after", {"partition": partition, "position": position, "limit": BATCH_SIZE})

    def _store_position(self, partition: int, position: int) -> None:
        with self._store.transaction() as transaction:
            transaction.set_watermarks(CONSUMER, {(TOPIC, partition): position})

    async def _send(self, client: httpx2.AsyncClient, rows: list[dict[str, Any]]) -> None:
        body = build_request(rows, version(), explain=self._collector.explain).SerializeToString()
        retrying = AsyncRetrying(retry=retry_if_not_result(_is_settled), wait=_retry_delay, stop=stop_after_attempt(MAX_TRIES))
        try:
            await retrying(self._post, client, body, rows)
        except RetryError:
            raise CollectorError("the collector is unreachable or does not accept scores at the moment") from None

    async def _post(self, client: httpx2.AsyncClient, body: bytes, rows: list[dict[str, Any]]) -> float | None:
        """Send a batch once. Return None if it is settled, or else the delay in seconds that the collector requests."""
        headers = {**self._collector.headers, "content-type": "application/x-protobuf"}
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                response = await client.post(self._collector.url, content=body, headers=headers)
        except (httpx2.HTTPError, TimeoutError):
            return 0.0
        if response.status_code in RETRIED_STATUSES:
            return retry_after(response.headers, time.time) or 0.0
        span = f"scores from {rows[0]['_offset']} to {rows[-1]['_offset']}"
        if response.status_code == MALFORMED_STATUS:
            log.error("the collector rejected %s as malformed; they are skipped", span)
        elif not response.is_success:
            raise CollectorError(f"the collector answered with status {response.status_code}")
        else:
            _log_rejections(response.content, span)
        return None


def _is_settled(delay: float | None) -> bool:
    return delay is None


def _retry_delay(attempt: RetryCallState) -> float:
    """Return the seconds until the next attempt: an exponential delay, or a longer one if the collector requests it."""
    requested = attempt.outcome.result() if attempt.outcome else 0.0
    return min(max(requested, wait_exponential(multiplier=FIRST_PAUSE_SECONDS)(attempt)), MAX_PAUSE_SECONDS)


def _log_rejections(content: bytes, span: str) -> None:
    """Log the events that the collector rejected. By the protocol they must not be sent again."""
    with contextlib.suppress(Exception):  # the response has another format, but the scores were accepted
        partial = ExportLogsServiceResponse.FromString(content).partial_success
        if partial.rejected_log_records:
            log.warning("the collector rejected %d events of %s", partial.rejected_log_records, span)
