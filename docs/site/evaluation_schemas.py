"""The JSON schemas of the files of an evaluation: cases, profiles, and the documents of a result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from audit.evaluation.cases import CandidateAnswer, Case, FrozenCases, Profile
from audit.evaluation.report import Report
from audit.evaluation.results import FinalResult, JudgeResult

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Untitled(GenerateJsonSchema):
    """Fields without titles, which would say no more than their names."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False


class _Schema(NamedTuple):
    """A document with a schema."""

    title: str
    model: type[BaseModel]
    mode: Literal["validation", "serialization"]
    """validation: the document is read, and defaults may be left out; serialization: it is written, with every field."""


_SCHEMAS = {
    "case": _Schema("Test case of an evaluation", Case, "validation"),
    "frozen-cases": _Schema("Frozen cases of an incident", FrozenCases, "validation"),
    "candidate-answer": _Schema("A line of the answers of driftline gate", CandidateAnswer, "validation"),
    "profile": _Schema("Evaluation profile", Profile, "validation"),
    "evaluation-result": _Schema("Final result of an evaluation", FinalResult, "serialization"),
    "evaluation-report": _Schema("What driftline evaluate --output json prints", Report, "serialization"),
    "judge-result": _Schema("What the judge of an evaluation said", JudgeResult, "serialization"),
}


def evaluation_schemas() -> Mapping[str, str]:
    """Return the schemas by the name of their file: JSON, indented, with a line feed at its end."""
    return {f"{name}.schema.json": _schema_text(name, *schema) for name, schema in _SCHEMAS.items()}


def _schema_text(name: str, title: str, model: type[BaseModel], mode: Literal["validation", "serialization"]) -> str:
    schema = model.model_json_schema(mode=mode, schema_generator=_Untitled)
    head = {"$schema": DIALECT, "$id": f"urn:driftline:schema:{name}", "title": title}
    body = {key: value for key, value in schema.items() if key != "title"}
    return json.dumps(head | body, indent=2, ensure_ascii=False) + "\n"
