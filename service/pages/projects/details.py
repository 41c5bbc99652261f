"""Details of a project's page, loaded after it: figures, costs, reasons for judging, runs, unscored exchanges.

It is a separate page, so that it can be read without scripts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from schemas.lazy import duckdb
from service.pages.charts.marks import marks_within
from service.pages.charts.projects import Stretch, cost_days, known_sum, model_costs
from service.pages.charts.spark import share_bar
from service.pages.projects.days import costs_of, sampling_of, stretch_of
from service.pages.rendering import links_of, number, page, usd
from service.pages.times.asked import Asked
from service.pages.times.comparison import compared
from service.pages.viewing import ShownProject, Viewer
from service.read.runs import run_page
from service.read.scores import ProjectSummary, project_summary
from service.text.window import Window, window_of
from service.text.words import WORDS
from service.web.context import Services

router = APIRouter(include_in_schema=False)
Row = Mapping[str, Any]
_RUNS = 8


@router.get("/projects/{project}/details")
async def details(request: Request, *, viewer: Viewer, project: ShownProject, services: Services, asked: Asked) -> HTMLResponse:
    """Show the less urgent parts of a project, over the days that its page shows."""
    now = services.engine.now()
    window = window_of(asked, now)
    summary, these, before, marks, runs = await asyncio.gather(
        services.ask(lambda reading: project_summary(reading, project)),
        services.ask(lambda reading: _of_window(reading, project, window)),
        services.ask(lambda reading: _of_window(reading, project, window.before if window.compare else None)),
        services.ask(lambda reading: marks_within(reading, project, window.start, window.end, window.step)),
        services.ask(lambda reading: run_page(reading, project, None, _RUNS, between=(window.start, window.end))),
    )
    values = {
        "project": project,
        "summary": summary,
        "has_data": bool(summary.exchanges.exchanges or summary.scores.scores or these.costs),
        "window": window,
        "figures": _figures(these, before if window.compare else None),
        "costs_link": links_of(request).costs(project, **window.asked),
        "runs": runs,
        "sampling": [_sampling(row) for row in these.sampling],
        "unscored": _unscored(summary),
        "can_rejudge": "admin" in viewer.scopes,
        "has_judge": services.engine.has_judge,
        **_cost_values(stretch_of(project, window, marks), these.costs, before.costs if window.compare else None),
    }
    return page(request, "project_details.html", values)


def _cost_values(stretch: Stretch, costs: Sequence[Row], past: Sequence[Row] | None) -> dict[str, Any]:
    return {
        "cost_chart": cost_days(stretch, costs, past) if costs else None,
        "models": model_costs(costs),
        "cost": known_sum(costs),
        "simulated": sum(row["simulated"] for row in costs),
    }


@dataclass(frozen=True, slots=True)
class _Period:
    """The data of a period besides its points."""

    costs: Sequence[Row] = ()
    sampling: Sequence[Row] = ()

    def exchanges(self, disposition: str | None = None) -> int:
        """Count the exchanges of a disposition, or all."""
        return sum(row["exchanges"] for row in self.sampling if disposition in (None, row["disposition"]))

    @property
    def anomalies(self) -> int:
        """Count the anomalous exchanges."""
        return sum(row["anomalies"] for row in self.sampling)


def _of_window(cursor: duckdb.DuckDBPyConnection, project: str, window: Window | None) -> _Period:
    """Return the cost of judging a window's exchanges, and the reasons for judging; empty without a window."""
    if window is None:
        return _Period()
    return _Period(costs_of(cursor, project, window), sampling_of(cursor, project, window))


_COUNTS: Mapping[str, Callable[[_Period], float | None]] = {
    "Exchanges": _Period.exchanges,
    "Judged": lambda period: period.exchanges("scored"),
    "Left out by sampling": lambda period: period.exchanges("sampling_skip"),
    "Left out by the cap": lambda period: period.exchanges("skipped_cost_cap"),
    "Unscored": lambda period: period.exchanges("unscored"),
    "Anomalies": lambda period: period.anomalies,
    "Cost of judging": lambda period: known_sum(period.costs),
}
"""The figures of a period."""
_COST = "Cost of judging"


def _figures(these: _Period, before: _Period | None) -> list[dict[str, Any]]:
    """Return the figures of a period, with the preceding period's for comparison if requested."""
    return [
        {
            "label": label,
            "value": written(count(these)),
            "note": compared(count(these), count(before), written) if before else _unknown_costs(label, these),
            "kind": "bad" if label == "Anomalies" and count(these) else "",
        }
        for label, count in _COUNTS.items()
        for written in [usd if label == _COST else number]
    ]


def _unknown_costs(label: str, period: _Period) -> str | None:
    unknown = sum(row["unknown_costs"] for row in period.costs)
    return f"{number(unknown)} of unknown cost" if label == _COST and unknown else None


def _sampling(row: Row) -> dict[str, Any]:
    words = WORDS["sampling_reasons"].get(row["sampling_reason"], row["sampling_reason"])
    return {**row, "words": words, "bar": share_bar(row["share"], "" if row["disposition"] == "scored" else "left")}


def _unscored(summary: ProjectSummary) -> list[dict[str, Any]]:
    """Return the reasons why exchanges have no score from the judge, most frequent first, with advice."""
    return [
        {
            "reason": reason,
            "exchanges": count,
            "words": WORDS["reasons"].get(reason, reason),
            "remedy": WORDS["remedies"].get(reason, ""),
        }
        for reason, count in sorted(summary.exchanges.unscored_reasons.items(), key=lambda counted: (-counted[1], counted[0]))
    ]
