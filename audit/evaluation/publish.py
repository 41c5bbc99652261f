"""Writes the JSON schemas of the files that are read and written: cases, profiles, and the documents of a result.

python -m audit.evaluation.publish             write docs/schemas/*.schema.json
python -m audit.evaluation.publish --check     change nothing, exit 1 when one of them is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from audit.evaluation.cases.case import Case
from audit.evaluation.cases.profile import Profile
from audit.evaluation.results.report import Report
from audit.evaluation.results.result import FinalResult, JudgeResult
from schemas.generated import bring_up_to_date

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
"""The folder in which they are published."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Untitled(GenerateJsonSchema):
    """Fields without titles, which would say no more than their names."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False


class Published(NamedTuple):
    """A document with a schema."""

    name: str
    title: str
    model: type[BaseModel]
    mode: Literal["validation", "serialization"]
    """validation: the document is read, and defaults may be left out; serialization: it is written, with every field."""


PUBLISHED = (
    Published("case", "Test case of an evaluation", Case, "validation"),
    Published("profile", "Evaluation profile", Profile, "validation"),
    Published("evaluation-result", "Final result of an evaluation", FinalResult, "serialization"),
    Published("evaluation-report", "What driftline evaluate --output json prints", Report, "serialization"),
    Published("judge-result", "What the judge of an evaluation said", JudgeResult, "serialization"),
)
"""All of them, by name of the file."""


def schema_text(one: Published) -> str:
    """The schema as it is published: JSON, indented, with a line feed at its end."""
    made = one.model.model_json_schema(mode=one.mode, schema_generator=_Untitled)
    head = {"$schema": DIALECT, "$id": f"urn:driftline:schema:{one.name}", "title": one.title}
    return json.dumps(head | {name: made[name] for name in made if name != "title"}, indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the publisher; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m audit.evaluation.publish", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when a schema is out of date")
    options = parser.parse_args(arguments)
    wanted = {FOLDER / f"{one.name}.schema.json": schema_text(one) for one in PUBLISHED}
    return bring_up_to_date(wanted, FOLDER.parents[1], "python -m audit.evaluation.publish", check=options.check)


if __name__ == "__main__":
    sys.exit(main())
