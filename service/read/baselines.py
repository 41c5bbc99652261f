"""Baselines: the normal range of a project's scores."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from schemas.records import Baseline, TierStatistics
from service.text.answers import Answer, Moment, Share

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
    """The latest baseline, or the reason why there is none."""

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
            anomaly_rate=_rounded(baseline.anomaly_rate),
        ),
        schema_version=schema_version,
    )


def _describe_tier(statistics: TierStatistics) -> BaselineTier:
    # One score has no spread.
    spread = statistics.stddev if statistics.count > 1 else None
    return BaselineTier(avg=_rounded(statistics.mean), stddev=_rounded(spread), count=statistics.count)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
