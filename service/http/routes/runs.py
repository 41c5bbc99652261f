"""Finished runs of a project and their diagnoses: verdict, failures with evidence, causal graph."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.http.routes.scores import PROJECT
from service.read.run_diagnoses import DiagnosedRun, diagnosed_run
from service.read.runs import Runs, run_page
from service.text.answers import page_of
from service.web.answering import AnswerRoute
from service.web.authentication import Reader, VisibleProject
from service.web.context import Services
from service.web.errors import ApiError, documented
from service.web.models import RunId
from service.web.parameters import Cursor, Limit

router = APIRouter(route_class=AnswerRoute, tags=["reading"])


@router.get(f"{PROJECT}/runs", responses=documented(404))
async def runs(_: Reader, project: VisibleProject, services: Services, limit: Limit = 100, cursor: Cursor = None) -> Runs:
    """List the finished runs of a project, the one that ended last first."""
    before = None if cursor is None else (cursor.at, cursor.number)
    found = await services.ask(lambda asked: run_page(asked, project, before, limit + 1))
    shown, following = page_of(found, limit, lambda run: run.place)
    return Runs(runs=shown, count=len(shown), next_cursor=following)


@router.get(f"{PROJECT}/runs/{{run_id}}", responses=documented(404))
async def run(_: Reader, project: VisibleProject, services: Services, run_id: RunId, response: Response) -> DiagnosedRun:
    """Return one run with its diagnosis: failures, their events, where they lie, and the causal graph."""
    found = await services.ask(lambda cursor: diagnosed_run(cursor, project, run_id))
    if found is None:
        raise ApiError(404, "not_found", "the project has no run with this id")
    # The evidence quotes agents' conversations, so no cache may store it.
    response.headers["Cache-Control"] = "no-store"
    return found
