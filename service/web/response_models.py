"""Answers, field by field, in camelCase: one definition for answering and for the documentation."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Answer(BaseModel):
    """The base of every answer: names in camelCase."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, alias_generator=to_camel)
