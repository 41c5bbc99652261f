"""Evaluations of a project: the evaluated runs, cases and models over time, and one result with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Annotated, Any

import duckdb
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from markupsafe import Markup

from analytics.queries import query_rows
from audit.evaluation.dimensions import HIGHEST, LOWEST, MEANINGS
from audit.evaluation.results.report import LATER_ATTEMPT_FAILED
from service.documents.evaluations import EvaluationState, evaluation_page, evaluation_state
from service.documents.members import Document
from service.http.context import ApiContext, Services
from service.http.documents.models import Id
from service.http.errors import ApiError
from service.http.paging import Cursor, Place, after, page_of
from service.pages.charts.charts import Chart, Point, line
from service.pages.links import Links
from service.pages.rendering import page
from service.pages.texts import MAX_SHOWN, excerpt
from service.pages.viewing import ShownProject, Viewer

router = APIRouter(include_in_schema=False)
SHOWN = 50
"""Evaluations of a page."""
MOST_CASES = 50
"""Cases whose scores over time are listed, those evaluated last; of more a filter shows one."""
MOST_CHARTS = 6
"""Of them this many are drawn."""
PROMPTS = {"system": "systemPrompt", "user": "userPrompt"}
"""The messages to the judge: the name in an address, and in a document."""
Of = Annotated[Id | None, Query()]
EvaluationId = Annotated[Id, Path()]
_links = Links()
Row = dict[str, Any]


@router.get("/projects/{project}/evaluations")
async def evaluations(
    *,
    request: Request,
    _: Viewer,
    project: ShownProject,
    services: Services,
    case: Of = None,
    model: Of = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the evaluations of a project, the one judged last first, of a case or a model or of all."""
    span = {"project": project, "case": case, "from": None, "to": None}

    def read(asking: duckdb.DuckDBPyConnection) -> tuple[list[Document], list[Row], list[Row]]:
        found = evaluation_page(asking, project, case=case, model=model, before=after(cursor), limit=SHOWN + 1)
        quality = query_rows(asking, "evaluation_quality", {**span, "unit": "week"})
        return found, quality, query_rows(asking, "evaluation_models", span)

    found, quality, pairs = await services.ask(read)
    shown, following = page_of(found, SHOWN, lambda one: Place(datetime.fromisoformat(one["evaluatedAt"]), one["id"]))
    over_time = _over_time(quality)
    values = {
        "project": project,
        "evaluations": shown,
        "case": case,
        "model": model,
        "is_later_page": cursor is not None,
        "following": following and _links.evaluations(project, case=case, model=model, cursor=following),
        "cases": sorted({row["case_id"] for row in quality}),
        "over_time": over_time[:MOST_CASES],
        "left_out": max(0, len(over_time) - MOST_CASES),
        "pairs": pairs,
        "simulated": sum(one["simulated"] for one in (*shown, *quality)),
    }
    return page(request, "evaluations.html", values)


@router.get("/projects/{project}/evaluations/{evaluation_id}")
async def evaluation(
    request: Request, _: Viewer, project: ShownProject, services: Services, evaluation_id: EvaluationId
) -> HTMLResponse:
    """Show one evaluation: its score and its parts, every answer of the judge, and the messages to it."""
    state = await _known(services, project, evaluation_id)
    found = state.document["evaluation"]
    run = None if found is None else await services.ask(lambda asking: _run_of(asking, found))
    values = {
        "project": project,
        "state": state.document,
        "later_attempt_failed": LATER_ATTEMPT_FAILED,
        "found": found,
        "run": run,
        "meanings": MEANINGS,
        "prompts": {
            name: excerpt(state.document[field], _links.evaluation_prompt(project, evaluation_id, name))
            for name, field in PROMPTS.items()
            if state.document[field] is not None
        },
        "total": _total(found),
        "max_answer": MAX_SHOWN,
    }
    answer = page(request, "evaluation.html", values)
    # The prompt quotes what agents were told and did.
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.get("/projects/{project}/evaluations/{evaluation_id}/prompts/{name}")
async def prompt(
    _: Viewer, project: ShownProject, services: Services, evaluation_id: EvaluationId, name: Annotated[Id, Path()]
) -> PlainTextResponse:
    """Return a message to the judge, in full, as a file: never as something that a browser would show."""
    state = await _known(services, project, evaluation_id)
    text = state.document[PROMPTS[name]] if name in PROMPTS else None
    if text is None:
        raise ApiError(404, "not_found", "The evaluation does not have this prompt.")
    headers = {
        "Content-Disposition": f'attachment; filename="{project}-{name}-prompt.txt"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    return PlainTextResponse(text, headers=headers)


async def _known(services: ApiContext, project: str, evaluation_id: str) -> EvaluationState:
    """Return the evaluation; 404 if the project has none of this id."""
    found = await services.ask(lambda cursor: evaluation_state(cursor, evaluation_id))
    if found is None or found.project != project:
        raise ApiError(404, "not_found", "The project has no evaluation with this id.")
    return found


def _run_of(cursor: duckdb.DuckDBPyConnection, found: Document) -> str | None:
    """Return the id of the evaluated run; None if it is not there any more."""
    rows = query_rows(cursor, "session_run", {"connection": found["connection"], "session": found["sessionId"]})
    return rows[0]["run_id"] if rows and rows[0]["project"] == found["project"] else None


def _total(found: Document | None) -> float | None:
    """Return the cost of the run and its evaluation together; None if either is unknown."""
    if found is None or found["runCostUsd"] is None or found["costUsd"] is None:
        return None
    total: float = found["runCostUsd"] + found["costUsd"]
    return total


@dataclass(frozen=True, slots=True)
class OverTime:
    """A case on one scale, week by week; drawn if there are two weeks or more."""

    last: Row
    runs: int
    chart: Markup | None


def _over_time(quality: Sequence[Row]) -> list[OverTime]:
    """Return each case by scale, the one evaluated last first."""
    groups = [list(rows) for _, rows in groupby(quality, key=lambda row: (row["case_id"], row["yardstick"]))]
    groups.sort(key=lambda rows: (-rows[-1]["period"].toordinal(), rows[0]["case_id"], rows[0]["yardstick"]))
    drawn = [place for place, rows in enumerate(groups) if len(rows) > 1][:MOST_CHARTS]
    return [
        OverTime(rows[-1], sum(row["evaluations"] for row in rows), _chart(rows, place) if place in drawn else None)
        for place, rows in enumerate(groups)
    ]


def _chart(rows: Sequence[Row], place: int) -> Markup:
    runs, failed = (sum(row[name] for row in rows) for name in ("evaluations", "failed"))
    lost = f", {failed} of them without a score" if failed else ""
    chart = Chart(
        key=f"quality-{place}",
        title=f"{rows[0]['case_id']}, by {rows[0]['judge_model']}",
        words=f"Mean final score of {runs} runs{lost}, week by week.",
        column="Mean final score",
        first="Week",
        limits=(LOWEST, HIGHEST),
    )
    return line(chart, [Point(f"{row['period']:%Y-%m-%d}", row["mean"]) for row in rows])
