"""The JSON documents of scores and projects: camelCase, times in ISO 8601 UTC with a Z, null for unknown values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from analytics.queries import query_rows
from audit.exchanges.states import SCORED

Row = Mapping[str, Any]
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The scores of a project to show."""

    start: datetime | None = None
    """Only exchanges at or after this time."""
    end: datetime | None = None
    """Only exchanges before this time."""
    since: datetime | None = None
    """Only exchanges scored, or scored again, at or after this time."""
    session: str | None = None
    anomalies: bool = False
    """Only those with an anomaly."""
    limit: int = 100
    after: tuple[datetime, str, int] | None = None
    """The end of the last page: the exchange's time, the score's id, the turn (-1 if there is none)."""


def project_scores(cursor: duckdb.DuckDBPyConnection, project: str, wanted: Wanted) -> list[Document]:
    """Return the current scores of a project, newest exchange first, at one moment the later turn first."""
    at, identity, turn = wanted.after or (None, None, None)
    values = {
        "project": project,
        "from": wanted.start,
        "to": wanted.end,
        "since": wanted.since,
        "session": wanted.session,
        "anomalies": wanted.anomalies,
        "limit": wanted.limit,
        "after_at": at,
        "after_turn": turn,
        "after_id": identity,
    }
    return [score_document(row) for row in query_rows(cursor, "project_scores", values)]


def score_by_id(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None = None) -> Document | None:
    """Return one score of a project; None if it has none of that id. The exchange's time makes it fast."""
    rows = query_rows(cursor, "score_by_id", {"project": project, "score": score_id, "at": at})
    return score_document(rows[0]) if rows else None


def project_summary(cursor: duckdb.DuckDBPyConnection, project: str, baseline: Document | None = None) -> Document:
    """Return the state of a project; all zeros for an unknown one."""
    rows = query_rows(cursor, "project_summary", {"project": project})
    return summary_document(project, rows[0] if rows else {}, baseline)


def score_document(row: Row) -> Document:
    """Return the document of a row of the queries `project_scores` and `score_by_id`: one exchange's scores."""
    return {
        "id": row["score_id"],
        "exchangeId": row["exchange_id"],
        "sessionId": row["session_id"],
        "turnNumber": row["turn_number"],
        "exchangeTimestamp": iso_time(row["exchange_at"]),
        "project": row["project"],
        "schemaVersion": row["methodology_version"],
        "judgeModel": row["judge_model"],
        "scoredAt": iso_time(row["scored_at"]),
        "tier1StructuralScore": row["tier1_score"],
        "tier1Flags": list(row["tier1_flags"]),
        "tier2SemanticScore": row["tier2_score"],
        "tier2Reasoning": _reasoning(row["tier2_dimensions"]),
        "tier2Skipped": row["tier2_state"] != SCORED,
        "tier2_5AlignmentScore": row["tier2_5_alignment"],
        "tier2_5Reasoning": row["tier2_5_reasoning"],
        "tier2_5Skipped": row["tier2_5_state"] != SCORED,
        "tier3BehavioralScore": row["tier3_score"],
        "tier3DimensionScores": {
            one["dimension"]: {"score": one["score"], "reasoning": one["reasoning"]} for one in row["tier3_dimensions"]
        },
        "tier3Skipped": row["tier3_state"] != SCORED,
        "anomalyFlag": row["anomaly"],
        "anomalyReason": "; ".join(row["anomaly_reasons"]) or None,
        "costUsd": row["cost_usd"],
        "humanScore": row["human_score"],
        "humanComment": row["human_comment"],
        "humanScoredAt": iso_time(row["human_scored_at"]),
        "samplingReason": row["sampling_reason"],
        "disposition": row["disposition"],
        "revision": row["revision"],
        "createdAt": iso_time(row["created_at"]),
        **_beyond(row),
    }


def _beyond(row: Row) -> Document:
    """Return the fields that earlier webhooks lack: what was asked, and the reason of each tier's state."""
    return {
        "connection": row["connection"],
        "agent": row["agent"],
        "samplingProbability": row["sampling_probability"],
        "simulated": row["simulated"],
        "tier2State": row["tier2_state"],
        "tier2Reason": row["tier2_reason"],
        "tier2Flagged": row["tier2_flagged"],
        "tier2FlagReason": row["tier2_flag_reason"],
        "tier2_5State": row["tier2_5_state"],
        "tier2_5Reason": row["tier2_5_reason"],
        "tier2_5Sycophancy": row["tier2_5_sycophancy"],
        "tier2_5AdvocacySuppression": row["tier2_5_advocacy_suppression"],
        "tier3State": row["tier3_state"],
        "tier3Reason": row["tier3_reason"],
        "droppedQuotes": row["dropped_quotes"],
    }


def summary_document(project: str, row: Row, baseline: Document | None) -> Document:
    """Return the document of a row of the query `project_summary`, which may be empty, with the project's baseline."""
    return {
        "project": project,
        "exchanges": {
            "total": row.get("exchanges", 0),
            "scored": row.get("scored", 0),
            "pending": row.get("pending", 0),
            "skippedSampling": row.get("skipped_sampling", 0),
            "skippedCostCap": row.get("skipped_cost_cap", 0),
            "unscored": row.get("unscored", 0),
            "unscoredReasons": {one["reason"]: one["exchanges"] for one in row.get("unscored_reasons", ())},
        },
        "scores": {
            "total": row.get("scores", 0),
            "anomalies": row.get("anomalies", 0),
            "avgTier1Structural": row.get("mean_tier1"),
            "avgTier2Semantic": row.get("mean_tier2"),
            "avgTier2_5Alignment": row.get("mean_tier2_5"),
            "avgTier3Behavioral": row.get("mean_tier3"),
            "costUsd": row.get("cost_usd", 0.0),
            "unknownCosts": row.get("unknown_costs", 0),
            "simulated": row.get("simulated", 0),
        },
        "baseline": baseline,
        "openIncidents": row.get("open_incidents", 0),
        "suspectedIncidents": row.get("suspected_incidents", 0),
    }


def iso_time(moment: datetime | None) -> str | None:
    """Return the time in ISO 8601, UTC, with a Z; microseconds if there are any. None stays None."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _reasoning(dimensions: Sequence[Row]) -> str | None:
    """Return the judge's comments, one dimension per line; None if there are none."""
    lines = [f"{one['dimension']}: {one['reasoning']}" for one in dimensions if one["reasoning"]]
    return "\n".join(lines) or None
