"""From a request and the judge's replies to an evaluation: the questions, the scores, the record and the cost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from statistics import mean, median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import START
from support.evaluation_builders import answer, answer_json, case, check, judgement, make_request, plan

from audit.evaluation.dimensions import DIMENSIONS
from audit.evaluation.evaluating import evaluating, questions_of
from audit.evaluation.results import MAX_ANSWERS_BYTES, EvaluationResult
from audit.exchanges.cascade import drive
from audit.exchanges.questions import COST_CAP, Question, Reply, outcome_state, recorded_reply
from schemas.codec.single_object import decode, encode
from schemas.errors import RecordError
from schemas.records import Evaluation, EvaluationRequest, Judgement

FAILURES = ("refused", "cut_off", "provider_error", "timeout", "invalid", "cost_cap", "interrupted")
SCORES = st.integers(0, 100).map(lambda tenths: tenths / 10)
Outcome = float | str
"""The overall score of an iteration, or the outcome of a judgement without an answer."""
OUTCOMES = st.lists(SCORES | st.sampled_from(FAILURES), min_size=1, max_size=7)


def record_outcomes(request: EvaluationRequest, outcomes: Sequence[Outcome]) -> list[Judgement]:
    """Return a judgement for each question of a request."""
    return [
        judgement(question, answer_json(answer(outcome)), number)
        if isinstance(outcome, float)
        else judgement(question, None, number, outcome=outcome, error=f"it was {outcome}")
        for number, (question, outcome) in enumerate(zip(questions_of(request), outcomes, strict=True), 1)
    ]


def reply_from_records(records: Sequence[Judgement]) -> Callable[[Question], Reply]:
    """Return a function that answers questions from recorded judgements, without a live judge."""

    def reply(question: Question) -> Reply:
        matching = [record for record in records if record.fingerprint == question.fingerprint]
        return recorded_reply(matching, 0) or Reply(state=outcome_state("no_judge"), judgements=tuple(matching))

    return reply


def evaluate(request: EvaluationRequest, records: Sequence[Judgement]) -> Evaluation:
    """Evaluate a request with recorded judgements."""
    return drive(evaluating(request, records), reply_from_records(records))


def evaluate_outcomes(outcomes: Sequence[Outcome], method: str = "median", **fields: object) -> Evaluation:
    """Evaluate a request whose iterations have these outcomes."""
    request = make_request(evaluation_plan=plan(repetitions=len(outcomes), method=method), **fields)
    return evaluate(request, record_outcomes(request, outcomes))


def test_every_repetition_is_the_same_question_told_apart_by_its_number() -> None:
    """Repetitions measure how well the judge agrees with itself, so all of them must get the same prompt."""
    request = make_request(evaluation_plan=plan(repetitions=3))
    questions = questions_of(request)
    assert len(questions) == len({question.fingerprint for question in questions}) == 3
    assert {(question.instructions, question.content("any")) for question in questions} == {
        (request.system_prompt, request.user_prompt)
    }
    assert {(question.purpose, question.model, question.max_tokens) for question in questions} == {
        ("evaluation", "claude-haiku-4-5", 3_000)
    }


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({"evaluation_plan": plan(judge={"judge_id": "other", "type": "recorded", "model": "claude-haiku-4-5"})}, True),
        ({"evaluation_plan": plan(profile_id="weekly", judge_run_id="once", method="mean", cost_cap_usd=None)}, True),
        ({"evaluation_id": "evaluation 2", "attempt": 3, "checks": "[]"}, True),
        ({"evaluation_plan": plan(model="claude-sonnet-4-5")}, False),
        ({"evaluation_plan": plan(judge={"judge_id": "haiku", "model": "claude-haiku-4-5", "max_tokens": 4_000})}, False),
        ({"judged_case": case(dimensions=["task"])}, False),
        ({"system_prompt": "Judge it."}, False),
        ({"user_prompt": "{}"}, False),
        ({"session_id": "s2"}, False),
        ({"connection": "other"}, False),
    ],
)
def test_a_question_is_named_by_what_is_asked_about_whom_and_not_by_who_asks(
    changed: dict[str, object], *, is_same: bool
) -> None:
    """A recorded judge must find the answers to a live judge's questions, and another aggregation must not pay for them again."""
    before, after = questions_of(make_request())[0], questions_of(make_request(**changed))[0]
    assert (before.fingerprint == after.fingerprint) == is_same


def test_a_recorded_judge_is_asked_nothing() -> None:
    """The question carries its outcome for the case that no answer was recorded, so no call is made."""
    request = make_request(evaluation_plan=plan(judge={"judge_id": "old", "type": "recorded", "model": "claude-haiku-4-5"}))
    assert [question.fallback.reason for question in questions_of(request) if question.fallback] == ["not_recorded"] * 3
    evaluation = drive(evaluating(request), lambda question: Reply(state=question.fallback))
    document = EvaluationResult.model_validate_json(evaluation.result)
    assert evaluation.status == "failed"
    assert "none is recorded" in str(document.judge_result.iterations[0].reason)


@given(OUTCOMES, st.sampled_from(["median", "mean"]))
def test_the_scores_are_those_of_the_iterations_that_succeeded_and_failed_ones_never_move_them(
    outcomes: list[Outcome], method: str
) -> None:
    """Any subset may fail, for any reason; the others are aggregated as if the failed ones had never been asked."""
    evaluation = evaluate_outcomes(outcomes, method)
    scores = [item for item in outcomes if isinstance(item, float)]
    expected = (median(scores) if method == "median" else mean(scores)) if scores else None
    assert evaluation.final_score == pytest.approx(expected)
    assert evaluation.status == ("completed" if scores else "failed")
    assert [item.final for item in evaluation.dimensions] == [pytest.approx(expected)] * 6
    assert evaluation.configured_repetitions == len(outcomes)
    assert evaluation.successful_iterations == len(scores)
    assert evaluation.aggregation_method == method
    failed = [number for number, item in enumerate(outcomes, 1) if not isinstance(item, float)]
    assert tuple(f"Judge iteration {number} failed and was excluded." for number in failed) == evaluation.warnings
    if scores and failed:
        without_failures = evaluate_outcomes(scores, method)
        assert without_failures.final_score == evaluation.final_score
        assert without_failures.overall_spread == evaluation.overall_spread
        assert [(item.final, item.spread) for item in without_failures.dimensions] == [
            (item.final, item.spread) for item in evaluation.dimensions
        ]


@given(OUTCOMES, st.randoms())
def test_the_same_request_and_judgements_give_the_same_bytes_in_any_order(
    outcomes: list[Outcome], chance: random.Random
) -> None:
    """A replay and a worker read judgements in different orders and must produce the same record."""
    request = make_request(evaluation_plan=plan(repetitions=len(outcomes)), checks=[check(), check("wrote", "error")])
    records = record_outcomes(request, outcomes)
    shuffled = list(records)
    chance.shuffle(shuffled)
    assert encode(evaluate(request, records)) == encode(evaluate(request, shuffled))


def test_where_all_iterations_fail_there_is_a_result_with_checks_and_warnings_and_no_score() -> None:
    """An evaluation without any answer has no score: a 0 would look like a verdict."""
    checks = [check("answered"), check("rotated", "fail"), check("confirmed", "error", ["process"])]
    request = make_request(evaluation_plan=plan(repetitions=2), checks=checks, warnings=("Half of the tool results were cut.",))
    evaluation = evaluate(request, record_outcomes(request, ["timeout", "refused"]))
    document = EvaluationResult.model_validate_json(evaluation.result)
    assert evaluation.status == "failed"
    assert evaluation.final_score is None
    assert evaluation.overall_spread is None
    assert [
        (item.dimension, item.source, item.deterministic, item.judge, item.final) for item in evaluation.dimensions[:2]
    ] == [
        ("task", "missing", 5.0, None, None),
        ("process", "missing", 0.0, None, None),
    ]
    assert tuple(checks) == evaluation.checks
    cut, first, second, rotated, confirmed = evaluation.warnings
    assert cut == "Half of the tool results were cut."
    assert "iteration 1 failed" in first
    assert "iteration 2 failed" in second
    assert "Check rotated failed" in rotated
    assert "Check confirmed " in confirmed
    final = document.final_result
    assert final.evaluation_status == "failed"
    assert final.final_score is None
    assert final.judge_overall is None
    assert final.judge_dimensions == {}
    assert tuple(final.summary.model_dump().values()) == (1, 1, 1, 0, 2)
    assert document.judge_result.aggregate is None


def test_the_result_tells_what_each_iteration_said_or_why_it_does_not_count() -> None:
    """The raw answers let a reader check the score."""
    request = make_request(evaluation_plan=plan(repetitions=4))
    records = record_outcomes(request, [8.0, "provider_error", 6.0, 9.0])
    records[3] = msgspec.structs.replace(records[3], answer="I would say 9.")
    evaluation = evaluate(request, records)
    iterations = EvaluationResult.model_validate_json(evaluation.result).judge_result.iterations
    assert [(item.iteration, item.outcome, item.scores.overall if item.scores else None) for item in iterations] == [
        (1, "answered", 8.0),
        (2, "provider_error", None),
        (3, "answered", 6.0),
        (4, "invalid", None),
    ]
    assert [item.reason for item in iterations[:3]] == [None, "it was provider_error", None]
    assert "at character 0" in str(iterations[3].reason)
    assert [item.answer for item in iterations] == [answer_json(answer(8.0)), None, answer_json(answer(6.0)), "I would say 9."]
    assert [item.judgement_id for item in records] == [item.judgement_id for item in iterations]
    assert [(item.iteration, item.outcome, item.overall, item.judgement_id) for item in evaluation.iterations] == [
        (item.iteration, item.outcome, item.scores.overall if item.scores else None, item.judgement_id) for item in iterations
    ]


def test_only_the_dimensions_that_the_case_declares_are_asked_and_listed() -> None:
    """A check of an undeclared dimension must not add that dimension to the result."""
    request = make_request(case(dimensions=["spark", "process"]), plan(repetitions=1), [check("rotated", "fail", ["task"])])
    (question,) = questions_of(request)
    assert list(question.schema["properties"]["dimensions"]["properties"]) == ["process", "spark"]
    evaluation = evaluate(request, [judgement(question, answer_json(answer(7, ("process", "spark"))))])
    final = EvaluationResult.model_validate_json(evaluation.result).final_result
    assert [item.dimension for item in evaluation.dimensions] == ["process", "spark"]
    for listed in (final.judge_dimensions, final.deterministic_dimensions, final.final_dimensions, final.dimension_resolutions):
        assert list(listed) == ["process", "spark"]
    assert evaluation.warnings == ()


def test_the_final_score_is_the_overall_verdict_of_the_judge_whatever_the_dimensions_are() -> None:
    """The overall score is given by the judge: it is neither a mean of dimensions nor affected by checks."""
    policies = {
        "task": {"policy": "weighted", "judge_weight": 1, "deterministic_weight": 3},
        "spark": {"policy": "deterministic_only"},
    }
    request = make_request(
        evaluation_plan=plan(repetitions=1, dimension_policies=policies), checks=[check("a", "fail"), check("b")]
    )
    (question,) = questions_of(request)
    evaluation = evaluate(request, [judgement(question, answer_json(answer(9.0, task=2.0, spark=1.0)))])
    final = EvaluationResult.model_validate_json(evaluation.result).final_result
    assert evaluation.final_score == final.final_score == 9.0
    assert dict(final.final_dimensions) == {
        "task": 4.25,
        "process": 9.0,
        "autonomy": 9.0,
        "closeness": 9.0,
        "efficiency": 9.0,
        "spark": None,
    }
    assert final.dimension_resolutions["task"].source == "weighted"
    assert final.dimension_resolutions["task"].judge_weight == 0.25
    assert final.dimension_resolutions["task"].deterministic_weight == 0.75
    assert list(final.final_dimensions) == list(DIMENSIONS)


def test_it_costs_what_all_its_judgements_cost_and_is_as_new_as_the_newest_it_rests_on() -> None:
    """Answers of earlier attempts and failed calls were paid for as well."""
    request = make_request(evaluation_plan=plan(repetitions=2), attempt=1)
    first, second = record_outcomes(request, [8.0, "timeout"])
    retried = judgement(questions_of(request)[1], answer_json(answer(6.0)), 7, subject_revision=1, simulated=True)
    stray = judgement(questions_of(request)[0], None, 9, outcome="timeout", fingerprint="another question")
    records = [first, second, retried, stray]

    def reply(question: Question) -> Reply:
        return recorded_reply([record for record in records if record.fingerprint == question.fingerprint], 1) or Reply(
            state=COST_CAP
        )

    evaluation = drive(evaluating(request, records), reply)
    assert evaluation.cost_usd == 0.004
    assert evaluation.evaluated_at == START + timedelta(minutes=7)
    assert evaluation.simulated is True
    assert evaluation.revision == 1
    assert evaluation.judgement_ids == ("judgement 1", "judgement 2", "judgement 7")
    assert evaluation.final_score == 7.0
    assert evaluation.iterations[1].judgement_id == "judgement 7"


def test_the_cost_is_unknown_where_that_of_one_call_is() -> None:
    """A sum of the other calls would look like the full cost."""
    request = make_request(evaluation_plan=plan(repetitions=2))
    first, second = record_outcomes(request, [8.0, 6.0])
    assert evaluate(request, [first, msgspec.structs.replace(second, cost_usd=None)]).cost_usd is None


def test_without_any_call_it_costs_nothing_and_is_as_old_as_its_request() -> None:
    """If the cost cap prevents all calls, there is no judgement to take a time from."""
    evaluation = drive(evaluating(make_request()), lambda _question: Reply(state=COST_CAP))
    assert evaluation.status == "failed"
    assert evaluation.cost_usd == 0.0
    assert evaluation.evaluated_at == START
    assert evaluation.judgement_ids == ()
    assert tuple(item.outcome for item in evaluation.iterations) == ("cost_cap",) * 3


def test_every_repetition_is_asked_whatever_became_of_those_before_it() -> None:
    """A judge that fails once may answer the next time."""
    asked_fingerprints: list[str] = []

    def reply(question: Question) -> Reply:
        asked_fingerprints.append(question.fingerprint)
        return (
            Reply(state=outcome_state("provider_error"))
            if len(asked_fingerprints) < 3
            else Reply(text=answer_json(answer(7.0)))
        )

    evaluation = drive(evaluating(make_request()), reply)
    assert len(asked_fingerprints) == 3
    assert evaluation.status == "completed"
    assert evaluation.successful_iterations == 1


def test_a_result_fits_into_a_record_however_long_the_answers_are() -> None:
    """A record holds a megabyte; the full answers are kept in the judgements."""
    request = make_request(evaluation_plan=plan(repetitions=50))
    long_answer = answer(7.0)
    long_answer["overall"]["evidence"] = ["\u2764" * 60_000]
    records = [judgement(question, json.dumps(long_answer), number) for number, question in enumerate(questions_of(request), 1)]
    evaluation = evaluate(request, records)
    assert decode(encode(evaluation)) == evaluation
    iterations = EvaluationResult.model_validate_json(evaluation.result).judge_result.iterations
    assert all(len(json.dumps(item.answer, ensure_ascii=False).encode()) <= MAX_ANSWERS_BYTES // 50 + 50 for item in iterations)
    assert all(item.answer is not None and item.answer.endswith(" characters left out …]") for item in iterations)


@pytest.mark.parametrize(
    ("field", "text"),
    [("case", "{}"), ("case", "no JSON"), ("profile", '{"judge": 7}'), ("checks", "[{}]"), ("checks", "[" * 10_000)],
)
def test_a_request_that_cannot_be_read_is_refused_with_its_field(field: str, text: str) -> None:
    """The request becomes a dead letter, and its reason must name the field."""
    with pytest.raises(RecordError, match=rf"^EvaluationRequest\.{field}: .+") as refused:
        questions_of(make_request(**{field: text}))
    assert "driftline evaluate" in refused.value.hint


def test_a_reply_that_says_nothing_is_a_mistake_of_the_caller() -> None:
    """Otherwise the mistake would count as a failure of the judge."""
    with pytest.raises(ValueError, match="iteration 1 is neither"):
        drive(evaluating(make_request()), lambda _question: Reply())
