"""The review queue, which shows the exchange most worth reviewing, and the agreement of people with the judge."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from audit.agreement import HIGHEST, LOWEST, MIN_EXCHANGES, MIN_SESSIONS
from schemas.errors import PolicyError
from schemas.lazy import duckdb
from service.pages.rendering import Excerpt, excerpt, page
from service.pages.viewing import ShownProject, Viewer
from service.read.agreement import Agreement, project_agreement
from service.read.people import Order, ReviewItem, cached_times, next_to_review
from service.text.links import Links
from service.web.context import ApiContext, Services
from service.web.models import Id
from streams.upkeep.annotations import MAX_COMMENT, require_human_scores

router = APIRouter(include_in_schema=False)
MAX_SKIPPED_IN_LINK = 100
"""Number of newest skipped ids in an address. Earlier ones come up again."""
MAX_SKIPPED = 2 * MAX_SKIPPED_IN_LINK
"""Maximum number of ids in a request: skipped ones, and just scored ones whose records may still be pending."""
MARKS = {1: "Worst", 2: "Bad", 3: "Fair", 4: "Good", 5: "Best"}
"""Labels of the points."""
MAX_REASON = 500
"""Shown characters of a judge's comment. The page of the exchange has all of it."""
WINDOWS = {30: "30 days", 90: "90 days", 0: "All time"}
"""Periods of the agreement in days; 0 for all time."""
TEXTS = ("user_message", "agent_response", "agent_thinking")
"""The texts of an exchange, in order."""
_links = Links()
Skip = Annotated[list[Id] | None, Query(max_length=MAX_SKIPPED)]


@router.get("/projects/{project}/review")
async def review(
    request: Request,
    viewer: Viewer,
    project: ShownProject,
    services: Services,
    *,
    blind: bool = False,
    skip: Skip = None,
    order: Order = "anomalies",
) -> HTMLResponse:
    """Show the next exchange to review. `blind` hides the judge's verdict, and `skip` omits exchanges."""
    closed = _explain_closed(services, project) if "review" in viewer.scopes else "scope"
    skipped = skip or []

    def read_queue(cursor: duckdb.DuckDBPyConnection) -> tuple[ReviewItem | None, list[dict[str, Any]]]:
        times = services.score_times.read_scored_times(cursor, project, viewer.name)
        waiting = query_rows(cursor, "review_waiting", {"project": project, "rater": viewer.name, "times": times})
        if closed:
            return None, waiting
        cached = services.score_times
        item = next_to_review(cursor, project, viewer.name, skipped, blind=blind, order=order, times=cached)
        if item:
            cached.store(project, item.score_id, item.exchange_at)
        return item, waiting

    item, waiting = await services.ask(read_queue)
    path = _links.review(project)
    by_interval = order == "interval"
    values = {
        "project": project,
        "item": item,
        "texts": _cut_texts(project, item) if item else {},
        "closed": closed,
        "blind": blind,
        "skipped": len(skipped),
        "waiting": waiting,
        "total": sum(row["waiting"] for row in waiting),
        "mine": sum(row["mine"] for row in waiting),
        "marks": {score: MARKS[score] for score in range(LOWEST, HIGHEST + 1)},
        "max_comment": MAX_COMMENT,
        "max_reason": MAX_REASON,
        "by_interval": by_interval,
        "here_link": _build_address(path, skipped, blind=blind, by_interval=by_interval),
        "skip_link": _build_address(path, [*skipped, item.score_id], blind=blind, by_interval=by_interval) if item else None,
        "other_link": _build_address(path, skipped, blind=not blind, by_interval=by_interval),
        "order_link": _build_address(path, skipped, blind=blind, by_interval=not by_interval),
        "afresh_link": _build_address(path, [], blind=blind, by_interval=by_interval),
    }
    return page(request, "review.html", values)


@router.get("/projects/{project}/agreement")
async def agreement(
    request: Request, _: Viewer, project: ShownProject, services: Services, days: Literal["30", "90", "0"] = "30"
) -> HTMLResponse:
    """Show the agreement of people with the judge over some days."""
    day_count = int(days)
    start = services.engine.now() - timedelta(days=day_count) if day_count else None
    database = services.engine.store.path

    def measure(cursor: duckdb.DuckDBPyConnection) -> Agreement:
        times = cached_times(services.score_times, cursor, project)
        return project_agreement(cursor, project, start, times=times, database=database)

    measured = await services.ask(measure)
    rows = [("All people", measured.overall), *((estimate.rater, estimate) for estimate in measured.raters)]
    values = {
        "project": project,
        "found": measured,
        "rows": rows,
        "months": [(estimate.month, estimate) for estimate in measured.months],
        "days": day_count,
        "windows": WINDOWS,
        "needed": (MIN_EXCHANGES, MIN_SESSIONS),
    }
    return page(request, "agreement.html", values)


def _cut_texts(project: str, item: ReviewItem) -> dict[str, Excerpt]:
    """Return excerpts of the texts that still exist, by name."""
    texts = {name: getattr(item, name) for name in TEXTS}
    return {
        name: excerpt(text, _links.exchange_text(project, item.score_id, name, item.exchange_at))
        for name, text in texts.items()
        if text is not None
    }


def _explain_closed(services: ApiContext, project: str) -> PolicyError | None:
    """Return why the project accepts no human scores; None if it does."""
    try:
        require_human_scores(services.engine.policy, project)
    except PolicyError as error:
        return error
    return None


def _build_address(path: str, skipped: list[str], *, blind: bool, by_interval: bool) -> str:
    params = [("blind", "true")] if blind else []
    params += [("order", "interval")] if by_interval else []
    params += [("skip", score_id) for score_id in skipped[-MAX_SKIPPED_IN_LINK:]]
    return f"{path}?{urlencode(params)}" if params else path
