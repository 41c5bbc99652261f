"""The page of an exchange: texts, findings by tier with reasons, questions to the judge, human scores."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse

from schemas.lazy import duckdb
from service.pages.exchanges.exchange_sections import TEXTS, calls_of, texts_of, tiers_of, whole_text
from service.pages.exchanges.record import ExchangeRecord, exchange_record
from service.pages.rendering import page
from service.pages.viewing import ShownProject, Viewer
from service.text.links import Links
from service.text.words import WORDS
from service.web.context import ApiContext, Services
from service.web.errors import ApiError
from service.web.models import Id, QueryMoment
from streams.upkeep.reviewing import MAX_COMMENT

router = APIRouter(include_in_schema=False)
ScoreId = Annotated[Id, Path()]
At = Annotated[QueryMoment | None, Query()]
"""Time of the exchange, which makes it faster to find."""
_NO_EXCHANGE = "The project has no score with this id. It may have been deleted."
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")
_links = Links()


@router.get("/projects/{project}/exchanges/{score_id}")
async def exchange(
    request: Request, viewer: Viewer, project: ShownProject, services: Services, *, score_id: ScoreId, at: At = None
) -> HTMLResponse:
    """Show the exchange of a score."""
    record = await _known(services, project, score_id, at)
    policy = services.engine.policy.for_project(project)

    def whole(name: str) -> str:
        return _links.exchange_text(project, score_id, name, record.score.exchange_at)

    values = {
        "project": project,
        "record": record,
        "score": record.score,
        "tiers": tiers_of(record.score),
        "texts": {} if record.exchange is None else texts_of(record.exchange, whole),
        "calls": calls_of(record, policy, whole),
        "sampling": WORDS["sampling"],
        "outcomes": WORDS["outcomes"],
        "takes_scores": policy.settings.bidirectional_scoring,
        "may_review": "review" in viewer.scopes,
        "max_comment": MAX_COMMENT,
    }
    return page(request, "exchange.html", values)


@router.get("/projects/{project}/exchanges/{score_id}/texts/{name}")
async def text(
    _: Viewer, project: ShownProject, services: Services, score_id: ScoreId, name: Annotated[Id, Path()], at: At = None
) -> Response:
    """Return the full text of an exchange as a download, which no browser renders."""
    record = await _known(services, project, score_id, at)
    found = whole_text(record, services.engine.policy.for_project(project), name)
    if found is None:
        raise ApiError(404, "not_found", "The exchange has no such text.")
    kind = name if name in TEXTS else name.partition(":")[0]
    file = _PLAIN.sub("-", f"{project}-{record.score.turn_number}-{kind}.txt")
    headers = {
        "Content-Disposition": f'attachment; filename="{file}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    return Response(found.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)


async def _known(services: ApiContext, project: str, score_id: str, at: datetime | None) -> ExchangeRecord:
    """Return the exchange; 404 if the project has no such exchange."""

    def asked(cursor: duckdb.DuckDBPyConnection) -> ExchangeRecord | None:
        return exchange_record(cursor, project, score_id, at, services.score_times)

    found = await services.ask(asked)
    if found is None:
        raise ApiError(404, "not_found", _NO_EXCHANGE)
    return found
