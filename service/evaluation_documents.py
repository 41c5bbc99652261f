"""The JSON documents that evaluations are answered with over HTTP: camelCase, times in ISO 8601 UTC with a Z, null where nothing is known.

The result itself stands in them as it is published (docs/schemas/evaluation-result.schema.json and judge-result.schema.json), so its
names are those of the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from audit.evaluation.result import EvaluationResult
from schemas.records import Evaluation
from service.documents import Document, iso_time

_ROW: Mapping[str, str] = {
    "id": "evaluation_id",
    "revision": "revision",
    "project": "project",
    "connection": "connection",
    "sessionId": "session_id",
    "agent": "agent",
    "model": "subject_model",
    "caseId": "case_id",
    "caseTitle": "case_title",
    "tags": "tags",
    "judgeRunId": "judge_run_id",
    "judgeModel": "judge_model",
    "yardstick": "yardstick",
    "repetition": "repetition",
    "status": "status",
    "finalScore": "final_score",
    "overallSpread": "overall_spread",
    "dimensions": "dimensions",
    "configuredRepetitions": "configured_repetitions",
    "successfulIterations": "successful_iterations",
    "aggregationMethod": "aggregation_method",
    "warnings": "warnings",
    "anomalyReasons": "anomaly_reasons",
    "runAt": "run_at",
    "runSeconds": "run_seconds",
    "runInputTokens": "run_input_tokens",
    "runOutputTokens": "run_output_tokens",
    "runCostUsd": "run_cost_usd",
    "costUsd": "cost_usd",
    "simulated": "simulated",
    "evaluatedAt": "evaluated_at",
}
"""What a list shows of an evaluation: the name in a document, and the field of the record."""
_MORE: Mapping[str, str] = {
    "requestId": "request_id",
    "fingerprint": "fingerprint",
    "judgementIds": "judgement_ids",
    "ruleVersion": "rule_version",
}
"""What is shown beyond that of one evaluation."""
_DIMENSION = ("policy", "source", "deterministic", "judge", "final", "spread")


def evaluation_row(row: Mapping[str, Any]) -> Document:
    """An evaluation in a list, from a row of the query `project_evaluations` or the fields of a record."""
    return {name: _value(row[field]) for name, field in _ROW.items()} | {
        "dimensions": {one["dimension"]: {field: one[field] for field in _DIMENSION} for one in row["dimensions"]}
    }


def evaluation_document(evaluation: Evaluation) -> Document:
    """One evaluation with its whole result; see the module."""
    fields = msgspec.structs.asdict(evaluation)
    fields["dimensions"] = [msgspec.structs.asdict(one) for one in evaluation.dimensions]
    result = EvaluationResult.model_validate_json(evaluation.result)
    return {
        **evaluation_row(fields),
        **{name: _value(fields[field]) for name, field in _MORE.items()},
        "finalResult": result.final_result.model_dump(mode="json"),
        "judgeResult": result.judge_result.model_dump(mode="json"),
    }


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_time(value)
    return list(value) if isinstance(value, tuple) else value
