"""Deterministic checks: each kind decides as stated, is an error if the records do not decide it, and raises nothing."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.evaluation.cases import Case, Check
from audit.evaluation.checks import CHECKS, MAX_SEARCHED_LENGTH, check_run
from audit.evaluation.run import Artifact, Run, Status, ToolCall, ToolResult, Turn

SECRET = "sk-live-0f1e2d3c"


def a_run(answer: str | None = "It is done.", **fields: Any) -> Run:
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


def a_case(*checks: dict[str, Any]) -> Case:
    """Return a case with these checks."""
    given = tuple({"check_id": f"c{number}", **check} for number, check in enumerate(checks))
    messages = ({"role": "user", "content": "Do it."},)
    return Case.model_validate({"case_id": "c", "title": "t", "input": {"messages": messages}, "deterministic_checks": given})


def found(run: Run, kind: str, **fields: Any) -> tuple[str, str]:
    """Return outcome and detail of one check."""
    (outcome,) = check_run(a_case({"kind": kind, **fields}), run)
    return outcome.outcome, outcome.detail


def calls(*tools: str | None) -> dict[str, Any]:
    """Return steps that call these tools, each with its result."""
    return {
        "steps": tuple(
            step for tool in tools for step in (ToolCall(tool, {"q": SECRET}), ToolResult(tool, SECRET, failed=False))
        )
    }


def files(*recorded: tuple[str, str]) -> dict[str, Any]:
    """Return artifacts of these paths and excerpts."""
    return {"artifacts": tuple(Artifact(path, excerpt) for path, excerpt in recorded)}


CASES: list[tuple[Run, str, dict[str, Any], str, str]] = [
    (a_run("ok"), "final_response_present", {}, "pass", "The final answer has 2 characters."),
    (a_run(" \n\u200b\u2060"), "final_response_present", {}, "fail", "The final answer is empty."),
    (a_run(None), "final_response_present", {}, "fail", "There is no answer."),
    (a_run(**calls("ls", "ls", "cat")), "tool_called", {"tool": "ls"}, "pass", "ls was called 2 times, of 3 calls of tools."),
    (a_run(**calls("ls", None)), "tool_called", {"tool": "LS"}, "fail", "LS was never called, of 2 calls of tools."),
    (a_run(has_events=False), "tool_called", {"tool": "ls"}, "error", "No event of the run was recorded"),
    (a_run(**calls("ls", "cat")), "tool_call_count", {"max": 2}, "pass", "Tools were called 2 times; expected at most 2."),
    (a_run(**calls("ls", "cat")), "tool_call_count", {"min": 3, "max": 4}, "fail", "expected at least 3, at most 4."),
    (a_run(**calls("ls", "cat")), "tool_call_count", {"tool": "ls", "min": 1}, "pass", "ls was called once; expected at least 1."),
    (a_run(), "tool_call_count", {"max": 0}, "pass", "Tools were never called; expected at most 0."),
    (a_run(has_events=False), "tool_call_count", {"max": 0}, "error", "its tools and artifacts are unknown"),
    (a_run("The STRASSE"), "response_contains", {"text": "straße"}, "pass", "The final answer contains the text."),
    (a_run("cafe\u0301"), "response_contains", {"text": "CAFÉ"}, "pass", "The final answer contains the text."),
    (a_run("done"), "response_contains", {"text": "undone"}, "fail", "The final answer does not contain the text."),
    (a_run(None), "response_contains", {"text": "x"}, "fail", "There is no answer."),
    (a_run("It is 42 %"), "response_matches", {"regex": r"\b\d+ %"}, "pass", "The pattern matches the final answer."),
    (a_run("DONE"), "response_matches", {"regex": "done"}, "fail", "The pattern does not match the final answer."),
    (a_run("DONE"), "response_matches", {"regex": "(?i)done"}, "pass", "The pattern matches the final answer."),
    (a_run("x" * (MAX_SEARCHED_LENGTH + 1)), "response_matches", {"regex": "x"}, "error", "more than 1000000 characters"),
    (a_run(None), "response_matches", {"regex": ".*"}, "fail", "There is no answer."),
    (a_run(), "status_is", {"status": "answered"}, "pass", "The run was answered."),
    (a_run(status="aborted"), "status_is", {"status": "answered"}, "fail", "The run was aborted."),
    (a_run(**files(("./out\\a.md", ""))), "artifact_present", {"path": "out/a.md"}, "pass", "out/a.md was recorded."),
    (a_run(**files(("/home/joe/ws/out/a.md", ""))), "artifact_present", {"path": "./out/a.md"}, "pass", "./out/a.md was recorded."),
    (a_run(**files(("C:\\ws\\out\\a.md", ""))), "artifact_present", {"path": "out/a.md"}, "pass", "out/a.md was recorded."),
    (a_run(**files(("old/a.md", ""))), "artifact_present", {"path": "a.md"}, "fail", "a.md is not among the 1 recorded artifact."),
    (a_run(**files(("/ws/ba.md", ""))), "artifact_present", {"path": "a.md"}, "fail", "a.md is not among the 1 recorded artifact."),
    (a_run(), "artifact_present", {"path": "a.md"}, "fail", "a.md is not among the 0 recorded artifacts."),
    (a_run(has_events=False), "artifact_present", {"path": "a.md"}, "error", "No event of the run was recorded"),
    (a_run(**files(("a", "one two"))), "artifact_contains", {"path": "a", "text": "two"}, "pass", "7 characters, contains the text."),
    (a_run(**files(("a", "one"))), "artifact_contains", {"path": "a", "text": "One"}, "fail", "3 characters, does not contain the text."),
    (a_run(**files(("a", ""))), "artifact_contains", {"path": "a", "text": "x"}, "error", "No content of a was recorded."),
    (a_run(), "artifact_contains", {"path": "a", "text": "x"}, "fail", "a is not among the 0 recorded artifacts."),
    (a_run(input_tokens=90, output_tokens=10), "max_total_tokens", {"tokens": 100}, "pass", "The run used 100 tokens; at most 100 are allowed."),
    (a_run(input_tokens=90, output_tokens=11), "max_total_tokens", {"tokens": 100}, "fail", "The run used 101 tokens"),
    (a_run(reported_tokens=101), "max_total_tokens", {"tokens": 100}, "fail", "The run used 101 tokens"),
    (a_run(input_tokens=90), "max_total_tokens", {"tokens": 100}, "error", "The number of tokens that the run used is unknown."),
    (a_run(input_tokens=101), "max_total_tokens", {"tokens": 100}, "fail", "The run used 101 tokens"),
    (a_run(), "max_total_tokens", {"tokens": 100}, "error", "The number of tokens that the run used is unknown."),
    (a_run(trust=80), "trust_at_least", {"trust": 80}, "pass", "The trust score is 80; expected at least 80."),
    (a_run(trust=79), "trust_at_least", {"trust": 80}, "fail", "The trust score is 79; expected at least 80."),
    (a_run(), "trust_at_least", {"trust": 0}, "error", "The session has no trust score"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "kind", "fields", "outcome", "detail"), CASES)
def test_a_check_says_what_it_found(run: Run, kind: str, fields: dict[str, Any], outcome: str, detail: str) -> None:
    """The numbers of a case are exact, and so must be their checks."""
    got = found(run, kind, **fields)

    assert got[0] == outcome
    assert detail in got[1]


def test_every_kind_of_check_is_decided_and_tested() -> None:
    """A kind that files may name but nothing decides would fail an evaluation halfway."""
    kinds = {kind for check in get_args(get_args(Check)[0]) for kind in get_args(check.model_fields["kind"].annotation)}

    assert kinds == set(CHECKS)
    assert {(kind, outcome) for kind in kinds for outcome in ("pass", "fail")} <= {(case[1], case[3]) for case in CASES}


def test_outcomes_come_in_the_order_of_the_case() -> None:
    """Readers, and the score of a dimension, match checks by ids and dimensions."""
    case = a_case({"kind": "final_response_present"}, {"kind": "tool_called", "tool": "ls", "dimensions": ("process", "task")})

    first, second = check_run(case, a_run())

    assert first.check_id == "c0"
    assert first.kind == "final_response_present"
    assert first.dimensions == ("task",)
    assert first.outcome == "pass"
    assert second.check_id == "c1"
    assert second.kind == "tool_called"
    assert second.dimensions == ("task", "process")
    assert second.outcome == "fail"


PART = {**calls("ls", "ls"), **files(("a", "one")), "is_whole": False}


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
def test_what_a_part_of_a_run_does_not_show_is_undecided(kind: str, fields: dict[str, Any], outcome: str) -> None:
    """The unread rest of a very long run may contain the missing call, so a failure would be a guess."""
    assert found(a_run(**PART), kind, **fields)[0] == outcome


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
    a_run,
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
ALL_KINDS = a_case(*({"kind": kind, **fields} for _, kind, fields, _, _ in CASES))


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
def test_a_count_of_calls_agrees_with_counting(run: Run, tool: str | None, one: int, other: int) -> None:
    """Results are not calls, and calls of other tools do not count."""
    lowest, highest = sorted((one, other))
    counted = [step for step in run.steps if isinstance(step, ToolCall) and tool in (None, step.tool)]

    outcome, _ = found(run, "tool_call_count", tool=tool, min=lowest, max=highest)

    expected = "error" if not run.has_events else "pass" if lowest <= len(counted) <= highest else "fail"
    assert outcome == expected


@settings(deadline=None)
@given(runs, st.sampled_from(["ls", "cat"]))
def test_a_tool_was_called_when_it_was_called_at_least_once(run: Run, tool: str) -> None:
    """Two checks with the same condition must have the same outcome."""
    assert found(run, "tool_called", tool=tool)[0] == found(run, "tool_call_count", tool=tool, min=1)[0]


def test_no_detail_repeats_what_the_run_holds() -> None:
    """Details are shown on pages, in files and in the prompt, but the agent's texts may contain secrets and names of machines."""
    texts_of_the_agent = {"artifacts": (Artifact(f"/srv/{SECRET}/a", SECRET),), **calls(SECRET)}
    outcomes = check_run(ALL_KINDS, a_run(f"The key is {SECRET}.", **texts_of_the_agent))

    assert [outcome.detail for outcome in outcomes if SECRET in outcome.detail] == []


def test_a_hostile_pattern_is_linear_on_a_hostile_answer() -> None:
    """A backtracking engine would take exponential time for this pattern and text."""
    assert found(a_run("a" * 200_000 + "!"), "response_matches", regex="^(a+)+$")[0] == "fail"
