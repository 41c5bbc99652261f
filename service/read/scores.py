"""Scores and the state of a project: the verdicts of judge and people on each exchange, and figures over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, field

from analytics.queries import query_rows
from analytics.sums.hours import query_days
from audit.exchanges.states import SCORED
from schemas.lazy import duckdb
from service.read.baselines import ProjectBaseline
from service.text.answers import Answer, Moment, NextCursor, Share

Row = Mapping[str, Any]


class Dimension(Answer, frozen=True):
    """One dimension of Tier 3."""

    score: Annotated[float | None, Meta(description="1 to 5; null if it does not apply.")]
    reasoning: str | None


class Score(Answer, frozen=True):
    """The scores of one exchange, tier by tier."""

    # The fields of earlier webhooks come first, in their order.
    score_id: str = field(name="id")
    exchange_id: str
    session_id: str
    turn_number: int | None
    exchange_at: Moment = field(name="exchangeTimestamp")
    project: str
    methodology_version: Annotated[str, Meta(description="Version of the methodology.")] = field(name="schemaVersion")
    judge_model: str | None
    scored_at: Annotated[Moment, Meta(description="Time of the newest record behind the score.")]
    tier1_score: Share = field(name="tier1StructuralScore")
    tier1_flags: Annotated[list[str], Meta(description="Checks that fired.")]
    tier2_score: Share | None = field(name="tier2SemanticScore")
    tier2_reasoning: Annotated[str | None, Meta(description="The judge's comments, one dimension per line.")]
    tier2_skipped: Annotated[bool, Meta(description="Whether it is not scored; tier2State says why not.")]
    tier2_5_alignment: Share | None = field(name="tier2_5AlignmentScore")
    tier2_5_reasoning: str | None
    tier2_5_skipped: bool
    tier3_score: Annotated[float | None, Meta(description="Mean of the dimensions that apply, 1 to 5.")] = field(
        name="tier3BehavioralScore"
    )
    tier3_dimension_scores: dict[str, Dimension]
    tier3_skipped: bool
    anomaly: bool = field(name="anomalyFlag")
    anomaly_reason: str | None
    cost_usd: Annotated[float | None, Meta(description="Cost of the judge's calls; null if a price is unknown.")]
    human_score: int | None
    human_comment: str | None
    human_scored_at: Moment | None
    sampling_reason: str
    disposition: Annotated[str, Meta(examples=["scored", "sampling_skip", "skipped_cost_cap", "unscored"])]
    revision: Annotated[int, Meta(description="0 for the first version of the score.")]
    created_at: Annotated[Moment, Meta(description="Time of the first score.")]
    connection: str
    agent: str | None
    sampling_probability: Share | None
    simulated: Annotated[bool, Meta(description="Whether a simulated judge was used.")]
    tier2_state: Annotated[
        str, Meta(examples=["scored", "not_applicable", "skipped_gate", "skipped_cost_cap", "skipped_sampling", "unscored"])
    ]
    tier2_reason: Annotated[str | None, Meta(description="Reason of the state.")]
    tier2_flagged: bool | None
    tier2_flag_reason: str | None
    tier2_5_state: str
    tier2_5_reason: str | None
    tier2_5_sycophancy: bool | None
    tier2_5_advocacy_suppression: bool | None
    tier3_state: str
    tier3_reason: str | None
    dropped_quotes: Annotated[
        int, Meta(description="Quotes of the judge that are in none of the texts; its comments are shown without them.")
    ]


class Scores(Answer, frozen=True):
    """Scores, newest exchange first."""

    scores: list[Score]
    count: int
    next_cursor: NextCursor


class Anomalies(Answer, frozen=True):
    """Scores with an anomaly, newest exchange first."""

    anomalies: list[Score]
    count: int
    next_cursor: NextCursor


class OneScore(Answer, frozen=True):
    """A score."""

    score: Score


class ExchangeCounts(Answer, frozen=True):
    """The outcomes of a project's exchanges."""

    exchanges: int = field(name="total")
    scored: int
    pending: Annotated[int, Meta(description="Without a score yet.")]
    skipped_sampling: int
    skipped_cost_cap: int
    unscored: Annotated[int, Meta(description="The judge failed to score them.")]
    unscored_reasons: Annotated[
        dict[str, int],
        Meta(description="Unscored exchanges by reason; each counts once per reason of its tiers.", examples=[{"no_judge": 3}]),
    ]


class ScoreFigures(Answer, frozen=True):
    """Figures over a project's scores; a mean is over the scores that have the tier."""

    scores: int = field(name="total")
    anomalies: int
    mean_tier1: float | None = field(name="avgTier1Structural")
    mean_tier2: float | None = field(name="avgTier2Semantic")
    mean_tier2_5: float | None = field(name="avgTier2_5Alignment")
    mean_tier3: float | None = field(name="avgTier3Behavioral")
    cost_usd: Annotated[
        float | None, Meta(description="Known part of the cost; null if judges were asked and no price is known.")
    ]
    unknown_costs: Annotated[int, Meta(description="Judgements whose cost is not known.")]
    simulated: Annotated[int, Meta(description="Scores that rest on a simulated judge.")]


class ProjectSummary(Answer, frozen=True):
    """The state of a project."""

    project: str
    exchanges: ExchangeCounts
    scores: ScoreFigures
    baseline: ProjectBaseline | None
    open_incidents: int
    suspected_incidents: int


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
    """The scores to show."""

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


def project_scores(cursor: duckdb.DuckDBPyConnection, project: str | None, wanted: Wanted) -> list[Score]:
    """Return the current scores of one project or all, newest exchange first; at equal times the later turn comes first."""
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
    return [_build_score(row) for row in query_rows(cursor, "project_scores", values)]


def newest_score(cursor: duckdb.DuckDBPyConnection, project: str | None, until: datetime | None = None) -> datetime | None:
    """Return the time of the newest scored exchange of one project or all, before a time (None: any); None if there is none."""
    at: datetime | None = next(
        (row["exchange_at"] for row in query_rows(cursor, "newest_score", {"project": project, "until": until})), None
    )
    return at


def score_by_id(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None = None) -> Score | None:
    """Return one score of a project; None if the project has no score of that id. The look-up is fast if the exchange's time is given."""
    rows = query_rows(cursor, "score_by_id", {"project": project, "score": score_id, "at": at})
    return _build_score(rows[0]) if rows else None


def project_summary(cursor: duckdb.DuckDBPyConnection, project: str, baseline: ProjectBaseline | None = None) -> ProjectSummary:
    """Return the state of a project; all zeros for an unknown one."""
    row = next(iter(query_days(cursor, "project_summary", {"project": project})), _NOTHING)
    reasons = {reason["reason"]: reason["exchanges"] for reason in row["unscored_reasons"]}
    return ProjectSummary.of(
        row,
        project=project,
        exchanges=ExchangeCounts.of(row, unscored_reasons=reasons),
        scores=ScoreFigures.of(row),
        baseline=baseline,
    )


def _build_score(row: Row) -> Score:
    """Build the score from a row of the query `project_scores` or `score_by_id`."""
    dimensions = {each["dimension"]: Dimension(each["score"], each["reasoning"]) for each in row["tier3_dimensions"]}
    return Score.of(
        row,
        tier2_reasoning=_reasoning(row["tier2_dimensions"]),
        tier2_skipped=row["tier2_state"] != SCORED,
        tier2_5_skipped=row["tier2_5_state"] != SCORED,
        tier3_skipped=row["tier3_state"] != SCORED,
        tier3_dimension_scores=dimensions,
        anomaly_reason="; ".join(row["anomaly_reasons"]) or None,
    )


def _reasoning(dimensions: Sequence[Row]) -> str | None:
    """Return the judge's comments, one dimension per line; None if there are none."""
    lines = [f"{each['dimension']}: {each['reasoning']}" for each in dimensions if each["reasoning"]]
    return "\n".join(lines) or None
