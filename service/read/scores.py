"""The JSON documents of scores and projects: camelCase, times in ISO 8601 UTC with a Z, null for unknown values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from analytics.queries import query_rows
from analytics.sums.whole_days import query_days
from audit.exchanges.states import SCORED
from schemas.lazy.duckdb import duckdb
from service.text.members import Document, members

Row = Mapping[str, Any]
_SCORE = (
    "id=score_id exchange_id session_id turn_number exchangeTimestamp=exchange_at project schemaVersion=methodology_version "
    "judge_model scored_at tier1StructuralScore=tier1_score tier1_flags tier2SemanticScore=tier2_score tier2_reasoning tier2_skipped "
    "tier2_5AlignmentScore=tier2_5_alignment tier2_5_reasoning tier2_5_skipped tier3BehavioralScore=tier3_score "
    "tier3_dimension_scores tier3_skipped anomalyFlag=anomaly anomaly_reason cost_usd human_score human_comment human_scored_at "
    "sampling_reason disposition revision created_at connection agent sampling_probability simulated tier2_state tier2_reason "
    "tier2_flagged tier2_flag_reason tier2_5_state tier2_5_reason tier2_5_sycophancy tier2_5_advocacy_suppression tier3_state "
    "tier3_reason dropped_quotes"
)
"""The members of a score: those that earlier webhooks know come first, in their order."""
_COUNTS = "total=exchanges scored pending skipped_sampling skipped_cost_cap unscored"
_FIGURES = (
    "total=scores anomalies avgTier1Structural=mean_tier1 avgTier2Semantic=mean_tier2 avgTier2_5Alignment=mean_tier2_5 "
    "avgTier3Behavioral=mean_tier3 cost_usd unknown_costs simulated"
)
_NOTHING: Row = {
    **dict.fromkeys(("exchanges", "scored", "pending", "skipped_sampling", "skipped_cost_cap", "unscored", "scores"), 0),
    **dict.fromkeys(("anomalies", "unknown_costs", "simulated", "open_incidents", "suspected_incidents"), 0),
    **dict.fromkeys(("mean_tier1", "mean_tier2", "mean_tier2_5", "mean_tier3")),
    "cost_usd": 0.0,
    "unscored_reasons": (),
}
"""The row of a project without records."""


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


def newest_score(cursor: duckdb.DuckDBPyConnection, project: str | None, until: datetime | None = None) -> datetime | None:
    """Return the time of the newest scored exchange of a project, or of all, before a time (None: any); None without one."""
    at: datetime | None = next(
        (row["exchange_at"] for row in query_rows(cursor, "newest_score", {"project": project, "until": until})), None
    )
    return at


def score_by_id(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None = None) -> Document | None:
    """Return one score of a project; None if it has none of that id. The exchange's time makes it fast."""
    rows = query_rows(cursor, "score_by_id", {"project": project, "score": score_id, "at": at})
    return score_document(rows[0]) if rows else None


def project_summary(cursor: duckdb.DuckDBPyConnection, project: str, baseline: Document | None = None) -> Document:
    """Return the state of a project; all zeros for an unknown one."""
    rows = query_days(cursor, "project_summary", {"project": project})
    return summary_document(project, rows[0] if rows else {}, baseline)


def score_document(row: Row) -> Document:
    """Return the document of a row of the queries `project_scores` and `score_by_id`: one exchange's scores."""
    made = {
        **{f"{tier}_skipped": row[f"{tier}_state"] != SCORED for tier in ("tier2", "tier2_5", "tier3")},
        "tier2_reasoning": _reasoning(row["tier2_dimensions"]),
        "tier3_dimension_scores": {
            one["dimension"]: {"score": one["score"], "reasoning": one["reasoning"]} for one in row["tier3_dimensions"]
        },
        "anomaly_reason": "; ".join(row["anomaly_reasons"]) or None,
    }
    return members({**row, **made}, _SCORE)


def summary_document(project: str, row: Row, baseline: Document | None) -> Document:
    """Return the document of a row of the query `project_summary`, which may be empty, with the project's baseline."""
    found = {**_NOTHING, **row}
    reasons = {one["reason"]: one["exchanges"] for one in found["unscored_reasons"]}
    return {
        "project": project,
        "exchanges": {**members(found, _COUNTS), "unscoredReasons": reasons},
        "scores": members(found, _FIGURES),
        "baseline": baseline,
        **members(found, "open_incidents suspected_incidents"),
    }


def _reasoning(dimensions: Sequence[Row]) -> str | None:
    """Return the judge's comments, one dimension per line; None if there are none."""
    lines = [f"{one['dimension']}: {one['reasoning']}" for one in dimensions if one["reasoning"]]
    return "\n".join(lines) or None
