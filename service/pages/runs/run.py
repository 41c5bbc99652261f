"""A finished run: its verdict, its causes, its events. And the runs of a project."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from schemas.lazy import duckdb
from service.pages.lists.pages import first_day, listed
from service.pages.lists.tables import READINESS, RUNS
from service.pages.projects.days import counts_of
from service.pages.rendering import number, page
from service.pages.runs.run_data import (
    PAYLOAD_SHOWN,
    RunEvents,
    RunRead,
    payloads_of,
    read_context,
    read_events,
    read_findings,
)
from service.pages.runs.timeline import ONLY, Asked, Timeline, timeline
from service.pages.runs.view import Address, Window, run_values
from service.pages.times.asked import AskedOfList
from service.pages.times.comparison import compared
from service.pages.viewing import ShownProject
from service.read.runs import Row, find_run
from service.read.sessions import finding_events
from service.text.window import Window as TimeWindow
from service.web.context import Services
from service.web.errors import ApiError
from service.web.models import RunId

router = APIRouter(include_in_schema=False)
NO_RUN = "the project has no run of this id"
Only = Annotated[str | None, Query(pattern=f"^({'|'.join(ONLY)})?$")]
Type = Annotated[str | None, Query(max_length=256)]
At = Annotated[int, Query(ge=1, le=2**40)]
Part = Annotated[str | None, Query(pattern="^[1-9][0-9]{0,9}-[1-9][0-9]{0,9}$")]


@router.get("/projects/{project}/runs")
async def runs(
    request: Request, project: ShownProject, services: Services, *, time: AskedOfList, since: date | None = None
) -> HTMLResponse:
    """Show the runs of a project: by readiness, agent, failure and trust, in any order; from one day to another, as incidents ask."""

    def beside(cursor: duckdb.DuckDBPyConnection, window: TimeWindow | None) -> dict[str, Any]:
        counts = counts_of(cursor, project, window)
        return {"told": _told(*counts) if counts else None}

    values = await listed(request, services, project, time, RUNS, since=since, beside=beside)
    days = (since, time.until) if first_day(request, since) else (None, None)
    return page(request, "runs.html", {**values, "levels": READINESS, "days": days})


def _told(now: Row, before: Row) -> str:
    """Compare a period with the preceding one, in words."""
    parts = (("runs", "runs"), ("unsafe_runs", "of them unsafe"))
    return "; ".join(f"{number(now[name])} {words}, {compared(now[name], before[name], number)}" for name, words in parts)


@router.get("/projects/{project}/runs/{run_id}")
async def run(
    request: Request,
    project: ShownProject,
    services: Services,
    run_id: RunId,
    *,
    type: Type = None,  # noqa: A002 - the name in the address
    only: Only = None,
    at: At = 1,
    graph: Part = None,
) -> HTMLResponse:
    """Show one run: its verdict, its causes, its events and their causal graph."""
    asked = Asked(type=type or None, only=only or None, at=at)
    found = await services.ask(lambda cursor: find_run(cursor, project, run_id))
    if found is None:
        raise ApiError(404, "not_found", NO_RUN)
    record, diagnosis = found

    def shown_events(
        cursor: duckdb.DuckDBPyConnection,
    ) -> tuple[RunEvents, dict[int, list[tuple[int, str, int]]], Timeline, dict[int, Row]]:
        located = finding_events(cursor, diagnosis)
        events = read_events(cursor, diagnosis, located)
        shown = timeline(events, asked)
        return (
            events,
            read_findings(cursor, found, located),
            shown,
            payloads_of(
                cursor,
                record.connection,
                record.session_id,
                [events.offsets[place] for place in shown.places],
                PAYLOAD_SHOWN,
            ),
        )

    # Read in two threads: half of the time is DuckDB's planning, which is single-threaded.
    context, (events, turns, shown, payloads) = await asyncio.gather(
        services.ask(lambda cursor: read_context(cursor, record)), services.ask(shown_events)
    )
    read = RunRead(run=record, diagnosis=diagnosis, context=context, events=events, turns=turns)
    address = Address(project=project, run_id=run_id, asked=asked, graph=_window(graph, len(events.ids)))
    return page(request, "run.html", {"project": project, **run_values(read, address, shown, payloads)})


def _window(text: str | None, count: int) -> Window | None:
    """Return the requested part of the graph, within the existing events; None for all of it."""
    if text is None or not count:
        return None
    first, last = sorted(min(int(number), count) for number in text.split("-"))
    return None if (first, last) == (1, count) else Window(first=first, last=last)
