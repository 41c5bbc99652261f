"""docs/evaluation-files.md names every field of a case and a profile with its default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from audit.evaluation import cases
from audit.evaluation.checks import CHECKS

TEXT = (Path(__file__).parents[3] / "docs" / "evaluation-files.md").read_text("utf-8")
MODELS: tuple[type[BaseModel], ...] = (
    cases.Case, cases.CaseInput, cases.Message, cases.Expectations, cases.Expectation, cases.Rubric, cases.ScaleAnchor, cases.Criterion,
    cases.Profile, cases.Judge, cases.JudgeRun, cases.Aggregation, cases.DimensionPolicy,
    cases.FrozenCases, cases.Source, cases.Levels, cases.ScoreLevel, cases.CheckLevel, cases.RecordedAnswer, cases.CandidateAnswer,
    cases.AnswerCall,
)  # fmt: skip
KINDS = {check.__name__: check for check in get_args(get_args(cases.Check)[0])}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of every row of a table under a heading of the document, without the header."""
    section = re.split(r"^#+ ", re.split(rf"^##+ {heading}(?: .*)?$", TEXT, flags=re.MULTILINE)[1], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def default(field: FieldInfo) -> str:
    """Return the default of a field as the document shows it."""
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, cases.Aggregation):
        return value.method
    if value in (None, (), {}, "") or value == cases.Expectations():
        return "none"
    if value == cases.DIMENSIONS:
        return "all six"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value).replace(chr(34), '')}`"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_documented_with_its_default(model: type[BaseModel]) -> None:
    """Nobody uses an undocumented field, and a wrong default misleads everybody."""
    expected = {name: default(field) for name, field in model.model_fields.items()}

    assert {row[0].strip("`"): row[2] for row in rows(model.__name__)} == expected


def test_no_model_of_the_files_is_left_out() -> None:
    """A new object in a file needs its own table."""
    names = {
        name
        for file in (cases.Case, cases.Profile, cases.FrozenCases, cases.CandidateAnswer)
        for name in (file.__name__, *file.model_json_schema(mode="serialization").get("$defs", {}))
    }

    assert names == {model.__name__ for model in MODELS} | set(KINDS)


def test_every_kind_of_check_is_documented_with_its_fields() -> None:
    """People choose a check from the table of kinds."""
    of_all, of_kinds = set(cases.FinalResponsePresent.model_fields), {}
    for row in (row for row in rows("Checks") if row[0].strip("`") in CHECKS):
        of_kinds[row[0].strip("`")] = set(re.findall(r"`(\w+)`", row[1]))
    expected = {
        get_args(check.model_fields["kind"].annotation)[0]: set(check.model_fields) - of_all for check in KINDS.values()
    }

    assert of_kinds == expected
    assert {row[0].strip("`"): row[2] for row in rows("Checks") if row[0].strip("`") in of_all} == {
        "check_id": "required",
        "dimensions": "`[task]`",
        "kind": "required",
    }
