"""Mappings: which column gives each field of an exchange, as a YAML file.

1. A field has a column, or a constant value. A column is named as the file names it, or by a dotted path into its value:
   `usage.input_tokens`, `messages.0.content`.
2. A column with a whole conversation gives the question and the answer: its last message of the user, and the agent's after it.
3. A time is in one of the forms that `times` reads, unless the mapping gives its `format` or `unit`; `zone` is that of times without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from audit.policy.settings_files import Document
from schemas.bounds.limits import LABEL_NAME, MAX_LABELS, NO_LABELS

HINT = "Correct the lines named above; docs/how-to/import-exchanges.md explains every field."
REQUIRED = ("session_id", "occurred_at", "user_message", "agent_response")
"""Fields without which there is no exchange."""
UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"no time zone {name[:40]!r}; use a name such as Europe/Berlin") from error
    return name


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Source(_Part):
    """The source of a field: a column, or a value that is the same in every row."""

    column: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None
    value: str | int | None = None

    @model_validator(mode="after")
    def _one(self) -> Source:
        if (self.column is None) == (self.value is None):
            raise ValueError("give either column or value")
        return self


class TimeSource(Source):
    """The source of a time, and how it is written."""

    format: str | None = None
    unit: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] | None = None
    zone: Annotated[str, AfterValidator(_zone)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> TimeSource:
        if self.format is not None and self.unit is not None:
            raise ValueError("give format or unit, not both")
        return self


def _from_name(given: Any) -> Any:
    """Take a column that stands alone."""
    return {"column": given} if isinstance(given, str) else given


def _label(name: str) -> str:
    if name in NO_LABELS:
        raise ValueError(f"{name} is a field of its own, not a label")
    return name


Column = Annotated[Source, BeforeValidator(_from_name)]
Moment = Annotated[TimeSource, BeforeValidator(_from_name)]
LabelName = Annotated[str, StringConstraints(pattern=rf"^{LABEL_NAME}$"), AfterValidator(_label)]


class Fields(_Part):
    """The sources of the fields of an exchange."""

    session_id: Column
    occurred_at: Moment
    user_message: Column
    agent_response: Column
    exchange_id: Column | None = None
    turn_number: Column | None = None
    agent: Column | None = None
    agent_model: Column | None = None
    agent_thinking: Column | None = None
    stop_reason: Column | None = None
    input_tokens: Column | None = None
    output_tokens: Column | None = None
    labels: Annotated[dict[LabelName, Column], Field(max_length=MAX_LABELS)] = {}

    def sources(self) -> Mapping[str, Source]:
        """Return the sources by the names of the fields, those of labels as `labels.NAME`."""
        named = {name: source for name in type(self).model_fields if isinstance(source := getattr(self, name), Source)}
        return named | {f"labels.{name}": source for name, source in self.labels.items()}


class ExchangeMapping(_Part):
    """A mapping file."""

    version: Literal[1]
    fields: Fields


def load_mapping(path: Path) -> Fields:
    """Load a mapping; PolicyError lists each problem as `FILE:LINE: field: reason`."""
    return Document(path, hint=HINT).validate(ExchangeMapping).fields


def mapping_text(given: Mapping[str, Source], comment: str = "") -> str:
    """Return a mapping as a file. A required field without a source stands there without a value, to be filled in."""
    fields: dict[str, Any] = dict.fromkeys(REQUIRED)
    for name, source in given.items():
        written = source.model_dump(exclude_none=True)
        short = written["column"] if set(written) == {"column"} else written
        if name.startswith("labels."):
            fields.setdefault("labels", {})[name.removeprefix("labels.")] = short
        else:
            fields[name] = short
    text = yaml.safe_dump({"version": 1, "fields": fields}, sort_keys=False, allow_unicode=True, width=1000)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + text
