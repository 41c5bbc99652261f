"""From the judge's replies to the result of an evaluation: iterations, aggregates, the score of each dimension, documents.

1. The answers of the iterations are aggregated per dimension: median or mean, and their spread. Nothing is rounded, and every
   sum is exact before it is divided, so the order of iterations never matters and an aggregate stays within its inputs.
2. A dimension's score is resolved from the deterministic checks and the judge:

| policy             | checks and judge | judge alone        | checks alone         | neither |
|--------------------|------------------|--------------------|----------------------|---------|
| judge_only         | judge            | judge              | missing              | missing |
| deterministic_only | deterministic    | missing            | deterministic        | missing |
| weighted           | weighted         | judge (a warning)  | deterministic (a w.) | missing |

The judge has no score if all of its iterations failed, the checks have none if no check counts for the dimension. A missing score
is never 0.

3. The documents, one for the final result and one for the judge's part, are files with published schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from statistics import mean, median
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from audit.answers import MAX_ANSWER
from audit.evaluation.cases import DimensionPolicy, JudgeType, Method
from audit.evaluation.dimensions import DIMENSIONS, HIGHEST, LOWEST, Dimension
from audit.evaluation.questions import NOT_BATCHED, NOT_RECORDED, Assessment, EvaluationAnswer, Terms
from audit.exchanges.outcomes import NO_JUDGE
from audit.exchanges.questions import ANSWERED, COST_CAP, INTERRUPTED, UNKNOWN_PRICE, Invalid, Question, Reply
from audit.fingerprints import canonical_json
from audit.spending import SHARED_CAPS
from schemas.records import CheckOutcome, EvaluationRequest, Judgement

ResultStatus = Literal["completed", "failed"]
Score = Annotated[float, Field(ge=LOWEST, le=HIGHEST)]
Count = Annotated[int, Field(ge=0)]
Value = TypeVar("Value")
INVALID = "invalid"
"""Outcome of an iteration whose answer cannot be read."""
MAX_ANSWERS_BYTES = 400_000
"""Most bytes of JSON for all answers of one result, so that it fits into a record; the judgements hold the full answers."""
_MAX_REASON = 500
_REASONS: Mapping[str, str] = {
    NOT_RECORDED.reason: "only recorded answers count, and none is recorded",
    NOT_BATCHED.reason: "no batch has answered it, and a batch judge is not asked outside of batches",
    NO_JUDGE.reason: "no judge is configured",
    COST_CAP.reason: "the cost cap of the evaluation leaves no room for the call",
    **{cap: f"{description} leaves no room for the call" for cap, description in SHARED_CAPS.items()},
    UNKNOWN_PRICE.reason: "there is a cost cap, and the model has no known price",
}
"""Explanations for calls that were never made."""
_CALL = (
    "judgement_id",
    "answering_model",
    "attempts",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "latency_ms",
    "batched",
    "simulated",
    "judged_at",
)
"""The fields of a judgement that an iteration copies."""
_METHODS = {"median": median, "mean": mean}
Source = Literal["judge", "deterministic", "weighted", "missing"]
PASS, FAIL, ERROR = "pass", "fail", "error"
"""The outcomes of a check."""
JUDGE_ONLY = DimensionPolicy()
"""The policy for a dimension that the profile does not mention."""
_SOURCES: Mapping[str, tuple[Source, Source, Source]] = {
    "judge_only": ("judge", "judge", "missing"),
    "deterministic_only": ("deterministic", "missing", "deterministic"),
    "weighted": ("weighted", "judge", "deterministic"),
}
"""For each policy, the source with both scores, with the judge's alone, and with that of the checks alone."""
_WARNINGS: Mapping[tuple[str, Source], str] = {
    ("weighted", "judge"): "is weighted, but no check counts for it: its score is the judge's.",
    ("weighted", "deterministic"): "is weighted, but the judge has no score: its score is that of the checks.",
    ("deterministic_only", "missing"): "is scored by checks alone, but no check counts for it: it has no score.",
}


@dataclass(frozen=True, slots=True)
class IterationOutcome:
    """The outcome of one iteration."""

    number: int
    """From 1."""
    outcome: str
    """answered, or the reason why it does not count."""
    reason: str | None
    """A description of the failure."""
    answer: EvaluationAnswer | None
    """None if it does not count."""
    judgement: Judgement | None
    """The judgement that it rests on."""
    judgements: tuple[Judgement, ...]
    """All judgements of the question, including failed calls."""


def iteration_outcome(number: int, question: Question, reply: Reply) -> IterationOutcome:
    """Return the outcome of an iteration; raises ValueError for a reply that is neither a text nor a state."""
    judgements = tuple(
        sorted(
            reply.judgements, key=lambda judgement: (judgement.subject_revision, judgement.judged_at, judgement.judgement_id)
        )
    )
    if reply.state is not None:
        last = next((judgement for judgement in reversed(judgements) if judgement.outcome != INTERRUPTED), None)
        reason = last.error if last is not None and last.outcome == reply.state.reason else None
        failure = reason or _REASONS.get(reply.state.reason)
        return IterationOutcome(number, reply.state.reason, _shorten_reason(failure), None, last, judgements)
    if reply.text is None:
        raise ValueError(f"the reply to iteration {number} is neither a text nor a state")
    answered = next((judgement for judgement in judgements if judgement.outcome == ANSWERED), None)
    answer = question.read(reply.text)
    if isinstance(answer, Invalid):
        return IterationOutcome(number, INVALID, _shorten_reason("; ".join(answer.problems)), None, answered, judgements)
    return IterationOutcome(number, ANSWERED, None, answer, answered, judgements)


def _shorten_reason(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MAX_REASON else f"{text[: _MAX_REASON - 1]}…"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One score aggregated over all successful iterations."""

    score: float
    """Median or mean, 0 to 10."""
    spread: float
    """Largest minus smallest."""
    evidence: tuple[str, ...]
    """The evidence of one iteration; see `Aggregates.evidence_iteration`."""


@dataclass(frozen=True, slots=True)
class Aggregates:
    """All scores aggregated over the successful iterations."""

    dimensions: Mapping[Dimension, Aggregate]
    overall: Aggregate
    evidence_iteration: int
    """The iteration whose overall score is nearest to the aggregate, the first of equals.

    All evidence is taken from it, to be consistent.
    """


def aggregate(answers: Mapping[int, EvaluationAnswer], method: Method) -> Aggregates | None:
    """Aggregate the answers by number of iteration, which all have the same dimensions; None without answers."""
    if not answers:
        return None
    numbers = sorted(answers)
    middle = _METHODS[method]([answers[number].overall.score for number in numbers])
    nearest = min(numbers, key=lambda number: abs(answers[number].overall.score - middle))
    median_answer = answers[nearest]
    return Aggregates(
        {
            dimension: _aggregate_scores([answers[number].dimensions[dimension] for number in numbers], method, item.evidence)
            for dimension, item in median_answer.dimensions.items()
        },
        _aggregate_scores([answers[number].overall for number in numbers], method, median_answer.overall.evidence),
        nearest,
    )


def _aggregate_scores(iterations: Sequence[Assessment], method: Method, evidence: tuple[str, ...]) -> Aggregate:
    scores = [iteration.score for iteration in iterations]
    return Aggregate(_METHODS[method](scores), max(scores) - min(scores), evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A dimension's score with its origin; scores are from 0 to 10."""

    dimension: Dimension
    policy: DimensionPolicy
    source: Source
    """The source of the final score."""
    deterministic: float | None
    """None if no check counts for the dimension."""
    judge: float | None
    """None if the judge has no score."""
    final: float | None


def resolve(dimension: Dimension, policy: DimensionPolicy, checks: Sequence[CheckOutcome], judge: float | None) -> Resolution:
    """Return the score of one dimension; see the table of the module."""
    deterministic = deterministic_score(dimension, checks)
    source = _choose_source(policy, deterministic, judge)
    final = {"judge": judge, "deterministic": deterministic, "missing": None}.get(source)
    if source == "weighted" and judge is not None and deterministic is not None:
        final = weighted(judge, deterministic, policy)
    return Resolution(dimension=dimension, policy=policy, source=source, deterministic=deterministic, judge=judge, final=final)


def deterministic_score(dimension: Dimension, checks: Sequence[CheckOutcome]) -> float | None:
    """Return 10 x passed / relevant checks, with errors as not passed; None if no check counts for the dimension."""
    outcomes = [check.outcome for check in checks if dimension in check.dimensions]
    return HIGHEST * outcomes.count(PASS) / len(outcomes) if outcomes else None


def _choose_source(policy: DimensionPolicy, deterministic: float | None, judge: float | None) -> Source:
    if deterministic is None and judge is None:
        return "missing"
    source_of_both, source_of_judge, source_of_checks = _SOURCES[policy.policy]
    if deterministic is None:
        return source_of_judge
    return source_of_checks if judge is None else source_of_both


def weighted(judge: float, deterministic: float, policy: DimensionPolicy) -> float:
    """Return the mean of both scores by the normalized weights; exact, so it is always between the two."""
    judge_weight, deterministic_weight = normalised(policy)
    return float(judge_weight * Fraction(judge) + deterministic_weight * Fraction(deterministic))


def normalised(policy: DimensionPolicy) -> tuple[Fraction, Fraction]:
    """Return the weights of judge and checks, with a sum of 1. They are never both 0, which the policy's model refuses."""
    judge = Fraction(policy.judge_weight)
    deterministic = Fraction(policy.deterministic_weight)
    return judge / (judge + deterministic), deterministic / (judge + deterministic)


def resolution_warnings(resolutions: Sequence[Resolution], checks: Sequence[CheckOutcome]) -> Iterator[str]:
    """Yield warnings for readers of the scores: checks that do not count, and scores with a missing part."""
    judged_dimensions = {resolution.dimension for resolution in resolutions if resolution.policy.policy == "judge_only"}
    for check in checks:
        if check.outcome == ERROR:
            yield f"Check {check.check_id} could not be decided and counts as not passed."
        elif check.outcome == FAIL and "task" in judged_dimensions and "task" in check.dimensions:
            yield f"Check {check.check_id} failed, but task is scored by the judge alone."
    for resolution in resolutions:
        warning = _WARNINGS.get((resolution.policy.policy, resolution.source))
        if warning is not None:
            yield f"{resolution.dimension} {warning}"


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of an evaluation; see `findings_of`."""

    terms: Terms
    iterations: tuple[IterationOutcome, ...]
    aggregates: Aggregates | None
    """None if every iteration failed."""
    resolutions: tuple[Resolution, ...]
    """One for each dimension of the case, in order."""
    warnings: tuple[str, ...]

    @property
    def successful(self) -> int:
        """The number of successful iterations."""
        return sum(iteration.answer is not None for iteration in self.iterations)

    @property
    def simulated(self) -> bool:
        """True if any judgement is by a simulated judge."""
        return any(judgement.simulated for iteration in self.iterations for judgement in iteration.judgements)

    def result(self, request: EvaluationRequest) -> EvaluationResult:
        """Return the published documents."""
        return EvaluationResult(
            final_result=_build_final_result(request, self), judge_result=_build_judge_result(request, self)
        )


def _build_final_result(request: EvaluationRequest, findings: Findings) -> FinalResult:
    aggregates = findings.aggregates
    return FinalResult(
        evaluation_id=request.evaluation_id,
        case_id=request.case_id,
        case_title=findings.terms.case.title,
        session_id=request.session_id,
        subject_model=request.subject_model,
        judge_run_id=request.judge_run_id,
        judge_model=request.judge_model,
        simulated=findings.simulated,
        evaluation_status="failed" if aggregates is None else "completed",
        final_score=aggregates.overall.score if aggregates else None,
        judge_overall=_build_score(aggregates.overall) if aggregates else None,
        judge_dimensions={item: _build_score(score) for item, score in (aggregates.dimensions if aggregates else {}).items()},
        deterministic_dimensions={item.dimension: item.deterministic for item in findings.resolutions},
        final_dimensions={item.dimension: item.final for item in findings.resolutions},
        dimension_resolutions={item.dimension: _build_resolution(item) for item in findings.resolutions},
        checks=tuple(CheckResult.model_validate(item, from_attributes=True) for item in findings.terms.checks),
        summary=_summarize(findings),
        warnings=findings.warnings,
        anomaly_reasons=request.anomaly_reasons,
    )


def _build_score(aggregate: Aggregate) -> AggregateScore:
    return AggregateScore(evidence=aggregate.evidence, score=aggregate.score, spread=aggregate.spread)


def _build_resolution(resolution: Resolution) -> DimensionResolution:
    weights = normalised(resolution.policy) if resolution.policy.policy == "weighted" else (None, None)
    return DimensionResolution(
        policy=resolution.policy.policy,
        source=resolution.source,
        judge_weight=None if weights[0] is None else float(weights[0]),
        deterministic_weight=None if weights[1] is None else float(weights[1]),
        deterministic_score=resolution.deterministic,
        judge_score=resolution.judge,
        final_score=resolution.final,
    )


def _summarize(findings: Findings) -> ResultSummary:
    outcomes = [check.outcome for check in findings.terms.checks]
    return ResultSummary(
        deterministic_passed_checks=outcomes.count(PASS),
        deterministic_failed_checks=outcomes.count(FAIL),
        deterministic_error_checks=outcomes.count(ERROR),
        judge_successful_iterations=findings.successful,
        judge_failed_iterations=len(findings.iterations) - findings.successful,
    )


def _build_judge_result(request: EvaluationRequest, findings: Findings) -> JudgeResult:
    plan = findings.terms.plan
    aggregates = None
    if findings.aggregates is not None:
        aggregates = JudgeAggregate(
            dimensions={dimension: _build_score(aggregate) for dimension, aggregate in findings.aggregates.dimensions.items()},
            overall=_build_score(findings.aggregates.overall),
            evidence_iteration=findings.aggregates.evidence_iteration,
        )
    return JudgeResult(
        judge_run_id=plan.judge_run_id,
        judge_id=plan.judge.judge_id,
        judge_type=plan.judge.type,
        judge_model=plan.judge.model,
        aggregation_method=plan.method,
        configured_repetitions=plan.repetitions,
        successful_iterations=findings.successful,
        failed_iterations=len(findings.iterations) - findings.successful,
        iterations=documents(findings.iterations, request.evaluation_id),
        aggregate=aggregates,
    )


def documents(iterations: Sequence[IterationOutcome], evaluation_id: str) -> tuple[Iteration, ...]:
    """Return the iterations as the result shows them."""
    return tuple(_build_iteration(iteration, evaluation_id, MAX_ANSWERS_BYTES // len(iterations)) for iteration in iterations)


def _build_iteration(iteration: IterationOutcome, evaluation_id: str, room: int) -> Iteration:
    scores = None
    if iteration.answer is not None:
        by_dimension = {dimension: assessment.score for dimension, assessment in iteration.answer.dimensions.items()}
        scores = IterationScores(dimensions=by_dimension, overall=iteration.answer.overall.score)
    call = _describe_call(iteration.judgement, evaluation_id, room)
    return Iteration(iteration=iteration.number, outcome=iteration.outcome, reason=iteration.reason, scores=scores, **call)


def _describe_call(judgement: Judgement | None, evaluation_id: str, room: int) -> dict[str, Any]:
    """Return the facts about a call; empty values if it was never made.

    A call for another evaluation has no cost here.
    """
    if judgement is None:
        return dict.fromkeys((*_CALL, "answer", "taken_over_from")) | {"attempts": 0, "batched": False, "simulated": False}
    facts = {name: getattr(judgement, name) for name in _CALL}
    facts["answer"] = judgement.answer and _cut_answer(judgement.answer, room)
    if judgement.subject_id == evaluation_id:
        return facts | {"taken_over_from": None}
    return facts | {"taken_over_from": judgement.subject_id, "attempts": 0, "cost_usd": 0.0}


def _cut_answer(answer: str, room: int) -> str:
    """Cut the answer to at most `room` bytes of JSON, and state how many characters are left out."""
    if len(answer) <= MAX_ANSWER and _json_size(answer) <= room:
        return answer
    start = answer[:room]
    while _json_size(start) > room:
        start = start[: len(start) * room // (_json_size(start) + 1)]
    return f"{start} [… {len(answer) - len(start)} characters left out …]"


def _json_size(text: str) -> int:
    return len(canonical_json(text).encode())


def findings_of(request: EvaluationRequest, terms: Terms, iterations: Sequence[IterationOutcome]) -> Findings:
    """Compute all findings from the iterations."""
    answers = {iteration.number: iteration.answer for iteration in iterations if iteration.answer is not None}
    aggregates = aggregate(answers, terms.plan.method)
    policies = terms.plan.dimension_policies
    resolutions = tuple(
        resolve(
            dimension,
            policies.get(dimension, JUDGE_ONLY),
            terms.checks,
            None if aggregates is None else aggregates.dimensions[dimension].score,
        )
        for dimension in terms.case.dimensions
    )
    warnings = [
        *request.warnings,
        *_warn_of_failures(iterations),
        *resolution_warnings(resolutions, terms.checks),
    ]
    return Findings(terms, tuple(iterations), aggregates, resolutions, tuple(dict.fromkeys(warnings)))


def _warn_of_failures(iterations: Sequence[IterationOutcome]) -> Iterator[str]:
    return (
        f"Judge iteration {iteration.number} failed and was excluded." for iteration in iterations if iteration.answer is None
    )


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class AggregateScore(_Document):
    """A score of the judge over all iterations that succeeded."""

    evidence: tuple[str, ...]
    """Facts that it rests on, all from one iteration; see `evidence_iteration`."""
    score: Score
    spread: Annotated[float, Field(ge=0)]
    """Largest minus smallest over the iterations."""


def _sort_dimensions(by_dimension: Mapping[Dimension, Value]) -> Mapping[Dimension, Value]:
    """Return the mapping in the order of `DIMENSIONS`, because JSON objects may have been sorted by name."""
    return {dimension: by_dimension[dimension] for dimension in DIMENSIONS if dimension in by_dimension}


ByDimension = Annotated[Mapping[Dimension, Value], AfterValidator(_sort_dimensions)]
"""A value for each dimension that the case declares."""


class JudgeAggregate(_Document):
    """The aggregate of the iterations that succeeded."""

    dimensions: ByDimension[AggregateScore]
    overall: AggregateScore
    evidence_iteration: Annotated[int, Field(ge=1)]
    """Iteration that the evidence is taken from: its overall score is nearest to the aggregate."""


class IterationScores(_Document):
    """The scores of one iteration; its evidence is in its answer."""

    dimensions: ByDimension[Score]
    overall: Score


class Iteration(_Document):
    """One call of the judge, whether it counts or not."""

    iteration: Annotated[int, Field(ge=1)]
    outcome: str
    """answered, or why it does not count: refused, cut_off, provider_error, timeout, invalid, cost_cap, …"""
    reason: str | None
    """A description of the failure, in words."""
    answer: str | None
    """The judge's answer as it came; one that is very long is cut, and says so at its end."""
    scores: IterationScores | None
    """None where the iteration does not count."""
    judgement_id: str | None
    """The record that holds the whole answer."""
    taken_over_from: str | None = None
    """Evaluation for which this answer was given and paid; then it took no attempts here and cost nothing. None: it was this one."""
    answering_model: str | None
    attempts: Count
    input_tokens: Count | None
    output_tokens: Count | None
    cost_usd: Annotated[float, Field(ge=0)] | None
    """None where the price is unknown."""
    latency_ms: Count | None
    batched: bool
    simulated: bool
    judged_at: datetime | None


class JudgeResult(_Document):
    """All answers of the judge about a run, and their aggregate."""

    judge_run_id: str
    judge_id: str
    judge_type: JudgeType
    judge_model: str
    aggregation_method: Method
    configured_repetitions: Annotated[int, Field(ge=1)]
    successful_iterations: Count
    failed_iterations: Count
    iterations: tuple[Iteration, ...]
    aggregate: JudgeAggregate | None
    """None where every iteration failed."""


class DimensionResolution(_Document):
    """The origin of a dimension's score."""

    policy: Literal["judge_only", "deterministic_only", "weighted"]
    source: Source
    """The origin of the final score; missing where there is none."""
    judge_weight: Annotated[float, Field(ge=0, le=1)] | None
    """Normalised; None where the policy does not weigh."""
    deterministic_weight: Annotated[float, Field(ge=0, le=1)] | None
    deterministic_score: Score | None
    """10 x passed / mapped checks; None where no check counts for the dimension."""
    judge_score: Score | None
    final_score: Score | None


class CheckResult(_Document):
    """The result of a deterministic check."""

    check_id: str
    kind: str
    dimensions: tuple[str, ...]
    """Dimensions it counts for."""
    outcome: Literal["pass", "fail", "error"]
    detail: str


class ResultSummary(_Document):
    """The numbers of checks and iterations by outcome."""

    deterministic_passed_checks: Count
    deterministic_failed_checks: Count
    deterministic_error_checks: Count
    judge_successful_iterations: Count
    judge_failed_iterations: Count


class FinalResult(_Document):
    """The result of a run against a case: the judge's verdict and the deterministic checks together."""

    evaluation_id: str
    case_id: str
    case_title: str
    session_id: str
    subject_model: str | None
    judge_run_id: str
    judge_model: str
    simulated: bool
    """True if a simulated judge was asked: then no score says anything about the run."""
    evaluation_status: ResultStatus
    final_score: Score | None
    """The judge's overall score; None where every iteration failed."""
    judge_overall: AggregateScore | None
    judge_dimensions: ByDimension[AggregateScore]
    """Empty where every iteration failed."""
    deterministic_dimensions: ByDimension[Score | None]
    """None where no check counts for the dimension."""
    final_dimensions: ByDimension[Score | None]
    dimension_resolutions: ByDimension[DimensionResolution]
    checks: tuple[CheckResult, ...]
    summary: ResultSummary
    warnings: tuple[str, ...]
    anomaly_reasons: tuple[str, ...]
    """Attempts of the run to sway the judge, in words."""


class EvaluationResult(_Document):
    """Both documents, as an `Evaluation` record stores them in `result`."""

    final_result: FinalResult
    judge_result: JudgeResult

    def as_json(self) -> str:
        """Return the result as canonical JSON, which `model_validate_json` reads."""
        return canonical_json(self.model_dump(mode="json"))
