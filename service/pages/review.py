"""The review queue, which shows the exchange most worth reviewing, and the agreement of people with the judge."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from analytics.queries import query_rows
from audit.agreement import HIGHEST, LOWEST, MIN_EXCHANGES, MIN_SESSIONS
from audit.detectors.detectors import FAILURE_TYPES
from schemas.errors import PolicyError
from schemas.lazy import duckdb
from service.pages.rendering import Excerpt, excerpt, page
from service.pages.viewing import ShownProject, Viewer
from service.read.agreement import Agreement, project_agreement
from service.read.incidents import people_of
from service.read.people import Order, ReviewItem, cached_times, next_of_queue, next_to_review
from service.read.review_queues import (
    MAX_DAYS,
    MAX_PER_DAY,
    MAX_REVIEWS,
    MAX_RUBRIC,
    QueueRule,
    QueueSettings,
    ReviewQueue,
    dimensions_of,
    read_queues,
    review_queues,
)
from service.read.sessions import TurnRange, find_sessions, session_question, session_turns
from service.text.answers import document
from service.text.links import Links
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import Id, QueueName
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
MAX_EARLIER_TURNS = 5
"""Turns of the session before the reviewed exchange."""
MAX_EARLIER_TEXT = 2_000
"""Characters of a text of an earlier turn."""
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
    queue: QueueName | None = None,
) -> HTMLResponse:
    """Show the next exchange to review. `blind` hides the judge's verdict, and `skip` omits exchanges. `queue` is a named queue."""
    closed = _explain_closed(services, project) if "review" in viewer.scopes else "scope"
    skipped = skip or []

    now = services.engine.now()

    def read_named(cursor: duckdb.DuckDBPyConnection, named: ReviewQueue) -> tuple[ReviewItem | None, ReviewQueue]:
        item, counted = next_of_queue(cursor, project, named, viewer.name, skipped, now=now, blind=blind)
        return (None if closed else item), counted

    def read_general(cursor: duckdb.DuckDBPyConnection) -> tuple[ReviewItem | None, list[dict[str, Any]]]:
        times = services.score_times.read_scored_times(cursor, project, viewer.name)
        waiting = query_rows(cursor, "review_waiting", {"project": project, "rater": viewer.name, "times": times})
        if closed:
            return None, waiting
        cached = services.score_times
        item = next_to_review(cursor, project, viewer.name, skipped, blind=blind, order=order, times=cached)
        if item:
            cached.store(project, item.score_id, item.exchange_at)
        return item, waiting

    def read(cursor: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        queues = read_queues(cursor, project)
        named = next((other for other in queues if other.name == queue), None)
        if queue is not None and named is None:
            raise ApiError(404, "not_found", f"There is no open review queue {queue}.")
        waiting: list[dict[str, Any]] = []
        if named is not None:
            item, named = read_named(cursor, named)
        else:
            item, waiting = read_general(cursor)
        earlier = [] if item is None else read_earlier_turns(cursor, project, item)
        return {
            "queues": queues,
            "queue": named,
            "item": item,
            "waiting": waiting,
            "earlier": earlier,
            "session_question": item and session_question(cursor, project, item.connection, item.session_id),
        }

    values = await services.ask(read)
    item, waiting = values["item"], values["waiting"]
    path = _links.review(project)
    build_address = partial(_build_address, path, queue=queue)
    by_interval = order == "interval"
    values |= {
        "project": project,
        "texts": _cut_texts(project, item) if item else {},
        "closed": closed,
        "blind": blind,
        "skipped": len(skipped),
        "total": sum(row["waiting"] for row in waiting),
        "mine": sum(row["mine"] for row in waiting),
        "marks": {score: MARKS[score] for score in range(LOWEST, HIGHEST + 1)},
        "max_comment": MAX_COMMENT,
        "max_reason": MAX_REASON,
        "by_interval": by_interval,
        "dimensions": dimensions_of(services.engine.policy.for_project(project)),
        "here_link": build_address(skipped, blind=blind, by_interval=by_interval),
        "skip_link": build_address([*skipped, item.score_id], blind=blind, by_interval=by_interval) if item else None,
        "other_link": build_address(skipped, blind=not blind, by_interval=by_interval),
        "order_link": build_address(skipped, blind=blind, by_interval=not by_interval),
        "afresh_link": build_address([], blind=blind, by_interval=by_interval),
    }
    return page(request, "review.html", values)


@router.get("/projects/{project}/review/queues")
async def queues(
    request: Request, viewer: Viewer, project: ShownProject, services: Services, edit: QueueName | None = None
) -> HTMLResponse:
    """Show the review queues of a project with their progress, and a form that creates or changes one."""
    now = services.engine.now()
    listed = await services.ask(lambda cursor: review_queues(cursor, project, viewer.name, now))
    edited = next((queue for queue in listed if queue.name == edit), None)
    params = request.query_params
    rule = {name: params[name] for name in QueueRule.__struct_encode_fields__ if params.get(name)}
    if edited is not None and edited.settings.rule is not None:
        # Not by equality: 0 is a score, and equals False.
        rule = {
            name: value for name, value in document(edited.settings.rule).items() if value is not None and value is not False
        }
    values = {
        "project": project,
        "queues": listed,
        "edited": edited,
        "settings": edited.settings if edited else QueueSettings(),
        "rule": rule,
        "has_rule": edited.settings.rule is not None if edited else bool(rule),
        "dimensions": dimensions_of(services.engine.policy.for_project(project)),
        "people": people_of(services.access, project),
        "may_review": "review" in viewer.scopes,
        "failures": {name: failure.title for name, failure in FAILURE_TYPES.items()},
        "limits": {"rubric": MAX_RUBRIC, "per_day": MAX_PER_DAY, "reviews": MAX_REVIEWS, "days": MAX_DAYS},
    }
    return page(request, "review_queues.html", values)


def read_earlier_turns(cursor: duckdb.DuckDBPyConnection, project: str, item: ReviewItem) -> list[dict[str, Any]]:
    """Return the last turns of an exchange's session before it, oldest first, with excerpts of their texts."""
    for session in find_sessions(cursor, item.session_id, [project], item.connection):
        page_of = session_turns(cursor, session, TurnRange(exchange=item.exchange_id, limit=1, max_text_length=0))
        place = page_of[0]["place"] if page_of else 1
        before = TurnRange(
            skip=max(0, place - 1 - MAX_EARLIER_TURNS),
            limit=min(MAX_EARLIER_TURNS, place - 1),
            max_text_length=MAX_EARLIER_TEXT,
        )
        rows = session_turns(cursor, session, before) if place > 1 else []
        return [{**row, "earlier_count": place - 1} for row in rows]
    return []


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
        "queue_rows": [(estimate.queue, estimate) for estimate in measured.queues],
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


def _build_address(path: str, skipped: list[str], *, blind: bool, by_interval: bool, queue: str | None) -> str:
    params = [("queue", queue)] if queue else []
    params += [("blind", "true")] if blind else []
    params += [("order", "interval")] if by_interval else []
    params += [("skip", score_id) for score_id in skipped[-MAX_SKIPPED_IN_LINK:]]
    return f"{path}?{urlencode(params)}" if params else path
