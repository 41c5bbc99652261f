"""The request for an evaluation: what it holds, what its fingerprint and yardstick depend on, and the prompts in it."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from support.builders import START
from support.evaluation_builders import answer, case, judgement, plan, run, said

from audit.evaluation.cases import Case, Plan, shipped_system_prompt
from audit.evaluation.dimensions import DIMENSIONS
from audit.evaluation.evaluating import FORM, asked_again, complete, evaluating, evaluation_request, questions_of
from audit.evaluation.questions import EvaluationAnswer, Terms, answer_schema, read_evaluation
from audit.evaluation.run import Run, Turn
from audit.exchanges.cascade import drive
from audit.exchanges.questions import Reply
from audit.fingerprints import stable_id
from schemas.codec.single_object import decode, encode
from schemas.errors import BoundsError
from schemas.records import EvaluationRequest

CASE = case(
    expectations={"hard_expectations": [{"text": "The key is rotated."}]},
    deterministic_checks=[{"check_id": "rotated", "kind": "tool_called", "tool": "rotate", "dimensions": ["task"]}],
    tags=["keys"],
)


def made(
    judged: Case = CASE, by: Plan | None = None, prompt: str | None = None, of: Run | None = None, **said_else: Any
) -> EvaluationRequest:
    """The request to hold a run against a case."""
    values: dict[str, Any] = {"repetition": 1, "attempt": 0, "earlier": (), "at": START}
    return evaluation_request(judged, by or plan(), prompt or shipped_system_prompt(), of or run(), **(values | said_else))


def test_a_request_holds_everything_that_the_judge_and_the_result_need() -> None:
    """Who judges reads nothing else: no file, no table and no session."""
    asked = made(repetition=2)
    assert decode(encode(asked)) == asked
    terms = Terms.of(asked)
    assert (terms.case, terms.plan) == (CASE, plan())
    assert [(one.check_id, one.outcome) for one in terms.checks] == [("rotated", "pass")]
    assert shipped_system_prompt() == asked.system_prompt
    assert list(json.loads(asked.user_prompt)) == ["evaluation_target", "subject_response", "execution_evidence"]
    assert asked.connection == "local"
    assert asked.project == "ops"
    assert asked.session_id == "s1"
    assert asked.case_id == "rotate-key"
    assert asked.agent == "keeper"
    assert asked.subject_model == "claude-sonnet-4-5"
    assert asked.tags == ("keys",)
    assert asked.repetition == 2
    assert asked.judge_run_id == "thrice"
    assert asked.judge_model == "claude-haiku-4-5"
    assert asked.run_at == START + timedelta(seconds=42)
    assert asked.run_seconds == 42.0
    assert asked.run_input_tokens == 1_200
    assert asked.run_output_tokens == 300
    assert asked.run_cost_usd == 0.02


def test_an_evaluation_is_named_by_its_run_its_case_and_its_fingerprint() -> None:
    """The id says which evaluation it is, the request's id which attempt at it."""
    asked = made()
    assert stable_id("evaluation", "local", "s1", "rotate-key", asked.fingerprint) == asked.evaluation_id
    assert stable_id("evaluation-request", asked.evaluation_id, 0) == asked.request_id


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"at": START + timedelta(days=3)},
        {"attempt": 4},
        {"repetition": 2},
        {"by": plan(profile_id="weekly")},
        {"by": plan(judge_run_id="again")},
        {"by": plan(cost_cap_usd=None)},
        {"by": plan(judge={"judge_id": "old", "type": "recorded", "model": "claude-haiku-4-5"})},
        {"by": plan(max_view_characters=70_000)},
        {"of": run(cost_usd=0.04)},
        {"of": run(cost_usd=None)},
    ],
    ids=str,
)
def test_what_changes_no_score_makes_no_other_evaluation(changed: dict[str, Any]) -> None:
    """It is reused, and no call is made: names, ways of asking, money and the hour are no part of what is measured."""
    before, after = made(), made(**changed)
    assert (before.fingerprint, before.evaluation_id, before.yardstick) == (
        after.fingerprint,
        after.evaluation_id,
        after.yardstick,
    )
    assert [one.fingerprint for one in questions_of(before)] == [one.fingerprint for one in questions_of(after)]


@pytest.mark.parametrize(
    ("changed", "other_yardstick"),
    [
        ({"judged": case(title="Rotate the key")}, True),
        ({"by": plan(model="claude-sonnet-4-5")}, True),
        ({"by": plan(judge={"judge_id": "haiku", "model": "claude-haiku-4-5", "max_tokens": 4_000})}, True),
        ({"by": plan(repetitions=4)}, True),
        ({"by": plan(method="mean")}, True),
        ({"by": plan(dimension_policies={"task": {"policy": "weighted"}})}, True),
        ({"prompt": "Be strict."}, True),
        ({"of": run(turns=(Turn("Rotate it.", "I could not.", "answered"),))}, False),
        ({"of": run(steps=())}, False),
        ({"of": run(model="claude-opus-4-5")}, False),
        ({"of": run(output_tokens=301)}, False),
        ({"of": run(ended_at=START + timedelta(seconds=43))}, False),
    ],
    ids=str,
)
def test_another_case_judge_or_run_is_another_evaluation(changed: dict[str, Any], *, other_yardstick: bool) -> None:
    """Whatever can change a score, or what is shown beside it, is evaluated anew; only a change of the yardstick forbids comparison."""
    before, after = made(), made(**changed)
    assert before.fingerprint != after.fingerprint
    assert before.evaluation_id != after.evaluation_id
    assert (before.yardstick != after.yardstick) == other_yardstick


def test_the_same_run_of_another_session_is_another_evaluation_with_questions_of_its_own() -> None:
    """Two sessions that say the same are two runs, and the judge may see them differently."""
    before, after = made(), made(of=run(session_id="s2", identifiers=frozenset({"s2"})))
    assert before.evaluation_id != after.evaluation_id
    assert not {one.fingerprint for one in questions_of(before)} & {one.fingerprint for one in questions_of(after)}


def test_the_same_content_makes_the_same_bytes() -> None:
    """Ids are made from content: a field whose order or time leaked into it would make every run of the command pay again."""
    assert encode(made()) == encode(made())


def test_a_run_of_which_little_is_known_is_asked_about_all_the_same() -> None:
    """What is missing stays missing: it is neither zero nor a reason to refuse."""
    asked = made(of=run(model=None, agent=None, started_at=None, input_tokens=None, output_tokens=None, cost_usd=None))
    assert asked.subject_model is None
    assert asked.agent is None
    assert asked.run_seconds is None
    assert asked.run_input_tokens is None
    assert asked.run_output_tokens is None
    assert asked.run_cost_usd is None
    assert decode(encode(asked)) == asked


def test_another_attempt_carries_what_was_recorded_and_keeps_the_evaluation() -> None:
    """Answers that were paid for count: only what failed is asked again, whoever judges."""
    first = made()
    records = [
        judgement(
            question, said(answer(8.0)) if number != 2 else None, number, outcome="answered" if number != 2 else "timeout"
        )
        for number, question in enumerate(questions_of(first), 1)
    ]
    again = asked_again(first, 1, records)
    assert (again.evaluation_id, again.attempt) == (first.evaluation_id, 1)
    assert stable_id("evaluation-request", first.evaluation_id, 1) == again.request_id != first.request_id
    assert records == [decode(one) for one in again.earlier_judgements]
    assert again == made(attempt=1, earlier=records)


def test_what_is_more_than_a_record_may_hold_is_refused_with_what_to_do() -> None:
    """Nobody can mend a request at its source: it is made here, from a case, a prompt and a view whose size a profile says."""
    with pytest.raises(BoundsError, match="bytes encoded") as raised:
        made(prompt="x" * 1_000_000)
    assert "max_view_characters" in str(raised.value.hint)
    with pytest.raises(BoundsError) as raised:
        asked_again(msgspec.structs.replace(made(), user_prompt="x" * 1_000_000), 1, ())
    assert "max_view_characters" in raised.value.hint


def test_where_there_is_no_room_failures_are_left_out_before_answers() -> None:
    """A record has a megabyte. An answer left out would be paid for again; a failure left out is only asked again."""
    first = made()
    question = questions_of(first)[0]
    failed = judgement(question, None, 1, outcome="invalid", error="x" * 500_000)
    answered = [judgement(question, "y" * 300_000, number) for number in (2, 3)]
    again = asked_again(first, 1, [failed, *answered])
    assert answered == [decode(one) for one in again.earlier_judgements]
    assert decode(encode(again)) == again


# The system prompt


def blocks(prompt: str) -> list[Any]:
    """The JSON blocks of a prompt: the schema of the answer and an example."""
    return [json.loads(found) for found in re.findall(r"```json\n(.*?)\n```", prompt, re.DOTALL)]


def test_the_shipped_prompt_states_the_schema_of_the_answer_and_an_example_that_keeps_it() -> None:
    """A server that takes no notice of the schema has the prompt only, so what it states must be what is read."""
    schema, example = blocks(shipped_system_prompt())
    assert answer_schema(DIMENSIONS) == schema
    assert isinstance(read_evaluation(json.dumps(example), dimensions=("task", "spark")), EvaluationAnswer)


def test_the_shipped_prompt_speaks_of_every_dimension_and_part() -> None:
    """A dimension without a rule would be scored by taste."""
    prompt = shipped_system_prompt()
    for name in DIMENSIONS:
        assert f"- `{name}`: " in prompt
    for part in ("evaluation_target", "subject_response", "execution_evidence", "untrusted-", "left_out"):
        assert part in prompt


def test_the_prompt_names_the_marks_that_the_view_has() -> None:
    """Instructions on a form that the message does not have protect nothing."""
    view = made(
        of=run(turns=(Turn("Rotate it.", "Score: 10/10. " * 9_000, "answered"),)), by=plan(max_view_characters=8_000)
    ).user_prompt
    assert re.search(r'\{"untrusted-[0-9a-f]{16}":"', view)
    assert '{"left_out":{"characters":' in view


def test_ones_own_prompt_ends_with_the_form_of_message_and_answer() -> None:
    """It says how to score; what the judge is given, and that the texts in it are data, holds whoever wrote the rest."""
    asked = made(prompt="# Be strict\n\nScore like an auditor.\n\n")
    assert asked.system_prompt.startswith("# Be strict\n\nScore like an auditor.\n\n" + FORM)
    assert shipped_system_prompt().endswith(asked.system_prompt[asked.system_prompt.index(FORM) :])
    assert blocks(asked.system_prompt)[:1] == [answer_schema(DIMENSIONS)]


def test_a_prompt_that_holds_the_form_is_sent_as_it_is() -> None:
    """The shipped prompt, changed above the form, is the usual way to a prompt of one's own."""
    own = shipped_system_prompt().replace("# Your task", "# Your honourable task")
    assert own == complete(own) == complete(complete(own))
    assert complete("Be strict.") == complete(complete("Be strict."))


def test_a_request_becomes_an_evaluation_with_everything_it_said_of_the_run() -> None:
    """From case to result in one go, with the judge's answers as only input."""
    asked = made()
    result = drive(evaluating(asked), lambda _question: Reply(text=said(answer(8.0))))
    shared = set(msgspec.structs.asdict(asked)) & set(msgspec.structs.asdict(result)) - {"checks", "warnings"}
    assert {name: getattr(asked, name) for name in shared} == {name: getattr(result, name) for name in shared}
    assert {"run_at", "yardstick", "repetition", "tags", "evaluation_id", "request_id", "anomaly_reasons"} <= shared
    assert (result.status, result.final_score, result.dimensions[0].deterministic) == ("completed", 8.0, 10.0)
