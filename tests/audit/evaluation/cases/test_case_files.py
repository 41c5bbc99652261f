"""Test cases and profiles as files: their fields, and that every problem names its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.evaluation.cases import (
    MAX_CASES_BYTES,
    MAX_SYSTEM_PROMPT_BYTES,
    load_case_file,
    load_profile,
    plans,
    shipped_system_prompt,
)
from audit.evaluation.dimensions import DIMENSIONS
from audit.settings_files import MAX_FILE_BYTES
from schemas.errors import PolicyError

CASE = """\
case_id: disk_report
title: A report on disk usage
input:
  messages:
    - {role: user, content: Write a report on disk usage to report.md.}
expectations:
  hard_expectations:
    - {text: report.md names the fullest disk.}
deterministic_checks:
  - {check_id: answers, kind: final_response_present}
  - check_id: calls
    kind: tool_call_count
    dimensions: [efficiency, process]
    min: 1
    max: 5
  - {check_id: says, kind: response_matches, regex: 'report\\.md'}
rubric:
  scale_anchors:
    - {score: 0, meaning: Nothing was written.}
    - {score: 10, meaning: It is all there.}
"""
PROFILE = """\
profile_id: nightly
judges:
  - {judge_id: haiku, model: claude-haiku-4-5}
  - {judge_id: sonnet, type: batch, model: claude-sonnet-5-5}
judge_runs:
  - {judge_run_id: quick, judge_id: haiku}
  - {judge_run_id: thorough, judge_id: sonnet, repetitions: 3, aggregation: {method: mean}}
dimension_policies:
  task: {policy: weighted, judge_weight: 2, deterministic_weight: 1}
"""
MOST = "final_response_present, max_total_tokens, no_failure, no_tier1_flag, response_contains, response_matches, status_is, tool_call_count, tool_called"
KINDS = f"artifact_contains, artifact_present, {MOST}, trust_at_least"
FILES: dict[str, tuple[str, Callable[[Path], object]]] = {"case": (CASE, load_case_file), "profile": (PROFILE, load_profile)}


def refusal(tmp_path: Path, kind: str, text: str) -> list[str]:
    """Return the problems reported for this text as a case or profile, without the folder."""
    path = tmp_path / f"{kind}.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(PolicyError) as caught:
        FILES[kind][1](path)
    assert caught.value.hint
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


def test_a_case_has_the_fields_of_its_file(tmp_path: Path) -> None:
    """Missing fields have defaults: all six dimensions are judged, and a check counts for the task."""
    path = tmp_path / "case.yaml"
    path.write_text(CASE, "utf-8")

    [case] = load_case_file(path)

    assert case.case_id == "disk_report"
    assert case.dimensions == DIMENSIONS
    assert case.tags == ()
    assert [check.dimensions for check in case.deterministic_checks] == [("task",), ("process", "efficiency"), ("task",)]
    assert [c.kind for c in case.deterministic_checks] == ["final_response_present", "tool_call_count", "response_matches"]


def test_each_judge_run_of_a_profile_is_a_plan(tmp_path: Path) -> None:
    """A judge run names its judge and may have its own aggregation; everything else comes from the profile."""
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE, "utf-8")

    quick, thorough = plans(load_profile(path).profile)

    assert quick.judge.model == "claude-haiku-4-5"
    assert quick.repetitions == 1
    assert quick.method == "median"
    assert thorough.judge.model == "claude-sonnet-5-5"
    assert thorough.repetitions == 3
    assert thorough.method == "mean"
    assert quick.dimension_policies == thorough.dimension_policies


def test_a_profile_without_a_prompt_has_the_shipped_one(tmp_path: Path) -> None:
    """The scoring rules are always sent."""
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE, "utf-8")

    assert shipped_system_prompt() == load_profile(path).system_prompt
    assert all(dimension in shipped_system_prompt() for dimension in DIMENSIONS)


def test_a_prompt_is_found_from_the_folder_of_its_profile(tmp_path: Path) -> None:
    """A profile and its prompt move together. The byte order mark of some editors is not part of the text."""
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "strict.md").write_bytes("\ufeff# Be strict\r\n".encode())
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE + "judge_system_prompt_path: prompts/strict.md\n", "utf-8")

    assert load_profile(path).system_prompt == "# Be strict\r\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: "),
        (b" \n\t\n", "is empty"),
        (b"x" * (MAX_SYSTEM_PROMPT_BYTES + 1), "is larger than 65536 bytes"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused_at_the_line_that_names_it(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    """Falling back to the shipped prompt would score by other rules than the user asked for."""
    if content is not None:
        (tmp_path / "own.md").write_bytes(content)
    text = "judge_system_prompt_path: own.md\n" + PROFILE

    (problem,) = refusal(tmp_path, "profile", text)
    assert problem.startswith("profile.yaml:1: judge_system_prompt_path: ")
    assert f"'own.md' {reason}" in problem


def test_the_largest_prompt_is_accepted(tmp_path: Path) -> None:
    """The largest allowed size is accepted, one byte more is not."""
    (tmp_path / "own.md").write_bytes(b"x" * MAX_SYSTEM_PROMPT_BYTES)
    path = tmp_path / "profile.yaml"
    path.write_text("judge_system_prompt_path: own.md\n" + PROFILE, "utf-8")

    assert len(load_profile(path).system_prompt) == MAX_SYSTEM_PROMPT_BYTES


@pytest.mark.parametrize(
    ("kind", "old", "new", "problem"),
    [
        ("case", "title:", "titel:", "2: titel: unknown field; did you mean title?"),
        ("case", "kind: tool_call_count", "kind: tool_calls", f"12: deterministic_checks[1].kind: there is no kind 'tool_calls'; did you mean tool_called?; there are {KINDS}"),
        ("case", ", kind: final_response_present", "", f"10: deterministic_checks[0].kind: is required; there are {KINDS}"),
        ("case", "    min: 1\n    max: 5\n", "", "11: deterministic_checks[1].min: "),
        ("case", "min: 1", "min: 6", "14: deterministic_checks[1].min: is above max, 5"),
        ("case", "check_id: calls", "check_id: answers", "11: deterministic_checks[1].check_id: deterministic_checks[0] has the same"),
        ("case", "[efficiency, process]", "[speed]", "13: deterministic_checks[1].dimensions[0]: must be 'task', 'process', "),
        ("case", "[efficiency, process]", "[task, task]", "13: deterministic_checks[1].dimensions: names a dimension twice"),
        ("case", "min: 1", "min: one", "14: deterministic_checks[1].min: must be a whole number (it is 'one')"),
        ("case", "min: 1", "tol: ls", "14: deterministic_checks[1].tol: unknown field; did you mean tool?"),
        ("case", "score: 10", "score: 0", "20: rubric.scale_anchors[1].score: scale_anchors[0] has the same"),
        ("case", "role: user", "role: tool", "5: input.messages[0].role: must be 'system', 'user' or 'assistant'"),
        ("profile", "judge_id: sonnet, repetitions", "judge_id: sonet, repetitions", "7: judge_runs[1].judge_id: there is no such judge; did you mean sonnet?"),
        ("profile", "judge_id: haiku}", "judge_id: gpt}", "6: judge_runs[0].judge_id: there is no such judge; there are haiku, sonnet"),
        ("profile", "judge_id: sonnet, type", "judge_id: haiku, type", "4: judges[1].judge_id: judges[0] has the same"),
        ("profile", "thorough", "quick", "7: judge_runs[1].judge_run_id: judge_runs[0] has the same"),
        ("profile", "judge_weight: 2, deterministic_weight: 1", "judge_weight: 0, deterministic_weight: 0", "9: dimension_policies.task.judge_weight: both weights are 0"),
        ("profile", "  task: {", "  tusk: {", "9: dimension_policies.tusk: not a name: must be 'task', 'process', "),
        ("profile", "repetitions: 3", "repetitions: 0", "7: judge_runs[1].repetitions: must be 1 or more (it is 0)"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_its_line_and_field(tmp_path: Path, kind: str, old: str, new: str, problem: str) -> None:
    """The author of a case sees only this message, so it must name the line and the fix."""
    text = FILES[kind][0]
    assert old in text

    problems = refusal(tmp_path, kind, text.replace(old, new))
    assert any(line.startswith(f"{kind}.yaml:{problem}") for line in problems), problems


@pytest.mark.parametrize(("repetitions", "reason"), [("0", "must be 1 or more"), ("true", "must be a whole number")])
def test_a_list_is_not_called_empty_because_of_a_problem_in_it(tmp_path: Path, repetitions: str, reason: str) -> None:
    """A second message about the same problem would send people looking for a problem that does not exist."""
    (problem,) = refusal(tmp_path, "profile", PROFILE.replace("repetitions: 3", f"repetitions: {repetitions}"))
    assert "judge_runs[1].repetitions" in problem
    assert reason in problem
    (problem,) = refusal(tmp_path, "profile", PROFILE.partition("judge_runs:")[0] + "judge_runs: []\n")
    assert "judge_runs: must hold 1 or more" in problem


def test_a_pattern_that_re2_refuses_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A pattern that matches nothing would be a check that always fails."""
    (problem,) = refusal(tmp_path, "case", CASE.replace("report\\.md'", "(?=report)'"))

    assert problem.startswith(
        "case.yaml:16: deterministic_checks[2].regex: RE2: pattern '(?=report)' does not compile: invalid perl"
    )
    assert "no look-around" in problem


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """One run of the command lists every problem."""
    text = (
        PROFILE.replace("nightly", "'not an id'")
        .replace("repetitions: 3", "repetitions: many")
        .replace("type: batch", "type: b")
    )

    assert [int(problem.split(":")[1]) for problem in refusal(tmp_path, "profile", text)] == [1, 4, 7]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", ":1: document: the file is empty"),
        (b"# only a comment\n", ":1: document: the file is empty"),
        (b"title: a\ncase: \xff\n", ":2: document: not UTF-8"),
        (b"a: &x [1]\nb: *x\n", ":2: document: aliases (*name) "),
        (b"a: 1\na: 2\n", ":2: a: given twice, first on line 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, kind: str, content: bytes, problem: str) -> None:
    """Any input gives a message, not a stack trace."""
    path = tmp_path / f"{kind}.yaml"
    path.write_bytes(content)

    with pytest.raises(PolicyError) as caught:
        FILES[kind][1](path)

    assert f"{path}{problem}" in str(caught.value)


@pytest.mark.parametrize(("kind", "max_bytes"), [("case", MAX_CASES_BYTES), ("profile", MAX_FILE_BYTES)])
def test_a_file_that_is_too_large_is_refused(tmp_path: Path, kind: str, max_bytes: int) -> None:
    """A file of a wrong kind is not read whole. Frozen cases of an incident hold its texts, so they may be larger."""
    path = tmp_path / f"{kind}.yaml"
    path.write_bytes(b"#" * (max_bytes + 1))

    with pytest.raises(PolicyError) as caught:
        FILES[kind][1](path)

    assert f"larger than {max_bytes} bytes" in str(caught.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    """A misspelt path is the most common mistake."""
    with pytest.raises(PolicyError, match="does not exist"):
        load_case_file(tmp_path / "nowhere.yaml")


def test_a_problem_of_a_case_sends_nobody_to_the_policy(tmp_path: Path) -> None:
    """The hint must name the fields of this file."""
    path = tmp_path / "case.yaml"
    path.write_text("{}", "utf-8")
    with pytest.raises(PolicyError) as caught:
        load_case_file(path)

    assert "policy" not in caught.value.hint


EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "evaluation").rglob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_shipped_example_loads(path: Path) -> None:
    """People copy the examples, so they must be valid."""
    load = load_profile if "profile_id:" in path.read_text("utf-8") else load_case_file

    assert load(path) is not None


SEED = """\
judges:
- judge_id: gpt54_judge
  type: llm_probe # uses the llm_probe runner path for judge calls
  model: openai/gpt-5.4-mini
judge_runs:
- judge_run_id: gpt54_single
  judge_id: gpt54_judge
  repetitions: 3 # call the judge 3 times
  aggregation:
    method: median # take the median across successful iterations
"""


@pytest.mark.parametrize(
    ("name", "profile_id"),
    [("nightly.yaml", "nightly"), ("gpt 5.4 (mini).yml", "gpt-5.4-mini"), ("x" * 99, "x" * 64), ("评测.yaml", "profile")],
)
def test_a_profile_of_another_tool_loads_as_it_is_and_is_called_as_its_file(tmp_path: Path, name: str, profile_id: str) -> None:
    """Profiles of other tools have no id, and other names for a judge's type."""
    path = tmp_path / name
    path.write_text(SEED, "utf-8")
    (plan,) = plans(load_profile(path).profile)
    assert plan.profile_id == profile_id
    assert plan.judge.type == "live"
    assert plan.judge.model == "openai/gpt-5.4-mini"
    assert plan.judge_run_id == "gpt54_single"
    assert plan.repetitions == 3
    assert plan.method == "median"
