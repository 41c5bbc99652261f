"""Answers about a project, field by field; `service.read.scores` says where each value comes from."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from audit.times import time_text
from service.text.members import camel
from service.web.response_models import Answer

Moment = Annotated[
    str,
    BeforeValidator(time_text),
    Field(json_schema_extra={"format": "date-time"}),
]
"""A time as `iso_time` writes it; made of a datetime, too."""
Share = Annotated[float, Field(json_schema_extra={"minimum": 0, "maximum": 1})]
"""Documented, not checked: a score a hair above 1 is no reason to answer nothing."""


class ProjectAnswer(Answer):
    """The base of every answer about a project: it names the fields."""

    model_config = ConfigDict(alias_generator=camel)
