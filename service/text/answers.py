"""Answers: what is told about an entity, described once, for the API and its documentation, the pages, the command line and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Self

import msgspec

Document = dict[str, Any]
REFERENCE = "#/components/schemas/"
"""The place of a description in OpenAPI's document."""
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time, UTC."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""Documented, not checked: a score a hair above 1 is no reason to answer nothing."""


def camel(name: str) -> str:
    """Return the name in camelCase; Tier 2.5 keeps its underscore, lest it read as a tier 25."""
    first, *parts = name.split("_")
    return (first + "".join(part[:1].upper() + part[1:] for part in parts)).replace("ier25", "ier2_5")


class Answer(msgspec.Struct, frozen=True, rename=camel):
    """The base of every answer. The description of a field is its `msgspec.Meta`; JSON has its name in camelCase."""

    record_type: ClassVar[str] = ""
    """Type of the records that it is made of: their schema describes the fields of the same names that say nothing themselves."""

    @classmethod
    def of(cls, row: Mapping[str, Any], **others: Any) -> Self:
        """Fill the fields from the columns of the same names; `others` are fields that the row does not have, or has otherwise."""
        columns = {name: row[name] for name in cls.__struct_fields__ if name in row}
        return cls(**(columns | others))


def document(answer: Answer) -> Document:
    """Return an answer as JSON has it: names in camelCase, times in ISO 8601 UTC with a Z. Numbers are exact."""
    made: Document = msgspec.to_builtins(answer)
    return made


def any_of(*kinds: type[Answer]) -> Document:
    """Describe a value that is one of some answers: msgspec describes no union of structs without tags."""
    described = msgspec.json.schema_components(kinds, ref_template=f"{REFERENCE}{{name}}")[1]
    return {"anyOf": [described[kind.__name__] for kind in kinds]}
