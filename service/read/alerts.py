"""Alerts and their delivery."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from analytics.queries import query_rows
from schemas.lazy import duckdb
from service.text.answers import Answer, Moment, NextCursor

AlertStatus = Literal["waiting", "delivered", "given_up"]


class AlertDelivery(Answer, frozen=True):
    """An alert, and the state of its delivery."""

    id: Annotated[str, Meta(description="The same for the same cause and channel.")]
    channel: Literal["webhook", "slack"]
    kind: Literal["incident", "telemetry", "judge"]
    subject: Annotated[str, Meta(description="Id of the incident, connection and id of the session, or the model that judges.")]
    project: str | None
    severity: Literal["warning", "critical"]
    status: AlertStatus
    created_at: Moment
    not_before: Annotated[
        Moment, Meta(description="Time of the next attempt, or of the last one. Quiet hours and failures delay it.")
    ]
    attempts: int
    settled_at: Annotated[Moment | None, Meta(description="When it was delivered or given up.")]
    last_error: Annotated[str | None, Meta(description="Why the last attempt failed.", examples=["the answer was 503"])]


class AlertList(Answer, frozen=True):
    """Alerts, newest first."""

    alerts: list[AlertDelivery]
    count: int
    next_cursor: NextCursor


def alert_deliveries(
    cursor: duckdb.DuckDBPyConnection,
    limit: int,
    *,
    status: str | None = None,
    project: str | None = None,
    before: tuple[datetime, str] | None = None,
) -> list[AlertDelivery]:
    """Return a page of alerts, newest first, of a status and of one project or all."""
    at, alert_id = before or (None, None)
    values = {"status": status, "project": project, "before_at": at, "before_id": alert_id, "limit": limit}
    return [
        AlertDelivery.of(row, id=row["alert_id"], subject=row["subject_id"]) for row in query_rows(cursor, "alerts", values)
    ]
