"""A score as OpenTelemetry's events `gen_ai.evaluation.result`: one per tier with a number or a failure, one per dimension.

The names are those of the semantic conventions for generative AI (status: development); what they have no name for begins with
`driftline.`. No text of an exchange is in an event, and the judge's words only where they are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

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
    """Return the events of scores, as a request to a collector."""
    records = [_record(row, attributes) for row in rows for attributes in evaluations(row, explain=explain)]
    scope = InstrumentationScope(name="driftline", version=version)
    resource = Resource(attributes=[_pair("service.name", "driftline"), _pair("service.version", version)])
    return ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(resource=resource, scope_logs=[ScopeLogs(scope=scope, log_records=records)])]
    )


def evaluations(row: Row, *, explain: bool) -> Iterator[dict[str, Any]]:
    """Return the attributes of each event of a score, without the common ones."""
    yield {NAME: "tier1", VALUE: row["tier1_score"], LABEL: FLAGGED if row["tier1_flags"] else PASS}
    for tier in _JUDGED:
        if row[tier.state] == "unscored":
            yield {NAME: tier.name, ERROR: row[tier.reason] or "unscored"}
        elif row[tier.state] == "scored":
            words = row[tier.words] if explain and tier.words else None
            yield {
                NAME: tier.name,
                VALUE: row[tier.value],
                LABEL: FLAGGED if _is_flagged(row, tier.name) else PASS,
                EXPLANATION: words,
            }
            for dimension in row[tier.dimensions] if tier.dimensions else ():
                words = dimension["reasoning"] if explain else None
                yield {NAME: f"{tier.name}.{dimension['dimension']}", VALUE: dimension["score"], EXPLANATION: words}


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
