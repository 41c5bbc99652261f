"""The deterministic checks of a case: what a run shows without a judge.

A check passes or fails if the records decide it, and is an error otherwise: the tools of a run without events are unknown, and
so are its tokens if an exchange does not report them; what a partial run lacks may be in the rest. Details contain numbers and
words of the case but not of the run, which may contain secrets and names of machines.
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

MAX_MATCHED = 1_000_000
"""Longest answer that a pattern is searched in, because the search takes linear time."""
Outcome = Literal["pass", "fail", "error"]
Found = tuple[Outcome, str]
"""The outcome, with a description of the finding."""
_NO_EVENTS: Found = ("error", "No event of the run was recorded, so nothing is known of its tools and artifacts.")
_IN_PART: Found = ("error", "The run is too long to be read whole, and what was read of it does not decide this.")
_IN_WORDS = {
    "answered": "was answered",
    "no_response": "ended without a response",
    "error": "ended in an error",
    "aborted": "was aborted",
}


def check_run(case: Case, run: Run) -> tuple[CheckOutcome, ...]:
    """Return the outcome of every check of the case, in order. Raises nothing, whatever the run contains."""
    return tuple(_outcome(check, run) for check in case.deterministic_checks)


def _outcome(check: Check, run: Run) -> CheckOutcome:
    outcome, detail = CHECKS[check.kind](check, run)
    return CheckOutcome(
        check_id=check.check_id, kind=check.kind, dimensions=tuple(check.dimensions), outcome=outcome, detail=detail
    )


def _final_response_present(_check: FinalResponsePresent, run: Run) -> Found:
    visible = sum(character.isprintable() and not character.isspace() for character in run.final_response)
    if visible:
        return "pass", f"The final answer has {_counted(len(run.final_response), 'character')}."
    return "fail", "The final answer is empty." if run.turns else "There is no answer."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _tool_called(check: ToolCalled, run: Run) -> Found:
    if not run.has_events:
        return _NO_EVENTS
    count = _calls(run, check.tool)
    if not count and not run.is_whole:
        return _IN_PART
    return _passed(count > 0), f"{check.tool} was {_called(count)}, of {_counted(_calls(run, None), 'call')} of tools."


def _calls(run: Run, tool: str | None) -> int:
    """Return the calls of a tool, or of all tools."""
    return sum(isinstance(step, ToolCall) and (tool is None or step.tool == tool) for step in run.steps)


def _passed(passed: bool) -> Outcome:
    return "pass" if passed else "fail"


def _called(count: int) -> str:
    return "called once" if count == 1 else f"called {count} times" if count else "never called"


def _tool_call_count(check: ToolCallCount, run: Run) -> Found:
    if not run.has_events:
        return _NO_EVENTS
    count = _calls(run, check.tool)
    is_enough, is_too_much = count >= (check.min or 0), check.max is not None and count > check.max
    # A partial run may have more calls, which could satisfy a minimum or exceed a maximum.
    if not run.is_whole and not is_too_much and not (is_enough and check.max is None):
        return _IN_PART
    bounds = [f"at least {check.min}"] * (check.min is not None) + [f"at most {check.max}"] * (check.max is not None)
    passed = is_enough and not is_too_much
    return _passed(
        passed
    ), f"{f'{check.tool} was' if check.tool else 'Tools were'} {_called(count)}; expected {', '.join(bounds)}."


def _response_contains(check: ResponseContains, run: Run) -> Found:
    if not run.turns:
        return "fail", "There is no answer."
    passed = _folded(check.text) in _folded(run.final_response)
    return _passed(passed), f"The final answer {_holds(passed)} the text."


def _folded(text: str) -> str:
    """Fold case and the two ways to write an accent."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _holds(passed: bool) -> str:
    return "holds" if passed else "does not hold"


def _response_matches(check: ResponseMatches, run: Run) -> Found:
    if not run.turns:
        return "fail", "There is no answer."
    if len(run.final_response) > MAX_MATCHED:
        return "error", f"The final answer has more than {MAX_MATCHED} characters, so the pattern was not looked for."
    try:
        pattern = compile_pattern(check.regex, where="regex", ignore_case=False)
    except PolicyError as error:
        return "error", str(error)
    passed = pattern.matches(run.final_response)
    return _passed(passed), f"The pattern {'matches' if passed else 'matches nothing in'} the final answer."


def _status_is(check: StatusIs, run: Run) -> Found:
    return _passed(run.status == check.status), f"The run {_IN_WORDS[run.status]}."


def _artifact_present(check: ArtifactPresent | ArtifactContains, run: Run) -> Found:
    if not run.has_events:
        return _NO_EVENTS
    artifacts = _artifacts(run, check.path)
    if artifacts:
        return "pass", f"{check.path} was recorded."
    if not run.is_whole:
        return _IN_PART
    return "fail", f"{check.path} is not among the {_counted(len(run.artifacts), 'recorded artifact')}."


def _artifacts(run: Run, path: str) -> list[Artifact]:
    return [artifact for artifact in run.artifacts if is_recorded_as(path, artifact.path)]


def _artifact_contains(check: ArtifactContains, run: Run) -> Found:
    outcome, detail = _artifact_present(check, run)
    if outcome != "pass":
        return outcome, detail
    excerpts = [artifact.excerpt for artifact in _artifacts(run, check.path) if artifact.excerpt]
    if not excerpts:
        return "error", f"Nothing of the content of {check.path} was recorded."
    passed = any(check.text in excerpt for excerpt in excerpts)
    if not passed and not run.is_whole:
        return _IN_PART
    size = _counted(sum(map(len, excerpts)), "character")
    return _passed(passed), f"What was recorded of {check.path}, {size}, {_holds(passed)} the text."


def _max_total_tokens(check: MaxTotalTokens, run: Run) -> Found:
    total = run.total_tokens
    at_least = total if total is not None else (run.input_tokens or 0) + (run.output_tokens or 0)
    if total is None and at_least <= check.tokens:
        return "error", "It is not known how many tokens the run used."
    return _passed(at_least <= check.tokens), f"The run used {_counted(at_least, 'token')}; at most {check.tokens} are allowed."


def _trust_at_least(check: TrustAtLeast, run: Run) -> Found:
    if run.trust is None:
        return "error", "The session has no trust score: it was not diagnosed, or without evidence."
    return _passed(run.trust >= check.trust), f"The trust score is {run.trust}; expected at least {check.trust}."


CHECKS: Mapping[str, Callable[[Any, Run], Found]] = {
    "final_response_present": _final_response_present,
    "tool_called": _tool_called,
    "tool_call_count": _tool_call_count,
    "response_contains": _response_contains,
    "response_matches": _response_matches,
    "status_is": _status_is,
    "artifact_present": _artifact_present,
    "artifact_contains": _artifact_contains,
    "max_total_tokens": _max_total_tokens,
    "trust_at_least": _trust_at_least,
}
"""The function for each kind of check."""
