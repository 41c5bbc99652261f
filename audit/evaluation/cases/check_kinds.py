"""The kinds of deterministic checks, as a case names them; `audit.evaluation.cases.checks` decides what each finds."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from audit.evaluation.cases.fields import Dimensions, FileModel, Identifier, Problem, Words, refuse
from audit.patterns import MAX_PATTERN_LENGTH, compile_pattern
from schemas.errors import PolicyError

Path = Annotated[str, StringConstraints(min_length=1, max_length=500)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=10**12)]


def _that_compiles(regex: str) -> str:
    try:
        compile_pattern(regex, where="RE2", ignore_case=False)
    except PolicyError as error:
        raise ValueError(f"{error}. {error.hint}") from None
    return regex


class _Check(FileModel):
    check_id: Identifier
    """Name of the check; unique within the case."""
    dimensions: Dimensions = ("task",)
    """Dimensions it counts for."""


class FinalResponsePresent(_Check):
    """The run ends with an answer that is not empty."""

    kind: Literal["final_response_present"]
    """Kind of the check."""


class ToolCalled(_Check):
    """A tool was called at least once."""

    kind: Literal["tool_called"]
    """Kind of the check."""
    tool: ToolName
    """Name of the tool, as it was recorded."""


class ToolCallCount(_Check):
    """So many calls of a tool, or of all tools: `min` to `max`, both included."""

    kind: Literal["tool_call_count"]
    """Kind of the check."""
    tool: ToolName | None = None
    """Name of the tool, as it was recorded; null is all tools together."""
    min: Count | None = None
    """Fewest calls; null is no such bound."""
    max: Count | None = None
    """Most calls; null is no such bound."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.min is None and self.max is None:
            refuse("ToolCallCount", [Problem(("min",), "give min, max or both: without them any count passes", self)])
        if self.min is not None and self.max is not None and self.min > self.max:
            refuse("ToolCallCount", [Problem(("min",), f"is above max, {self.max}: no count passes", self.min)])
        return self


class ResponseContains(_Check):
    """The final answer holds a text, upper and lower case alike."""

    kind: Literal["response_contains"]
    """Kind of the check."""
    text: Words
    """The text that the answer must hold."""


class ResponseMatches(_Check):
    """A pattern (RE2) matches somewhere in the final answer, as it is written; `(?i)` at its start ignores case."""

    kind: Literal["response_matches"]
    """Kind of the check."""
    regex: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_LENGTH), AfterValidator(_that_compiles)]
    """The pattern."""


class StatusIs(_Check):
    """The run ended this way."""

    kind: Literal["status_is"]
    """Kind of the check."""
    status: Literal["answered", "no_response", "error", "aborted"]
    """The status with which the run must have ended."""


class ArtifactPresent(_Check):
    """An artifact of this path was recorded; one that was recorded with an absolute path matches by its end."""

    kind: Literal["artifact_present"]
    """Kind of the check."""
    path: Path
    """Path of the file."""


class ArtifactContains(_Check):
    """The recorded excerpt of an artifact holds a text, as it is written."""

    kind: Literal["artifact_contains"]
    """Kind of the check."""
    path: Path
    """Path of the file."""
    text: Words
    """The text that the excerpt must hold."""


class MaxTotalTokens(_Check):
    """The run used no more tokens, read and written together."""

    kind: Literal["max_total_tokens"]
    """Kind of the check."""
    tokens: Count
    """Most tokens."""


class TrustAtLeast(_Check):
    """The trust score of the diagnosis is at least this."""

    kind: Literal["trust_at_least"]
    """Kind of the check."""
    trust: Annotated[int, Field(ge=0, le=100)]
    """Lowest trust score, 0 to 100. No run has less than 73, so up to that the check passes always."""


Check = Annotated[
    FinalResponsePresent
    | ToolCalled
    | ToolCallCount
    | ResponseContains
    | ResponseMatches
    | StatusIs
    | ArtifactPresent
    | ArtifactContains
    | MaxTotalTokens
    | TrustAtLeast,
    Field(discriminator="kind"),
]
