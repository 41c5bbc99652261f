"""Types of the fields that case and profile files have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

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
