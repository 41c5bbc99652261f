"""Finished runs of a project and their diagnoses: verdict, failures with evidence, causal graph."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from audit.diagnosis.diagnosis import LOWEST_TRUST
from service.http.answers.project_answers import Moment
from service.http.routes.scores import PROJECT
from service.read.runs import run_document, run_page
from service.text.cursors import Place, page_of
from service.web.authentication import Reader, VisibleProject
from service.web.context import Services
from service.web.errors import ApiError, documented
from service.web.models import RunId
from service.web.paging import Cursor, Limit, NextCursor
from service.web.response_models import Answer

router = APIRouter(tags=["reading"])


class RunAnswer(Answer):
    """A finished run: a session that has ended."""

    run_id: str = Field(examples=["run_001"])
    project: str
    agent: str | None
    connection: str
    session_id: str
    started_at: Moment | None = Field(description="Time of the first runtime event; null without any.")
    ended_at: Moment | None = Field(
        description="Time of the last runtime event, without any that of the last exchange; null if not known."
    )
    closed_at: Moment
    readiness_level: str = Field(description="The verdict: look at it first.", examples=["unsafe_for_production"])
    trust_score: float | None = Field(
        description=f"{LOWEST_TRUST} to 100, because penalties are limited; null if `exchanges_only`. It ranks runs of the same readiness."
    )
    primary_failure_type: str | None
    primary_severity: str | None
    tool_calls: int
    event_count: int
    exchanges_only: bool = Field(
        description="True if only exchanges were received: without runtime events, readiness is `insufficient_evidence`."
    )


class RunsAnswer(Answer):
    """Runs, the one that ended last first."""

    runs: list[RunAnswer]
    count: int
    next_cursor: NextCursor


class OneRunAnswer(Answer):
    """A run with its full diagnosis, as `driftline diagnose --json` shows it."""

    run: RunAnswer
    diagnosis: dict[str, Any]


@router.get(f"{PROJECT}/runs", responses=documented(404))
async def runs(_: Reader, project: VisibleProject, services: Services, limit: Limit = 100, cursor: Cursor = None) -> RunsAnswer:
    """List the finished runs of a project, the one that ended last first."""
    before = None if cursor is None else (cursor.at, cursor.number)
    rows = await services.ask(lambda asked: run_page(asked, project, before, limit + 1))
    shown, following = page_of(rows, limit, lambda row: Place(row["last_at"], "", row["number"]))
    return RunsAnswer(runs=[RunAnswer.model_validate(row) for row in shown], count=len(shown), next_cursor=following)


@router.get(f"{PROJECT}/runs/{{run_id}}", responses=documented(404))
async def run(_: Reader, project: VisibleProject, services: Services, run_id: RunId, response: Response) -> OneRunAnswer:
    """Return one run with its diagnosis: failures, their events, and the causal graph."""
    found = await services.ask(lambda cursor: run_document(cursor, project, run_id))
    if found is None:
        raise ApiError(404, "not_found", "the project has no run with this id")
    # The evidence quotes what agents were told and did.
    response.headers["Cache-Control"] = "no-store"
    return OneRunAnswer(run=RunAnswer.model_validate(found[0]), diagnosis=found[1])
