"""Test cases: what a run was asked to do, what is expected of it, and what is checked without a judge."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from audit.evaluation.dimensions import DIMENSIONS, Dimension
from audit.evaluation.refusals import Problem, refuse, repetitions
from audit.patterns import MAX_PATTERN_LENGTH, compile_pattern
from schemas.errors import PolicyError

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4_000)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=50_000)]
Path = Annotated[str, StringConstraints(min_length=1, max_length=500)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=10**12)]


class FileModel(BaseModel):
    """Read strictly: a field that is not there is an error, and no text becomes a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def _once_each(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    if len(set(dimensions)) < len(dimensions):
        raise ValueError("names a dimension twice")
    return tuple(one for one in DIMENSIONS if one in dimensions)


Dimensions = Annotated[tuple[Dimension, ...], Field(min_length=1, max_length=len(DIMENSIONS)), AfterValidator(_once_each)]
"""Some of the six, each once, in their own order."""


def _that_compiles(regex: str) -> str:
    try:
        compile_pattern(regex, where="RE2", ignore_case=False)
    except PolicyError as error:
        raise ValueError(f"{error}. {error.hint}") from None
    return regex


class Message(FileModel):
    """A message of the task, as the agent got it."""

    role: Literal["system", "user", "assistant"]
    """Who speaks."""
    content: Text
    """What is said."""


class CaseInput(FileModel):
    """What the agent was asked."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=50)]
    """The task, message by message; the judge is shown these, not what the session says it was asked."""


class Expectation(FileModel):
    """What a good run does, in words."""

    text: Words
    """A sentence that can be found true or false by looking at the run."""


class Expectations(FileModel):
    """What is expected: hard expectations must hold, soft ones make a run better."""

    hard_expectations: Annotated[tuple[Expectation, ...], Field(max_length=50)] = ()
    """One that is not met bounds `task` and the final score."""
    soft_expectations: Annotated[tuple[Expectation, ...], Field(max_length=50)] = ()
    """One that is met makes a run better."""


class ScaleAnchor(FileModel):
    """What a score means."""

    score: Annotated[float, Field(ge=0, le=10, strict=False)]
    """A score from 0 to 10; each has one meaning."""
    meaning: Words
    """What a run is like that gets it."""


class Criterion(FileModel):
    """Something to look at, with what is good and what is bad."""

    name: Line
    """What it is about."""
    dimension: Dimension | None = None
    """Dimension it belongs to; null is none in particular."""
    good: Words
    """What is good."""
    bad: Words
    """What is bad."""


class Rubric(FileModel):
    """How to score this case, beyond what holds for all of them."""

    scale_anchors: Annotated[tuple[ScaleAnchor, ...], Field(max_length=11)] = ()
    """What scores mean here."""
    criteria: Annotated[tuple[Criterion, ...], Field(max_length=30)] = ()
    """What to look at."""
    scoring_instructions: Annotated[str, StringConstraints(strip_whitespace=True, max_length=8_000)] = ""
    """Anything else that the judge should go by."""

    @model_validator(mode="after")
    def _one_meaning_each(self) -> Self:
        refuse("Rubric", repetitions([anchor.score for anchor in self.scale_anchors], "scale_anchors", "score"))
        return self


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
    """What the answer has to hold."""


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
    """How the run has to have ended."""


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
    """What the excerpt has to hold."""


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
    """Lowest trust score, 0 to 100."""


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


class Case(FileModel):
    """A test case; one YAML file."""

    case_id: Identifier
    """Name of the case in results; unique within one call."""
    title: Line
    """What people read."""
    input: CaseInput
    """The task."""
    expectations: Expectations = Expectations()
    """What is expected of a run."""
    dimensions: Dimensions = DIMENSIONS
    """Those that are scored."""
    rubric: Rubric | None = None
    """How to score this case, beyond what holds for all."""
    deterministic_checks: Annotated[tuple[Check, ...], Field(max_length=100)] = ()
    """What rules decide, without the judge."""
    tags: Annotated[tuple[Identifier, ...], Field(max_length=20)] = ()
    """Go into the results, for looking things up."""

    @model_validator(mode="after")
    def _ids_differ(self) -> Self:
        refuse("Case", repetitions([check.check_id for check in self.deterministic_checks], "deterministic_checks", "check_id"))
        return self
