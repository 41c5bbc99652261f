"""Evaluations over time, as documents: by case, model against model, and beside people's scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from analytics.queries import query_rows
from audit.evaluation.results.people import Said, agreement_with_people
from schemas.lazy.duckdb import duckdb
from service.read.people import Estimate, RaterEstimate
from service.text.answers import document
from service.text.members import Document, camel


def quality_by_case(
    cursor: duckdb.DuckDBPyConnection, project: str | None, case: str | None, unit: str = "week"
) -> list[Document]:
    """Return the quality of runs on each case by period: the mean of their scores with its interval."""
    values = {"project": project, "case": case, "unit": unit, "from": None, "to": None}
    return [_document(row) for row in query_rows(cursor, "evaluation_quality", values)]


def models_compared(cursor: duckdb.DuckDBPyConnection, project: str | None, case: str | None) -> list[Document]:
    """Compare models on each case: the difference of their means with its interval, or why there is none."""
    values = {"project": project, "case": case, "from": None, "to": None}
    return [_document(row) for row in query_rows(cursor, "evaluation_models", values)]


def beside_people(cursor: duckdb.DuckDBPyConnection, project: str | None, case: str | None) -> list[Document]:
    """Return the agreement of each judge with the human scores of the runs' exchanges; failed evaluations are only counted."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in query_rows(cursor, "evaluation_agreement", {"project": project, "case": case}):
        found[row["judge_model"]].append(row)
    documents = []
    for judge_model, rows in sorted(found.items()):
        scored = [row for row in rows if row["final_score"] is not None]
        agreed = agreement_with_people([_said(row) for row in scored])
        documents.append(
            {
                "judgeModel": judge_model,
                "overall": document(Estimate.measured(agreed.overall)),
                "raters": [document(RaterEstimate.measured(estimate, rater=name)) for name, estimate in agreed.raters.items()],
                "unjudged": len(rows) - len(scored),
            }
        )
    return documents


def _said(row: Mapping[str, Any]) -> Said:
    session = row["connection"], row["session_id"]
    return Said(row["evaluation_id"], session, row["rater"], row["human_score"], row["final_score"])


def _document(row: Mapping[str, Any]) -> Document:
    return {camel(name): str(value) if name == "period" else value for name, value in row.items()}
