"""A finished run: the verdict first, then why, then everything that happened. And the runs of a project."""

from __future__ import annotations

from typing import Annotated

import duckdb
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from schemas.limits import EARLIEST
from service.api.context import Services
from service.api.errors import ApiError
from service.api.paging import Cursor, Place, page_of
from service.api.runs import RunId
from service.dashboard.rendering import page
from service.dashboard.run_reading import PAYLOAD_SHOWN, RunRead, payloads_of, read_run
from service.dashboard.run_timeline import ONLY, Asked, Timeline, timeline
from service.dashboard.run_view import Address, Window, run_values
from service.dashboard.viewing import ShownProject
from service.runs import Row, run_page

router = APIRouter(include_in_schema=False)
PAGE = 50
"""Runs of a page."""
READINESS = ("unsafe_for_production", "review_recommended", "ready_for_runtime", "insufficient_evidence")
"""Readiness levels, the worst first."""
NO_RUN = "the project has no run of this id"
Readiness = Annotated[str | None, Query(pattern=f"^({'|'.join(READINESS)})?$")]
Only = Annotated[str | None, Query(pattern=f"^({'|'.join(ONLY)})?$")]
Type = Annotated[str | None, Query(max_length=256)]
At = Annotated[int, Query(ge=1, le=2**40)]
Part = Annotated[str | None, Query(pattern="^[1-9][0-9]{0,9}-[1-9][0-9]{0,9}$")]


@router.get("/projects/{project}/runs")
async def runs(
    request: Request, project: ShownProject, services: Services, readiness: Readiness = None, cursor: Cursor = None
) -> HTMLResponse:
    """The runs of a project, the one that was finished last first."""
    level, before = readiness or None, cursor.number if cursor else None
    found = await services.ask(lambda asked: run_page(asked, project, before, PAGE + 1, level))
    shown, following = page_of(found, PAGE, lambda row: Place(EARLIEST, "", row["number"]))
    values = {"project": project, "runs": shown, "following": following, "is_first": cursor is None}
    return page(request, "runs.html", {**values, "readiness": level, "levels": READINESS})


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
    """One run: its verdict, its causes, its events and what led to what."""
    asked = Asked(type=type or None, only=only or None, at=at)

    def read(cursor: duckdb.DuckDBPyConnection) -> tuple[RunRead, Timeline, dict[int, Row]]:
        found = read_run(cursor, project, run_id)
        if found is None:
            raise ApiError(404, "not_found", NO_RUN)
        shown = timeline(found.events, asked)
        offsets = [found.events.offsets[place] for place in shown.places]
        return found, shown, payloads_of(cursor, found.row, offsets, PAYLOAD_SHOWN)

    found, shown, payloads = await services.ask(read)
    address = Address(project=project, run_id=run_id, asked=asked, graph=_window(graph, len(found.events.ids)))
    return page(request, "run.html", {"project": project, **run_values(found, address, shown, payloads)})


def _window(text: str | None, count: int) -> Window | None:
    """The part of the graph that is asked for, within the events that there are; None for all of it."""
    if text is None or not count:
        return None
    first, last = sorted(min(int(number), count) for number in text.split("-"))
    return None if (first, last) == (1, count) else Window(first=first, last=last)
