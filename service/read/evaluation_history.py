"""Evaluations over time: by case, model against model, and beside people's scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Any

from analytics.queries import query_rows
from audit.evaluation.report import RaterVerdict, agreement_with_people
from schemas.lazy.duckdb import duckdb
from service.read.people import Estimate, RaterEstimate
from service.text.answers import Answer


class CaseQuality(Answer, frozen=True):
    """The scores of the runs of a case that ended in a period: their mean with its 95 % interval."""

    project: str
    case_id: str
    period: date
    evaluations: int
    failed: int
    mean: float | None
    low: float | None
    high: float | None
    judge_run_id: str
    judge_model: str
    yardstick: str
    simulated: int

    @property
    def start(self) -> datetime:
        """The beginning of the period."""
        return datetime.combine(self.period, time(), UTC)


class ModelsCompared(Answer, frozen=True):
    """Two models on a case: the means, and their difference (b less a) with its 95 % interval, or why there is none."""

    case_id: str
    model_a: str
    model_b: str
    runs_a: int
    runs_b: int
    failed_a: int
    failed_b: int
    mean_a: float | None
    mean_b: float | None
    difference: float | None
    low: float | None
    high: float | None
    freedom: float | None
    state: str
    judge_model: str
    yardstick: str
    simulated: int


class JudgeBesidePeople(Answer, frozen=True):
    """A judge of runs against people, overall and one by one."""

    judge_model: str
    overall: Estimate
    raters: list[RaterEstimate]
    unjudged: int


Between = tuple[datetime | None, datetime | None]
"""From when to when runs ended: inclusive, exclusive; None is no bound."""
EVER: Between = (None, None)


def quality_by_case(
    cursor: duckdb.DuckDBPyConnection, project: str | None, case: str | None, unit: str = "week", between: Between = EVER
) -> list[CaseQuality]:
    """Return the quality of runs on each case by period: day, week or month."""
    values = {"project": project, "case": case, "unit": unit, "from": between[0], "to": between[1]}
    return [CaseQuality.of(row) for row in query_rows(cursor, "evaluation_quality", values)]


def models_compared(
    cursor: duckdb.DuckDBPyConnection, project: str | None, case: str | None, between: Between = EVER
) -> list[ModelsCompared]:
    """Compare models on each case."""
    values = {"project": project, "case": case, "from": between[0], "to": between[1]}
    return [ModelsCompared.of(row) for row in query_rows(cursor, "evaluation_models", values)]


def beside_people(cursor: duckdb.DuckDBPyConnection, project: str | None, case: str | None) -> list[JudgeBesidePeople]:
    """Return the agreement of each judge with the human scores of the runs' exchanges; failed evaluations are only counted."""
    by_judge: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in query_rows(cursor, "evaluation_agreement", {"project": project, "case": case}):
        by_judge[row["judge_model"]].append(row)
    return [_beside_people(judge_model, rows) for judge_model, rows in sorted(by_judge.items())]


def _beside_people(judge_model: str, rows: list[Mapping[str, Any]]) -> JudgeBesidePeople:
    labels = [
        RaterVerdict(
            row["evaluation_id"], (row["connection"], row["session_id"]), row["rater"], row["human_score"], row["final_score"]
        )
        for row in rows
        if row["final_score"] is not None
    ]
    agreed = agreement_with_people(labels)
    return JudgeBesidePeople(
        judge_model=judge_model,
        overall=Estimate.measured(agreed.overall),
        raters=[RaterEstimate.measured(estimate, rater=name) for name, estimate in agreed.raters.items()],
        unjudged=len(rows) - len(labels),
    )
