"""Test cases: what a run was asked to do, what is expected of it, and what is checked without a judge."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from audit.evaluation.cases.check_kinds import Check
from audit.evaluation.cases.fields import Dimensions, FileModel, Identifier, Words, refuse, repetitions
from audit.evaluation.dimensions import DIMENSIONS, Dimension

Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=50_000)]


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
