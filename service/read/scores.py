"""Scores of a project: baselines, the verdicts on each exchange, trends, the wrap-up of sessions, and the costs of judging."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, field

from analytics.queries import query_rows, run_query
from analytics.sums.daily import query_days
from audit.exchanges.states import SCORED
from audit.exchanges.wrap_quality import STEPS, wrap_quality
from schemas.bounds import EARLIEST, LATEST
from schemas.lazy import duckdb
from schemas.records import Baseline, TierStatistics
from service.read.cold_days import ColdDays, OmittedDays, cold_days
from service.text.answers import Answer, Moment, NextCursor, Place, Share
from service.text.window import LENGTHS, Length, Window

if TYPE_CHECKING:
    from audit.policy import Policy

NO_BASELINE = "There is no baseline: the project has no scores within the window."
_DIGITS = 3


class BaselineTier(Answer, frozen=True):
    """Distribution of one tier, rounded to three decimals; the deviation is of the population."""

    avg: float | None
    stddev: float | None
    count: int


class BaselineAverages(Answer, frozen=True):
    """The tiers of a baseline and its rate of anomalies."""

    tier1: BaselineTier
    tier2: BaselineTier
    tier2_5: BaselineTier
    tier3: BaselineTier
    anomaly_rate: Share | None


class ProjectBaseline(Answer, frozen=True):
    """The normal range of a project's scores."""

    id: str
    project: str
    computed_at: Moment
    window_start: Moment
    window_end: Moment
    dimension_averages: BaselineAverages
    exchange_count: int
    schema_version: Annotated[str, Meta(description="Version of the methodology.")]


class LatestBaseline(Answer, frozen=True, omit_defaults=True):
    """The latest baseline, or the reason why it is missing."""

    baseline: ProjectBaseline | None
    message: Annotated[str | None, Meta(description="Why there is none.")] = None


def project_baseline(baseline: Baseline, schema_version: str) -> ProjectBaseline:
    """Describe a baseline; `schema_version` is that of the methodology."""
    return ProjectBaseline.of(
        msgspec.structs.asdict(baseline),
        id=baseline.baseline_id,
        dimension_averages=BaselineAverages(
            tier1=_describe_tier(baseline.tier1),
            tier2=_describe_tier(baseline.tier2),
            tier2_5=_describe_tier(baseline.tier2_5),
            tier3=_describe_tier(baseline.tier3),
            anomaly_rate=_round_figure(baseline.anomaly_rate),
        ),
        schema_version=schema_version,
    )


def _describe_tier(statistics: TierStatistics) -> BaselineTier:
    # One score has no spread.
    spread = statistics.stddev if statistics.count > 1 else None
    return BaselineTier(avg=_round_figure(statistics.mean), stddev=_round_figure(spread), count=statistics.count)


def _round_figure(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


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
    judge_saw_all: Annotated[
        bool | None,
        Meta(description="False if a text was too long to show the judge all of it; null without an answer."),
    ]


class Scores(Answer, frozen=True):
    """Scores, newest exchange first."""

    scores: list[Score]
    count: int
    next_cursor: NextCursor
    cold_days: OmittedDays


class Anomalies(Answer, frozen=True):
    """Scores with an anomaly, newest exchange first."""

    anomalies: list[Score]
    count: int
    next_cursor: NextCursor
    cold_days: OmittedDays


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
    cold_days: Annotated[
        ColdDays | None,
        Meta(
            description="Days in the lake only, which `unscoredReasons` leaves out; null for none. Everything else has all days."
        ),
    ]


_EMPTY_SUMMARY_ROW: Row = {
    "exchanges": 0,
    "scored": 0,
    "pending": 0,
    "skipped_sampling": 0,
    "skipped_cost_cap": 0,
    "unscored": 0,
    "unscored_reasons": (),
    "scores": 0,
    "anomalies": 0,
    "mean_tier1": None,
    "mean_tier2": None,
    "mean_tier2_5": None,
    "mean_tier3": None,
    "cost_usd": 0.0,
    "unknown_costs": 0,
    "simulated": 0,
    "open_incidents": 0,
    "suspected_incidents": 0,
}
"""The row of a project without records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFilter:
    """A filter for a list of scores, and its page."""

    start: datetime | None = None
    """Only exchanges at or after this time."""
    end: datetime | None = None
    """Only exchanges before this time."""
    since: datetime | None = None
    """Only exchanges scored, or scored again, at or after this time."""
    session: str | None = None
    agent: str | None = None
    tool: str | None = None
    """Only exchanges with a call of this tool."""
    version: str | None = None
    """Only exchanges of this version of the agent."""
    tool_error: bool = False
    """Only exchanges with a failed tool call."""
    text: str | None = None
    """Only exchanges with all words of this text."""
    anomalies: bool = False
    """Only those with an anomaly."""
    limit: int = 100
    after: tuple[datetime, str, int] | None = None
    """The end of the last page: the exchange's time, the score's id, the turn (-1 without a turn)."""


def project_scores(cursor: duckdb.DuckDBPyConnection, project: str | None, filters: ScoreFilter) -> list[Score]:
    """Return the current scores of one project or all, newest exchange first; at equal times the later turn comes first."""
    tags = (filters.agent, filters.tool, filters.version, filters.tool_error or None, filters.text)
    if not any(tag is not None for tag in tags) or filters.start is not None:
        return _read_scores(cursor, project, filters)
    # No sums tell on which days there are enough such exchanges, so read the last days first.
    newest_at = newest_score(cursor, project, filters.end)
    scores: list[Score] = []
    for days in _SEARCH_DAYS:
        start = None if days is None or newest_at is None else newest_at - timedelta(days=days)
        scores = _read_scores(cursor, project, dataclasses.replace(filters, start=start))
        if len(scores) >= filters.limit or start is None:
            break
    return scores


_SEARCH_DAYS = (1, 7, 30, None)
"""Days before the newest score that are searched for exchanges of an agent or a tool, until there are enough."""


def _read_scores(cursor: duckdb.DuckDBPyConnection, project: str | None, filters: ScoreFilter) -> list[Score]:
    after_at, after_id, after_turn = filters.after or (None, None, None)
    blocks = None
    if filters.text is not None:
        search = {"text": filters.text, "since": filters.start or EARLIEST, "until": filters.end or LATEST}
        blocks = [row["block"] for row in query_rows(cursor, "search_blocks", search)]
    values = {
        "project": project,
        "from": filters.start,
        "to": filters.end,
        "since": filters.since,
        "session": filters.session,
        "agent": filters.agent,
        "tool": filters.tool,
        "version": filters.version,
        "tool_error": filters.tool_error or None,
        "text": filters.text,
        "blocks": blocks,
        "anomalies": filters.anomalies,
        "limit": filters.limit,
        "after_at": after_at,
        "after_turn": after_turn,
        "after_id": after_id,
    }
    return [_build_score(row) for row in query_rows(cursor, "project_scores", values)]


def newest_score(cursor: duckdb.DuckDBPyConnection, project: str | None, until: datetime | None = None) -> datetime | None:
    """Return the time of the newest scored exchange of one project or all, before a time (None: any); None without scores."""
    rows = query_rows(cursor, "newest_score", {"project": project, "until": until})
    newest_at: datetime | None = rows[0]["exchange_at"] if rows else None
    return newest_at


def score_by_id(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None = None) -> Score | None:
    """Return one score of a project; None if the project has no score of that id.

    The look-up is fast if the exchange's time is given.
    """
    rows = query_rows(cursor, "score_by_id", {"project": project, "score": score_id, "at": at})
    return _build_score(rows[0]) if rows else None


def project_summary(cursor: duckdb.DuckDBPyConnection, project: str, baseline: ProjectBaseline | None = None) -> ProjectSummary:
    """Return the state of a project; all zeros for an unknown one."""
    rows = query_days(cursor, "project_summary", {"project": project})
    row = rows[0] if rows else _EMPTY_SUMMARY_ROW
    reasons = {reason["reason"]: reason["exchanges"] for reason in row["unscored_reasons"]}
    return ProjectSummary.of(
        row,
        project=project,
        exchanges=ExchangeCounts.of(row, unscored_reasons=reasons),
        scores=ScoreFigures.of(row),
        baseline=baseline,
        cold_days=cold_days(cursor, project, None, None),
    )


def _build_score(row: Row) -> Score:
    """Build the score from a row of the query `project_scores` or `score_by_id`."""
    dimensions = {
        dimension["dimension"]: Dimension(dimension["score"], dimension["reasoning"]) for dimension in row["tier3_dimensions"]
    }
    return Score.of(
        row,
        tier2_reasoning=_build_reasoning(row["tier2_dimensions"]),
        tier2_skipped=row["tier2_state"] != SCORED,
        tier2_5_skipped=row["tier2_5_state"] != SCORED,
        tier3_skipped=row["tier3_state"] != SCORED,
        tier3_dimension_scores=dimensions,
        anomaly_reason="; ".join(row["anomaly_reasons"]) or None,
    )


def _build_reasoning(dimensions: Sequence[Row]) -> str | None:
    """Return the judge's comments, one dimension per line; None if there are none."""
    lines = [f"{row['dimension']}: {row['reasoning']}" for row in dimensions if row["reasoning"]]
    return "\n".join(lines) or None


class ToolCall(Answer, frozen=True):
    """A tool call of a turn, with excerpts of its texts."""

    name: str
    arguments: Annotated[str | None, Meta(description="Null if the source does not record them.")]
    result: Annotated[str | None, Meta(description="Null if there is none or the source does not record it.")]
    outcome: Annotated[str, Meta(examples=["ok", "error", "unanswered"])]


class Exchange(Answer, frozen=True):
    """One user message with the agent's answer."""

    exchange_id: str = field(name="id")
    connection: str
    project: str
    agent: str | None
    session_id: str
    turn_number: int | None
    occurred_at: Moment = field(name="timestamp")
    ingested_at: Moment
    user_message: Annotated[str, Meta(description="Secrets are taken out.")]
    agent_response: str
    agent_thinking: str | None
    agent_model: str | None
    input_tokens: int | None
    output_tokens: int | None
    outcome: Annotated[str, Meta(examples=["answered", "no_response"])]
    tags: list[str]
    labels: Annotated[
        dict[str, str], Meta(description="Names and values from its sender.", examples=[{"agent_version": "1.4.0"}])
    ]
    tool_calls: Annotated[
        list[ToolCall], Meta(description="In order, at most 32: calls with trouble are kept before the newest ones.")
    ]
    omitted_tool_calls: Annotated[int, Meta(description="Further tool calls of the turn.")]


class MaskedPassage(Answer, frozen=True):
    """A passage that may address the judge, so that a text was judged once more without it."""

    text: Annotated[str, Meta(examples=["user_message", "agent_response", "agent_thinking"])]
    start: Annotated[int, Meta(description="Position of its first character in the text, from 0.")]
    end: Annotated[int, Meta(description="Position after its last character.")]


class Judgement(Answer, frozen=True):
    """A question to the judge, and how it ended."""

    judgement_id: str = field(name="id")
    purpose: Annotated[str, Meta(examples=["tier2", "tier2_5", "tier3", "tiers_2_and_3"])]
    requested_model: str = field(name="model")
    outcome: Annotated[str, Meta(examples=["answered", "refused", "timeout"])]
    attempts: int
    judged_at: Moment
    cost_usd: float | None
    simulated: bool
    part: Annotated[int, Meta(description="2 if the question showed the middle of long texts, which part 1 leaves out.")]
    masked_passages: Annotated[
        list[MaskedPassage], Meta(description="Passages removed from the texts; none if they are as sent.")
    ]


class ExchangeDetail(Answer, frozen=True):
    """An exchange with its scores and judgements; the score is null until there is one."""

    exchange: Exchange
    score: Score | None
    judgements: list[Judgement]


def exchanges_by_id(
    cursor: duckdb.DuckDBPyConnection, project: str, exchange_id: str, connection: str | None
) -> list[ExchangeDetail]:
    """Return a project's exchanges with this id: one per connection that uses it, or only the named connection's."""
    values = {"project": project, "exchange": exchange_id, "connection": connection}
    return [_build_detail(cursor, row) for row in query_rows(cursor, "exchange_detail", values)]


def _build_detail(cursor: duckdb.DuckDBPyConnection, row: Mapping[str, Any]) -> ExchangeDetail:
    subjects = [{"connection": row["connection"], "subject_id": row["exchange_id"]}]
    score = None
    if row["score_id"] is not None:
        score = score_by_id(cursor, row["project"], row["score_id"], row["occurred_at"])
    return ExchangeDetail(
        exchange=Exchange.of(
            row,
            labels={label["name"]: label["value"] for label in row["labels"]},
            tool_calls=[ToolCall.of(call) for call in row["tool_calls"]],
        ),
        score=score,
        judgements=[Judgement.of(judgement) for judgement in query_rows(cursor, "judgements_of", {"subjects": subjects})],
    )


TIERS = ("tier1", "tier2", "tier2_5", "tier3")
Day = date


class TrendDay(Answer, frozen=True):
    """A UTC day of exchanges; a mean is over the exchanges that have the tier, null if none has."""

    date: Day
    avg_tier1: float | None
    avg_tier2: float | None
    avg_tier2_5: float | None
    avg_tier3: float | None
    weighted_tier2: Annotated[float | None, Meta(description="Each exchange is weighted by one over its sampling probability.")]
    weighted_tier2_5: float | None
    weighted_tier3: float | None
    anomaly_count: int
    exchange_count: int


class Trends(Answer, frozen=True):
    """The days with exchanges in a window, oldest first."""

    project: str
    window: str
    since: Annotated[Day, Meta(description="The first UTC day of the window.")]
    until: Annotated[Day, Meta(description="The last UTC day of the window.")]
    data_points: list[TrendDay]
    last_until: Annotated[
        Day | None,
        Meta(description="Without a data point: the newest earlier UTC day with one, to ask for as `until`; null otherwise."),
    ]


class SamplingOutcome(Answer, frozen=True):
    """Exchanges of one sampling reason and one outcome."""

    sampling_reason: Annotated[str, Meta(examples=["routine_sample"])]
    disposition: Annotated[str, Meta(examples=["scored"])]
    exchanges: int
    share: Share
    anomalies: int
    avg_tier1: float | None
    avg_tier2: float | None


class SamplingMix(Answer, frozen=True):
    """Sampled exchanges by reason, the most frequent first."""

    project: str
    mix: list[SamplingOutcome]


def trends(cursor: duckdb.DuckDBPyConnection, project: str, name: Length, window: Window) -> Trends:
    """Return a project's figures in a named window, by day of the exchange and not of the scoring."""
    rows = query_rows(cursor, "trends", {"project": project, "as_of": window.end, "days": LENGTHS[name].days})
    newest = None if rows else newest_score(cursor, project, window.start)
    days = []
    for row in rows:
        means = {f"avg_{tier}": row[f"{tier}_mean"] for tier in TIERS}
        means |= {f"weighted_{tier}": row[f"{tier}_weighted_mean"] for tier in TIERS[1:]}
        rounded = {field: _round_figure(mean) for field, mean in means.items()}
        days.append(TrendDay.of(row, date=row["day"], **rounded))
    return Trends(
        project=project,
        window=name,
        since=window.first,
        until=window.last,
        data_points=days,
        last_until=None if newest is None else newest.date(),
    )


def sampling_mix(cursor: duckdb.DuckDBPyConnection, project: str, start: datetime, end: datetime) -> SamplingMix:
    """Return the number of a project's exchanges judged or left out within a period, by reason."""
    rows = query_rows(cursor, "project_sampling", {"project": project, "from": start, "to": end})
    mix = [SamplingOutcome.of(row, avg_tier1=row["tier1_mean"], avg_tier2=row["tier2_mean"]) for row in rows]
    return SamplingMix(project=project, mix=mix)


class WrapUp(Answer, frozen=True):
    """The steps of a wrap-up found in the last exchanges of a session."""

    project: str
    session_id: str
    connection: str
    exchange_count: int
    last_timestamp: Moment
    score: Annotated[Share, Meta(description="Found / expected.")]
    steps_found: Annotated[list[str], Meta(examples=[["changelog", "commit"]])]
    steps_missing: list[str]
    total_steps: int

    @property
    def place(self) -> Place:
        """The session's place in the list of its project, by its last exchange."""
        return Place(self.last_timestamp, f"{self.connection}/{self.session_id}")


class WrapUpList(Answer, frozen=True):
    """Sessions, the one with the newest exchange first."""

    project: str
    sessions: list[WrapUp]
    next_cursor: NextCursor
    cold_days: OmittedDays


def wrap_ups(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    project: str | None,
    limit: int,
    after: tuple[datetime, str] | None = None,
    *,
    between: tuple[datetime | None, datetime | None] = (None, None),
) -> list[WrapUp]:
    """Return a page of wrap-ups of one project or all, newest first; empty if the policy asks for none.

    `between` applies to the last exchange of a session.
    """
    after_at, after_id = after or (None, None)
    values = {
        "project": project,
        "projects": expecting_projects(policy, project),
        "limit": limit,
        "after_at": after_at,
        "after_id": after_id,
        "from": between[0],
        "to": between[1],
    }
    return [
        _build_wrap_up(row)
        for row in query_rows(cursor, "wrap_exchanges", values)
        if policy.for_project(row["project"]).expects_wrap_up
    ]


def expecting_projects(policy: Policy, project: str | None) -> list[str] | None:
    """Return the projects whose sessions are to be wrapped up, of one project or all; None for all that the policy does not exclude."""
    if project is None and policy.for_project("").expects_wrap_up:
        return None
    return [name for name in ([project] if project else policy.projects) if policy.for_project(name).expects_wrap_up]


def _build_wrap_up(row: Row) -> WrapUp:
    quality = wrap_quality(row["texts"])
    return WrapUp.of(
        row,
        last_timestamp=row["last_at"],
        score=quality.score,
        steps_found=list(quality.steps_found),
        steps_missing=list(quality.steps_missing),
        total_steps=len(STEPS),
    )


class JudgeCost(Answer, frozen=True):
    """The cost of a group of judgements; fields that do not identify the group are null."""

    project: str | None
    connection: str | None
    session_id: str | None
    day: date | None
    model: Annotated[str | None, Meta(description="The model that was asked.")]
    judgements: int
    calls: Annotated[int, Meta(description="Attempts of all judgements; a reused judgement has none.")]
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_usd: Annotated[float | None, Meta(description="The known costs; null if none is known.")]
    unknown_costs: Annotated[int, Meta(description="Judgements whose cost is not known.")]
    simulated: Annotated[int, Meta(description="Judgements of a simulated judge.")]


def judge_costs(
    cursor: duckdb.DuckDBPyConnection,
    by: str,
    project: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    skip: int = 0,
    limit: int | None = None,
) -> list[JudgeCost]:
    """Return the costs of one project or all within a period, grouped by project, day, model or session, or as one total.

    Groups have no stable position in a list, so a page starts after a number of groups. There may be as many groups as
    sessions, so only the groups of the page are converted.
    """
    groups = run_query(cursor, "judge_costs", {"by": by, "project": project, "from": start, "to": end})
    return [JudgeCost.of(row) for row in groups.slice(min(skip, groups.height), limit).iter_rows(named=True)]
