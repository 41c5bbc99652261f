"""Evaluations: the scores of runs against cases with all answers of the judge, and comparisons over time, by case, by model and with people.

The result itself has its published form (docs/schemas/evaluation-result.schema.json and judge-result.schema.json), so its names are
the names in the files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, field

from analytics.queries import query_records, query_rows
from audit.evaluation.report import RaterVerdict, agreement_with_people
from audit.evaluation.results import EvaluationResult
from schemas.lazy import duckdb
from schemas.records import Evaluation
from service.read.agreement import Estimate, RaterEstimate
from service.text.answers import Answer, Moment, NextCursor


class EvaluatedDimension(Answer, frozen=True):
    """A dimension and the origin of its score; scores are 0 to 10, null if missing."""

    policy: Annotated[str, Meta(examples=["judge_only"])]
    source: Annotated[str, Meta(description="judge, deterministic, weighted or missing.", examples=["judge"])]
    deterministic: float | None
    judge: float | None
    final: float | None
    spread: Annotated[float | None, Meta(description="Largest minus smallest score over the repetitions.")]


class EvaluatedRun(Answer, frozen=True):
    """The score of a run against a case."""

    evaluation_id: str = field(name="id")
    revision: int
    project: str
    connection: str
    session_id: str
    agent: str | None
    subject_model: Annotated[str | None, Meta(description="Model of the audited agent.")] = field(name="model")
    case_id: str
    case_title: str
    tags: Annotated[list[str], Meta(description="Of the case.")]
    judge_run_id: str
    judge_model: str
    yardstick: Annotated[str, Meta(description="Digest of the scale; scores with different digests are not compared.")]
    repetition: int
    status: Annotated[Literal["completed", "failed"], Meta(examples=["completed"])]
    final_score: Annotated[float | None, Meta(description="0 to 10; null if every answer of the judge failed.")]
    overall_spread: float | None
    dimensions: dict[str, EvaluatedDimension]
    configured_repetitions: int
    successful_iterations: int
    aggregation_method: Annotated[str, Meta(examples=["median"])]
    warnings: list[str]
    anomaly_reasons: Annotated[list[str], Meta(description="Attempts of the run to sway the judge, in words.")]
    run_at: Annotated[Moment | None, Meta(description="When the run ended.")]
    run_seconds: float | None
    run_input_tokens: int | None
    run_output_tokens: int | None
    run_cost_usd: float | None
    cost_usd: Annotated[float | None, Meta(description="Cost of the judge's calls.")]
    simulated: Annotated[bool, Meta(description="Whether a simulated judge was asked.")]
    evaluated_at: Moment
    sampling_probability: Annotated[
        float | None, Meta(description="Of a session judged without a written case; null for a written case.")
    ]


class WholeEvaluation(EvaluatedRun, frozen=True):
    """An evaluation with every answer of the judge."""

    request_id: str
    fingerprint: str
    judgement_ids: list[str]
    rule_version: str
    final_result: Annotated[dict[str, Any], Meta(description="docs/schemas/evaluation-result.schema.json")]
    judge_result: Annotated[dict[str, Any], Meta(description="docs/schemas/judge-result.schema.json: every answer as it came.")]


class Evaluations(Answer, frozen=True):
    """Evaluations, most recently judged first."""

    evaluations: list[EvaluatedRun]
    count: int
    next_cursor: NextCursor


class OneEvaluation(Answer, frozen=True):
    """An evaluation in its present state, and whether it is in progress."""

    id: str
    pending: Annotated[bool, Meta(description="Whether the judge is still to be asked, or asked again.")]
    attempt: Annotated[int, Meta(description="Number of requests before the last one.")]
    set_aside: Annotated[str | None, Meta(description="Why it could not be judged; null if it could.")]
    failed_attempt: Annotated[
        int | None,
        Meta(description="A later attempt that failed, so that an earlier evaluation is shown; null if there is none."),
    ]
    evaluation: Annotated[WholeEvaluation | None, Meta(description="null while there is no result.")]
    system_prompt: Annotated[str | None, Meta(description="Messages to the judge; null while it is under way.")]
    user_prompt: Annotated[str | None, Meta(description="Messages to the judge; null while it is under way.")]


class RequestedEvaluation(NamedTuple):
    """A requested evaluation and its owner, whether or not there is a result."""

    project: str
    answer: OneEvaluation


def evaluation_page(
    cursor: duckdb.DuckDBPyConnection,
    project: str | None,
    *,
    case: str | None = None,
    model: str | None = None,
    session: str | None = None,
    agent: str | None = None,
    before: tuple[datetime, str] | None = None,
    between: tuple[datetime | None, datetime | None] = (None, None),
    limit: int,
) -> list[EvaluatedRun]:
    """Return evaluations of a project (None: all), most recently judged first; `before` is the end of the previous page.

    `between` bounds the time of judging; None is no bound.
    """
    at, identity = before or (None, None)
    chosen = {
        "project": project,
        "case": case,
        "model": model,
        "session": session,
        "agent": agent,
        "from": between[0],
        "to": between[1],
    }
    rows = query_rows(cursor, "project_evaluations", {**chosen, "after_at": at, "after_id": identity, "limit": limit})
    return [evaluated_run(row) for row in rows]


def evaluation_state(cursor: duckdb.DuckDBPyConnection, evaluation_id: str) -> RequestedEvaluation | None:
    """Return an evaluation with the prompts behind its result; None if no evaluation of this id was requested."""
    evaluation = next(query_records(cursor, "evaluations_by_id", Evaluation, {"evaluations": [evaluation_id]}), None)
    row = next(iter(query_rows(cursor, "evaluation_detail", {"evaluation": evaluation_id})), None)
    project = evaluation.project if evaluation else row["project"] if row else None
    if project is None:
        return None
    finished_attempt = -1 if evaluation is None else evaluation.revision
    result_revision = row["result_revision"] if row else None
    last_attempt = finished_attempt if result_revision is None else max(result_revision, finished_attempt)
    attempt = row["attempt"] if row else last_attempt
    is_done = last_attempt >= attempt
    set_aside = row["set_aside"] if row and not is_done else None
    prompts = row if row and is_done else {"system_prompt": None, "user_prompt": None}
    return RequestedEvaluation(
        project,
        OneEvaluation(
            id=evaluation_id,
            pending=not is_done and set_aside is None,
            attempt=attempt,
            set_aside=set_aside,
            failed_attempt=last_attempt if last_attempt > finished_attempt >= 0 else None,
            evaluation=None if evaluation is None else whole_evaluation(evaluation),
            system_prompt=prompts["system_prompt"],
            user_prompt=prompts["user_prompt"],
        ),
    )


def evaluated_run(row: Mapping[str, Any]) -> EvaluatedRun:
    """Return an evaluation in a list, from a row of the query `project_evaluations`."""
    return EvaluatedRun.of(row, dimensions=_build_dimensions(row["dimensions"]))


def whole_evaluation(evaluation: Evaluation) -> WholeEvaluation:
    """Return one evaluation with its whole result; see the module's docstring."""
    result = EvaluationResult.model_validate_json(evaluation.result)
    fields = msgspec.structs.asdict(evaluation)
    return WholeEvaluation.of(
        fields,
        **{name: list(fields[name]) for name in ("tags", "warnings", "anomaly_reasons", "judgement_ids")},
        dimensions=_build_dimensions([msgspec.structs.asdict(dimension) for dimension in evaluation.dimensions]),
        final_result=result.final_result.model_dump(mode="json"),
        judge_result=result.judge_result.model_dump(mode="json"),
    )


def evaluation_of(answer: Mapping[str, Any]) -> Evaluation:
    """Return the record of a whole evaluation from JSON; checks and iterations are in its result.

    Raises InputError for other JSON.
    """
    fields = msgspec.structs.asdict(msgspec.convert(answer, WholeEvaluation))
    fields["dimensions"] = [
        {"dimension": name, **msgspec.structs.asdict(dimension)} for name, dimension in fields["dimensions"].items()
    ]
    result = {name: fields.pop(name) for name in ("final_result", "judge_result")}
    fields["result"] = EvaluationResult.model_validate_json(msgspec.json.encode(result)).as_json()
    return msgspec.convert(fields, Evaluation)


def _build_dimensions(rows: Sequence[Mapping[str, Any]]) -> dict[str, EvaluatedDimension]:
    return {row["dimension"]: EvaluatedDimension.of(row) for row in rows}


class CaseQuality(Answer, frozen=True):
    """The mean score of a case's runs that ended in a period, with its 95% interval."""

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


class SessionScore(Answer, frozen=True):
    """The mean of a score of the sessions that were judged without a written case, of the newest yardstick."""

    project: str
    score: Annotated[str, Meta(description="overall or a dimension.", examples=["overall"])]
    sessions: int
    mean: Annotated[float, Meta(description="0 to 10; each session counts 1 / its sampling probability times.")]
    half: Annotated[float | None, Meta(description="Half the width of the 95% interval.")]
    judge_model: str
    simulated: int


class SessionJudgement(Answer, frozen=True):
    """The verdict on a session as a whole, without a written case; or why there is none."""

    state: Annotated[
        Literal[
            "judged", "failed", "pending", "rejected", "due", "open", "not_drawn", "no_turns", "no_judge", "too_late", "off"
        ],
        Meta(description="judged: there is a verdict. Any other: why there is none."),
    ]
    evaluation_id: Annotated[
        str | None, Meta(description="Evaluation with the answers of the judge; null before it is requested.")
    ]
    overall: Annotated[float | None, Meta(description="0 to 10; the judge's own verdict, not a mean.")] = None
    dimensions: Annotated[dict[str, float | None], Meta(description="0 to 10 each.")] = field(default_factory=dict)
    evidence: Annotated[dict[str, list[str]], Meta(description="The judge's evidence, for `overall` and each dimension.")] = (
        field(default_factory=dict)
    )
    failure: Annotated[str | None, Meta(description="Why the last attempt gave no verdict.", examples=["cost_cap"])] = None
    sampling_probability: float | None = None
    judge_model: str | None = None
    cost_usd: float | None = None
    simulated: bool = False
    evaluated_at: Moment | None = None


class ModelsCompared(Answer, frozen=True):
    """Two models on a case: the means, and their difference (b less a) with its 95% interval, or the reason why it is missing."""

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
"""The period in which runs ended: start inclusive, end exclusive; None is no bound."""
EVER: Between = (None, None)


def quality_by_case(
    cursor: duckdb.DuckDBPyConnection, project: str | None, case: str | None, unit: str = "week", between: Between = EVER
) -> list[CaseQuality]:
    """Return the quality of runs on each case by period: day, week or month."""
    values = {"project": project, "case": case, "unit": unit, "from": between[0], "to": between[1]}
    return [CaseQuality.of(row) for row in query_rows(cursor, "evaluation_quality", values)]


def session_scores(cursor: duckdb.DuckDBPyConnection, project: str | None, between: Between = EVER) -> list[SessionScore]:
    """Return the means of judged sessions by project and score, overall first."""
    values = {"project": project, "from": between[0], "to": between[1]}
    return [SessionScore.of(row) for row in query_rows(cursor, "session_score_means", values)]


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
    return [_compare_with_people(judge_model, rows) for judge_model, rows in sorted(by_judge.items())]


def _compare_with_people(judge_model: str, rows: list[Mapping[str, Any]]) -> JudgeBesidePeople:
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
