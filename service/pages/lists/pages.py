"""The pages of lists, and their files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from schemas.lazy.duckdb import duckdb
from service.documents.addresses.window import AskedRange, Window, bounds, listed_window
from service.http.context import ApiContext, Services
from service.http.errors import ApiError
from service.pages.lists.export import AT_ONCE, MOST_ROWS, WRITERS, pieces
from service.pages.lists.listing import Bounds, Listing, ListOf, asked_of, page_of_list, read_list
from service.pages.lists.tables import EXCHANGES, LISTS, SESSIONS
from service.pages.projects.days import shown_window
from service.pages.rendering import page
from service.pages.times.asked import Asked
from service.pages.times.range_control import range_control
from service.pages.viewing import ShownProject, Viewer

router = APIRouter(include_in_schema=False)
_DAY = timedelta(days=1)


@router.get("/projects/{project}/exchanges")
async def exchanges(request: Request, *, _: Viewer, project: ShownProject, services: Services, days: Asked) -> HTMLResponse:
    """Show the exchanges of a project: by agent, reason, score, outcome, model and label, in any order."""
    return await _page(request, services, project, days, EXCHANGES)


@router.get("/projects/{project}/sessions")
async def sessions(request: Request, *, _: Viewer, project: ShownProject, services: Services, days: Asked) -> HTMLResponse:
    """Show the sessions of a project: by agent, failure, readiness and score, in any order."""
    return await _page(request, services, project, days, SESSIONS)


@router.get("/projects/{project}/lists/{file}")
async def export(
    request: Request,
    *,
    _: Viewer,
    project: ShownProject,
    services: Services,
    days: Asked,
    since: date | None = None,
    file: Annotated[str, Path(max_length=64)],
) -> Response:
    """Return a list as a file, such as exchanges.csv: with the filters and the order of its address, from the first row on."""
    name, _dot, kind = file.rpartition(".")
    if name not in LISTS or kind not in WRITERS:
        known = ", ".join(f"{one}.{other}" for one in LISTS for other in WRITERS)
        raise ApiError(404, "not_found", f"There is no such file; there are {known}.")
    asked = asked_of(LISTS[name], request.query_params)
    now = services.engine.now()

    def read(cursor: duckdb.DuckDBPyConnection) -> tuple[Bounds, list[dict[str, Any]]]:
        _window, between = time_of(cursor, project, asked.of, days, now=now, since=first_day(request, since))
        return between, read_list(cursor, project, asked, between, limit=min(AT_ONCE, MOST_ROWS), last=None)

    between, first = await services.ask(read)
    headers = {
        "Content-Disposition": f'attachment; filename="{project}-{file}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    body = pieces(services, asked, project=project, bounds=between, kind=kind, first=first)
    return StreamingResponse(body, media_type=WRITERS[kind].media_type, headers=headers)


def time_of(
    cursor: duckdb.DuckDBPyConnection, project: str, of: ListOf, days: AskedRange, *, now: datetime, since: date | None
) -> tuple[Window | None, Bounds]:
    """Return the time that a list shows, None for all of it, and its bounds: also from one day to another, as incidents ask for runs."""
    if of.has_all and since is not None:
        last = days.until.date() if isinstance(days.until, datetime) else days.until
        return None, (_midnight(since), _midnight(last + _DAY) if last else None)
    window = listed_window(days, now) if of.has_all else shown_window(cursor, project, days, now)
    return window, bounds(window)


def first_day(request: Request, since: date | None) -> date | None:
    """Return the first day that an address asks for; None if it has a window instead."""
    return None if "window" in request.query_params else since


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


async def listed(
    request: Request,
    services: ApiContext,
    project: str,
    days: AskedRange,
    of: ListOf,
    *,
    since: date | None = None,
    most: int | None = None,
    beside: Callable[[duckdb.DuckDBPyConnection, Window | None], dict[str, Any]] = lambda _cursor, _window: {},
) -> dict[str, Any]:
    """Return the values of a page with a list, of `most` rows; `beside` reads further ones of the same time."""
    asked = asked_of(of, request.query_params, request.url.path)
    now = services.engine.now()

    def read(cursor: duckdb.DuckDBPyConnection) -> tuple[Window | None, Listing, dict[str, Any]]:
        window, between = time_of(cursor, project, of, days, now=now, since=first_day(request, since))
        return window, page_of_list(cursor, project, asked, between, most=most), beside(cursor, window)

    window, listing, more = await services.ask(read)
    return {
        "project": project,
        "listing": listing,
        "window": window,
        "range": range_control(request, window, now, has_all=of.has_all, has_comparison=of.has_comparison),
        "most_rows": MOST_ROWS,
        "simulated": sum(bool(row.get("simulated")) for row in listing.rows),
        **more,
    }


async def _page(request: Request, services: ApiContext, project: str, days: AskedRange, of: ListOf) -> HTMLResponse:
    return page(request, "list.html", await listed(request, services, project, days, of))
