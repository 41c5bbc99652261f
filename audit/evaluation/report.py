"""Reports on sets of evaluations (one row each, a summary per model; a document with a published schema), and their agreement with people.

People score exchanges from 1 to 5, an evaluation scores the whole run from 0 to 10. A rater's verdict on a run is the mean of their
scores for its exchanges, rounded to the nearest point; the evaluation's is put on the same scale, 0 as 1 and 10 as 5. Agreement is then
computed as for any scores: weighted kappa and bias, with sessions as clusters. Evaluated runs are no sample of anything, so each counts
once.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from audit.agreement import HIGHEST as HIGHEST_LABEL
from audit.agreement import LOWEST as LOWEST_LABEL
from audit.agreement import Agreement, Label, agreement, round_to_point
from audit.comparison import CONFIDENCE, t_quantile
from audit.evaluation.dimensions import DIMENSIONS, HIGHEST, LOWEST, Dimension
from audit.evaluation.results import EvaluationResult
from schemas.records import Evaluation

Score = Annotated[float, Field(ge=LOWEST, le=HIGHEST)]
Usd = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
FAILED = "failed"
"""Status of an evaluation without a score."""
LATER_ATTEMPT_FAILED = "A later attempt failed: this is the last result that finished."
"""Warning on an evaluation that was asked for again in vain."""

_ONLY_STRATUM = "every run"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation, and how it came to be reported: the prompts are the texts that were sent."""

    evaluation: Evaluation
    system_prompt: str
    user_prompt: str
    reused: bool = False
    """True if it existed already, so that no judge was asked."""


class _ReportModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EvaluationRow(_ReportModel):
    """One evaluation. Unknown values are null."""

    evaluation_id: str
    revision: Count
    judge_run_id: str
    judge_model: str
    model: str | None
    """Model of the audited agent."""
    case_id: str
    case_title: str
    run: str
    """Session that was evaluated."""
    connection: str
    project: str
    agent: str | None
    repetition: Annotated[int, Field(ge=1)]
    evaluation: Literal["exec", "reuse"]
    """exec: the judge was asked; reuse: an evaluation of the same content was there."""
    evaluation_status: Literal["completed", "failed"]
    score: Score | None
    latency_s: float | None
    """Seconds that the run took, by the times of its events."""
    input_tokens: Count | None
    output_tokens: Count | None
    run_cost_usd: Usd | None
    evaluation_cost_usd: Usd | None
    """The cost of the judge's calls; those of a reused evaluation were paid before."""
    total_cost_usd: Usd | None
    simulated: bool
    evaluated_at: datetime
    warnings: tuple[str, ...]
    anomaly_reasons: tuple[str, ...]
    """Attempts of the run to sway the judge, in words."""
    result: EvaluationResult


class DimensionMean(_ReportModel):
    """The mean of a dimension over the evaluations of a model."""

    mean: Score | None
    """None where no evaluation has a score for it."""
    evaluations: Count
    """The number of evaluations that have a score for it."""


class ModelSummary(_ReportModel):
    """The evaluations of one model by one judge run, summed up."""

    judge_run_id: str
    model: str | None
    evaluations: Count
    failed: Count
    """Evaluations without a score; they are in no mean."""
    mean: Score | None
    low: Score | None
    """Lower end of the 95% interval of the mean (Student's t); None for fewer than two scores."""
    high: Score | None
    dimensions: Mapping[Dimension, DimensionMean]
    run_cost_usd: Usd | None
    """Sum of what is known; None where nothing is."""
    evaluation_cost_usd: Usd | None
    total_cost_usd: Usd | None
    unknown_costs: Count
    """Evaluations whose total cost is not known; what is known of them is in the sums."""


class Report(_ReportModel):
    """The output of `driftline evaluate --output json`."""

    simulated: bool
    """True if any judge was a simulated one: it rates by simple rules, not by understanding."""
    executed: Count
    reused: Count
    failed: Count
    fail_under: Score | None
    below: Count
    """Evaluations with a score below `fail_under`."""
    spent_usd: Usd | None
    """The cost of the judge's calls for the executed evaluations, earlier attempts included; null where one is not known."""
    evaluations: tuple[EvaluationRow, ...]
    models: tuple[ModelSummary, ...]


def report_of(evaluated: Iterable[Evaluated], fail_under: float | None = None) -> Report:
    """The report on evaluations, by judge run, model, case and repetition."""
    rows = tuple(row_of(evaluation) for evaluation in sorted(evaluated, key=_sort_key))
    executed = [row for row in rows if row.evaluation == "exec"]
    groups: dict[tuple[str, str | None], list[EvaluationRow]] = defaultdict(list)
    for row in rows:
        groups[row.judge_run_id, row.model].append(row)
    return Report(
        simulated=any(row.simulated for row in rows),
        executed=len(executed),
        reused=len(rows) - len(executed),
        failed=sum(row.evaluation_status == FAILED for row in rows),
        fail_under=fail_under,
        below=sum(fail_under is not None and row.score is not None and row.score < fail_under for row in rows),
        spent_usd=_sum_costs([row.evaluation_cost_usd for row in executed]),
        evaluations=rows,
        models=tuple(_summarize_model(judge_run_id, model, model_rows) for (judge_run_id, model), model_rows in groups.items()),
    )


def _sort_key(evaluated: Evaluated) -> tuple[str, str, str, int, str, str]:
    evaluation = evaluated.evaluation
    return (
        evaluation.judge_run_id,
        evaluation.subject_model or "",
        evaluation.case_id,
        evaluation.repetition,
        evaluation.session_id,
        evaluation.evaluation_id,
    )


def _sum_costs(costs: Sequence[float | None]) -> float | None:
    """Return the sum; None if a value is unknown."""
    return None if None in costs else math.fsum(cost for cost in costs if cost is not None)


def _summarize_model(judge_run_id: str, model: str | None, rows: Sequence[EvaluationRow]) -> ModelSummary:
    scores = [row.score for row in rows if row.score is not None]
    low, high = mean_interval(scores) or (None, None)
    return ModelSummary(
        judge_run_id=judge_run_id,
        model=model,
        evaluations=len(rows),
        failed=len(rows) - len(scores),
        mean=statistics.fmean(scores) if scores else None,
        low=low,
        high=high,
        dimensions={dimension: _average_dimension(dimension, rows) for dimension in DIMENSIONS},
        run_cost_usd=_sum_known_costs([row.run_cost_usd for row in rows]),
        evaluation_cost_usd=_sum_known_costs([row.evaluation_cost_usd for row in rows]),
        total_cost_usd=_sum_known_costs([cost for row in rows for cost in (row.run_cost_usd, row.evaluation_cost_usd)]),
        unknown_costs=sum(row.total_cost_usd is None for row in rows),
    )


def _average_dimension(dimension: Dimension, rows: Sequence[EvaluationRow]) -> DimensionMean:
    final = [row.result.final_result.final_dimensions.get(dimension) for row in rows]
    scores = [score for score in final if score is not None]
    return DimensionMean(mean=statistics.fmean(scores) if scores else None, evaluations=len(scores))


def _sum_known_costs(costs: Sequence[float | None]) -> float | None:
    """Return the sum of the known values; None without any."""
    known_costs = [cost for cost in costs if cost is not None]
    return math.fsum(known_costs) if known_costs else None


def mean_interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean, within the scale; None for fewer than two scores."""
    if len(scores) < 2:
        return None
    mean = statistics.fmean(scores)
    half_width = t_quantile((1 + CONFIDENCE) / 2, len(scores) - 1) * statistics.stdev(scores) / math.sqrt(len(scores))
    return max(mean - half_width, LOWEST), min(mean + half_width, HIGHEST)


def row_of(evaluated: Evaluated) -> EvaluationRow:
    """Return the row of one evaluation."""
    evaluation = evaluated.evaluation
    return EvaluationRow(
        evaluation_id=evaluation.evaluation_id,
        revision=evaluation.revision,
        judge_run_id=evaluation.judge_run_id,
        judge_model=evaluation.judge_model,
        model=evaluation.subject_model,
        case_id=evaluation.case_id,
        case_title=evaluation.case_title,
        run=evaluation.session_id,
        connection=evaluation.connection,
        project=evaluation.project,
        agent=evaluation.agent,
        repetition=evaluation.repetition,
        evaluation="reuse" if evaluated.reused else "exec",
        evaluation_status="failed" if evaluation.status == FAILED else "completed",
        score=evaluation.final_score,
        latency_s=evaluation.run_seconds,
        input_tokens=evaluation.run_input_tokens,
        output_tokens=evaluation.run_output_tokens,
        run_cost_usd=evaluation.run_cost_usd,
        evaluation_cost_usd=evaluation.cost_usd,
        total_cost_usd=_sum_costs([evaluation.run_cost_usd, evaluation.cost_usd]),
        simulated=evaluation.simulated,
        evaluated_at=evaluation.evaluated_at,
        warnings=evaluation.warnings,
        anomaly_reasons=evaluation.anomaly_reasons,
        result=EvaluationResult.model_validate_json(evaluation.result),
    )


@dataclass(frozen=True, slots=True)
class RaterVerdict:
    """One person's verdict on the exchanges of an evaluated run."""

    evaluation_id: str
    session: tuple[str, str]
    """Connection and id."""
    rater: str
    human: float
    """Mean of the person's scores, 1 to 5."""
    final_score: float
    """The evaluation's score, 0 to 10."""


def on_the_scale_of_people(final_score: float) -> float:
    """Convert a score from 0 to 10 into one from 1 to 5."""
    return LOWEST_LABEL + (HIGHEST_LABEL - LOWEST_LABEL) * final_score / HIGHEST


def agreement_with_people(verdicts: Sequence[RaterVerdict]) -> Agreement:
    """Measure the agreement of evaluations and people, with one label per rater and evaluation."""
    labels = [
        Label(
            exchange=verdict.evaluation_id,
            session=verdict.session,
            rater=verdict.rater,
            human=round_to_point(verdict.human),
            judge=on_the_scale_of_people(verdict.final_score),
            stratum=_ONLY_STRATUM,
        )
        for verdict in verdicts
    ]
    return agreement(labels, {_ONLY_STRATUM: len({verdict.evaluation_id for verdict in verdicts})})
