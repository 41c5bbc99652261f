"""Audit log endpoint: changes by operators and commands."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from service.setup.access.audit_log import Line
from service.text.cursors import Place, page_of
from service.text.paths import API
from service.web.authentication import FleetAdmin
from service.web.context import Services
from service.web.errors import documented
from service.web.models import ConnectionName
from service.web.paging import Cursor, Limit, NextCursor
from service.web.response_models import Answer

router = APIRouter(tags=["access"])


class LineAnswer(Answer):
    """A requested change."""

    id: int
    at: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    kind: Literal["operator", "command"] = Field(description="Over HTTP, or by a command on the server's machine.")
    name: str = Field(description="The operator, or the account of the machine.", examples=["root"])
    token: str | None = Field(description="Public prefix of the token.", examples=["dl_0f3a77c1b2d4"])
    method: str = Field(examples=["POST"])
    route: str = Field(description="Template of the address, or the command.", examples=["/api/audit/{project}/rejudge"])
    project: str | None
    subject: str | None = Field(description="Subject of the change: an id or a name.")
    request_id: str | None = Field(description="As in X-Request-Id and in the server's log.")
    status: int | None = Field(description="Status of the HTTP answer.", examples=[202])
    outcome: Literal["done", "refused", "failed"] | None = Field(description="null: not finished, or interrupted.")


class AuditLogAnswer(Answer):
    """Changes, newest first."""

    lines: list[LineAnswer]
    count: int
    next_cursor: NextCursor


@router.get(f"{API}/audit-log", responses=documented(400))
def audit_log(
    *,
    _: FleetAdmin,
    services: Services,
    response: Response,
    name: Annotated[ConnectionName | None, Query(description="Only changes by this operator or account.")] = None,
    project: Annotated[ConnectionName | None, Query(description="Only changes in this project.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditLogAnswer:
    """List what operators changed and refused changes, newest first, without what was sent."""
    before = None if cursor is None else cursor.number
    lines = services.access.audit_log.lines(limit + 1, before, name=name, project=project)
    shown, following = page_of(lines, limit, lambda line: Place(datetime.fromisoformat(line.at), "", line.id))
    response.headers["Cache-Control"] = "no-store"
    return AuditLogAnswer(lines=[_answer(line) for line in shown], count=len(shown), next_cursor=following)


def _answer(line: Line) -> LineAnswer:
    fields = dataclasses.asdict(line)
    return LineAnswer(**fields | {"token": line.token and f"dl_{line.token}"})
