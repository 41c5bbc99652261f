"""Refusing what no single field can tell: each problem at the place of its field, so that a file's error leads to its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError


class Problem(NamedTuple):
    """What is wrong with the field at `location`, from the model that is checked; `value` is what the field holds."""

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
