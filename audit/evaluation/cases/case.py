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
    """The speaker."""
    content: Text
    """The text of the message."""


class CaseInput(FileModel):
    """The task that the agent was given."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=50)]
    """The task, message by message; the judge is shown these, not what the session says it was asked."""


class Expectation(FileModel):
    """A property of a good run, in words."""

    text: Words
    """A sentence that can be found true or false by looking at the run."""


class Expectations(FileModel):
    """The expectations of a run: hard expectations must hold, soft ones make a run better."""

    hard_expectations: Annotated[tuple[Expectation, ...], Field(max_length=50)] = ()
    """One that is not met bounds `task` and the final score."""
    soft_expectations: Annotated[tuple[Expectation, ...], Field(max_length=50)] = ()
    """One that is met makes a run better."""


class ScaleAnchor(FileModel):
    """The meaning of a score."""

    score: Annotated[float, Field(ge=0, le=10, strict=False)]
    """A score from 0 to 10; each has one meaning."""
    meaning: Words
    """A description of the runs that get it."""


class Criterion(FileModel):
    """Something to look at, with what is good and what is bad."""

    name: Line
    """The aspect that it is about."""
    dimension: Dimension | None = None
    """Dimension it belongs to; null is none in particular."""
    good: Words
    """A good result, in words."""
    bad: Words
    """A bad result, in words."""


class Rubric(FileModel):
    """Instructions for scoring this case, beyond those that hold for all cases."""

    scale_anchors: Annotated[tuple[ScaleAnchor, ...], Field(max_length=11)] = ()
    """The meanings of scores here."""
    criteria: Annotated[tuple[Criterion, ...], Field(max_length=30)] = ()
    """The aspects to look at."""
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
    """The title, for people."""
    input: CaseInput
    """The task."""
    expectations: Expectations = Expectations()
    """The expectations of a run."""
    dimensions: Dimensions = DIMENSIONS
    """Those that are scored."""
    rubric: Rubric | None = None
    """Instructions for scoring this case, beyond those that hold for all cases."""
    deterministic_checks: Annotated[tuple[Check, ...], Field(max_length=100)] = ()
    """Checks that rules decide, without the judge."""
    tags: Annotated[tuple[Identifier, ...], Field(max_length=20)] = ()
    """Go into the results, for looking things up."""

    @model_validator(mode="after")
    def _ids_differ(self) -> Self:
        refuse("Case", repetitions([check.check_id for check in self.deterministic_checks], "deterministic_checks", "check_id"))
        return self
