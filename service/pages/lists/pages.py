"""The pages of lists, and their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from schemas.bounds import EARLIEST
from schemas.lazy import duckdb
from service.pages.lists.export import AT_ONCE, MOST_ROWS, WRITERS, pieces
from service.pages.lists.listing import BY_TIME, Bounds, Listing, ListOf, asked_of, page_of_list, read_list
from service.pages.lists.listing import Asked as AskedList
from service.pages.lists.tables import EXCHANGES, LISTS, SESSIONS
from service.pages.rendering import page
from service.pages.times.asked import Asked, AskedOfList
from service.pages.times.range_control import range_control
from service.pages.viewing import ShownProject, Viewer
from service.text.window import AskedRange, Window, bounds, last_period, listed_window
from service.web.context import ApiContext, Services
from service.web.errors import ApiError

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
    days: AskedOfList,
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
        _window, between = time_of(asked.of, days, now=now, since=first_day(request, since))
        return between, read_list(cursor, project, asked, between, limit=min(AT_ONCE, MOST_ROWS), last=None)

    between, first = await services.ask(read)
    headers = {
        "Content-Disposition": f'attachment; filename="{project}-{file}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    body = pieces(services, asked, project=project, bounds=between, kind=kind, first=first)
    return StreamingResponse(body, media_type=WRITERS[kind].media_type, headers=headers)


def time_of(of: ListOf, days: AskedRange, *, now: datetime, since: date | None) -> tuple[Window | None, Bounds]:
    """Return the window of a list, None for all time, and its bounds, which may also be a range of days, as in links from incidents to runs."""
    if of.has_all and since is not None:
        last = days.until.date() if isinstance(days.until, datetime) else days.until
        return None, (_midnight(since), _midnight(last + _DAY) if last else None)
    window = listed_window(days, now)
    return window, bounds(window)


def last_with_rows(cursor: duckdb.DuckDBPyConnection, project: str, asked: AskedList, window: Window) -> Window | None:
    """Return the last period before a window, of the same length, in which a list has rows; None if it has none."""
    by_time = dataclasses.replace(asked, sort=BY_TIME, down=True, last=None)
    rows = read_list(cursor, project, by_time, (EARLIEST, window.start), limit=1, last=None)
    return last_period(window, rows[0][asked.of.sorts[BY_TIME].key] if rows else None)


def first_day(request: Request, since: date | None) -> date | None:
    """Return the first day in an address; None if it has a window instead."""
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
    """Return the values of a page with a list of at most `most` rows; `beside` reads further values for the same period."""
    asked = asked_of(of, request.query_params, request.url.path)
    now = services.engine.now()

    def read(cursor: duckdb.DuckDBPyConnection) -> tuple[Window | None, Window | None, Listing, dict[str, Any]]:
        window, between = time_of(of, days, now=now, since=first_day(request, since))
        listing = page_of_list(cursor, project, asked, between, most=most)
        is_empty = window is not None and not listing.rows and asked.last is None
        last = last_with_rows(cursor, project, asked, window) if window is not None and is_empty else None
        return window, last, listing, beside(cursor, window)

    window, last, listing, more = await services.ask(read)
    return {
        "project": project,
        "listing": listing,
        "window": window,
        "range": range_control(request, window, now, has_all=of.has_all, has_comparison=of.has_comparison, last=last),
        "most_rows": MOST_ROWS,
        "simulated": sum(bool(row.get("simulated")) for row in listing.rows),
        **more,
    }


async def _page(request: Request, services: ApiContext, project: str, days: AskedRange, of: ListOf) -> HTMLResponse:
    return page(request, "list.html", await listed(request, services, project, days, of))
