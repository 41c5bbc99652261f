"""A finished run: its verdict, its causes, its events. And the runs of a project."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import duckdb
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from schemas.bounds.limits import EARLIEST
from service.documents.runs import Row, Wanted, run_page, worst_runs
from service.http.context import Services
from service.http.errors import ApiError
from service.http.paging import NO_CURSOR, Cursor, Place, page_of
from service.http.routes.runs import RunId
from service.pages.rendering import page
from service.pages.runs.run_data import PAYLOAD_SHOWN, RunRead, payloads_of, read_run
from service.pages.runs.timeline import ONLY, Asked, Timeline, timeline
from service.pages.runs.view import Address, Window, run_values
from service.pages.viewing import ShownProject

router = APIRouter(include_in_schema=False)
PAGE = 50
"""Runs of a page."""
READINESS = ("unsafe_for_production", "review_recommended", "ready_for_runtime", "insufficient_evidence")
"""Readiness levels, the worst first."""
NO_RUN = "the project has no run of this id"
Readiness = Annotated[str | None, Query(pattern=f"^({'|'.join(READINESS)})?$")]
Sort = Annotated[str | None, Query(pattern="^(trust)?$")]
Agents = Annotated[list[Annotated[str, Query(max_length=512)]] | None, Query(max_length=50)]
Only = Annotated[str | None, Query(pattern=f"^({'|'.join(ONLY)})?$")]
Type = Annotated[str | None, Query(max_length=256)]
At = Annotated[int, Query(ge=1, le=2**40)]
Part = Annotated[str | None, Query(pattern="^[1-9][0-9]{0,9}-[1-9][0-9]{0,9}$")]


@router.get("/projects/{project}/runs")
async def runs(
    request: Request,
    project: ShownProject,
    services: Services,
    *,
    readiness: Readiness = None,
    sort: Sort = None,
    agent: Agents = None,
    since: date | None = None,
    until: date | None = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show the runs of a project, the one that ended last first, or the worst first; by agent and day."""
    wanted = Wanted(readiness=readiness or None, agents=agent, since=since, until=until)
    is_narrowed = bool(agent or since or until)
    is_worst = sort == "trust" or is_narrowed
    after = _after(cursor) if is_worst else None
    before = (cursor.at, cursor.number) if cursor else None

    def read(asked: duckdb.DuckDBPyConnection) -> list[Row]:
        if is_worst:
            return worst_runs(asked, project, wanted, after, PAGE + 1)
        return run_page(asked, project, before, PAGE + 1, wanted.readiness)

    shown, following = page_of(await services.ask(read), PAGE, _place_among_worst if is_worst else _place)
    asked = {"sort": "trust", "agent": agent, "since": since and f"{since}", "until": until and f"{until}"} if is_worst else {}
    values = {"project": project, "runs": shown, "following": following, "is_first": cursor is None, "asked": asked}
    told = {"is_worst": is_worst, "is_narrowed": is_narrowed, "wanted": wanted}
    return page(request, "runs.html", {**values, **told, "readiness": wanted.readiness, "levels": READINESS})


def _place(row: Row) -> Place:
    """Return the place of a run among the newest."""
    return Place(row["last_at"], "", row["number"])


def _place_among_worst(row: Row) -> Place:
    """Return the place of a run among the worst: its level of readiness and its trust, with a slash between."""
    trust = row["trust_score"]
    return Place(EARLIEST, f"{row['level']}/{'' if trust is None else repr(float(trust))}", row["number"])


def _after(cursor: Place | None) -> tuple[int, float | None, int] | None:
    """Return the level, the trust and the number after which the list of the worst continues."""
    if cursor is None:
        return None
    level, _, trust = cursor.id.partition("/")
    try:
        return int(level), (float(trust) if trust else None), cursor.number
    except ValueError:
        raise ApiError(400, "invalid", f"cursor: {NO_CURSOR}") from None


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
    """Return the requested part of the graph, within the existing events; None for all of it."""
    if text is None or not count:
        return None
    first, last = sorted(min(int(number), count) for number in text.split("-"))
    return None if (first, last) == (1, count) else Window(first=first, last=last)
