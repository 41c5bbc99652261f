"""Evaluations of a project: the evaluated runs, cases and models over time, and one result with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from markupsafe import Markup

from analytics.queries import query_rows
from audit.evaluation.dimensions import HIGHEST, LOWEST, MEANINGS
from audit.evaluation.report import LATER_ATTEMPT_FAILED
from schemas.lazy import duckdb
from service.pages.charts import Chart, Mark, Point, line, marks_between
from service.pages.lists import EVALUATIONS, build_list_values
from service.pages.periods import ListPeriod, compared, compared_means
from service.pages.project_charts import read_counts
from service.pages.rendering import MAX_SHOWN, excerpt, number, page
from service.pages.viewing import ShownProject, Viewer
from service.read.evaluations import (
    CaseQuality,
    RequestedEvaluation,
    WholeEvaluation,
    evaluation_state,
    models_compared,
    quality_by_case,
)
from service.text.links import Links
from service.text.window import Window, bounds
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import Id

router = APIRouter(include_in_schema=False)
MAX_CASES = 50
"""Maximum number of cases over time, last evaluated first. A filter shows any other case."""
STEP_OF_UNIT = {"day": timedelta(days=1), "week": timedelta(days=7)}
MAX_DAILY_PERIOD = timedelta(days=14)
"""Longer periods show cases by week."""
MAX_CHARTS = 6
PROMPTS = {"system": "system_prompt", "user": "user_prompt"}
"""Messages to the judge, by their names in addresses: the attributes of the evaluation that have them."""
FilterId = Annotated[Id | None, Query()]
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
    period: ListPeriod,
    case: FilterId = None,
    model: FilterId = None,
) -> HTMLResponse:
    """Show the evaluations of a project: the list, the cases over time, and comparisons of models."""

    def read_quality(cursor: duckdb.DuckDBPyConnection, window: Window | None) -> dict[str, Any]:
        between = bounds(window)
        unit = "day" if window and window.end - window.start <= MAX_DAILY_PERIOD else "week"
        quality = quality_by_case(cursor, project, case, unit, between)
        cases = quality_by_case(cursor, project, case, "month") if window else quality
        marks = marks_between(cursor, project, [period.start for period in quality])
        counts = read_counts(cursor, project, window)
        over_time = _build_over_time(quality, unit, marks)
        return {
            "unit": unit,
            "comparison": _describe_quality(*counts) if counts else None,
            "cases": sorted({period.case_id for period in cases}),
            "over_time": over_time[:MAX_CASES],
            "left_out": max(0, len(over_time) - MAX_CASES),
            "pairs": models_compared(cursor, project, case, between),
            "simulated_cases": sum(period.simulated for period in quality),
        }

    values = await build_list_values(request, services, project, period, EVALUATIONS, read_more=read_quality)
    values |= {"case": case, "model": model, "simulated": values["simulated"] + values["simulated_cases"]}
    return page(request, "evaluations.html", values)


@router.get("/projects/{project}/evaluations/{evaluation_id}")
async def evaluation(
    request: Request, _: Viewer, project: ShownProject, services: Services, evaluation_id: EvaluationId
) -> HTMLResponse:
    """Show an evaluation: its score and the parts of it, the judge's answers, and the messages to the judge."""
    state = await _require_evaluation(services, project, evaluation_id)
    finished = state.answer.evaluation
    run = None if finished is None else await services.ask(lambda cursor: _find_run_id(cursor, finished))
    values = {
        "project": project,
        "state": state.answer,
        "later_attempt_failed": LATER_ATTEMPT_FAILED,
        "evaluation": finished,
        "run": run,
        "meanings": MEANINGS,
        "prompts": {
            name: excerpt(text, _links.evaluation_prompt(project, evaluation_id, name))
            for name, text in ((name, _read_prompt(state, name)) for name in PROMPTS)
            if text is not None
        },
        "total": _sum_cost(finished),
        "max_answer": MAX_SHOWN,
    }
    answer = page(request, "evaluation.html", values)
    # The prompt quotes agents' conversations, so no cache may store it.
    answer.headers["Cache-Control"] = "no-store"
    return answer


@router.get("/projects/{project}/evaluations/{evaluation_id}/prompts/{name}")
async def prompt(
    _: Viewer, project: ShownProject, services: Services, evaluation_id: EvaluationId, name: Annotated[Id, Path()]
) -> PlainTextResponse:
    """Return a message to the judge in full, as a download that no browser renders."""
    state = await _require_evaluation(services, project, evaluation_id)
    text = _read_prompt(state, name) if name in PROMPTS else None
    if text is None:
        raise ApiError(404, "not_found", "The evaluation does not have this prompt.")
    headers = {
        "Content-Disposition": f'attachment; filename="{project}-{name}-prompt.txt"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    return PlainTextResponse(text, headers=headers)


async def _require_evaluation(services: ApiContext, project: str, evaluation_id: str) -> RequestedEvaluation:
    """Return the evaluation; ApiError 404 if the project has none with this id."""
    state = await services.ask(lambda cursor: evaluation_state(cursor, evaluation_id))
    if state is None or state.project != project:
        raise ApiError(404, "not_found", "The project has no evaluation with this id.")
    return state


def _read_prompt(state: RequestedEvaluation, name: str) -> str | None:
    text: str | None = getattr(state.answer, PROMPTS[name])
    return text


def _find_run_id(cursor: duckdb.DuckDBPyConnection, evaluation: WholeEvaluation) -> str | None:
    """Return the id of the evaluated run; None if it was deleted."""
    rows = query_rows(cursor, "session_run", {"connection": evaluation.connection, "session": evaluation.session_id})
    return rows[0]["run_id"] if rows and rows[0]["project"] == evaluation.project else None


def _sum_cost(evaluation: WholeEvaluation | None) -> float | None:
    """Return the total cost of the run and its evaluation; None if either is unknown."""
    if evaluation is None or evaluation.run_cost_usd is None or evaluation.cost_usd is None:
        return None
    return evaluation.run_cost_usd + evaluation.cost_usd


def _describe_quality(current: Row, previous: Row) -> str:
    """Describe the evaluations of a period compared with the preceding one."""
    count = compared(current["evaluations"], previous["evaluations"], number)
    mean = compared_means(current["mean_score"], previous["mean_score"])
    return f"{number(current['evaluations'])} evaluations, {count}; mean score {number(current['mean_score'], 2)}, {mean}"


@dataclass(frozen=True, slots=True)
class CaseOverTime:
    """A case on one scale by day or week, with a chart if it has at least two points."""

    newest: CaseQuality
    runs: int
    chart: Markup | None


def _build_over_time(quality: Sequence[CaseQuality], unit: str, marks: Sequence[Mark]) -> list[CaseOverTime]:
    """Return the cases by scale, last evaluated first."""
    groups = [list(periods) for _, periods in groupby(quality, key=lambda period: (period.case_id, period.yardstick))]
    groups.sort(key=lambda periods: (-periods[-1].period.toordinal(), periods[0].case_id, periods[0].yardstick))
    with_chart = [index for index, periods in enumerate(groups) if len(periods) > 1][:MAX_CHARTS]
    return [
        CaseOverTime(
            periods[-1],
            sum(period.evaluations for period in periods),
            _draw_quality(periods, index, unit, marks) if index in with_chart else None,
        )
        for index, periods in enumerate(groups)
    ]


def _draw_quality(periods: Sequence[CaseQuality], index: int, unit: str, marks: Sequence[Mark]) -> Markup:
    runs = sum(period.evaluations for period in periods)
    failed = sum(period.failed for period in periods)
    without_score = f", {failed} of them without a score" if failed else ""
    chart = Chart(
        key=f"quality-{index}",
        title=f"{periods[0].case_id}, by {periods[0].judge_model}",
        words=f"Mean final score of {runs} runs{without_score}, {unit} by {unit}.",
        column="Mean final score",
        first=unit.capitalize(),
        counted="Runs",
        limits=(LOWEST, HIGHEST),
        marks=marks,
        step=STEP_OF_UNIT[unit],
    )
    return line(chart, [_build_point(period) for period in periods])


def _build_point(period: CaseQuality) -> Point:
    half = None
    if period.mean is not None and period.low is not None and period.high is not None:
        half = max(period.high - period.mean, period.mean - period.low)
    start = period.start
    return Point(f"{start:%Y-%m-%d}", period.mean, f"{start:%m-%d}", at=start, count=period.evaluations, half=half)
