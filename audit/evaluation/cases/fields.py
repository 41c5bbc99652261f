"""Fields that case and profile files have in common, and refusing what no single field can tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from audit.evaluation.dimensions import DIMENSIONS, Dimension

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4_000)]


class FileModel(BaseModel):
    """Read strictly: a field that is not there is an error, and no text becomes a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def _once_each(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    if len(set(dimensions)) < len(dimensions):
        raise ValueError("names a dimension twice")
    return tuple(one for one in DIMENSIONS if one in dimensions)


Dimensions = Annotated[tuple[Dimension, ...], Field(min_length=1, max_length=len(DIMENSIONS)), AfterValidator(_once_each)]
"""Some of the six, each once, in their own order."""


class Problem(NamedTuple):
    """A fault of the field at `location`, from the model that is checked; `value` is what the field holds."""

    location: tuple[str | int, ...]
    reason: str
    value: object


def refuse(model: str, problems: Iterable[Problem]) -> None:
    """ValidationError with all of the problems; without any, nothing happens. To be called by a validator of the model."""
    lines = [
        InitErrorDetails(
            type=PydanticCustomError("unfit", "{reason}", {"reason": problem.reason}),
            loc=problem.location,
            input=problem.value,
        )
        for problem in problems
    ]
    if lines:
        raise ValidationError.from_exception_data(model, lines)


def repetitions(values: Sequence[object], items: str, field: str) -> Iterator[Problem]:
    """A problem for each value that an earlier item of the list `items` has in the same field."""
    first: dict[object, int] = {}
    for index, value in enumerate(values):
        if value in first:
            reason = f"{items}[{first[value]}] has the same; each needs its own"
            yield Problem((items, index, field), reason, value)
        first.setdefault(value, index)
