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
from service.pages.lists import EVALUATIONS, listed
from service.pages.periods import ListPeriod, compared, compared_means
from service.pages.project_charts import counts_of
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
MOST_CASES = 50
"""Maximum number of cases listed over time, last evaluated first; a filter shows any single case."""
STEPS = {"day": timedelta(days=1), "week": timedelta(days=7)}
DAILY = timedelta(days=14)
"""Up to this length, cases are shown by day."""
MOST_CHARTS = 6
"""Maximum number of cases drawn as charts."""
PROMPTS = {"system": "system_prompt", "user": "user_prompt"}
"""The messages to the judge: the name in an address, and in an answer."""
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
    period: ListPeriod,
    case: Of = None,
    model: Of = None,
) -> HTMLResponse:
    """Show the evaluations of a project: the list, the cases over time, and models beside each other; of a case or a model or of all."""

    def beside(asking: duckdb.DuckDBPyConnection, window: Window | None) -> dict[str, Any]:
        between = bounds(window)
        unit = "day" if window and window.end - window.start <= DAILY else "week"
        quality = quality_by_case(asking, project, case, unit, between)
        cases = quality_by_case(asking, project, case, "month") if window else quality
        marks = marks_between(asking, project, [period.start for period in quality])
        counts, over_time = counts_of(asking, project, window), _build_over_time(quality, unit, marks)
        return {
            "unit": unit,
            "told": _describe_quality(*counts) if counts else None,
            "cases": sorted({period.case_id for period in cases}),
            "over_time": over_time[:MOST_CASES],
            "left_out": max(0, len(over_time) - MOST_CASES),
            "pairs": models_compared(asking, project, case, between),
            "simulated_cases": sum(period.simulated for period in quality),
        }

    values = await listed(request, services, project, period, EVALUATIONS, beside=beside)
    values |= {"case": case, "model": model, "simulated": values["simulated"] + values["simulated_cases"]}
    return page(request, "evaluations.html", values)


@router.get("/projects/{project}/evaluations/{evaluation_id}")
async def evaluation(
    request: Request, _: Viewer, project: ShownProject, services: Services, evaluation_id: EvaluationId
) -> HTMLResponse:
    """Show one evaluation: its score and its parts, every answer of the judge, and the messages to it."""
    state = await _require_evaluation(services, project, evaluation_id)
    whole = state.answer.evaluation
    run = None if whole is None else await services.ask(lambda asking: _run_of(asking, whole))
    values = {
        "project": project,
        "state": state.answer,
        "later_attempt_failed": LATER_ATTEMPT_FAILED,
        "found": whole,
        "run": run,
        "meanings": MEANINGS,
        "prompts": {
            name: excerpt(text, _links.evaluation_prompt(project, evaluation_id, name))
            for name in PROMPTS
            if (text := _read_prompt(state, name)) is not None
        },
        "total": _sum_cost(whole),
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
    """Return a message to the judge in full, as a download, which no browser renders."""
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
    """Return the evaluation; 404 if the project has no evaluation of this id."""
    state = await services.ask(lambda cursor: evaluation_state(cursor, evaluation_id))
    if state is None or state.project != project:
        raise ApiError(404, "not_found", "The project has no evaluation with this id.")
    return state


def _read_prompt(state: RequestedEvaluation, name: str) -> str | None:
    text: str | None = getattr(state.answer, PROMPTS[name])
    return text


def _run_of(cursor: duckdb.DuckDBPyConnection, whole: WholeEvaluation) -> str | None:
    """Return the id of the evaluated run; None if it was deleted."""
    rows = query_rows(cursor, "session_run", {"connection": whole.connection, "session": whole.session_id})
    return rows[0]["run_id"] if rows and rows[0]["project"] == whole.project else None


def _sum_cost(whole: WholeEvaluation | None) -> float | None:
    """Return the total cost of the run and its evaluation; None if either is unknown."""
    if whole is None or whole.run_cost_usd is None or whole.cost_usd is None:
        return None
    return whole.run_cost_usd + whole.cost_usd


def _describe_quality(now: Row, before: Row) -> str:
    """Describe the difference between a period and the preceding one."""
    count = compared(now["evaluations"], before["evaluations"], number)
    mean = compared_means(now["mean_score"], before["mean_score"])
    return f"{number(now['evaluations'])} evaluations, {count}; mean score {number(now['mean_score'], 2)}, {mean}"


@dataclass(frozen=True, slots=True)
class OverTime:
    """A case on one scale by day or week; drawn if there are two or more points."""

    last: CaseQuality
    runs: int
    chart: Markup | None


def _build_over_time(quality: Sequence[CaseQuality], unit: str, marks: Sequence[Mark]) -> list[OverTime]:
    """Return each case by scale, last evaluated first."""
    groups = [list(periods) for _, periods in groupby(quality, key=lambda period: (period.case_id, period.yardstick))]
    groups.sort(key=lambda periods: (-periods[-1].period.toordinal(), periods[0].case_id, periods[0].yardstick))
    drawn = [index for index, periods in enumerate(groups) if len(periods) > 1][:MOST_CHARTS]
    return [
        OverTime(
            periods[-1],
            sum(period.evaluations for period in periods),
            _draw_quality(periods, index, unit, marks) if index in drawn else None,
        )
        for index, periods in enumerate(groups)
    ]


def _draw_quality(periods: Sequence[CaseQuality], index: int, unit: str, marks: Sequence[Mark]) -> Markup:
    runs, failed = sum(period.evaluations for period in periods), sum(period.failed for period in periods)
    lost = f", {failed} of them without a score" if failed else ""
    chart = Chart(
        key=f"quality-{index}",
        title=f"{periods[0].case_id}, by {periods[0].judge_model}",
        words=f"Mean final score of {runs} runs{lost}, {unit} by {unit}.",
        column="Mean final score",
        first=unit.capitalize(),
        counted="Runs",
        limits=(LOWEST, HIGHEST),
        marks=marks,
        step=STEPS[unit],
    )
    return line(chart, [_build_point(period) for period in periods])


def _build_point(period: CaseQuality) -> Point:
    half = None
    if period.mean is not None and period.low is not None and period.high is not None:
        half = max(period.high - period.mean, period.mean - period.low)
    at = period.start
    return Point(f"{at:%Y-%m-%d}", period.mean, f"{at:%m-%d}", at=at, count=period.evaluations, half=half)
