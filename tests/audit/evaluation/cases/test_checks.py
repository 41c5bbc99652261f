"""Deterministic checks: each kind passes or fails as documented, is an error if the records are incomplete, and never raises."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.evaluation.cases import Case, Check
from audit.evaluation.checks import CHECKS, MAX_SEARCHED_LENGTH, check_run
from audit.evaluation.run import Artifact, Failure, Run, Status, ToolCall, ToolResult, Turn

SECRET = "sk-live-0f1e2d3c"


def build_run(answer: str | None = "It is done.", **fields: Any) -> Run:
    """Return a run with one turn, or with none."""
    values: dict[str, Any] = {
        "connection": "local",
        "project": "ops",
        "session_id": "s-1",
        "agent": None,
        "model": None,
        "identifiers": frozenset(),
        "turns": () if answer is None else (Turn("Do it.", answer, "answered"),),
        "steps": (),
        "failures": (),
        "artifacts": (),
        "status": "answered",
        "trust": None,
        "input_tokens": None,
        "output_tokens": None,
        "cost_usd": None,
        "started_at": None,
        "ended_at": None,
    }
    return Run(**(values | fields))


def build_case(*checks: dict[str, Any]) -> Case:
    """Return a case with these checks."""
    numbered_checks = tuple({"check_id": f"c{number}", **check} for number, check in enumerate(checks))
    messages = ({"role": "user", "content": "Do it."},)
    return Case.model_validate(
        {"case_id": "c", "title": "t", "input": {"messages": messages}, "deterministic_checks": numbered_checks}
    )


def decide_check(run: Run, kind: str, **fields: Any) -> tuple[str, str]:
    """Return outcome and detail of one check."""
    (outcome,) = check_run(build_case({"kind": kind, **fields}), run)
    return outcome.outcome, outcome.detail


def steps_calling(*tools: str | None) -> dict[str, Any]:
    """Return steps that call these tools, each with its result."""
    return {
        "steps": tuple(
            step for tool in tools for step in (ToolCall(tool, {"q": SECRET}), ToolResult(tool, SECRET, failed=False))
        )
    }


def artifacts_of(*recorded: tuple[str, str]) -> dict[str, Any]:
    """Return artifacts of these paths and excerpts."""
    return {"artifacts": tuple(Artifact(path, excerpt) for path, excerpt in recorded)}


CASES: list[tuple[Run, str, dict[str, Any], str, str]] = [
    (build_run("ok"), "final_response_present", {}, "pass", "The final answer has 2 characters."),
    (build_run(" \n\u200b\u2060"), "final_response_present", {}, "fail", "The final answer is empty."),
    (build_run(None), "final_response_present", {}, "fail", "There is no answer."),
    (build_run(**steps_calling("ls", "ls", "cat")), "tool_called", {"tool": "ls"}, "pass", "ls was called 2 times, of 3 calls of tools."),
    (build_run(**steps_calling("ls", None)), "tool_called", {"tool": "LS"}, "fail", "LS was never called, of 2 calls of tools."),
    (build_run(has_events=False), "tool_called", {"tool": "ls"}, "error", "No event of the run was recorded"),
    (build_run(**steps_calling("ls", "cat")), "tool_call_count", {"max": 2}, "pass", "Tools were called 2 times; expected at most 2."),
    (build_run(**steps_calling("ls", "cat")), "tool_call_count", {"min": 3, "max": 4}, "fail", "expected at least 3, at most 4."),
    (build_run(**steps_calling("ls", "cat")), "tool_call_count", {"tool": "ls", "min": 1}, "pass", "ls was called once; expected at least 1."),
    (build_run(), "tool_call_count", {"max": 0}, "pass", "Tools were never called; expected at most 0."),
    (build_run(has_events=False), "tool_call_count", {"max": 0}, "error", "its tools and artifacts are unknown"),
    (build_run("The STRASSE"), "response_contains", {"text": "straße"}, "pass", "The final answer contains the text."),
    (build_run("cafe\u0301"), "response_contains", {"text": "CAFÉ"}, "pass", "The final answer contains the text."),
    (build_run("done"), "response_contains", {"text": "undone"}, "fail", "The final answer does not contain the text."),
    (build_run(None), "response_contains", {"text": "x"}, "fail", "There is no answer."),
    (build_run("It is 42 %"), "response_matches", {"regex": r"\b\d+ %"}, "pass", "The pattern matches the final answer."),
    (build_run("DONE"), "response_matches", {"regex": "done"}, "fail", "The pattern does not match the final answer."),
    (build_run("DONE"), "response_matches", {"regex": "(?i)done"}, "pass", "The pattern matches the final answer."),
    (build_run("x" * (MAX_SEARCHED_LENGTH + 1)), "response_matches", {"regex": "x"}, "error", "more than 1000000 characters"),
    (build_run(None), "response_matches", {"regex": ".*"}, "fail", "There is no answer."),
    (build_run(), "status_is", {"status": "answered"}, "pass", "The run was answered."),
    (build_run(status="aborted"), "status_is", {"status": "answered"}, "fail", "The run was aborted."),
    (build_run(**artifacts_of(("./out\\a.md", ""))), "artifact_present", {"path": "out/a.md"}, "pass", "out/a.md was recorded."),
    (build_run(**artifacts_of(("/home/joe/ws/out/a.md", ""))), "artifact_present", {"path": "./out/a.md"}, "pass", "./out/a.md was recorded."),
    (build_run(**artifacts_of(("C:\\ws\\out\\a.md", ""))), "artifact_present", {"path": "out/a.md"}, "pass", "out/a.md was recorded."),
    (build_run(**artifacts_of(("old/a.md", ""))), "artifact_present", {"path": "a.md"}, "fail", "a.md is not among the 1 recorded artifact."),
    (build_run(**artifacts_of(("/ws/ba.md", ""))), "artifact_present", {"path": "a.md"}, "fail", "a.md is not among the 1 recorded artifact."),
    (build_run(), "artifact_present", {"path": "a.md"}, "fail", "a.md is not among the 0 recorded artifacts."),
    (build_run(has_events=False), "artifact_present", {"path": "a.md"}, "error", "No event of the run was recorded"),
    (build_run(**artifacts_of(("a", "one two"))), "artifact_contains", {"path": "a", "text": "two"}, "pass", "7 characters, contains the text."),
    (build_run(**artifacts_of(("a", "one"))), "artifact_contains", {"path": "a", "text": "One"}, "fail", "3 characters, does not contain the text."),
    (build_run(**artifacts_of(("a", ""))), "artifact_contains", {"path": "a", "text": "x"}, "error", "No content of a was recorded."),
    (build_run(), "artifact_contains", {"path": "a", "text": "x"}, "fail", "a is not among the 0 recorded artifacts."),
    (build_run(input_tokens=90, output_tokens=10), "max_total_tokens", {"tokens": 100}, "pass", "The run used 100 tokens; at most 100 are allowed."),
    (build_run(input_tokens=90, output_tokens=11), "max_total_tokens", {"tokens": 100}, "fail", "The run used 101 tokens"),
    (build_run(reported_tokens=101), "max_total_tokens", {"tokens": 100}, "fail", "The run used 101 tokens"),
    (build_run(input_tokens=90), "max_total_tokens", {"tokens": 100}, "error", "The number of tokens that the run used is unknown."),
    (build_run(input_tokens=101), "max_total_tokens", {"tokens": 100}, "fail", "The run used 101 tokens"),
    (build_run(), "max_total_tokens", {"tokens": 100}, "error", "The number of tokens that the run used is unknown."),
    (build_run(trust=80), "trust_at_least", {"trust": 80}, "pass", "The trust score is 80; expected at least 80."),
    (build_run(trust=79), "trust_at_least", {"trust": 80}, "fail", "The trust score is 79; expected at least 80."),
    (build_run(), "trust_at_least", {"trust": 0}, "error", "The session has no trust score"),
    (build_run(tier1_flags=frozenset()), "no_tier1_flag", {"flag": "silent_refusal"}, "pass", "flags no exchange"),
    (build_run(tier1_flags=frozenset({"silent_refusal"})), "no_tier1_flag", {"flag": "silent_refusal"}, "fail", "flags an exchange"),
    (build_run(), "no_tier1_flag", {"flag": "silent_refusal"}, "error", "not checked"),
    (build_run(trust=90), "no_failure", {"failure": "infinite_tool_loop"}, "pass", "finds no infinite_tool_loop"),
    (build_run(trust=90, failures=(Failure("infinite_tool_loop", ""),)), "no_failure", {"failure": "infinite_tool_loop"}, "fail", "finds infinite"),
    (build_run(), "no_failure", {"failure": "infinite_tool_loop"}, "error", "not diagnosed"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "kind", "fields", "outcome", "detail"), CASES)
def test_a_check_has_the_expected_outcome_and_detail(
    run: Run, kind: str, fields: dict[str, Any], outcome: str, detail: str
) -> None:
    """The numbers of a case are exact, and so must be their checks."""
    actual_outcome, actual_detail = decide_check(run, kind, **fields)

    assert actual_outcome == outcome
    assert detail in actual_detail


def test_every_kind_of_check_is_decided_and_tested() -> None:
    """A kind that files may name but nothing decides would fail an evaluation halfway."""
    kinds = {kind for check in get_args(get_args(Check)[0]) for kind in get_args(check.model_fields["kind"].annotation)}

    assert kinds == set(CHECKS)
    assert {(kind, outcome) for kind in kinds for outcome in ("pass", "fail")} <= {(case[1], case[3]) for case in CASES}


def test_outcomes_come_in_the_order_of_the_case() -> None:
    """Readers, and the score of a dimension, match checks by ids and dimensions."""
    case = build_case(
        {"kind": "final_response_present"}, {"kind": "tool_called", "tool": "ls", "dimensions": ("process", "task")}
    )

    response_check, tool_check = check_run(case, build_run())

    assert response_check.check_id == "c0"
    assert response_check.kind == "final_response_present"
    assert response_check.dimensions == ("task",)
    assert response_check.outcome == "pass"
    assert tool_check.check_id == "c1"
    assert tool_check.kind == "tool_called"
    assert tool_check.dimensions == ("task", "process")
    assert tool_check.outcome == "fail"


PART = {**steps_calling("ls", "ls"), **artifacts_of(("a", "one")), "is_whole": False}


@pytest.mark.parametrize(
    ("kind", "fields", "outcome"),
    [
        ("tool_called", {"tool": "ls"}, "pass"),
        ("tool_called", {"tool": "cat"}, "error"),
        ("tool_call_count", {"min": 2}, "pass"),
        ("tool_call_count", {"min": 3}, "error"),
        ("tool_call_count", {"max": 1}, "fail"),
        ("tool_call_count", {"max": 2}, "error"),
        ("artifact_present", {"path": "a"}, "pass"),
        ("artifact_present", {"path": "b"}, "error"),
        ("artifact_contains", {"path": "a", "text": "one"}, "pass"),
        ("artifact_contains", {"path": "a", "text": "two"}, "error"),
    ],
)
def test_a_truncated_run_decides_only_what_its_read_part_proves(kind: str, fields: dict[str, Any], outcome: str) -> None:
    """The unread rest of a very long run may contain the missing call, so a failure would be a guess."""
    assert decide_check(build_run(**PART), kind, **fields)[0] == outcome


texts = st.text(st.characters(), max_size=40)
odd_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=8,
)
steps = st.lists(
    st.builds(ToolCall, st.none() | st.sampled_from(["ls", "cat"]) | texts, odd_json)
    | st.builds(ToolResult, st.none() | texts, odd_json, failed=st.booleans()),
    max_size=8,
)
counts = st.none() | st.integers(0, 10**15)
runs = st.builds(
    build_run,
    st.none() | texts,
    steps=steps.map(tuple),
    artifacts=st.lists(st.builds(Artifact, texts, texts), max_size=4).map(tuple),
    status=st.sampled_from(get_args(Status)),
    trust=st.none() | st.integers(0, 100),
    input_tokens=counts,
    output_tokens=counts,
    reported_tokens=counts,
    has_events=st.booleans(),
)
ALL_KINDS = build_case(*({"kind": kind, **fields} for _, kind, fields, _, _ in CASES))


@settings(deadline=None)
@given(runs)
def test_no_run_makes_a_check_raise(run: Run) -> None:
    """The audited agent wrote the run: no text or JSON in it may stop the evaluation."""
    outcomes = check_run(ALL_KINDS, run)

    assert len(outcomes) == len(ALL_KINDS.deterministic_checks)
    assert {"pass", "fail", "error"} >= {outcome.outcome for outcome in outcomes}
    assert all(outcome.detail for outcome in outcomes)


@settings(deadline=None)
@given(runs, st.none() | st.sampled_from(["ls", "cat"]), st.integers(0, 8), st.integers(0, 8))
def test_a_count_of_calls_agrees_with_counting(run: Run, tool: str | None, first_bound: int, second_bound: int) -> None:
    """Results are not calls, and calls of other tools do not count."""
    lowest, highest = sorted((first_bound, second_bound))
    matching_calls = [step for step in run.steps if isinstance(step, ToolCall) and tool in (None, step.tool)]

    outcome, _ = decide_check(run, "tool_call_count", tool=tool, min=lowest, max=highest)

    expected = "error" if not run.has_events else "pass" if lowest <= len(matching_calls) <= highest else "fail"
    assert outcome == expected


@settings(deadline=None)
@given(runs, st.sampled_from(["ls", "cat"]))
def test_a_tool_was_called_when_it_was_called_at_least_once(run: Run, tool: str) -> None:
    """Two checks with the same condition must have the same outcome."""
    assert decide_check(run, "tool_called", tool=tool)[0] == decide_check(run, "tool_call_count", tool=tool, min=1)[0]


def test_no_detail_repeats_texts_of_the_run() -> None:
    """Details are shown on pages, in files and in the prompt, but the agent's texts may contain secrets and names of machines."""
    texts_of_the_agent = {"artifacts": (Artifact(f"/srv/{SECRET}/a", SECRET),), **steps_calling(SECRET)}
    outcomes = check_run(ALL_KINDS, build_run(f"The key is {SECRET}.", **texts_of_the_agent))

    assert [outcome.detail for outcome in outcomes if SECRET in outcome.detail] == []


def test_a_hostile_pattern_is_linear_on_a_hostile_answer() -> None:
    """A backtracking engine would take exponential time for this pattern and text."""
    assert decide_check(build_run("a" * 200_000 + "!"), "response_matches", regex="^(a+)+$")[0] == "fail"
