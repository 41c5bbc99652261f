"""Trends of a project: daily figures, the wrap-up of sessions, and sampling with its reasons."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BeforeValidator

from schemas.bounds import EARLIEST, LATEST
from service.http.routes.scores import PROJECT, From, To, require_window
from service.read.trends import SamplingMix, Trends, sampling_mix
from service.read.trends import trends as trends_of
from service.read.wrap_quality import WrapUpList, wrap_ups
from service.text.answers import after, page_of
from service.text.window import AskedRange, read_day, window_of
from service.web.answering import AnswerRoute
from service.web.authentication import Reader, VisibleProject
from service.web.context import Services
from service.web.errors import documented
from service.web.parameters import Cursor, Limit

router = APIRouter(route_class=AnswerRoute, tags=["reading"])


@router.get(f"{PROJECT}/trends", responses=documented(404))
async def trends(
    _: Reader,
    project: VisibleProject,
    services: Services,
    window: Annotated[Literal["7d", "14d", "30d"], Query(description="UTC days up to `until`.")] = "14d",
    until: Annotated[
        date | None, BeforeValidator(read_day), Query(description="The last UTC day; today by default, which is incomplete.")
    ] = None,
) -> Trends:
    """Return a project's figures by day of its exchanges, whenever they were scored."""
    shown = window_of(AskedRange(window, until), services.engine.now())
    return await services.ask(lambda cursor: trends_of(cursor, project, window, shown))


@router.get(f"{PROJECT}/wrap-quality", responses=documented(404))
async def wrap_quality(
    _: Reader, project: VisibleProject, services: Services, limit: Limit = 20, cursor: Cursor = None
) -> WrapUpList:
    """Show how sessions ended: the steps of a wrap-up in each. Empty if the policy switches it off."""
    policy = services.engine.policy
    sessions = await services.ask(lambda connection: wrap_ups(connection, policy, project, limit + 1, after(cursor)))
    shown, following = page_of(sessions, limit, lambda session: session.place)
    return WrapUpList(project=project, sessions=shown, next_cursor=following)


@router.get(f"{PROJECT}/sampling", responses=documented(404))
async def sampling(_: Reader, project: VisibleProject, services: Services, start: From = None, end: To = None) -> SamplingMix:
    """Count the exchanges of a project that were judged or left out, by reason."""
    require_window(start, end)
    return await services.ask(lambda cursor: sampling_mix(cursor, project, start or EARLIEST, end or LATEST))
