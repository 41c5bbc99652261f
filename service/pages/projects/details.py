"""Details of a project's page, loaded after it: figures, costs, reasons for judging, runs, unscored exchanges.

It is a page of its own, so that who has no script can read it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import duckdb
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from service.documents.members import Document
from service.documents.runs import run_page
from service.documents.scores import project_summary
from service.http.context import Services
from service.pages.charts.charts import share_bar
from service.pages.charts.projects import cost_days, known_sum, model_costs
from service.pages.projects.days import costs_of, deployed_within, shown_window
from service.pages.rendering import page
from service.pages.viewing import ShownProject, Viewer
from service.pages.window import Asked, AskedDays, Window
from service.pages.words import WORDS

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
_RUNS = 8


@router.get("/projects/{project}/details")
async def details(request: Request, *, viewer: Viewer, project: ShownProject, services: Services, asked: Asked) -> HTMLResponse:
    """Show the less urgent parts of a project, over the days that its page shows."""
    today = services.engine.now().date()
    summary, (window, costs, sampling, deployed), runs = await asyncio.gather(
        services.ask(lambda reading: project_summary(reading, project)),
        services.ask(lambda reading: _of_days(reading, project, asked, today)),
        services.ask(lambda reading: run_page(reading, project, None, _RUNS)),
    )
    values = {
        "project": project,
        "summary": summary,
        "has_data": bool(summary["exchanges"]["total"] or summary["scores"]["total"] or costs),
        "window": window,
        "runs": runs,
        "sampling": [_sampling(row) for row in sampling],
        "unscored": _unscored(summary),
        "can_rejudge": "admin" in viewer.scopes,
        "has_judge": services.engine.has_judge,
        **_cost_values(window, costs, deployed),
    }
    return page(request, "project_details.html", values)


def _cost_values(window: Window, costs: Sequence[Row], deployed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "cost_chart": cost_days(window, costs, deployed) if costs else None,
        "models": model_costs(costs),
        "cost": known_sum(costs),
        "simulated": sum(row["simulated"] for row in costs),
    }


def _of_days(
    cursor: duckdb.DuckDBPyConnection, project: str, asked: AskedDays, today: date
) -> tuple[Window, list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
    """Return the days of the project's page, the cost of judging their exchanges, and the reasons for judging."""
    window = shown_window(cursor, project, asked, today)
    values = {"project": project, "from": window.start, "to": window.end}
    sampling = query_rows(cursor, "project_sampling", values)
    return window, costs_of(cursor, project, window), sampling, deployed_within(cursor, project, window)


def _sampling(row: Row) -> dict[str, Any]:
    words = WORDS["sampling_reasons"].get(row["sampling_reason"], row["sampling_reason"])
    return {**row, "words": words, "bar": share_bar(row["share"], "" if row["disposition"] == "scored" else "left")}


def _unscored(summary: Document) -> list[dict[str, Any]]:
    """Return why exchanges have no score of the judge, the most frequent reason first, and what to do."""
    found = summary["exchanges"]["unscoredReasons"]
    return [
        {
            "reason": reason,
            "exchanges": count,
            "words": WORDS["reasons"].get(reason, reason),
            "remedy": WORDS["remedies"].get(reason, ""),
        }
        for reason, count in sorted(found.items(), key=lambda one: (-one[1], one[0]))
    ]
