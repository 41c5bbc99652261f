"""The JSON documents of evaluations over HTTP: camelCase, times in ISO 8601 UTC with a Z, null for unknown values.

The result itself stands in them as it is published (docs/schemas/evaluation-result.schema.json and judge-result.schema.json), so its
names are those of the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from analytics.queries import query_records, query_rows
from audit.evaluation.results.result import EvaluationResult
from schemas.lazy.duckdb import duckdb
from schemas.records import Evaluation
from service.text.members import Document, members, names

_ROW = (
    "id=evaluation_id revision project connection session_id agent model=subject_model case_id case_title tags judge_run_id judge_model "
    "yardstick repetition status final_score overall_spread configured_repetitions successful_iterations aggregation_method warnings "
    "anomaly_reasons run_at run_seconds run_input_tokens run_output_tokens run_cost_usd cost_usd simulated evaluated_at"
)
"""The members of an evaluation in a list that are fields of its record."""
_MORE = "request_id fingerprint judgement_ids rule_version"
"""The further ones of one evaluation."""
_DIMENSION = ("policy", "source", "deterministic", "judge", "final", "spread")


@dataclass(frozen=True, slots=True)
class EvaluationState:
    """A requested evaluation and its owner, whether or not there is a result."""

    project: str
    document: Document


def evaluation_page(
    cursor: duckdb.DuckDBPyConnection,
    project: str | None,
    *,
    case: str | None = None,
    model: str | None = None,
    session: str | None = None,
    before: tuple[datetime, str] | None = None,
    between: tuple[datetime | None, datetime | None] = (None, None),
    limit: int,
) -> list[Document]:
    """Return evaluations of a project (None: of all), the one judged last first; `before` is the end of the last page.

    `between` are two moments between which they were judged; None is no bound.
    """
    at, identity = before or (None, None)
    chosen = {"project": project, "case": case, "model": model, "session": session, "from": between[0], "to": between[1]}
    rows = query_rows(cursor, "project_evaluations", {**chosen, "after_at": at, "after_id": identity, "limit": limit})
    return [evaluation_row(row) for row in rows]


def evaluation_state(cursor: duckdb.DuckDBPyConnection, evaluation_id: str) -> EvaluationState | None:
    """Return an evaluation with the prompts behind its result; None if no evaluation of this id was requested."""
    evaluation = next(query_records(cursor, "evaluations_by_id", Evaluation, {"evaluations": [evaluation_id]}), None)
    asked = next(iter(query_rows(cursor, "evaluation_detail", {"evaluation": evaluation_id})), None)
    project = evaluation.project if evaluation else asked["project"] if asked else None
    if project is None:
        return None
    current = -1 if evaluation is None else evaluation.revision
    made = asked["result_revision"] if asked else None
    done = current if made is None else max(made, current)
    attempt = asked["attempt"] if asked else done
    is_done = done >= attempt
    set_aside = asked["set_aside"] if asked and not is_done else None
    prompts = asked if asked and is_done else {"system_prompt": None, "user_prompt": None}
    return EvaluationState(
        project,
        {
            "id": evaluation_id,
            "pending": not is_done and set_aside is None,
            "attempt": attempt,
            "setAside": set_aside,
            "failedAttempt": done if done > current >= 0 else None,
            "evaluation": None if evaluation is None else evaluation_document(evaluation),
            "systemPrompt": prompts["system_prompt"],
            "userPrompt": prompts["user_prompt"],
        },
    )


def evaluation_of(document: Mapping[str, Any]) -> Evaluation:
    """Return the record of a document, without checks and iterations, which its result has. InputError for others."""
    fields = {field: document[name] for name, field in names(f"{_ROW} {_MORE}")}
    fields["dimensions"] = [{"dimension": name, **one} for name, one in document["dimensions"].items()]
    result = {"final_result": document["finalResult"], "judge_result": document["judgeResult"]}
    fields["result"] = EvaluationResult.model_validate_json(msgspec.json.encode(result)).as_json()
    return msgspec.convert(fields, Evaluation)


def evaluation_row(row: Mapping[str, Any]) -> Document:
    """Return an evaluation in a list, from a row of the query `project_evaluations` or the fields of a record."""
    return members(row, _ROW) | {
        "dimensions": {one["dimension"]: {field: one[field] for field in _DIMENSION} for one in row["dimensions"]}
    }


def evaluation_document(evaluation: Evaluation) -> Document:
    """Return one evaluation with its whole result; see the module."""
    fields = msgspec.structs.asdict(evaluation)
    fields["dimensions"] = [msgspec.structs.asdict(one) for one in evaluation.dimensions]
    result = EvaluationResult.model_validate_json(evaluation.result)
    return {
        **evaluation_row(fields),
        **members(fields, _MORE),
        "finalResult": result.final_result.model_dump(mode="json"),
        "judgeResult": result.judge_result.model_dump(mode="json"),
    }
