"""Answers about a project, field by field; `service.read.scores` says where each value comes from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from audit.times import time_text
from service.text.members import camel
from service.web.paging import NextCursor
from service.web.response_models import Answer

Moment = Annotated[
    str,
    BeforeValidator(time_text),
    Field(json_schema_extra={"format": "date-time"}),
]
"""A time as `iso_time` writes it; made of a datetime, too."""
Share = Annotated[float, Field(json_schema_extra={"minimum": 0, "maximum": 1})]
"""Documented, not checked: a score a hair above 1 is no reason to answer nothing."""


class ProjectAnswer(Answer):
    """The base of every answer about a project: it names the fields."""

    model_config = ConfigDict(alias_generator=camel)


class DimensionAnswer(ProjectAnswer):
    """One dimension of Tier 3."""

    score: float | None = Field(description="1 to 5; null if it does not apply.")
    reasoning: str | None


class ScoreAnswer(ProjectAnswer):
    """The scores of one exchange, tier by tier."""

    id: str
    exchange_id: str
    session_id: str
    turn_number: int
    exchange_timestamp: Moment
    project: str
    schema_version: str = Field(description="Version of the methodology.")
    judge_model: str | None
    scored_at: Moment = Field(description="Time of the newest record behind the score.")
    tier1_structural_score: Share
    tier1_flags: list[str] = Field(description="Checks that fired.")
    tier2_semantic_score: Share | None
    tier2_reasoning: str | None = Field(description="The judge's comments, one dimension per line.")
    tier2_skipped: bool = Field(description="Whether it is not scored; tier2State says why not.")
    tier2_5_alignment_score: Share | None
    tier2_5_reasoning: str | None
    tier2_5_skipped: bool
    tier3_behavioral_score: float | None = Field(description="Mean of the dimensions that apply, 1 to 5.")
    tier3_dimension_scores: dict[str, DimensionAnswer]
    tier3_skipped: bool
    anomaly_flag: bool
    anomaly_reason: str | None
    cost_usd: float | None = Field(description="Cost of the judge's calls; null if a price is unknown.")
    human_score: int | None
    human_comment: str | None
    human_scored_at: Moment | None
    sampling_reason: str
    disposition: str = Field(examples=["scored", "sampling_skip", "skipped_cost_cap", "unscored"])
    revision: int = Field(description="0 for the first version of the score.")
    created_at: Moment = Field(description="Time of the first score.")
    connection: str
    agent: str | None
    sampling_probability: Share | None
    simulated: bool = Field(description="Whether a simulated judge was used.")
    tier2_state: str = Field(
        examples=["scored", "not_applicable", "skipped_gate", "skipped_cost_cap", "skipped_sampling", "unscored"]
    )
    tier2_reason: str | None = Field(description="Reason of the state.")
    tier2_flagged: bool | None
    tier2_flag_reason: str | None
    tier2_5_state: str
    tier2_5_reason: str | None
    tier2_5_sycophancy: bool | None
    tier2_5_advocacy_suppression: bool | None
    tier3_state: str
    tier3_reason: str | None
    dropped_quotes: int = Field(
        description="Quotes of the judge that are in none of the texts; its comments are shown without them."
    )


class ScoresAnswer(Answer):
    """Scores, newest exchange first."""

    scores: list[ScoreAnswer]
    count: int
    next_cursor: NextCursor


class AnomaliesAnswer(Answer):
    """Scores with an anomaly, newest exchange first."""

    anomalies: list[ScoreAnswer]
    count: int
    next_cursor: NextCursor


class OneScoreAnswer(Answer):
    """A score."""

    score: ScoreAnswer


class ExchangeCounts(ProjectAnswer):
    """The outcomes of a project's exchanges."""

    total: int
    scored: int
    pending: int = Field(description="Without a score yet.")
    skipped_sampling: int
    skipped_cost_cap: int
    unscored: int = Field(description="The judge failed to score them.")
    unscored_reasons: dict[str, int] = Field(
        description="Unscored exchanges by reason; each counts once per reason of its tiers.", examples=[{"no_judge": 3}]
    )


class ScoreFigures(ProjectAnswer):
    """Figures over a project's scores; means are over those that have the tier."""

    total: int
    anomalies: int
    avg_tier1_structural: float | None
    avg_tier2_semantic: float | None
    avg_tier2_5_alignment: float | None
    avg_tier3_behavioral: float | None
    cost_usd: float | None = Field(description="Known part of the cost; null if judges were asked and no price is known.")
    unknown_costs: int = Field(description="Judgements whose cost is not known.")
    simulated: int = Field(description="Scores that rest on a simulated judge.")


class SummaryAnswer(ProjectAnswer):
    """The state of a project."""

    project: str
    exchanges: ExchangeCounts
    scores: ScoreFigures
    baseline: dict[str, Any] | None
    open_incidents: int
    suspected_incidents: int
