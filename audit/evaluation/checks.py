"""The deterministic checks of a case: what a run shows without a judge.

A check passes or fails if the records decide it, and is an error otherwise. The tools of a run without events are unknown, and so
are its tokens if an exchange does not report them. Something that is missing from a partial run may be in the part that was not
read. Details contain numbers and words of the case but no text of the run, which may contain secrets and names of machines.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Literal

from audit.evaluation.cases import (
    ArtifactContains,
    ArtifactPresent,
    Case,
    Check,
    FinalResponsePresent,
    MaxTotalTokens,
    NoFailure,
    NoTier1Flag,
    ResponseContains,
    ResponseMatches,
    StatusIs,
    ToolCallCount,
    ToolCalled,
    TrustAtLeast,
)
from audit.evaluation.run import Artifact, Run, ToolCall, is_recorded_as
from audit.patterns import compile_pattern
from schemas.errors import PolicyError
from schemas.records import CheckOutcome

MAX_SEARCHED_LENGTH = 1_000_000
"""Maximum length of an answer in which a pattern is searched; the search takes linear time."""
Outcome = Literal["pass", "fail", "error"]
CheckFinding = tuple[Outcome, str]
"""The outcome, with a description of the finding."""
_NO_EVENTS: CheckFinding = ("error", "No event of the run was recorded, so its tools and artifacts are unknown.")
_PARTIAL_RUN: CheckFinding = (
    "error",
    "The run is too long to be read entirely, and the part that was read does not decide this.",
)
_STATUS_WORDS = {
    "answered": "was answered",
    "no_response": "ended without a response",
    "error": "ended in an error",
    "aborted": "was aborted",
}


def check_run(case: Case, run: Run) -> tuple[CheckOutcome, ...]:
    """Return the outcome of every check of the case, in order. Never raises, for any content of the run."""
    return tuple(_decide_check(check, run) for check in case.deterministic_checks)


def _decide_check(check: Check, run: Run) -> CheckOutcome:
    outcome, detail = CHECKS[check.kind](check, run)
    return CheckOutcome(
        check_id=check.check_id, kind=check.kind, dimensions=tuple(check.dimensions), outcome=outcome, detail=detail
    )


def _check_final_response(_check: FinalResponsePresent, run: Run) -> CheckFinding:
    visible = sum(character.isprintable() and not character.isspace() for character in run.final_response)
    if visible:
        return "pass", f"The final answer has {_pluralize(len(run.final_response), 'character')}."
    return "fail", "The final answer is empty." if run.turns else "There is no answer."


def _pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _check_tool_called(check: ToolCalled, run: Run) -> CheckFinding:
    if not run.has_events:
        return _NO_EVENTS
    count = _count_calls(run, check.tool)
    if not count and not run.is_whole:
        return _PARTIAL_RUN
    return _pass_or_fail(
        count > 0
    ), f"{check.tool} was {_describe_calls(count)}, of {_pluralize(_count_calls(run, None), 'call')} of tools."


def _count_calls(run: Run, tool: str | None) -> int:
    """Return the calls of a tool, or of all tools."""
    return sum(isinstance(step, ToolCall) and (tool is None or step.tool == tool) for step in run.steps)


def _pass_or_fail(passed: bool) -> Outcome:
    return "pass" if passed else "fail"


def _describe_calls(count: int) -> str:
    if count == 0:
        return "never called"
    return "called once" if count == 1 else f"called {count} times"


def _check_call_count(check: ToolCallCount, run: Run) -> CheckFinding:
    if not run.has_events:
        return _NO_EVENTS
    count = _count_calls(run, check.tool)
    is_enough = count >= (check.min or 0)
    is_too_much = check.max is not None and count > check.max
    # A partial run may have more calls, which could satisfy a minimum or exceed a maximum.
    if not run.is_whole and not is_too_much and not (is_enough and check.max is None):
        return _PARTIAL_RUN
    bounds = []
    if check.min is not None:
        bounds.append(f"at least {check.min}")
    if check.max is not None:
        bounds.append(f"at most {check.max}")
    subject = f"{check.tool} was" if check.tool else "Tools were"
    outcome = _pass_or_fail(is_enough and not is_too_much)
    return outcome, f"{subject} {_describe_calls(count)}; expected {', '.join(bounds)}."


def _check_response_text(check: ResponseContains, run: Run) -> CheckFinding:
    if not run.turns:
        return "fail", "There is no answer."
    passed = _fold(check.text) in _fold(run.final_response)
    return _pass_or_fail(passed), f"The final answer {_contains_or_not(passed)} the text."


def _fold(text: str) -> str:
    """Fold case, and the composed and decomposed forms of accents."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _contains_or_not(passed: bool) -> str:
    return "contains" if passed else "does not contain"


def _check_response_pattern(check: ResponseMatches, run: Run) -> CheckFinding:
    if not run.turns:
        return "fail", "There is no answer."
    if len(run.final_response) > MAX_SEARCHED_LENGTH:
        return "error", f"The final answer has more than {MAX_SEARCHED_LENGTH} characters, so the pattern was not searched."
    try:
        pattern = compile_pattern(check.regex, where="regex", ignore_case=False)
    except PolicyError as error:
        return "error", str(error)
    passed = pattern.matches(run.final_response)
    return _pass_or_fail(passed), f"The pattern {'matches' if passed else 'does not match'} the final answer."


def _check_status(check: StatusIs, run: Run) -> CheckFinding:
    return _pass_or_fail(run.status == check.status), f"The run {_STATUS_WORDS[run.status]}."


def _check_artifact(check: ArtifactPresent | ArtifactContains, run: Run) -> CheckFinding:
    if not run.has_events:
        return _NO_EVENTS
    artifacts = _find_artifacts(run, check.path)
    if artifacts:
        return "pass", f"{check.path} was recorded."
    if not run.is_whole:
        return _PARTIAL_RUN
    return "fail", f"{check.path} is not among the {_pluralize(len(run.artifacts), 'recorded artifact')}."


def _find_artifacts(run: Run, path: str) -> list[Artifact]:
    return [artifact for artifact in run.artifacts if is_recorded_as(path, artifact.path)]


def _check_artifact_text(check: ArtifactContains, run: Run) -> CheckFinding:
    outcome, detail = _check_artifact(check, run)
    if outcome != "pass":
        return outcome, detail
    excerpts = [artifact.excerpt for artifact in _find_artifacts(run, check.path) if artifact.excerpt]
    if not excerpts:
        return "error", f"No content of {check.path} was recorded."
    passed = any(check.text in excerpt for excerpt in excerpts)
    if not passed and not run.is_whole:
        return _PARTIAL_RUN
    size = _pluralize(sum(map(len, excerpts)), "character")
    return _pass_or_fail(passed), f"The recorded content of {check.path}, {size}, {_contains_or_not(passed)} the text."


def _check_tokens(check: MaxTotalTokens, run: Run) -> CheckFinding:
    total = run.total_tokens
    # If only one of the two counts is known, it is a lower bound.
    lower_bound = total if total is not None else (run.input_tokens or 0) + (run.output_tokens or 0)
    if total is None and lower_bound <= check.tokens:
        return "error", "The number of tokens that the run used is unknown."
    return _pass_or_fail(
        lower_bound <= check.tokens
    ), f"The run used {_pluralize(lower_bound, 'token')}; at most {check.tokens} are allowed."


def _check_trust(check: TrustAtLeast, run: Run) -> CheckFinding:
    if run.trust is None:
        return "error", "The session has no trust score: it was not diagnosed, or there was no evidence."
    return _pass_or_fail(run.trust >= check.trust), f"The trust score is {run.trust}; expected at least {check.trust}."


def _check_tier1_flag(check: NoTier1Flag, run: Run) -> CheckFinding:
    if run.tier1_flags is None:
        return "error", "The exchanges of the run were not checked by Tier 1."
    passed = check.flag not in run.tier1_flags
    return _pass_or_fail(passed), f"{check.flag} {'flags no exchange' if passed else 'flags an exchange'} of the run."


def _check_failure(check: NoFailure, run: Run) -> CheckFinding:
    if run.trust is None:
        return "error", "The session was not diagnosed, or there was no evidence."
    passed = all(failure.kind != check.failure for failure in run.failures)
    return _pass_or_fail(passed), f"The diagnosis finds {'no ' if passed else ''}{check.failure}."


CHECKS: Mapping[str, Callable[[Any, Run], CheckFinding]] = {
    "final_response_present": _check_final_response,
    "tool_called": _check_tool_called,
    "tool_call_count": _check_call_count,
    "response_contains": _check_response_text,
    "response_matches": _check_response_pattern,
    "status_is": _check_status,
    "artifact_present": _check_artifact,
    "artifact_contains": _check_artifact_text,
    "max_total_tokens": _check_tokens,
    "trust_at_least": _check_trust,
    "no_tier1_flag": _check_tier1_flag,
    "no_failure": _check_failure,
}
"""The function for each kind of check."""
