"""An evaluation from its request and what the judge says: what is asked, what counts, what is recorded, and what it costs."""

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
from support.evaluation_builders import answer, case, check, judgement, plan, request, said

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
"""What became of an iteration: the overall score, or the outcome of a judgement without an answer."""
OUTCOMES = st.lists(SCORES | st.sampled_from(FAILURES), min_size=1, max_size=7)


def recorded_of(asked: EvaluationRequest, outcomes: Sequence[Outcome]) -> list[Judgement]:
    """A judgement for each question of a request."""
    return [
        judgement(question, said(answer(outcome)), number)
        if isinstance(outcome, float)
        else judgement(question, None, number, outcome=outcome, error=f"it was {outcome}")
        for number, (question, outcome) in enumerate(zip(questions_of(asked), outcomes, strict=True), 1)
    ]


def from_records(records: Sequence[Judgement]) -> Callable[[Question], Reply]:
    """Answers a question by what was recorded of it, as a stage does; interrupted calls leave nobody to ask."""

    def reply(question: Question) -> Reply:
        found = [one for one in records if one.fingerprint == question.fingerprint]
        return recorded_reply(found, 0) or Reply(state=outcome_state("no_judge"), judgements=tuple(found))

    return reply


def evaluated(asked: EvaluationRequest, records: Sequence[Judgement]) -> Evaluation:
    """The evaluation of a request by what was recorded."""
    return drive(evaluating(asked, records), from_records(records))


def outcome_of(outcomes: Sequence[Outcome], method: str = "median", **fields: object) -> Evaluation:
    """The evaluation of a request whose iterations come to this."""
    asked = request(by=plan(repetitions=len(outcomes), method=method), **fields)
    return evaluated(asked, recorded_of(asked, outcomes))


def test_every_repetition_is_the_same_question_told_apart_by_its_number() -> None:
    """Repetitions measure how far the judge agrees with itself: all of them must be shown the same bytes."""
    asked = request(by=plan(repetitions=3))
    questions = questions_of(asked)
    assert len(questions) == len({one.fingerprint for one in questions}) == 3
    assert {(one.instructions, one.content("any")) for one in questions} == {(asked.system_prompt, asked.user_prompt)}
    assert {(one.purpose, one.model, one.max_tokens) for one in questions} == {("evaluation", "claude-haiku-4-5", 3_000)}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"by": plan(judge={"judge_id": "other", "type": "recorded", "model": "claude-haiku-4-5"})}, True),
        ({"by": plan(profile_id="weekly", judge_run_id="once", method="mean", cost_cap_usd=None)}, True),
        ({"evaluation_id": "evaluation 2", "attempt": 3, "checks": "[]"}, True),
        ({"by": plan(model="claude-sonnet-4-5")}, False),
        ({"by": plan(judge={"judge_id": "haiku", "model": "claude-haiku-4-5", "max_tokens": 4_000})}, False),
        ({"judged": case(dimensions=["task"])}, False),
        ({"system_prompt": "Judge it."}, False),
        ({"user_prompt": "{}"}, False),
        ({"session_id": "s2"}, False),
        ({"connection": "other"}, False),
    ],
)
def test_a_question_is_named_by_what_is_asked_about_whom_and_not_by_who_asks(changed: dict[str, object], *, same: bool) -> None:
    """A recorded judge finds what a live one was asked, and another method is no reason to pay again."""
    before, after = questions_of(request())[0], questions_of(request(**changed))[0]
    assert (before.fingerprint == after.fingerprint) == same


def test_a_recorded_judge_is_asked_nothing() -> None:
    """The question says what the iteration is when no answer was recorded, so no stage makes a call for it."""
    asked = request(by=plan(judge={"judge_id": "old", "type": "recorded", "model": "claude-haiku-4-5"}))
    assert [one.fallback.reason for one in questions_of(asked) if one.fallback] == ["not_recorded"] * 3
    made = drive(evaluating(asked), lambda question: Reply(state=question.fallback))
    document = EvaluationResult.model_validate_json(made.result)
    assert made.status == "failed"
    assert "none is recorded" in str(document.judge_result.iterations[0].reason)


@given(OUTCOMES, st.sampled_from(["median", "mean"]))
def test_the_scores_are_those_of_the_iterations_that_succeeded_and_failed_ones_never_move_them(
    outcomes: list[Outcome], method: str
) -> None:
    """Any subset may fail, for any reason: what is left is aggregated as if the rest had never been asked."""
    made = outcome_of(outcomes, method)
    scores = [one for one in outcomes if isinstance(one, float)]
    expected = (median(scores) if method == "median" else mean(scores)) if scores else None
    assert (made.final_score, made.status) == (pytest.approx(expected), "completed" if scores else "failed")
    assert [one.final for one in made.dimensions] == [pytest.approx(expected)] * 6
    assert (
        made.configured_repetitions,
        made.successful_iterations,
        made.aggregation_method,
    ) == (len(outcomes), len(scores), method)
    failed = [number for number, one in enumerate(outcomes, 1) if not isinstance(one, float)]
    assert tuple(f"Judge iteration {number} failed and was excluded." for number in failed) == made.warnings
    if scores and failed:
        alone = outcome_of(scores, method)
        assert (alone.final_score, alone.overall_spread) == (made.final_score, made.overall_spread)
        assert [(one.final, one.spread) for one in alone.dimensions] == [(one.final, one.spread) for one in made.dimensions]


@given(OUTCOMES, st.randoms())
def test_the_same_request_and_judgements_give_the_same_bytes_in_any_order(
    outcomes: list[Outcome], chance: random.Random
) -> None:
    """A replay reads judgements as they lie in the log, a worker as they came: the result must not tell."""
    asked = request(by=plan(repetitions=len(outcomes)), checks=[check(), check("wrote", "error")])
    records = recorded_of(asked, outcomes)
    shuffled = list(records)
    chance.shuffle(shuffled)
    assert encode(evaluated(asked, records)) == encode(evaluated(asked, shuffled))


def test_where_all_iterations_fail_there_is_a_result_with_checks_and_warnings_and_no_score() -> None:
    """An evaluation that could not be judged is told as such: a 0 would be a verdict."""
    checks = [check("answered"), check("rotated", "fail"), check("confirmed", "error", ["process"])]
    asked = request(by=plan(repetitions=2), checks=checks, warnings=("Half of the tool results were cut.",))
    made = evaluated(asked, recorded_of(asked, ["timeout", "refused"]))
    document = EvaluationResult.model_validate_json(made.result)
    assert (made.status, made.final_score, made.overall_spread) == ("failed", None, None)
    assert [(one.dimension, one.source, one.deterministic, one.judge, one.final) for one in made.dimensions[:2]] == [
        ("task", "missing", 5.0, None, None),
        ("process", "missing", 0.0, None, None),
    ]
    assert tuple(checks) == made.checks
    cut, first, second, rotated, confirmed = made.warnings
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
    """The raw answers are the proof of the score: who doubts it reads what the judge wrote."""
    asked = request(by=plan(repetitions=4))
    records = recorded_of(asked, [8.0, "provider_error", 6.0, 9.0])
    records[3] = msgspec.structs.replace(records[3], answer="I would say 9.")
    made = evaluated(asked, records)
    shown = EvaluationResult.model_validate_json(made.result).judge_result.iterations
    assert [(one.iteration, one.outcome, one.scores.overall if one.scores else None) for one in shown] == [
        (1, "answered", 8.0),
        (2, "provider_error", None),
        (3, "answered", 6.0),
        (4, "invalid", None),
    ]
    assert [one.reason for one in shown[:3]] == [None, "it was provider_error", None]
    assert "at character 0" in str(shown[3].reason)
    assert [one.answer for one in shown] == [said(answer(8.0)), None, said(answer(6.0)), "I would say 9."]
    assert [one.judgement_id for one in records] == [one.judgement_id for one in shown]
    assert [(one.iteration, one.outcome, one.overall, one.judgement_id) for one in made.iterations] == [
        (one.iteration, one.outcome, one.scores.overall if one.scores else None, one.judgement_id) for one in shown
    ]


def test_only_the_dimensions_that_the_case_declares_are_asked_and_listed() -> None:
    """A case about spark alone says nothing of the task: no check of it may bring the dimension back."""
    asked = request(case(dimensions=["spark", "process"]), plan(repetitions=1), [check("rotated", "fail", ["task"])])
    (question,) = questions_of(asked)
    assert list(question.schema["properties"]["dimensions"]["properties"]) == ["process", "spark"]
    made = evaluated(asked, [judgement(question, said(answer(7, ("process", "spark"))))])
    final = EvaluationResult.model_validate_json(made.result).final_result
    assert [one.dimension for one in made.dimensions] == ["process", "spark"]
    for listed in (final.judge_dimensions, final.deterministic_dimensions, final.final_dimensions, final.dimension_resolutions):
        assert list(listed) == ["process", "spark"]
    assert made.warnings == ()


def test_the_final_score_is_the_overall_verdict_of_the_judge_whatever_the_dimensions_are() -> None:
    """It is the judge's own verdict: neither a mean nor moved by checks."""
    policies = {
        "task": {"policy": "weighted", "judge_weight": 1, "deterministic_weight": 3},
        "spark": {"policy": "deterministic_only"},
    }
    asked = request(by=plan(repetitions=1, dimension_policies=policies), checks=[check("a", "fail"), check("b")])
    (question,) = questions_of(asked)
    made = evaluated(asked, [judgement(question, said(answer(9.0, task=2.0, spark=1.0)))])
    final = EvaluationResult.model_validate_json(made.result).final_result
    assert made.final_score == final.final_score == 9.0
    assert dict(final.final_dimensions) == {
        "task": 4.25,
        "process": 9.0,
        "autonomy": 9.0,
        "closeness": 9.0,
        "efficiency": 9.0,
        "spark": None,
    }
    assert (
        final.dimension_resolutions["task"].source,
        final.dimension_resolutions["task"].judge_weight,
        final.dimension_resolutions["task"].deterministic_weight,
    ) == ("weighted", 0.25, 0.75)
    assert list(final.final_dimensions) == list(DIMENSIONS)


def test_it_costs_what_all_its_judgements_cost_and_is_as_new_as_the_newest_it_rests_on() -> None:
    """Answers of earlier attempts and failed calls were paid for, too."""
    asked = request(by=plan(repetitions=2), attempt=1)
    first, second = recorded_of(asked, [8.0, "timeout"])
    again = judgement(questions_of(asked)[1], said(answer(6.0)), 7, subject_revision=1, simulated=True)
    stray = judgement(questions_of(asked)[0], None, 9, outcome="timeout", fingerprint="another question")
    records = [first, second, again, stray]

    def reply(question: Question) -> Reply:
        return recorded_reply([one for one in records if one.fingerprint == question.fingerprint], 1) or Reply(state=COST_CAP)

    made = drive(evaluating(asked, records), reply)
    assert made.cost_usd == 0.004
    assert made.evaluated_at == START + timedelta(minutes=7)
    assert made.simulated is True
    assert made.revision == 1
    assert made.judgement_ids == ("judgement 1", "judgement 2", "judgement 7")
    assert (made.final_score, made.iterations[1].judgement_id) == (7.0, "judgement 7")


def test_the_cost_is_unknown_where_that_of_one_call_is() -> None:
    """A sum without it would look like what was paid."""
    asked = request(by=plan(repetitions=2))
    first, second = recorded_of(asked, [8.0, 6.0])
    assert evaluated(asked, [first, msgspec.structs.replace(second, cost_usd=None)]).cost_usd is None


def test_without_any_call_it_costs_nothing_and_is_as_old_as_its_request() -> None:
    """Where the cap leaves no room there is no judgement to take a time from."""
    made = drive(evaluating(request()), lambda _question: Reply(state=COST_CAP))
    assert made.status == "failed"
    assert made.cost_usd == 0.0
    assert made.evaluated_at == START
    assert made.judgement_ids == ()
    assert tuple(one.outcome for one in made.iterations) == ("cost_cap",) * 3


def test_every_repetition_is_asked_whatever_became_of_those_before_it() -> None:
    """A judge that fails once may answer the next time; a failure stops nothing."""
    asked: list[str] = []

    def reply(question: Question) -> Reply:
        asked.append(question.fingerprint)
        return Reply(state=outcome_state("provider_error")) if len(asked) < 3 else Reply(text=said(answer(7.0)))

    made = drive(evaluating(request()), reply)
    assert (len(asked), made.status, made.successful_iterations) == (3, "completed", 1)


def test_a_result_fits_into_a_record_however_long_the_answers_are() -> None:
    """A record has a megabyte; what the judge wrote is kept whole in its judgements."""
    asked = request(by=plan(repetitions=50))
    one = answer(7.0)
    one["overall"]["evidence"] = ["\u2764" * 60_000]
    records = [judgement(question, json.dumps(one), number) for number, question in enumerate(questions_of(asked), 1)]
    made = evaluated(asked, records)
    assert decode(encode(made)) == made
    shown = EvaluationResult.model_validate_json(made.result).judge_result.iterations
    assert all(len(json.dumps(item.answer, ensure_ascii=False).encode()) <= MAX_ANSWERS_BYTES // 50 + 50 for item in shown)
    assert all(item.answer is not None and item.answer.endswith(" characters left out …]") for item in shown)


@pytest.mark.parametrize(
    ("field", "text"),
    [("case", "{}"), ("case", "no JSON"), ("profile", '{"judge": 7}'), ("checks", "[{}]"), ("checks", "[" * 10_000)],
)
def test_a_request_that_cannot_be_read_is_refused_with_its_field(field: str, text: str) -> None:
    """It goes to the dead letters, where somebody must see what is wrong with it."""
    with pytest.raises(RecordError, match=rf"^EvaluationRequest\.{field}: .+") as refused:
        questions_of(request(**{field: text}))
    assert "driftline evaluate" in refused.value.hint


def test_a_reply_that_says_nothing_is_a_mistake_of_the_caller() -> None:
    """It would count as a failure of the judge otherwise."""
    with pytest.raises(ValueError, match="iteration 1 is neither"):
        drive(evaluating(request()), lambda _question: Reply())
