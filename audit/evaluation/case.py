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

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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
    content: Text


class CaseInput(FileModel):
    """What the agent was asked."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=50)]


class Expectation(FileModel):
    """What a good run does, in words."""

    text: Words


class Expectations(FileModel):
    """What is expected: hard expectations must hold, soft ones make a run better."""

    hard_expectations: Annotated[tuple[Expectation, ...], Field(max_length=50)] = ()
    soft_expectations: Annotated[tuple[Expectation, ...], Field(max_length=50)] = ()


class ScaleAnchor(FileModel):
    """What a score means."""

    score: Annotated[float, Field(ge=0, le=10, strict=False)]
    meaning: Words


class Criterion(FileModel):
    """Something to look at, with what is good and what is bad."""

    name: Line
    dimension: Dimension | None = None
    good: Words
    bad: Words


class Rubric(FileModel):
    """How to score this case, beyond what holds for all of them."""

    scale_anchors: Annotated[tuple[ScaleAnchor, ...], Field(max_length=11)] = ()
    criteria: Annotated[tuple[Criterion, ...], Field(max_length=30)] = ()
    scoring_instructions: Annotated[str, StringConstraints(strip_whitespace=True, max_length=8_000)] = ""

    @model_validator(mode="after")
    def _one_meaning_each(self) -> Self:
        refuse("Rubric", repetitions([anchor.score for anchor in self.scale_anchors], "scale_anchors", "score"))
        return self


class _Check(FileModel):
    check_id: Identifier
    dimensions: Dimensions = ("task",)
    """Dimensions it counts for."""


class FinalResponsePresent(_Check):
    """The run ends with an answer that is not empty."""

    kind: Literal["final_response_present"]


class ToolCalled(_Check):
    """A tool was called at least once."""

    kind: Literal["tool_called"]
    tool: ToolName


class ToolCallCount(_Check):
    """So many calls of a tool, or of all tools: `min` to `max`, both included."""

    kind: Literal["tool_call_count"]
    tool: ToolName | None = None
    min: Count | None = None
    max: Count | None = None

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
    text: Words


class ResponseMatches(_Check):
    """A pattern (RE2) matches somewhere in the final answer, as it is written; `(?i)` at its start ignores case."""

    kind: Literal["response_matches"]
    regex: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_LENGTH), AfterValidator(_that_compiles)]


class StatusIs(_Check):
    """The run ended this way."""

    kind: Literal["status_is"]
    status: Literal["answered", "no_response", "error", "aborted"]


class ArtifactPresent(_Check):
    """An artifact of this path was recorded; one that was recorded with an absolute path matches by its end."""

    kind: Literal["artifact_present"]
    path: Path


class ArtifactContains(_Check):
    """The recorded excerpt of an artifact holds a text, as it is written."""

    kind: Literal["artifact_contains"]
    path: Path
    text: Words


class MaxTotalTokens(_Check):
    """The run used no more tokens, read and written together."""

    kind: Literal["max_total_tokens"]
    tokens: Count


class TrustAtLeast(_Check):
    """The trust score of the diagnosis is at least this."""

    kind: Literal["trust_at_least"]
    trust: Annotated[int, Field(ge=0, le=100)]


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
    title: Line
    input: CaseInput
    expectations: Expectations = Expectations()
    dimensions: Dimensions = DIMENSIONS
    rubric: Rubric | None = None
    deterministic_checks: Annotated[tuple[Check, ...], Field(max_length=100)] = ()
    tags: Annotated[tuple[Identifier, ...], Field(max_length=20)] = ()

    @model_validator(mode="after")
    def _ids_differ(self) -> Self:
        refuse("Case", repetitions([check.check_id for check in self.deterministic_checks], "deterministic_checks", "check_id"))
        return self
