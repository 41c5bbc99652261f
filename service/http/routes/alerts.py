"""Alerts that were sent, for operators of every project."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import Field

from analytics.store.outbox import Outbox
from service.http.answers.project_answers import Moment
from service.text.cursors import Place, after, page_of
from service.text.paths import API
from service.web.authentication import Reader, require_project
from service.web.context import Services
from service.web.errors import documented
from service.web.models import AlertStatus
from service.web.paging import Cursor, Limit, NextCursor
from service.web.response_models import Answer

router = APIRouter(tags=["alerts"])


class AlertAnswer(Answer):
    """An alert, and the state of its delivery."""

    id: str = Field(description="The same for the same cause and channel.")
    channel: Literal["webhook", "slack"]
    kind: Literal["incident", "telemetry", "judge"]
    subject: str = Field(description="Id of the incident, connection and id of the session, or the model that judges.")
    project: str | None
    severity: Literal["warning", "critical"]
    status: AlertStatus
    created_at: Moment
    not_before: Moment = Field(description="Time of the next attempt, or of the last one. Quiet hours and failures delay it.")
    attempts: int
    settled_at: Moment | None = Field(description="When it was delivered or given up.")
    last_error: str | None = Field(description="Why the last attempt failed.", examples=["the answer was 503"])


class AlertsAnswer(Answer):
    """Alerts, newest first."""

    alerts: list[AlertAnswer]
    count: int
    next_cursor: NextCursor


@router.get(f"{API}/alerts", responses=documented(400))
async def alerts(
    *,
    caller: Reader,
    services: Services,
    status: Annotated[AlertStatus | None, Query(description="Only those.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AlertsAnswer:
    """List the alerts on incidents, silent sessions and judges of every project, newest first."""
    require_project(caller, None)
    outbox = Outbox(services.engine.store)
    rows = await anyio.to_thread.run_sync(outbox.listed, status, limit + 1, after(cursor))
    shown, following = page_of(rows, limit, lambda row: Place(row["created_at"], row["alert_id"]))
    return AlertsAnswer(alerts=[_answer(row) for row in shown], count=len(shown), next_cursor=following)


def _answer(row: dict[str, Any]) -> AlertAnswer:
    return AlertAnswer.model_validate({**row, "id": row["alert_id"], "subject": row["subject_id"]})
